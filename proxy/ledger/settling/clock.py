"""The locks and the clocks of settling.

Invariants: the ledger has one or more shards, and each has a clock, a row of `ledger_clock`. A settling transaction
advances the clock of its shard, or all clocks, and holds them until it has committed. So `settled_at` rises strictly
from one settling transaction of a shard to the next, and no entry of a shard can appear at or before its clock.

The ledger's time is the minimum of the clocks. A reader that has read up to it has missed no earlier entry; later
entries may be stored already, and the reader leaves them for its next read. So a cursor is one time, however many
shards there are. An idle shard would hold back the ledger's time: `level_clocks` advances its clock.

On Postgres a row is the lock, and the time is the server's. On SQLite there is one shard, as there is one writer at a
time, and the time is this machine's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Dialect, Engine, func, insert, select, update

from proxy.ledger.schema.tables import ledger_clock
from proxy.storage.database import LedgerUnavailable, is_shared, writing

# The precision of timestamps in SQL.
_MICROSECOND = 1e-6

_NEXT_OF_SHARD = (
    "UPDATE ledger_clock SET settled_at = greatest(clock_timestamp(), settled_at + interval '1 microsecond') "
    "WHERE id = %(id)s RETURNING settled_at"
)
_LOCK_ALL = "SELECT id FROM ledger_clock ORDER BY id FOR UPDATE"
# One time for all rows: that of the statement, which begins when all clocks are held.
_NEXT_OF_ALL = (
    "UPDATE ledger_clock SET settled_at = greatest(statement_timestamp(), newest + interval '1 microsecond') "
    "FROM (SELECT max(settled_at) AS newest FROM ledger_clock) AS clocks RETURNING settled_at"
)
_MISSING = "the row of table ledger_clock is missing: was the ledger restored in part, or a copy not finished?"


def clock_id(shard: int) -> int:
    """The row of a shard's clock. Shards are numbered from 0."""
    return shard + 1


class LedgerClock:
    """The clocks that a settling transaction advances, once, as its first statement."""

    def __init__(self, dialect: Dialect, clock: Callable[[], float], shard: int | None = None) -> None:
        """`clock`: Unix seconds; `settled_at` rises even if the clock goes back. `shard` None: all shards."""
        kind = ledger_clock.c.settled_at.type.dialect_impl(dialect)
        to_sql, from_sql = kind.bind_processor(dialect), kind.result_processor(dialect, None)
        assert to_sql is not None and from_sql is not None  # noqa: PT018  it is a type of ours
        self._to_sql: Callable[[Any], Any] = to_sql
        self._from_sql: Callable[[Any], Any] = from_sql
        self._clock = clock
        self._shard = shard

    def tick(self, connection: Connection) -> float:
        """Advance the clock and return its time: Unix seconds, to the microsecond, later than every tick before. Waits
        for a running settling transaction of the shard."""
        if not is_shared(connection):
            return self._tick_file(connection)
        if self._shard is not None:
            return self._read(connection, _NEXT_OF_SHARD, {"id": clock_id(self._shard)})
        connection.exec_driver_sql(_LOCK_ALL)
        return self._read(connection, _NEXT_OF_ALL)

    def _tick_file(self, connection: Connection) -> float:
        last = self._read(connection, "SELECT settled_at FROM ledger_clock")
        now = max(round(self._clock(), 6), round(last + _MICROSECOND, 6))
        connection.exec_driver_sql("UPDATE ledger_clock SET settled_at = ?", (self._to_sql(now),))
        return now

    def _read(self, connection: Connection, sql: str, parameters: dict[str, int] | None = None) -> float:
        settled_at = connection.exec_driver_sql(sql, parameters).scalar()
        if settled_at is None:
            raise LedgerUnavailable(_MISSING)
        return float(self._from_sql(settled_at))


def settled_until(connection: Connection) -> float:
    """The ledger's time in Unix seconds: no entry will be settled before it. Raises LedgerUnavailable."""
    until: float | None = connection.execute(select(func.min(ledger_clock.c.settled_at))).scalar()
    if until is None:
        raise LedgerUnavailable(_MISSING)
    return until


def add_clocks(engine: Engine, shards: int) -> None:
    """Create the missing clocks of `shards` shards. Raises LedgerUnavailable.

    No transaction settles meanwhile, and a new clock starts at the newest time, which no reader can have passed.
    """
    wanted = {clock_id(shard) for shard in range(shards)}
    with writing(engine) as connection:
        if wanted <= _clocks(connection):
            return
        connection.exec_driver_sql("LOCK TABLE ledger_clock IN EXCLUSIVE MODE")
        newest = connection.execute(select(func.max(ledger_clock.c.settled_at))).scalar()
        if newest is None:
            raise LedgerUnavailable(_MISSING)
        if missing := sorted(wanted - _clocks(connection)):
            connection.execute(insert(ledger_clock), [{"id": one, "settled_at": newest} for one in missing])


def level_clocks(engine: Engine) -> None:
    """Advance the clocks of idle shards to the newest clock. Skips shards with a running transaction, which advances
    the clock itself. Raises LedgerUnavailable."""
    settled_at = ledger_clock.c.settled_at
    newest = select(func.max(settled_at)).scalar_subquery()
    if not is_shared(engine):
        return
    with writing(engine) as connection:
        behind = select(ledger_clock.c.id).where(settled_at < newest).with_for_update(skip_locked=True)
        if idle := connection.execute(behind).scalars().all():
            later = func.greatest(settled_at, newest)
            connection.execute(update(ledger_clock).where(ledger_clock.c.id.in_(idle)).values(settled_at=later))


def _clocks(connection: Connection) -> set[int]:
    return set(connection.execute(select(ledger_clock.c.id)).scalars())
