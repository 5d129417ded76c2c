"""Burns grants with settled charges, outside the settling transactions.

Invariant: the moves of kind `burned` are those of exactly the entries that were settled until `grant_clock`, as defined
in proxy/billing/grants.py. A reader adds the later entries, so its amounts do not depend on the progress here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Select,
    and_,
    exists,
    func,
    literal,
    or_,
    select,
    tuple_,
    update,
)

from proxy.billing.entries import EntryKind
from proxy.billing.grants import Burn, Charge, ExchangeBurns, Grant, GrantState, MoveKind, Waterfall
from proxy.ledger.amounts import nusd, nusd_sum
from proxy.ledger.grants.rows import Move, begin_due, insert_moves, read_states, series_with_upcoming
from proxy.ledger.schema.account_tables import accounts, api_keys, grant_clock, grant_moves, grants
from proxy.ledger.schema.tables import ledger_entries
from proxy.ledger.settling.clock import settled_until
from proxy.ledger.settling.sum_clocks import added_until, next_step
from proxy.storage.database import reading

# Entries in one transaction, about: it takes a quarter of a second.
ENTRIES_MAX = 1_000
# Scopes per statement.
_SCOPES_MAX = 500

_ENTRIES = ledger_entries.c
_GRANTS, _MOVES = grants.c, grant_moves.c
_CHARGING = (EntryKind.USAGE, EntryKind.ADJUSTMENT)

StatesOf = Callable[[Collection[str]], Iterable[GrantState]]
"""scope ids → their grants, with the amounts that earlier entries have burned"""


def burn(engine: Engine) -> bool:
    """Burn with the next entries; True if there may be more. Any number of processes may call this; one of them does
    the work. Raises LedgerUnavailable."""
    with next_step(engine, grant_clock, ENTRIES_MAX) as step:
        if step is None:
            return False
        burn_between(step.connection, step.after, step.until)
    return not step.is_last


def burn_until(connection: Connection, until: float) -> None:
    """Burn with all entries that were settled until then, in a transaction that excludes the settling of others."""
    after = connection.execute(select(grant_clock.c.settled_at).with_for_update()).scalar_one()
    burn_between(connection, after, until)
    connection.execute(update(grant_clock).values(settled_at=until))


def has_any(connection: Connection) -> bool:
    """True if there is a grant, whatever its time."""
    return bool(connection.execute(select(exists(select(grants)))).scalar())


def burn_between(connection: Connection, after: float, until: float) -> None:
    """Burn with the entries that were settled after `after`, until `until`; Unix seconds."""
    if not has_any(connection):
        return
    begin_due(connection, until)
    rows = connection.execute(charges(connection, settled_between(after, until), has_grants())).all()
    burns = Burning(connection, lambda scope_ids: read_states(connection, _GRANTS.scope_id.in_(scope_ids)))
    insert_moves(connection, [_move_of(one) for one in burns.add(rows)])


def current_states(connection: Connection, *scope_ids: str) -> list[GrantState]:
    """The grants of some keys or accounts after all settled entries, including future grants, in the order in which
    they burn. In one snapshot."""
    return sorted(_with_later_burns(connection, *scope_ids)[0], key=lambda one: one.grant.order)


def read_current_states(engine: Engine, *scope_ids: str) -> list[GrantState]:
    """The result of `current_states`, read with a new connection. Raises LedgerUnavailable."""
    with reading(engine) as connection:
        return current_states(connection, *scope_ids)


class GrantPeriod(msgspec.Struct, frozen=True):
    """The amounts of a grant in a period, in nUSD. Opening + granted - burned - expired = closing."""

    grant: Grant
    opening: int
    granted: int
    burned: int
    expired: int

    @property
    def closing(self) -> int:
        return self.opening + self.granted - self.burned - self.expired


def grant_periods(connection: Connection, scope_id: str, since: float, until: float) -> list[GrantPeriod]:
    """The amounts of the grants of a key or an account that were moved by entries settled from `since` to before
    `until` (Unix seconds), without grants that had nothing and got nothing. The result never changes after `until`."""
    states, later = _with_later_burns(connection, scope_id)
    if not states:
        return []
    moves = [(one.grant_id, MoveKind.BURNED, one.charge.settled_at, one.nusd) for one in later]
    query = select(_MOVES.grant_id, _MOVES.kind, func.sum(_MOVES.amount_nusd))
    of_scope = _MOVES.grant_id.in_(select(_GRANTS.grant_id).where(_GRANTS.scope_id == scope_id))
    for condition, at in ((_MOVES.settled_at < since, since - 1.0), (_settled_in(since, until), since)):
        rows = connection.execute(query.where(of_scope, condition).group_by(_MOVES.grant_id, _MOVES.kind))
        moves += [(grant_id, MoveKind(kind), at, int(amount)) for grant_id, kind, amount in rows]
    totals: dict[str, dict[MoveKind | None, int]] = {}
    for grant_id, kind, at, amount in moves:
        if at < until:
            of_grant = totals.setdefault(grant_id, {None: 0, **dict.fromkeys(MoveKind, 0)})
            of_grant[kind if at >= since else None] += amount if at >= since or kind is MoveKind.GRANTED else -amount
    grants_ = sorted((one.grant for one in states if one.grant.grant_id in totals), key=lambda one: one.order)
    found = [GrantPeriod(one, *(totals[one.grant_id][kind] for kind in (None, *MoveKind))) for one in grants_]
    return [one for one in found if any((one.opening, one.granted, one.burned, one.expired))]


def _settled_in(since: float, until: float) -> ColumnElement[bool]:
    return and_(_MOVES.settled_at >= since, _MOVES.settled_at < until)


def _with_later_burns(connection: Connection, *scope_ids: str) -> tuple[list[GrantState], list[Burn]]:
    """The grants after all settled entries, and the burns that are not stored as moves yet."""
    until = settled_until(connection)
    stored = read_states(connection, _GRANTS.scope_id.in_(scope_ids))
    states = list(series_with_upcoming(stored, until))
    if not states:
        return [], []
    later = settled_between(added_until(connection, grant_clock), until)
    burning = Burning(connection, lambda ids: [one for one in states if one.grant.scope_id in ids])
    of_scopes = or_(*(column.in_(scope_ids) for column in _LEVELS))
    burns = list(burning.add(connection.execute(charges(connection, later, of_scopes)).all()))
    return [burning.current(one) for one in states], burns


# -- charges ---------------------------------------------------------------------------------------------------

_LEVELS = (_ENTRIES.key_id, api_keys.c.project_id, accounts.c.parent_id)


def charges(connection: Connection, *conditions: ColumnElement[bool]) -> Select[Any]:
    """The entries that charge something, with the three levels that they charge, in the order of settlement."""
    source = ledger_entries.outerjoin(api_keys, api_keys.c.key_id == _ENTRIES.key_id).outerjoin(
        accounts, accounts.c.account_id == api_keys.c.project_id
    )
    columns = (_ENTRIES.entry_id, _ENTRIES.exchange_id, _ENTRIES.started_at, _ENTRIES.settled_at)
    charge = nusd("charge_usd", connection.dialect).label("nusd")
    query = select(*columns, charge, _ENTRIES.kind, *_LEVELS).select_from(source)
    query = query.where(_ENTRIES.kind.in_(_CHARGING), _ENTRIES.charge_nusd != 0, *conditions)
    return query.order_by(_ENTRIES.settled_at, _ENTRIES.entry_id)


def settled_between(after: float, until: float) -> ColumnElement[bool]:
    """An SQL condition: settled after `after`, until `until`; Unix seconds."""
    return and_(_ENTRIES.settled_at > after, _ENTRIES.settled_at <= until)


def has_grants() -> ColumnElement[bool]:
    """An SQL condition on `charges`: one of the levels has a grant."""
    return exists(select(_GRANTS.grant_id).where(or_(*(_GRANTS.scope_id == level for level in _LEVELS))))


class Burning:
    """Burns grants of any scopes with rows of `charges`."""

    def __init__(self, connection: Connection, states_of: StatesOf) -> None:
        self._connection = connection
        self._states_of = states_of
        self._waterfalls: dict[str, Waterfall | None] = {}
        """scope id → its grants; None: it has none"""
        self._exchanges: dict[tuple[str, str], ExchangeBurns] = {}

    def add(self, rows: Sequence[Any]) -> Iterator[Burn]:
        """Burn with the next rows."""
        self._load({level for row in rows for level in row[6:] if level is not None})
        for row in rows:
            charge = Charge(row.entry_id, row.exchange_id, row.started_at, row.settled_at, int(row.nusd))
            for level in row[6:]:
                waterfall = self._waterfalls.get(level)
                if waterfall is not None:
                    yield from waterfall.add(charge, self._exchange(level, waterfall, row))

    def forget_exchanges(self) -> None:
        """Free the memory of the exchanges so far; the moves of their entries are stored."""
        self._exchanges.clear()

    def current(self, state: GrantState) -> GrantState:
        """The state after the last row."""
        waterfall = self._waterfalls.get(state.grant.scope_id)
        if waterfall is None:
            return state
        return GrantState(
            state.grant, state.granted, waterfall.burned[state.grant.grant_id], state.expired, state.entries
        )

    def _load(self, scope_ids: Collection[str]) -> None:
        unknown = sorted(scope_ids - self._waterfalls.keys())
        for at in range(0, len(unknown), _SCOPES_MAX):
            ids = unknown[at : at + _SCOPES_MAX]
            by_scope: dict[str, list[GrantState]] = {}
            for state in self._states_of(ids):
                by_scope.setdefault(state.grant.scope_id, []).append(state)
            for scope_id in ids:
                states = by_scope.get(scope_id, ())
                burned = {one.grant.grant_id: one.burned for one in states}
                self._waterfalls[scope_id] = Waterfall((one.grant for one in states), burned) if states else None

    def _exchange(self, scope_id: str, waterfall: Waterfall, row: Any) -> ExchangeBurns:
        """The charges and burns of the exchange at this scope before the row."""
        name = scope_id, row.exchange_id
        if name not in self._exchanges:
            is_first = row.kind == EntryKind.USAGE
            self._exchanges[name] = ExchangeBurns() if is_first else self._read_exchange(waterfall.burned, row)
        return self._exchanges[name]

    def _read_exchange(self, grant_ids: Collection[str], row: Any) -> ExchangeBurns:
        total = func.coalesce(nusd_sum("charge_usd", self._connection.dialect), 0)
        before = _ENTRIES.kind.in_(_CHARGING), *_before(_ENTRIES, row)
        charged = self._connection.execute(select(total).select_from(ledger_entries).where(*before)).scalar_one()
        burned = select(_MOVES.grant_id, func.sum(_MOVES.amount_nusd)).where(
            _MOVES.kind == MoveKind.BURNED, *_before(_MOVES, row)
        )
        by_grant = {
            grant_id: int(amount)
            for grant_id, amount in self._connection.execute(burned.group_by(_MOVES.grant_id))
            if grant_id in grant_ids
        }
        return ExchangeBurns(int(charged), by_grant)


def _before(columns: Any, row: Any) -> tuple[ColumnElement[bool], ...]:
    """SQL conditions: of an entry of the same exchange that was settled before the row."""
    order = tuple_(columns.settled_at, columns.entry_id) < tuple_(
        literal(row.settled_at, columns.settled_at.type), literal(row.entry_id)
    )
    return columns.exchange_id == row.exchange_id, order


def _move_of(burn: Burn) -> Move:
    charge = burn.charge
    return Move(burn.grant_id, charge.entry_id, charge.exchange_id, MoveKind.BURNED, charge.settled_at, burn.nusd)
