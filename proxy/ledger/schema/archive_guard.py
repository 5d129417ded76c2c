"""The guard of archived months: a constraint or trigger in the database.

Invariant: while the guard is set, no process of any version can store an entry of an exchange that began in its month
or before. Such an arrival becomes a dead letter: whether it is new can be decided only with the archived entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sqlalchemy import Connection, Engine, exc

from proxy.billing.period import Month
from proxy.ledger.schema.partitions import DEFAULT_PARTITION, first_id, partition_name, partitions
from proxy.migrations.steps import LOCK_TIMEOUT, retried
from proxy.storage.database import is_shared, writing

_NAME = "archived"
_GUARDED = f"SELECT conrelid::regclass::text FROM pg_constraint WHERE conname = '{_NAME}'"  # noqa: S608  no input


def refuse_until(engine: Engine, month: Month | None, say: Callable[[str], None]) -> None:
    """Move the guard: refuse the entries of exchanges that began in `month` or before; None: refuse none.

    On return, every entry that was accepted is committed. Raises LedgerUnavailable.
    """

    def move() -> None:
        with writing(engine) as connection:
            for statement in _on_postgres(connection, month) if is_shared(connection) else _on_sqlite(month):
                connection.exec_driver_sql(statement)

    retried(move, "refusing late records", say)


def is_refused(error: Exception) -> bool:
    """True if the guard has refused the row."""
    if not isinstance(error, exc.IntegrityError):
        return False
    diagnosis = getattr(error.orig, "diag", None)
    return (str(error.orig) if diagnosis is None else diagnosis.constraint_name) == _NAME


def _on_sqlite(month: Month | None) -> Iterator[str]:
    yield f"DROP TRIGGER IF EXISTS {_NAME}"
    if month is not None:
        yield (
            f"CREATE TRIGGER {_NAME} BEFORE INSERT ON ledger_entries WHEN NEW.exchange_id < '{_bound(month)}' "
            f"BEGIN SELECT RAISE(ABORT, '{_NAME}'); END"
        )


def _on_postgres(connection: Connection, month: Month | None) -> Iterator[str]:
    """Add the constraint as NOT VALID: existing rows are not checked, so no scan is needed."""
    yield f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'"
    guarded = set(connection.exec_driver_sql(_GUARDED).scalars())
    for name in partitions(connection):
        if name == DEFAULT_PARTITION:
            continue
        refuses = month is not None and name <= partition_name(month.first)
        if refuses and name not in guarded:
            yield f"ALTER TABLE {name} ADD CONSTRAINT {_NAME} CHECK (false) NOT VALID"
        elif not refuses and name in guarded:
            yield f"ALTER TABLE {name} DROP CONSTRAINT {_NAME}"
    yield f"ALTER TABLE {DEFAULT_PARTITION} DROP CONSTRAINT IF EXISTS {_NAME}"
    if month is not None:
        check = f"exchange_id >= '{_bound(month)}'"
        yield f"ALTER TABLE {DEFAULT_PARTITION} ADD CONSTRAINT {_NAME} CHECK ({check}) NOT VALID"


def _bound(month: Month) -> str:
    """The first id after the month. It has only hexadecimal digits and dashes, so it is safe in SQL text."""
    return first_id(month.end)
