"""Creates, changes and revokes keys; uses the same functions as the commands.

Invariants:
- A secret is returned once, when it is created.
- Every change is in the audit log.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from sqlalchemy import Engine

from proxy.billing.keys import EXPIRES_DEFAULT, AccountKind, ApiKey, expires_at_from
from proxy.billing.limits import credit_counter_id
from proxy.billing.money import usd_text
from proxy.budgets.budget_state import BudgetState
from proxy.console.api.audited_operations import AuditedOperations, checked, unknown_key
from proxy.console.api.endpoints import ApiCall, ApiReply, Endpoint, operation
from proxy.console.api.reading import invalid
from proxy.console.api.schemas.keys import (
    NOTHING_PAID,
    CounterStatesOf,
    DeleteBody,
    Deleted,
    GenerateBody,
    KeyFields,
    KeyInfo,
    KeyPage,
    KeyRefused,
    KeysBody,
    KeysChanged,
    KeyShown,
    ListedKey,
    NamedBody,
    NewKey,
    PaidOf,
    RegenerateBody,
    Text,
    UpdateBody,
    budget_shown,
    changes,
    made_limits,
    shown,
)
from proxy.foundation.durations import seconds_or_now
from proxy.foundation.ids import new_id
from proxy.foundation.secret import masked
from proxy.http.errors import bad_request
from proxy.keys.secrets import new_hashed
from proxy.ledger.accounts.account_store import AccountStore
from proxy.ledger.accounts.audit_log import PendingEntry
from proxy.ledger.accounts.key_store import KeyStore
from proxy.reports.budget_states import fullest, read_budget_states
from proxy.reports.key_list import KeyFilter, KeyLine, KeyOrder, KeyStatus, read_keys
from proxy.reports.key_spend import read_paid_of_keys
from proxy.reports.totals import SpendAndCredit
from proxy.storage.executor import BoundedExecutor

PAGE_DEFAULT, PAGE_MAX = 50, 100


class InfoQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Selects a key; the default is the key of the caller."""

    key: Annotated[str, Meta(min_length=1, max_length=128)] | UnsetType = UNSET


class KeysQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Filters (combined with AND), order and page of the list of keys."""

    page: Annotated[int, Meta(ge=1, le=100_000)] = 1
    size: Annotated[int, Meta(ge=1, le=PAGE_MAX)] = PAGE_DEFAULT
    q: Text | UnsetType = UNSET
    """a part of the alias or id of the key, or of the name or id of its project or organization; in any case"""
    status: Literal["active", "exhausted", "blocked", "expired", "revoked", "unused"] | UnsetType = UNSET
    """`exhausted`: its own budget or prepaid credit is spent; `unused`: a key that is not revoked and had no requests
    in the last 30 days"""
    project_id: Text | UnsetType = UNSET
    organization_id: Text | UnsetType = UNSET
    key_alias: Text | UnsetType = UNSET
    include_revoked: bool = False
    """without a `status`: revoked keys, too"""
    sort: Literal["created", "alias", "spend", "last_used", "budget"] = "created"
    """`spend`: lifetime spend; `budget`: used share of the budget or prepaid credit"""
    order: Literal["asc", "desc"] | UnsetType = UNSET
    """by default `asc` for `alias`, and else `desc`"""

    OTHER_NAMES: ClassVar[Mapping[str, str]] = {"team_id": "project_id"}


@dataclass(frozen=True, slots=True)
class KeysApi:
    """The routes `/key/*`."""

    engine: Engine
    keys: KeyStore
    accounts: AccountStore
    operations: AuditedOperations
    threads: BoundedExecutor
    pepper: bytes = field(repr=False)
    lifetime_max_s: int | None
    unix_time: Callable[[], float]
    paid: PaidOf
    counter_states: CounterStatesOf

    def endpoints(self) -> Iterable[Endpoint]:
        """The endpoints of this API."""
        yield operation("/key/generate", "Create a key; its secret is shown once.", self.generate, GenerateBody, NewKey)
        yield operation("/key/update", "Change a key.", self.update, UpdateBody, KeyInfo)
        yield operation("/key/delete", "Revoke keys permanently.", self.delete, DeleteBody, Deleted)
        yield operation("/key/block", "Block a key: its requests are refused.", self.block, NamedBody, KeyInfo)
        yield operation("/key/unblock", "Unblock a key.", self.unblock, NamedBody, KeyInfo)
        yield operation("/key/bulk_block", "Block up to 100 keys.", self.block_each, KeysBody, KeysChanged)
        yield operation("/key/bulk_unblock", "Unblock up to 100 keys.", self.unblock_each, KeysBody, KeysChanged)
        yield operation("/key/{key}/regenerate", "Create a new secret.", self.regenerate, RegenerateBody, NewKey)
        yield Endpoint(
            method="GET", path="/key/info", summary="One key.", serve=self.one, query=InfoQuery,
            answers={200: KeyShown},
        )  # fmt: skip
        yield Endpoint(
            method="GET", path="/key/list", summary="Keys, filtered and in order, with their use.", serve=self.listed,
            query=KeysQuery, answers={200: KeyPage},
        )  # fmt: skip

    async def generate(self, call: ApiCall) -> ApiReply:
        """Create a key. Raises ApiError, OSError."""
        fields: GenerateBody = call.body
        key_id = new_id("key")
        given = _checked(fields)
        limits = made_limits(given)
        secret, hashed, secret_hint = new_hashed(self.pepper, key_id if fields.narrowable else None)
        made = {"alias": key_id, "models": None, **given}

        def work(act: PendingEntry) -> ApiKey:
            act.target = key_id
            if fields.team_id is not UNSET:
                made["project_id"] = self.accounts.one(fields.team_id, AccountKind.PROJECT).account_id
            return self.keys.create(
                key_id=key_id, digest=hashed, hint=secret_hint, expires_at=self._expires(fields),
                limits=limits, **made,
            )  # fmt: skip

        key = await self.operations.run(call, "key.generate", None, fields, work)
        return ApiReply(NewKey(key=secret, **shown(key, NOTHING_PAID)))

    async def update(self, call: ApiCall) -> ApiReply:
        """Change a key. Raises ApiError, OSError."""
        fields: UpdateBody = call.body
        given = _checked(fields)
        named = await self.operations.key_named(fields.key)

        def work(_act: PendingEntry) -> ApiKey:
            return self.keys.update(named, **given, **({} if fields.duration is UNSET else self._lifetime(fields)))

        return await self._changed(call, "key.update", named, fields, work)

    async def delete(self, call: ApiCall) -> ApiReply:
        """Revokes the keys; none if one is unknown. Raises ApiError, OSError."""
        body: DeleteBody = call.body
        named = [await self.operations.key_named(one) for one in (*body.keys, *body.key_aliases)]
        if not named:
            raise bad_request("'keys' or 'key_aliases' is missing.", param="keys", code="missing_field")

        def work(_act: PendingEntry) -> list[str]:
            found = list(dict.fromkeys(self.keys.one(one).key_id for one in named))
            return [self.keys.revoke(key_id).key_id for key_id in found]

        deleted = await self.operations.run(call, "key.delete", ", ".join(named), None, work)
        return ApiReply(Deleted(deleted_keys=deleted))

    async def block(self, call: ApiCall) -> ApiReply:
        """Refuse a key. Raises ApiError, OSError."""
        named = await self.operations.key_named(call.body.key)
        return await self._changed(call, "key.block", named, None, lambda _act: self.keys.block(named))

    async def unblock(self, call: ApiCall) -> ApiReply:
        """Accept a key again. Raises ApiError, OSError."""
        named = await self.operations.key_named(call.body.key)
        return await self._changed(call, "key.unblock", named, None, lambda _act: self.keys.unblock(named))

    async def block_each(self, call: ApiCall) -> ApiReply:
        """Refuse some keys, each by itself. Raises ApiError, OSError."""
        return await self._each(call, "key.block", self.keys.block)

    async def unblock_each(self, call: ApiCall) -> ApiReply:
        """Accept some keys again, each by itself. Raises ApiError, OSError."""
        return await self._each(call, "key.unblock", self.keys.unblock)

    async def regenerate(self, call: ApiCall) -> ApiReply:
        """Replace the secret of a key. Raises ApiError, OSError."""
        body: RegenerateBody = call.body
        grace_s = checked("grace_period", seconds_or_now, body.grace_period)
        named = _not_a_secret(call.named)
        until = self.unix_time() + grace_s

        def work(act: PendingEntry) -> tuple[str, ApiKey]:
            key_id = act.target = self.keys.one(named).key_id
            secret, hashed, secret_hint = new_hashed(self.pepper, key_id if body.narrowable else None)
            return secret, self.keys.rotate(key_id, digest=hashed, hint=secret_hint, old_until=until)

        secret, key = await self.operations.run(call, "key.regenerate", named, body, work)
        return ApiReply(NewKey(key=secret, **shown(key, await self._paid_by(key))))

    async def one(self, call: ApiCall) -> ApiReply:
        """One key; by default the key of the caller. Raises ApiError, OSError."""
        own, name = call.session.key, call.query.key
        if own is not None and name in (UNSET, own.key_id, own.alias):
            name = own.key_id
        elif own is not None:
            raise unknown_key()
        elif name is UNSET:
            raise bad_request("'key' is missing.", param="key", code="missing_field")
        key = await self.operations.call_store(lambda: self.keys.one(_not_a_secret(name)))
        found = KeyInfo(**shown(key, await self._paid_by(key)))
        return ApiReply(KeyShown(key=key.key_id, found=found))

    async def listed(self, call: ApiCall) -> ApiReply:
        """A page of keys. Raises ApiError, OSError."""
        query: KeysQuery = call.query
        wanted = self._wanted(query, call.session.key)
        budgets = await self._budgets(None) if wanted.needs_shares else {}
        shares = {scope_id: state.used_ratio for scope_id, state in budgets.items()}
        read = partial(read_keys, first=(query.page - 1) * query.size, size=query.size)
        lines, total = await self.threads.run(partial(read, self.engine, wanted, shares))
        ids = [line.key_id for line in lines]
        found = {key.key_id: key for key in await self.threads.run(self.keys.with_ids, ids)}
        paid = await self.threads.run(read_paid_of_keys, self.engine, ids)
        budgets = budgets or await self._budgets(ids)
        keys = [_listed(line, found[line.key_id], paid, budgets) for line in lines]
        pages = -(-total // query.size)
        return ApiReply(KeyPage(keys=keys, total_count=total, current_page=query.page, total_pages=pages))

    # -- shared helpers

    async def _changed(
        self, call: ApiCall, action: str, named: str, fields: Any, work: Callable[[PendingEntry], ApiKey]
    ) -> ApiReply:
        key = await self.operations.run(call, action, named, fields, work)
        return ApiReply(KeyInfo(**shown(key, await self._paid_by(key))))

    async def _each(self, call: ApiCall, action: str, change: Callable[[str], ApiKey]) -> ApiReply:
        for number, name in enumerate(call.body.keys):
            if masked(name) != name:
                raise invalid(f"'keys' (keys[{number}]): must be the id or the alias of a key, not a secret.", "keys")
        results = await self.operations.run_each(call, action, dict.fromkeys(call.body.keys), change)
        failed = [KeyRefused(name, why) for name, why in results.items() if why is not None]
        return ApiReply(KeysChanged(done=[name for name, why in results.items() if why is None], failed=failed))

    def _wanted(self, query: KeysQuery, own: ApiKey | None) -> KeyFilter:
        """Raises ApiError."""
        is_unused = query.status == "unused"
        order, direction = KeyOrder(query.sort), query.order
        return KeyFilter(
            now=self.unix_time(),
            text=None if query.q is UNSET else _not_a_secret(query.q),
            key_id=None if own is None else own.key_id,
            alias=_or_none(query.key_alias),
            project_id=_or_none(query.project_id),
            organization_id=_or_none(query.organization_id),
            status=None if query.status is UNSET or is_unused else KeyStatus(query.status),
            with_revoked=query.include_revoked and not is_unused,
            unused=is_unused,
            order=order,
            descending=order is not KeyOrder.ALIAS if direction is UNSET else direction == "desc",
        )

    async def _budgets(self, key_ids: Collection[str] | None) -> Mapping[str, BudgetState]:
        """Key id → its fullest budget or balance. None: of all keys. Raises OSError."""
        ids = None if key_ids is None else [*key_ids, *map(credit_counter_id, key_ids)]
        counters = await self.counter_states(ids)
        return fullest(await self.threads.run(read_budget_states, self.engine, counters, self.unix_time(), key_ids))

    async def _paid_by(self, key: ApiKey) -> SpendAndCredit:
        return (await self.threads.run(self.paid, [key.key_id]))[key.key_id]

    def _expires(self, fields: KeyFields) -> float | None:
        """Unix seconds. Raises ValueError."""
        text = EXPIRES_DEFAULT if fields.duration is UNSET else fields.duration
        try:
            return expires_at_from(text, self.unix_time(), self.lifetime_max_s)
        except ValueError as wrong:
            raise ValueError(f"expires: {str(wrong).removeprefix('expires: ')}") from None

    def _lifetime(self, fields: KeyFields) -> dict[str, float | None]:
        return {"expires_at": self._expires(fields)}


def _listed(
    line: KeyLine, key: ApiKey, paid: Mapping[str, SpendAndCredit], budgets: Mapping[str, BudgetState]
) -> ListedKey:
    budget = budgets.get(key.key_id)
    is_exhausted = line.status is KeyStatus.ACTIVE and budget is not None and budget.used_ratio >= 1
    return ListedKey(
        **shown(key, paid[key.key_id]),
        project=line.project,
        organization_id=line.organization_id,
        organization=line.organization,
        status=KeyStatus.EXHAUSTED if is_exhausted else line.status,
        last_used=None if line.last_used is None else line.last_used.isoformat(),
        month_usd=usd_text(line.month_nusd),
        budget_use=budget_shown(budget),
    )


def _or_none(text: str | UnsetType) -> str | None:
    return None if text is UNSET else text


def _not_a_secret(text: str) -> str:
    """The name, if it is no secret: URLs are logged. Raises ApiError."""
    if masked(text) != text:
        raise bad_request("A secret must not be in a URL; use the key's id.", param="key", code="secret_in_url")
    return text


def _checked(fields: KeyFields) -> dict[str, Any]:
    found: dict[str, Any] = checked("max_budget", changes, fields)
    return found
