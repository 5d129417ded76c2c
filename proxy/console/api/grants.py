"""Grants; uses the same functions as `tokenweir grants`.

Invariants: those of accounts.py. A key or an account has no two grants with the same name, so a repeated request makes
no second grant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from proxy.billing.grants import PRIORITY_DEFAULT, PRIORITY_MAX, Grant, GrantState, new_grant
from proxy.billing.keys import Account, ApiKey, expires_at_from
from proxy.billing.limits import BUDGET_NUSD_MAX
from proxy.billing.money import NUSD_PER_USD, Nusd, nusd_from_usd, usd_text
from proxy.console.api.audited_operations import AuditedOperations, checked
from proxy.console.api.endpoints import ApiCall, ApiReply, Endpoint, operation, usd_number
from proxy.console.api.schemas.keys import Text
from proxy.foundation.durations import seconds_from
from proxy.foundation.ids import new_id
from proxy.foundation.times import iso_utc
from proxy.http.errors import bad_request
from proxy.ledger.accounts.account_store import AccountStore
from proxy.ledger.accounts.audit_log import PendingEntry
from proxy.ledger.accounts.key_store import KeyStore
from proxy.ledger.grants.store import GrantStore
from proxy.settings.operators import OperatorRole
from proxy.storage.executor import BoundedExecutor

_USD_MAX = BUDGET_NUSD_MAX // NUSD_PER_USD


class NewGrant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new grant for a key or an account."""

    key: Text | UnsetType = UNSET
    """the key's id, alias or secret"""
    account: Text | UnsetType = UNSET
    name: Text
    """the name on statements; no other grant of the key or account has it"""
    usd: Annotated[float, Meta(gt=0, le=_USD_MAX)]
    begins: Text | UnsetType = UNSET
    """the beginning: a date, a time, or a duration from now (`7d`); default: now"""
    expires: Text | UnsetType = UNSET
    """the end: a date, a time, or a duration from now (`14d`); default: never"""
    lasts: Text | UnsetType = UNSET
    """how long each grant lasts (`14d`), instead of `expires`; default: until the next one begins"""
    recurs: Literal["calendar_day", "calendar_week", "calendar_month"] | UnsetType | None = UNSET
    """the amount is granted again at the beginning of each of these windows"""
    time_zone: Text | UnsetType | None = UNSET
    """the time zone of the recurrence; default: UTC"""
    priority: Annotated[int, Meta(ge=0, le=PRIORITY_MAX)] = PRIORITY_DEFAULT
    """the grant with the lowest number is used first"""


class NamedGrant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names a grant."""

    grant: Text
    """the grant's id"""


class GrantsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The key or account whose grants are listed; default: all."""

    key: Text | UnsetType = UNSET
    account: Text | UnsetType = UNSET


class GrantInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A grant; if it recurs, the grant of one window. Money: USD."""

    id: str
    name: str
    scope_id: str
    scope_name: str
    usd: Decimal
    granted: Decimal
    """the amount that was granted; 0 before the grant begins"""
    burned: Decimal
    """the amount of the charges that the grant has paid"""
    expired: Decimal
    """the amount that was taken back at the grant's end"""
    left: Decimal
    amount_usd: str
    """`usd` as a decimal string; the amounts below are decimal strings, too"""
    granted_usd: str
    burned_usd: str
    expired_usd: str
    left_usd: str
    begins_at: str
    expires_at: str | None
    priority: int
    recurs: str | None
    time_zone: str | None
    series_id: str
    """equal for all grants of one recurrence"""
    created_at: str
    revoked_at: str | None


class GrantList(msgspec.Struct, frozen=True, kw_only=True):
    """Grants: of one key or account in the order of their use, else oldest first."""

    grants: list[GrantInfo]


