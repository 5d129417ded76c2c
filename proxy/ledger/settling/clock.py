"""The lock and the clock of settling.

Invariant: `settled_at` rises strictly from one settling transaction to the next, and each commits before the next one
starts; so a reader that has read up to a time has missed no earlier entry.

On Postgres the single row of `ledger_clock` is the lock, held to the end of the transaction, and the time is the
server's. On SQLite there is only one writer at a time, and the time is this machine's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Dialect

from proxy.ledger.schema.tables import ledger_clock
from proxy.storage.database import LedgerUnavailable, is_shared

# The precision of timestamps in SQL.
_MICROSECOND = 1e-6

_NEXT_OF_POSTGRES = (
    "UPDATE ledger_clock SET settled_at = greatest(clock_timestamp(), settled_at + interval '1 microsecond') "
    "RETURNING settled_at"
)


class LedgerClock:
    """Advances once in each settling transaction, as its first statement."""

    def __init__(self, dialect: Dialect, clock: Callable[[], float]) -> None:
        """`clock`: Unix seconds; if it goes back, `settled_at` still rises."""
        kind = ledger_clock.c.settled_at.type.dialect_impl(dialect)
        to_sql, from_sql = kind.bind_processor(dialect), kind.result_processor(dialect, None)
        assert to_sql is not None and from_sql is not None  # noqa: PT018  it is a type of ours
        self._to_sql: Callable[[Any], Any] = to_sql
        self._from_sql: Callable[[Any], Any] = from_sql
        self._clock = clock

    def tick(self, connection: Connection) -> float:
        """The time in Unix seconds, to the microsecond, later than every tick before. Waits for a running settling
        transaction."""
        if is_shared(connection):
            return self._read(connection, _NEXT_OF_POSTGRES)
        last = self._read(connection, "SELECT settled_at FROM ledger_clock")
        now = max(round(self._clock(), 6), round(last + _MICROSECOND, 6))
        connection.exec_driver_sql("UPDATE ledger_clock SET settled_at = ?", (self._to_sql(now),))
        return now

    def _read(self, connection: Connection, sql: str) -> float:
        settled_at = connection.exec_driver_sql(sql).scalar()
        if settled_at is None:
            raise LedgerUnavailable("the row of table ledger_clock is missing: was the ledger restored in part?")
        return float(self._from_sql(settled_at))
