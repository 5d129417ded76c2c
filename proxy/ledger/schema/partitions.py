"""Monthly partitions of the entries on Postgres. Invariant: there is a partition for every entry at any time.

An exchange id is a UUIDv7, so ids sort by time and a month is a range of ids. Entries of months without a partition
(an unusual id, a clock that is years off) are in the default partition and move when their month gets its own.
Partitions of archived months are never created again: see proxy/ledger/archive.
"""

from __future__ import annotations

from datetime import UTC, date, datetime

from sqlalchemy import Connection, Engine, text

from proxy.storage.database import Lock, hold, is_shared, writing

# Entries of last month may still arrive; workers make partitions daily, so three months ahead are ample.
MONTHS_BACK, MONTHS_AHEAD = 1, 3

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
    if not missing:
        return []
    hold(connection, Lock.SCHEMA)
    missing = missing_partitions(connection, now)  # another worker may have created them before the lock was free
    for month in missing:
        _add(connection, month)
    return [partition_name(month) for month in missing]


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
    """For example ledger_entries_2026_11."""
    return f"ledger_entries_{month:%Y_%m}"


def first_id(moment: datetime) -> str:
    """The lower bound, as text, of UUIDv7 ids made at or after `moment`."""
    digits = f"{round(moment.timestamp() * 1000):012x}"
    return f"{digits[:8]}-{digits[8:]}"


def _months(now: float) -> list[datetime]:
    today = datetime.fromtimestamp(now, UTC)
    return [_month(today.year, today.month + step) for step in range(-MONTHS_BACK, MONTHS_AHEAD + 1)]


def _month(year: int, number: int) -> datetime:
    """`number`: 1 to 12; 13 is next year's January, 0 last year's December."""
    return datetime(year + (number - 1) // 12, (number - 1) % 12 + 1, 1, tzinfo=UTC)


def _add(connection: Connection, month: datetime) -> None:
    """The partition is attached when complete: other months are not locked, and readers see each entry once."""
    low, high = first_id(month), first_id(_month(month.year, month.month + 1))
    for statement in _ADD:
        connection.execute(text(statement.format(name=partition_name(month), low=low, high=high)))
