"""What operators change, by the same functions as the commands. Law: a change is put down as an act before it is done,
and counts in this process when it is answered; a refusal of the store goes by the name of the field that was sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from proxy.billing.keys import Account, ApiKey
from proxy.console.api.endpoints import Call
from proxy.console.api.reading import invalid
from proxy.console.api.schemas.keys import FIELDS
from proxy.foundation.secret import masked
from proxy.http.errors import ApiError, keys_unavailable
from proxy.keys.secrets import parse
from proxy.ledger.accounts.account_store import UnknownAccountError
from proxy.ledger.accounts.audit_log import Actor, AuditLog, PendingEntry
from proxy.ledger.accounts.key_store import UnknownKeyError
from proxy.storage.executor import BoundedExecutor

# How long an answer waits for the change to count here; the next poll brings it anyway.
REFRESH_S_MAX = 1.0

# What names the one that is changed: it is the act's target, and none of its details.
_NAMES = frozenset({"key", "account"})


class KeyLookup(Protocol):
    """The keyring, as this needs it."""

    async def key(self, presented: str | None, address: str | None = None) -> ApiKey | str: ...
    async def refresh(self) -> None: ...


class AuditedOperations:
    """Does what a call asks for."""

    def __init__(self, acts: AuditLog, threads: BoundedExecutor, keyring: KeyLookup) -> None:
        self._acts = acts
        self._threads = threads
        self._keyring = keyring

    async def act(
        self, call: Call, action: str, target: str | None, fields: Any, work: Callable[[PendingEntry], Any]
    ) -> Any:
        """Do it, put down; what came of it counts here from now on. Raises ApiError for what the store refuses."""
        given = {} if fields is None else msgspec.to_builtins(fields)
        details = {name: value for name, value in given.items() if name not in _NAMES}

        def acted() -> Any:
            by = Actor(call.who.actor, "api", call.who.address)
            with self._acts.operation(by, action, target, details) as act:
                done = work(act)
                if isinstance(done, ApiKey):
                    act.target = done.key_id
                if isinstance(done, Account):
                    act.target = done.account_id
                return done

        found = await self.ask(acted)
        with suppress(TimeoutError):
            async with asyncio.timeout(REFRESH_S_MAX):
                await self._keyring.refresh()
        return found

    async def ask(self, work: Callable[[], Any]) -> Any:
        """Ask the store. Raises ApiError for what it refuses."""
        try:
            return await self._threads.run(work)
        except UnknownKeyError:
            raise unknown_key() from None
        except ValueError as refusal:
            raise _refused(refusal) from None

    async def key_named(self, text: str) -> str:
        """A key's id or alias; of a secret its key's id, so that no secret goes further. Raises ApiError."""
        if parse(text) is None:
            if masked(text) != text:
                raise unknown_key()
            return text
        found = await self._keyring.key(text)
        if found == "unavailable":
            raise keys_unavailable()
        if isinstance(found, str):
            raise unknown_key()
        return found.key_id


def checked(param: str, read: Callable[[Any], Any], value: Any) -> Any:
    """What it is read as. Raises ApiError, naming the field."""
    try:
        return read(value)
    except ValueError as wrong:
        raise invalid(f"'{param}': {wrong}.", param) from None


def _refused(refusal: ValueError) -> ApiError:
    """The store's words, under the name of the field that was sent."""
    ours, found, words = str(refusal).partition(": ")
    param = FIELDS.get(ours) if found else None
    if isinstance(refusal, UnknownAccountError) and param == "account":
        return ApiError(404, f"'account': {words}.", param=param, code="account_not_found")
    return invalid(f"{refusal}." if param is None else f"'{param}': {words}.", param)


def unknown_key() -> ApiError:
    """404: no key has this name, or it is not for whoever asks."""
    return ApiError(404, "There is no such key.", param="key", code="key_not_found")