@dataclass(frozen=True, slots=True)
class GrantsApi:
    """The routes `/grant/*`."""

    grants: GrantStore
    keys: KeyStore
    accounts: AccountStore
    operations: AuditedOperations
    threads: BoundedExecutor
    unix_time: Callable[[], float]

    def endpoints(self) -> Iterable[Endpoint]:
        """The endpoints of this API."""
        yield operation(
            "/grant/add", "Give credit that expires or recurs.", self.add, NewGrant, GrantInfo, OperatorRole.ADMIN
        )
        yield operation(
            "/grant/revoke", "End a grant and its recurrence; the rest is taken back.", self.revoke, NamedGrant,
            GrantInfo, OperatorRole.ADMIN,
        )  # fmt: skip
        yield Endpoint(
            method="GET", path="/grant/list", summary="Grants, and what is left of them.", serve=self.listed,
            query=GrantsQuery, answers={200: GrantList}, role=OperatorRole.READ,
        )  # fmt: skip

    async def add(self, call: ApiCall) -> ApiReply:
        """Add a grant. Raises ApiError, OSError."""
        body: NewGrant = call.body
        scope = await self._scope_of(body)
        if scope is None:
            raise bad_request("Give either 'key' or 'account'.", param="key", code="missing_field")
        nusd = checked("usd", lambda usd: nusd_from_usd(repr(usd)), body.usd)
        begins_at, expires_at = (
            None if text is UNSET else checked(name, self._moment, text)
            for name, text in (("begins", body.begins), ("expires", body.expires))
        )
        lasts_s = None if body.lasts is UNSET else checked("lasts", seconds_from, body.lasts)

        def work(act: PendingEntry) -> GrantState:
            scope_id, scope_name = _identity(scope())

            def make(now: float) -> Grant:
                return new_grant(
                    grant_id=new_id("grant"), scope_id=scope_id, scope_name=scope_name, name=body.name, nusd=nusd,
                    created_at=now, begins_at=begins_at, expires_at=expires_at, lasts_s=lasts_s,
                    priority=body.priority, recurs=body.recurs or None, time_zone=body.time_zone or None,
                )  # fmt: skip

            act.target = scope_id
            return self.grants.add(make)

        return ApiReply(_shown(await self.operations.run(call, "grant.add", None, body, work)))

    async def revoke(self, call: ApiCall) -> ApiReply:
        """End a grant. Raises ApiError, OSError."""
        named: str = call.body.grant
        work = lambda _act: self.grants.revoke(named)  # noqa: E731
        return ApiReply(_shown(await self.operations.run(call, "grant.revoke", named, call.body, work)))

    async def listed(self, call: ApiCall) -> ApiReply:
        """Grants of a key or an account, or all. Raises ApiError, OSError."""
        scope = await self._scope_of(call.query)

        def work() -> list[GrantState]:
            return self.grants.every(*(() if scope is None else (_identity(scope())[0],)))

        return ApiReply(GrantList(grants=[_shown(one) for one in await self.operations.call_store(work)]))

    async def _scope_of(self, named: NewGrant | GrantsQuery) -> Callable[[], ApiKey | Account] | None:
        """Reads the key or account, in a thread; None: none is named. Raises ApiError."""
        account = named.account
        if named.key is UNSET:
            return None if account is UNSET else lambda: self.accounts.one(account)
        if account is not UNSET:
            raise bad_request("Give 'key' or 'account', not both.", param="key", code="invalid_value")
        key = await self.operations.key_named(named.key)
        return lambda: self.keys.one(key)

    def _moment(self, text: str) -> float:
        at = expires_at_from(text, self.unix_time())
        if at is None:
            raise ValueError("must be a date, or a duration such as 14d")
        return at


def _identity(scope: ApiKey | Account) -> tuple[str, str]:
    return (scope.key_id, scope.alias) if isinstance(scope, ApiKey) else (scope.account_id, scope.name)


def _shown(state: GrantState) -> GrantInfo:
    grant = state.grant
    return GrantInfo(
        id=grant.grant_id,
        name=grant.name,
        scope_id=grant.scope_id,
        scope_name=grant.scope_name,
        usd=usd_number(grant.nusd),
        granted=usd_number(Nusd(state.granted)),
        burned=usd_number(Nusd(state.burned)),
        expired=usd_number(Nusd(state.expired)),
        left=usd_number(Nusd(state.left)),
        amount_usd=usd_text(grant.nusd),
        granted_usd=usd_text(Nusd(state.granted)),
        burned_usd=usd_text(Nusd(state.burned)),
        expired_usd=usd_text(Nusd(state.expired)),
        left_usd=usd_text(Nusd(state.left)),
        begins_at=iso_utc(grant.begins_at),
        expires_at=None if grant.expires_at is None else iso_utc(grant.expires_at),
        priority=grant.priority,
        recurs=grant.recurs,
        time_zone=grant.time_zone,
        series_id=grant.series_id,
        created_at=iso_utc(grant.created_at),
        revoked_at=None if grant.revoked_at is None else iso_utc(grant.revoked_at),
    )
