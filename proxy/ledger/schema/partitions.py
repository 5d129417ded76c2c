"""Monthly partitions of the entries on Postgres. Invariant: there is a partition for every entry at any time.

An exchange id is a UUIDv7, so ids sort by time and a month is a range of ids. Entries of months without a partition
(an unusual id, a clock that is years off) are in the default partition and move when their month gets its own.
Partitions of archived months are never created again: see proxy/ledger/archive.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime

from sqlalchemy import Connection, Engine, select, text

from proxy.ledger.schema.tables import ledger_entries
from proxy.storage.database import Lock, hold, is_shared, writing

# Entries of last month may still arrive; workers make partitions daily, so three months ahead are ample.
MONTHS_BACK, MONTHS_AHEAD = 1, 3
# Ids that say an earlier year are not of a clock.
FIRST_YEAR = 2020

DEFAULT_PARTITION = "ledger_entries_default"

_PARTITIONS = text("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'ledger_entries'::regclass")

# Safe to format: names and bounds consist of digits.
_ADD = (
    "LOCK TABLE ledger_entries_default IN ACCESS EXCLUSIVE MODE",
    "CREATE TABLE {name} (LIKE ledger_entries INCLUDING DEFAULTS INCLUDING CONSTRAINTS)",
    (
        "WITH moved AS (DELETE FROM ledger_entries_default WHERE exchange_id >= '{low}' AND exchange_id < '{high}' "
        "RETURNING *) INSERT INTO {name} SELECT * FROM moved"
    ),
    "ALTER TABLE ledger_entries ATTACH PARTITION {name} FOR VALUES FROM ('{low}') TO ('{high}')",
)


def make_partitions(engine: Engine, now: float) -> list[str]:
    """Create the missing partitions around `now` (Unix seconds); returns their names, none on SQLite. Run it daily.

    Raises LedgerUnavailable.
    """
    with writing(engine) as connection:
        return add_partitions(connection, now)


def add_partitions(connection: Connection, now: float) -> list[str]:
    """`make_partitions` within the caller's transaction."""
    missing = missing_partitions(connection, now)
    return add_months(connection, missing) if missing else []


def add_months(connection: Connection, months: Iterable[datetime]) -> list[str]:
    """Create the missing partitions of `months`, each given as its first moment; returns their names."""
    hold(connection, Lock.SCHEMA)
    existing = partitions(connection)  # another worker may have created them before the lock was free
    missing = [month for month in months if partition_name(month) not in existing]
    for month in missing:
        _add(connection, month)
    return [partition_name(month) for month in missing]


def months_of_entries(connection: Connection, now: float) -> list[datetime]:
    """The months with entries, each as its first moment, up to those that get a partition at `now` (Unix seconds)."""
    ids, last, found = ledger_entries.c.exchange_id, _months(now)[-1], []
    for number in range(12 * (last.year - FIRST_YEAR) + last.month):
        month, end = _month(FIRST_YEAR, number + 1), _month(FIRST_YEAR, number + 2)
        of_month = select(ids).where(ids >= first_id(month), ids < first_id(end))
        if connection.execute(of_month.limit(1)).first() is not None:
            found.append(month)
    return found


def missing_partitions(connection: Connection, now: float) -> list[datetime]:
    """The months around `now` without a partition, each as its first moment."""
    if not is_shared(connection):
        return []
    existing = partitions(connection)
    return [month for month in _months(now) if partition_name(month) not in existing]


def partitions(connection: Connection) -> list[str]:
    """The names of all monthly partitions, in the order of the months."""
    return sorted(str(name).rpartition(".")[2] for name in connection.execute(_PARTITIONS).scalars())


def partition_name(month: date) -> str:
    """The name of a month's partition, such as ledger_entries_2026_11."""
    return f"ledger_entries_{month:%Y_%m}"


def first_id(moment: datetime) -> str:
    """The lower bound, as text, of UUIDv7 ids made at or after `moment`."""
    digits = f"{round(moment.timestamp() * 1000):012x}"
    return f"{digits[:8]}-{digits[8:]}"


def _months(now: float) -> list[datetime]:
    today = datetime.fromtimestamp(now, UTC)
    return [_month(today.year, today.month + step) for step in range(-MONTHS_BACK, MONTHS_AHEAD + 1)]


def _month(year: int, number: int) -> datetime:
    """The first moment of a month. `number`: from January of `year`, which is 1; 13 is next year's, 0 last December."""
    return datetime(year + (number - 1) // 12, (number - 1) % 12 + 1, 1, tzinfo=UTC)


def _add(connection: Connection, month: datetime) -> None:
    """The partition is attached when complete: other months are not locked, and readers see each entry once."""
    low, high = first_id(month), first_id(_month(month.year, month.month + 1))
    for statement in _ADD:
        connection.execute(text(statement.format(name=partition_name(month), low=low, high=high)))
