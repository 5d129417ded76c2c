"""Changes by operators, with the audit log around them.

Invariants:
- A change is recorded in the audit log before it is made.
- A change is in effect in this process when its answer is sent (at most REFRESH_S_MAX late).
- A refusal by the store names the field of the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from proxy.billing.correction import UnknownExchangeError
from proxy.billing.keys import Account, ApiKey
from proxy.console.api.endpoints import ApiCall
from proxy.console.api.reading import invalid
from proxy.console.api.schemas.keys import FIELDS
from proxy.foundation.secret import masked
from proxy.foundation.smtp import MailError
from proxy.http.errors import ApiError, keys_unavailable
from proxy.keys import narrowing
from proxy.keys.keyring import Keyring
from proxy.keys.secrets import parse
from proxy.ledger.accounts.account_store import UnknownAccountError
from proxy.ledger.accounts.audit_log import Actor, AuditLog, PendingEntry
from proxy.ledger.accounts.key_store import KeyChangedError, UnknownKeyError
from proxy.ledger.grants.store import UnknownGrantError
from proxy.ledger.limit_rules import UnknownRuleError
from proxy.reports.statement_mail import AlreadySentError
from proxy.storage.executor import BoundedExecutor

# How long an answer waits for the keyring's refresh; the next poll of the keyring brings the change anyway.
REFRESH_S_MAX = 1.0

# Fields that name the target of the change; they are not repeated in the details.
_NAMES = frozenset({"key", "account", "limit", "grant"})


class RefusedChange(ValueError):  # noqa: N818  no error of ours
    """A refusal of a change, with its answer."""

    def __init__(self, answer: ApiError) -> None:
        super().__init__(answer.message)
        self.answer = answer


class AuditedOperations:
    """Runs changes and records them in the audit log."""

    def __init__(self, audit_log: AuditLog, threads: BoundedExecutor, keyring: Keyring) -> None:
        self._audit_log = audit_log
        self._threads = threads
        self._keyring = keyring

    async def run(
        self, call: ApiCall, action: str, target: str | None, fields: Any, work: Callable[[PendingEntry], Any]
    ) -> Any:
        """Records and runs `work`, then refreshes the keyring. Raises ApiError if the store refuses the change."""
        details = _details(fields)
        result = await self.call_store(lambda: self._recorded(call, action, target, details, work))
        await self._refreshed()
        return result

    async def run_each(
        self, call: ApiCall, action: str, targets: Iterable[str], work: Callable[[str], Any]
    ) -> dict[str, str | None]:
        """Records and runs `work` for each target, then refreshes the keyring once. Returns for each target why it was
        refused; None: it is done. Raises OSError: the targets so far are done."""

        def run_all() -> dict[str, str | None]:
            return {target: one(target) for target in targets}

        def one(target: str) -> str | None:
            try:
                self._recorded(call, action, target, {}, lambda _act: work(target))
            except ValueError as refusal:
                return _refused(refusal).message
            return None

        results: dict[str, str | None] = await self.call_store(run_all)
        await self._refreshed()
        return results

    def _recorded(
        self,
        call: ApiCall,
        action: str,
        target: str | None,
        details: Mapping[str, Any],
        work: Callable[[PendingEntry], Any],
    ) -> Any:
        """On a thread. Raises ValueError, OSError."""
        by = Actor(call.session.actor, "api", call.session.address)
        with self._audit_log.operation(by, action, target, details) as act:
            done = work(act)
            if isinstance(done, ApiKey):
                act.target = done.key_id
            if isinstance(done, Account):
                act.target = done.account_id
            return done

    async def _refreshed(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(REFRESH_S_MAX):
                await self._keyring.refresh()

    async def call_store(self, work: Callable[[], Any]) -> Any:
        """Runs `work` on a thread. Raises ApiError if the store refuses the change."""
        try:
            return await self._threads.run(work)
        except ValueError as refusal:
            raise _refused(refusal) from None

    async def key_named(self, text: str) -> str:
        """A key's id or alias as given; a secret is replaced by its key's id. Raises ApiError."""
        if narrowing.parse(text) is not None:
            found = await self._keyring.narrowed_key(text)
        elif parse(text) is not None:
            found = await self._keyring.key(text)
        elif masked(text) != text:
            raise unknown_key()
        else:
            return text
        if found == "unavailable":
            raise keys_unavailable()
        if isinstance(found, str) or found.is_narrowed:
            raise unknown_key()
        return found.key_id


def _details(fields: Any) -> dict[str, Any]:
    """The fields of a request, for the audit log."""
    sent = {} if fields is None else msgspec.to_builtins(fields)
    return {name: value for name, value in sent.items() if name not in _NAMES}


def checked(param: str, read: Callable[[Any], Any], value: Any) -> Any:
    """`read(value)`; raises ApiError instead of ValueError. It names the field that the message begins with, or else
    `param`."""
    try:
        return read(value)
    except ValueError as wrong:
        name, colon, message = str(wrong).partition(": ")
        named = FIELDS.get(name) if colon else None
        raise invalid(f"'{named or param}': {message if named else wrong}.", named or param) from None


def _refused(refusal: ValueError) -> ApiError:
    """The store's message, under the name of the request's field."""
    if isinstance(refusal, RefusedChange):
        return refusal.answer
    if isinstance(refusal, UnknownKeyError):
        return unknown_key()
    name, colon, message = str(refusal).partition(": ")
    param = FIELDS.get(name) if colon else None
    if isinstance(refusal, UnknownAccountError) and param == "account":
        return ApiError(404, f"'account': {message}.", param=param, code="account_not_found")
    if isinstance(refusal, AlreadySentError):
        return ApiError(409, f"'again': {refusal}; send true to send it again.", param="again", code="already_sent")
    if isinstance(refusal, MailError):
        return ApiError(502, f"{refusal}.", kind="api_error", code="mail_failed")
    if isinstance(refusal, UnknownExchangeError):
        return ApiError(404, f"{refusal}.", param="exchange_id", code="exchange_not_found")
    if isinstance(refusal, KeyChangedError):
        return ApiError(409, f"{refusal}.", kind="conflict", code="rotated_recently")
    if isinstance(refusal, UnknownGrantError):
        return ApiError(404, f"'grant': {message}.", param=param, code="grant_not_found")
    if isinstance(refusal, UnknownRuleError):
        return ApiError(404, f"'limit': {message}.", param=param, code="limit_not_found")
    return invalid(f"{refusal}." if param is None else f"'{param}': {message}.", param)


def unknown_key() -> ApiError:
    """404: no key has this name, or the caller may not see it."""
    return ApiError(404, "No such key.", param="key", code="key_not_found")
