"""Lists of organizations and projects: filtered, ordered and paged in SQL.

Invariants: the time of a page grows with the number of accounts and keys, not with entries or days. Of several states
that apply, an account has the first of `AccountStatus`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Select, func, or_, select

from proxy.billing.keys import AccountKind
from proxy.ledger.schema.account_tables import accounts, api_keys
from proxy.reports.key_list import contains
from proxy.reports.key_spend import spend_by_account
from proxy.storage.database import reading

_ACCOUNTS, _KEYS = accounts.c, api_keys.c
_ABOVE, _PROJECTS = accounts.alias("above"), accounts.alias("projects")
_WITH_ABOVE = accounts.outerjoin(_ABOVE, _ABOVE.c.account_id == _ACCOUNTS.parent_id)


class AccountStatus(StrEnum):
    """Whether requests of the keys of an account are accepted."""

    BLOCKED = "blocked"
    """the account, or the organization of the project, is blocked"""
    EXHAUSTED = "exhausted"
    """the account has spent its own budget or prepaid credit"""
    ACTIVE = "active"


class AccountOrder(StrEnum):
    """The orders of the list."""

    NAME = "name"
    CREATED = "created"
    SPEND = "spend"
    """lifetime spend"""
    BUDGET = "budget"
    """the used share of the budget or prepaid credit"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountFilter:
    """Selects the accounts that meet every condition that is not None."""

    kind: AccountKind | None = None
    text: str | None = None
    """a part of the name or id of the account, or of those of the project's organization; in any case"""
    organization_id: str | None = None
    """the organization itself, and its projects"""
    status: AccountStatus | None = None
    order: AccountOrder = AccountOrder.CREATED
    descending: bool = False

    @property
    def needs_shares(self) -> bool:
        """True if the list depends on the used shares of budgets."""
        return self.order is AccountOrder.BUDGET or self.status in (AccountStatus.EXHAUSTED, AccountStatus.ACTIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountLine:
    """One line of the list of accounts, besides the fields of the account itself."""

    account_id: str
    organization: str | None
    """the name of a project's organization"""
    status: AccountStatus
    """without regard to budgets"""
    keys: int
    """keys that are not revoked"""


def read_account_list(
    engine: Engine, wanted: AccountFilter, shares: Mapping[str, float], *, first: int, size: int
) -> tuple[list[AccountLine], int]:
    """At most `size` of the selected accounts from number `first` (0: the first one) on, and the number of all.

    `shares`: account id → used share of the budget; needed if `wanted.needs_shares`. Raises LedgerUnavailable.
    """
    with reading(engine) as connection:
        every = list(connection.execute(_matching(connection, wanted)).scalars())
        if wanted.status in (AccountStatus.EXHAUSTED, AccountStatus.ACTIVE):
            is_exhausted = wanted.status is AccountStatus.EXHAUSTED
            every = [one for one in every if (shares.get(one, 0.0) >= 1) is is_exhausted]
        if wanted.order is AccountOrder.BUDGET:
            sign = -1 if wanted.descending else 1
            every.sort(key=lambda one: sign * shares.get(one, 0.0))
        lines = _lines(connection, page := every[first : first + size])
    return [lines[account_id] for account_id in page], len(every)


def _matching(connection: Connection, wanted: AccountFilter) -> Select[Any]:
    """Selects the ids of the accounts that meet all conditions but those on budgets, in order."""
    where: list[ColumnElement[bool]] = []
    if wanted.kind is not None:
        where.append(_ACCOUNTS.kind == wanted.kind.value)
    if wanted.organization_id is not None:
        where.append(or_(*(one == wanted.organization_id for one in (_ACCOUNTS.account_id, _ACCOUNTS.parent_id))))
    if wanted.text is not None:
        names = _ACCOUNTS.name, _ACCOUNTS.account_id, _ABOVE.c.name, _ACCOUNTS.parent_id
        where.append(contains(wanted.text, *names))
    if wanted.status is not None:
        where.append(_is_blocked() if wanted.status is AccountStatus.BLOCKED else ~_is_blocked())
    query = select(_ACCOUNTS.account_id).select_from(_WITH_ABOVE)
    column: ColumnElement[Any] = _ACCOUNTS.created_at
    if wanted.order is AccountOrder.NAME:
        column = func.lower(_ACCOUNTS.name)
    elif wanted.order is AccountOrder.SPEND:
        spend = spend_by_account(connection.dialect)
        query = query.select_from(_WITH_ABOVE.outerjoin(spend, spend.c.account_id == _ACCOUNTS.account_id))
        column = func.coalesce(spend.c.spent, 0)
    order = (column, _ACCOUNTS.created_at, _ACCOUNTS.account_id)
    return query.where(*where).order_by(*(one.desc() if wanted.descending else one.asc() for one in order))


def _is_blocked() -> ColumnElement[bool]:
    return or_(_ACCOUNTS.blocked_at.is_not(None), _ABOVE.c.blocked_at.is_not(None))


def _lines(connection: Connection, ids: Sequence[str]) -> dict[str, AccountLine]:
    """Account id → its line."""
    if not ids:
        return {}
    projects = _PROJECTS.c
    counted = (
        select(projects.account_id, projects.parent_id, func.count())
        .select_from(_PROJECTS.join(api_keys, _KEYS.project_id == projects.account_id))
        .where(or_(projects.account_id.in_(ids), projects.parent_id.in_(ids)), _KEYS.revoked_at.is_(None))
        .group_by(projects.account_id, projects.parent_id)
    )
    keys = dict.fromkeys(ids, 0)
    for project_id, parent_id, number in connection.execute(counted):
        for level in (project_id, parent_id):
            if level in keys:
                keys[level] += number
    query = select(_ACCOUNTS.account_id, _ABOVE.c.name, _is_blocked()).select_from(_WITH_ABOVE)
    return {
        account_id: AccountLine(
            account_id=account_id,
            organization=organization,
            status=AccountStatus.BLOCKED if is_blocked else AccountStatus.ACTIVE,
            keys=keys[account_id],
        )
        for account_id, organization, is_blocked in connection.execute(query.where(_ACCOUNTS.account_id.in_(ids)))
    }
