"""Rows of grants and of their moves.

Invariant: the amounts of a grant are the sums of its moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Engine, bindparam, func, insert, select, update

from proxy.billing.grants import Grant, GrantState, MoveKind, upcoming
from proxy.billing.money import Nusd
from proxy.ledger.schema.account_tables import grant_moves, grants
from proxy.storage.database import reading

_GRANTS = grants.c
_SAME = tuple(name for name in Grant.__struct_fields__ if name in _GRANTS)

_ADD = (
    update(grants)
    .where(_GRANTS.grant_id == bindparam("of"))
    .values(
        {f"{kind}_nusd": _GRANTS[f"{kind}_nusd"] + bindparam(kind.value) for kind in MoveKind}
        | {"entries": _GRANTS.entries + bindparam("entries")}
    )
)


class Move(NamedTuple):
    """The amount of a grant that an entry has granted, burned or expired."""

    grant_id: str
    entry_id: str
    exchange_id: str
    kind: MoveKind
    settled_at: float
    """Unix seconds"""
    nusd: int


def read_states(connection: Connection, *conditions: ColumnElement[bool], limit: int | None = None) -> list[GrantState]:
    """The grants that meet the conditions, oldest first; the first `limit` of them."""
    order = _GRANTS.created_at, _GRANTS.series_id, _GRANTS.number
    rows = connection.execute(select(grants).where(*conditions).order_by(*order).limit(limit))
    return [_state_of(row) for row in rows]


def begin_due(connection: Connection, until: float) -> None:
    """Insert the grants of series that begin at or before `until`; Unix seconds."""
    for state in read_states(connection, _GRANTS.next_at <= until):
        last = state.grant
        connection.execute(update(grants).where(_GRANTS.grant_id == last.grant_id).values(next_at=None))
        insert_grants(connection, list(upcoming(last, until)))


def insert_grants(connection: Connection, new: Sequence[Grant]) -> None:
    """Insert grants of a series, in their order, of which no amount was moved."""
    if not new:
        return
    nothing = {"granted_nusd": 0, "burned_nusd": 0, "expired_nusd": 0, "entries": 0}
    rows = [{**_row_of(one), **nothing} for one in new]
    for one in rows[:-1]:
        one["next_at"] = None
    connection.execute(insert(grants), rows)


def insert_moves(connection: Connection, moves: Sequence[Move]) -> None:
    """Insert moves of entries, and add them to the amounts of their grants."""
    if not moves:
        return
    names = [column.key for column in grant_moves.columns]
    connection.execute(insert(grant_moves), [dict(zip(names, one, strict=True)) for one in moves])
    sums: dict[str, dict[str, int]] = {}
    for one in moves:
        of_grant = sums.setdefault(one.grant_id, dict.fromkeys((*MoveKind, "entries"), 0))
        of_grant[one.kind] += one.nusd
        of_grant["entries"] += one.kind is not MoveKind.BURNED
    connection.execute(_ADD, [{"of": grant_id, **sums[grant_id]} for grant_id in sorted(sums)])


def next_begin(engine: Engine, scope_id: str, after: float) -> float | None:
    """When the next grant of a key or an account begins; Unix seconds. None: no grant is planned after `after`. Raises
    LedgerUnavailable."""
    open_ones = (_GRANTS.scope_id == scope_id, _GRANTS.revoked_at.is_(None))
    with reading(engine) as connection:
        times = [
            connection.execute(select(func.min(column)).where(*open_ones, column > after)).scalar()
            for column in (_GRANTS.begins_at, _GRANTS.next_at)
        ]
    return min((one for one in times if one is not None), default=None)


def series_with_upcoming(states: Iterable[GrantState], until: float) -> Iterator[GrantState]:
    """The grants, and those of their series that begin at or before `until` and are not stored yet."""
    last: dict[str, Grant] = {}
    for state in states:
        yield state
        one = state.grant
        if one.series_id not in last or last[one.series_id].number < one.number:
            last[one.series_id] = one
    for one in last.values():
        yield from (GrantState(new, 0, 0, 0, 0) for new in upcoming(one, until))


def _state_of(row: Any) -> GrantState:
    grant = Grant(**{name: getattr(row, name) for name in _SAME}, nusd=Nusd(row.amount_nusd))
    return GrantState(grant, row.granted_nusd, row.burned_nusd, row.expired_nusd, row.entries)


def _row_of(grant: Grant) -> dict[str, Any]:
    return {**{name: getattr(grant, name) for name in _SAME}, "amount_nusd": grant.nusd}
