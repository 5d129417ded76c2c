"""Where Postgres keeps the entries: a partition for each month. Law: every entry has its place at any time.

An exchange id is a UUIDv7, so the order of ids is the order of time and a month is a range of ids. What is of no month
that has a partition (an odd id; a clock that is years off) lies in the default one, and moves when its month gets one.
Old months can be detached and archived; nothing here ever does.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import Connection, Engine, text

from proxy.storage.database import Lock, hold, is_shared, writing

# An entry of last month may still come in; a worker that has not run for three months is missed by somebody.
MONTHS_BACK, MONTHS_AHEAD = 1, 3

_THERE = text("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'ledger_entries'::regclass")

# Names and bounds are made of digits.
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
    """Make those around `now` (Unix seconds) that are missing; → their names. Nothing to do on SQLite.

    For a task that runs daily, or more often. Raises LedgerUnavailable.
    """
    with writing(engine) as connection:
        return add_partitions(connection, now)


def add_partitions(connection: Connection, now: float) -> list[str]:
    """The same, as a part of a transaction."""
    missing = missing_partitions(connection, now)
    if not missing:
        return []
    hold(connection, Lock.SCHEMA)
    missing = missing_partitions(connection, now)  # another worker may just have made them
    for month in missing:
        _add(connection, month)
    return [partition_name(month) for month in missing]


def missing_partitions(connection: Connection, now: float) -> list[datetime]:
    """The first moments of the months around `now` that have no partition."""
    if not is_shared(connection):
        return []
    there = {name.rpartition(".")[2] for name in connection.execute(_THERE).scalars()}
    return [month for month in _months(now) if partition_name(month) not in there]


def partition_name(month: datetime) -> str:
    """ledger_entries_2026_11"""
    return f"ledger_entries_{month:%Y_%m}"


def first_id(moment: datetime) -> str:
    """What every UUIDv7 made at or after `moment` is not less than, as text."""
    digits = f"{round(moment.timestamp() * 1000):012x}"
    return f"{digits[:8]}-{digits[8:]}"


def _months(now: float) -> list[datetime]:
    today = datetime.fromtimestamp(now, UTC)
    return [_month(today.year, today.month + step) for step in range(-MONTHS_BACK, MONTHS_AHEAD + 1)]


def _month(year: int, number: int) -> datetime:
    """`number`: 13 is next year's January, 0 last year's December."""
    return datetime(year + (number - 1) // 12, (number - 1) % 12 + 1, 1, tzinfo=UTC)


def _add(connection: Connection, month: datetime) -> None:
    """Attached when it is complete: readers and writers of other months do not wait, and see each entry once."""
    low, high = first_id(month), first_id(_month(month.year, month.month + 1))
    for statement in _ADD:
        connection.execute(text(statement.format(name=partition_name(month), low=low, high=high)))
