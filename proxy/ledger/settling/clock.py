"""The lock and the clock of settling. Law: `settled_at` rises strictly from one settling transaction to the next, and
all of one is in the ledger before the next one's begins: whoever has read up to a moment has missed nothing before it.

On Postgres the one row of `ledger_clock` is the lock, held to the end of the transaction, and the time is the server's.
On SQLite whoever writes is alone, and the time is this machine's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Dialect

from proxy.ledger.schema.tables import ledger_clock
from proxy.storage.database import LedgerUnavailable, is_shared

# Timestamps in SQL are exact to this.
_MICROSECOND = 1e-6

_NEXT_OF_POSTGRES = (
    "UPDATE ledger_clock SET settled_at = greatest(clock_timestamp(), settled_at + interval '1 microsecond') "
    "RETURNING settled_at"
)


class LedgerClock:
    """Ticks once in each transaction that settles, as its first statement."""

    def __init__(self, dialect: Dialect, clock: Callable[[], float]) -> None:
        """`clock`: Unix seconds; whatever it does, our time never falls."""
        kind = ledger_clock.c.settled_at.type.dialect_impl(dialect)
        to_sql, from_sql = kind.bind_processor(dialect), kind.result_processor(dialect, None)
        assert to_sql is not None and from_sql is not None  # noqa: PT018  it is a type of ours
        self._to_sql: Callable[[Any], Any] = to_sql
        self._from_sql: Callable[[Any], Any] = from_sql
        self._clock = clock

    def tick(self, connection: Connection) -> float:
        """Now, in Unix seconds to the microsecond, and later than ever before. Waits for whoever settles now."""
        if is_shared(connection):
            return self._read(connection, _NEXT_OF_POSTGRES)
        last = self._read(connection, "SELECT settled_at FROM ledger_clock")
        now = max(round(self._clock(), 6), round(last + _MICROSECOND, 6))
        connection.exec_driver_sql("UPDATE ledger_clock SET settled_at = ?", (self._to_sql(now),))
        return now

    def _read(self, connection: Connection, sql: str) -> float:
        found = connection.exec_driver_sql(sql).scalar()
        if found is None:
            raise LedgerUnavailable("the ledger's clock (the row of ledger_clock) is gone: restored in part?")
        return float(self._from_sql(found))
