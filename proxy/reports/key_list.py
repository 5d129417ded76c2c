"""Lists of keys: filtered, ordered and paged in SQL.

Invariants: the time of a page grows with the number of keys, not with entries or days. A key has one status: of several
that apply, the first of `KeyStatus`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Select, case, exists, func, or_, select

from proxy.billing.money import Nusd
from proxy.ledger.amounts import nusd_sum
from proxy.ledger.schema.account_tables import accounts, api_keys
from proxy.ledger.schema.tables import usage_daily
from proxy.reports.key_spend import spend_by_key
from proxy.storage.database import reading

UNUSED_DAYS = 30
"""a key without entries of so many days is unused"""

_KEYS, _DAYS = api_keys.c, usage_daily.c
_PROJECTS, _ABOVE = accounts.alias("projects"), accounts.alias("above")
_WITH_ACCOUNTS = api_keys.outerjoin(_PROJECTS, _PROJECTS.c.account_id == _KEYS.project_id).outerjoin(
    _ABOVE, _ABOVE.c.account_id == _PROJECTS.c.parent_id
)
_SPENDS = "spent"


class KeyStatus(StrEnum):
    """Whether requests of a key are accepted, and why not."""

    REVOKED = "revoked"
    EXPIRED = "expired"
    BLOCKED = "blocked"
    """the key, its project or its organization is blocked"""
    EXHAUSTED = "exhausted"
    """the key has spent its own budget or prepaid credit"""
    ACTIVE = "active"


class KeyOrder(StrEnum):
    """The orders of the list."""

    ALIAS = "alias"
    CREATED = "created"
    SPEND = "spend"
    """lifetime spend"""
    LAST_USED = "last_used"
    BUDGET = "budget"
    """the used share of the budget or prepaid credit"""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFilter:
    """Selects the keys that meet every condition that is not None."""

    now: float
    """Unix seconds, for the status"""
    text: str | None = None
    """a part of the alias or id of the key, or of the name or id of its project or organization; in any case"""
    key_id: str | None = None
    alias: str | None = None
    project_id: str | None = None
    organization_id: str | None = None
    status: KeyStatus | None = None
    with_revoked: bool = True
    unused: bool = False
    """only keys without use in the last UNUSED_DAYS days"""
    order: KeyOrder = KeyOrder.CREATED
    descending: bool = True

    @property
    def needs_shares(self) -> bool:
        """True if the list depends on the used shares of budgets."""
        return self.order is KeyOrder.BUDGET or self.status in (KeyStatus.EXHAUSTED, KeyStatus.ACTIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLine:
    """One line of the list of keys, besides the fields of the key itself. Money: nUSD."""

    key_id: str
    project: str | None
    organization_id: str | None
    organization: str | None
    status: KeyStatus
    """without regard to budgets"""
    last_used: date | None
    """the last UTC day with entries"""
    month_nusd: Nusd
    """charges of this UTC month, by usage date"""


def read_keys(
    engine: Engine, wanted: KeyFilter, shares: Mapping[str, float], *, first: int, size: int
) -> tuple[list[KeyLine], int]:
    """At most `size` of the selected keys from number `first` (0: the first one) on, and the number of all.

    `shares`: key id → used share of the budget; needed if `wanted.needs_shares`. Raises LedgerUnavailable.
    """
    with reading(engine) as connection:
        if wanted.needs_shares:
            ids, total = _by_share(connection, wanted, shares, first, size)
        else:
            query = _matching(wanted)
            total = connection.execute(select(func.count()).select_from(query.subquery())).scalar_one()
            ids = connection.execute(_ordered(connection, query, wanted).limit(size).offset(first)).scalars().all()
        lines = _lines(connection, ids, wanted.now)
    return [lines[key_id] for key_id in ids], total


def contains(text: str, *columns: ColumnElement[Any]) -> ColumnElement[bool]:
    """An SQL condition: one of the columns contains the text, in upper or lower case."""
    return or_(*(column.icontains(text, autoescape=True) for column in columns))


def _matching(wanted: KeyFilter) -> Select[Any]:
    """Selects the ids of the keys that meet all conditions but those on budgets."""
    given = (
        (_KEYS.key_id, wanted.key_id),
        (_KEYS.alias, wanted.alias),
        (_KEYS.project_id, wanted.project_id),
        (_PROJECTS.c.parent_id, wanted.organization_id),
    )
    where = [column == value for column, value in given if value is not None]
    if wanted.text is not None:
        names = _KEYS.alias, _KEYS.key_id, _PROJECTS.c.name, _KEYS.project_id, _ABOVE.c.name, _PROJECTS.c.parent_id
        where.append(contains(wanted.text, *names))
    if wanted.status is not None:
        plain = KeyStatus.ACTIVE if wanted.status is KeyStatus.EXHAUSTED else wanted.status
        where.append(_status(wanted.now) == plain.value)
    elif not wanted.with_revoked:
        where.append(_KEYS.revoked_at.is_(None))
    if wanted.unused:
        where.append(~exists().where(_DAYS.key_id == _KEYS.key_id, _DAYS.day > _day(wanted.now, UNUSED_DAYS)))
    return select(_KEYS.key_id).select_from(_WITH_ACCOUNTS).where(*where)


def _status(now: float) -> ColumnElement[str]:
    """The status without regard to budgets."""
    blocked = or_(*(one.blocked_at.is_not(None) for one in (_KEYS, _PROJECTS.c, _ABOVE.c)))
    return case(
        (_KEYS.revoked_at.is_not(None), KeyStatus.REVOKED.value),
        (_KEYS.expires_at <= now, KeyStatus.EXPIRED.value),
        (blocked, KeyStatus.BLOCKED.value),
        else_=KeyStatus.ACTIVE.value,
    )


def _ordered(connection: Connection, query: Select[Any], wanted: KeyFilter) -> Select[Any]:
    column: ColumnElement[Any]
    if wanted.order is KeyOrder.ALIAS:
        column = func.lower(_KEYS.alias)
    elif wanted.order is KeyOrder.SPEND:
        spend = spend_by_key(connection.dialect)
        query = query.select_from(_WITH_ACCOUNTS.outerjoin(spend, spend.c.key_id == _KEYS.key_id))
        column = func.coalesce(spend.c[_SPENDS], 0)
    elif wanted.order is KeyOrder.LAST_USED:
        column = _last_used()
    else:
        column = _KEYS.created_at
    in_order = (each.desc() if wanted.descending else each.asc() for each in (column, _KEYS.created_at, _KEYS.key_id))
    by_column, *rest = in_order
    return query.order_by(by_column.nulls_last() if wanted.descending else by_column.nulls_first(), *rest)


def _by_share(
    connection: Connection, wanted: KeyFilter, shares: Mapping[str, float], first: int, size: int
) -> tuple[Sequence[str], int]:
    """The ids of a page, and the number of all selected keys. A key without a budget uses nothing of it."""
    is_wanted: Callable[[str], bool] = {
        KeyStatus.EXHAUSTED: lambda key_id: shares.get(key_id, 0.0) >= 1,
        KeyStatus.ACTIVE: lambda key_id: shares.get(key_id, 0.0) < 1,
    }.get(wanted.status or KeyStatus.REVOKED, lambda _: True)
    by_share = wanted.order is KeyOrder.BUDGET
    ordered = _ordered(connection, _matching(wanted), wanted)
    found = [key_id for key_id in connection.execute(ordered).scalars() if is_wanted(key_id)]
    if by_share:
        sign = -1 if wanted.descending else 1
        found.sort(key=lambda key_id: sign * shares.get(key_id, 0.0))
    return found[first : first + size], len(found)


def _last_used() -> ColumnElement[date | None]:
    return select(func.max(_DAYS.day)).where(_DAYS.key_id == _KEYS.key_id).scalar_subquery()


def _day(now: float, before: int = 0) -> date:
    """The UTC day of `now`, or so many days before it."""
    return datetime.fromtimestamp(now, UTC).date() - timedelta(days=before)


def _lines(connection: Connection, ids: Sequence[str], now: float) -> dict[str, KeyLine]:
    """Key id → its line."""
    if not ids:
        return {}
    query = select(
        _KEYS.key_id, _PROJECTS.c.name.label("project"), _PROJECTS.c.parent_id.label("organization_id"),
        _ABOVE.c.name.label("organization"), _status(now).label("status"), _last_used().label("last_used"),
    )  # fmt: skip
    month = (
        select(_DAYS.key_id, nusd_sum("charged_usd", connection.dialect))
        .where(_DAYS.key_id.in_(ids), _DAYS.day >= _day(now).replace(day=1))
        .group_by(_DAYS.key_id)
    )
    charged: dict[str, int] = {key_id: int(nusd or 0) for key_id, nusd in connection.execute(month)}
    rows = connection.execute(query.select_from(_WITH_ACCOUNTS).where(_KEYS.key_id.in_(ids))).mappings()
    return {
        row["key_id"]: KeyLine(
            **{**row, "status": KeyStatus(row["status"])}, month_nusd=Nusd(charged.get(row["key_id"], 0))
        )
        for row in rows
    }
