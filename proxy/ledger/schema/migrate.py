"""Upgrades of the database to the schema of this version.

Invariants: Postgres is upgraded by `tokenweir migrate` alone; a SQLite file by the process that opens it. One process
upgrades at a time. On SQLite an upgrade is one transaction; on Postgres a revision is either one transaction or a list
of steps that commit one by one and can be repeated (migrations/steps.py), so an interrupted upgrade can be continued.

A revision that versions since 0006 can work with has `_from_0006` in its name: those versions start on it too.
Alembic is loaded only for an upgrade, because most starts and commands find the newest revision.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, column, inspect, select, table

from proxy import migrations
from proxy.ledger.schema.partitions import add_partitions, missing_partitions
from proxy.ledger.schema.tables import metadata
from proxy.migrations.steps import LOCK_TIMEOUT, RETRY_S, retried
from proxy.storage.database import Lock, is_shared, opened, reading, try_hold, writing
from proxy.storage.postgres import remove_time_limits, require_suitable

if TYPE_CHECKING:
    from alembic.config import Config

# The beginning of a revision's file name is its id.
_ID = re.compile(r"\d{4}(_from_\d{4})?(?=_)")

Say = Callable[[str], None]
"""receives the progress of an upgrade, line by line"""


class NewerDatabaseError(ValueError):
    """A later version of this program upgraded the database; this version must not write to it."""


class OutdatedLedgerError(ValueError):
    """The ledger on Postgres is empty or of an earlier version; the message names the command to run."""


def migrate(url: str, say: Say = lambda _line: None) -> None:
    """Upgrade to the newest revision. An up-to-date database is neither written nor locked.

    Raises LedgerUnavailable, LedgerUrlError, NewerDatabaseError, UnsuitableDatabaseError.
    """
    with opened(url) as engine:
        _migrate(engine, say)


def _migrate(engine: Engine, say: Say = lambda _line: None) -> None:
    with reading(engine) as connection:
        if is_shared(connection):
            require_suitable(connection)
        ready = is_newest(connection) and not missing_partitions(connection, time.time())
    if not ready:
        upgrade = _upgrade_shared if is_shared(engine) else _upgrade_file
        upgrade(engine, say)
        engine.dispose()  # an upgrade may leave its connection with other settings


def require_current(engine: Engine) -> None:
    """Check that this version can use the ledger; a SQLite file is upgraded.

    Raises LedgerUnavailable, OutdatedLedgerError, NewerDatabaseError, UnsuitableDatabaseError.
    """
    if not is_shared(engine):
        _migrate(engine)
        return
    with reading(engine) as connection:
        require_suitable(connection)
        if not is_newest(connection):
            revision = _revision(connection)
            found = "is empty" if revision is None else f"is at revision {revision}"
            raise OutdatedLedgerError(
                f"the ledger {found}, and this version needs {_revisions()[-1]}: run `tokenweir migrate --config FILE`"
            )


def check(url: str) -> list[str]:
    """The differences between the database and the schema of this version; none after `migrate`."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    with opened(url) as engine, reading(engine) as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "include_name": _is_ours})
        differences = [repr(difference) for difference in compare_metadata(context, metadata)]
        return differences + _key_differences(connection)


def _is_ours(name: str | None, kind: str, _parents: object) -> bool:
    """False for partitions, which are not compared."""
    return kind != "table" or not str(name).startswith("ledger_entries_")


def _key_differences(connection: Connection) -> list[str]:
    """Primary keys that differ, because Alembic does not compare them."""
    inspector = inspect(connection)
    actual = {name: inspector.get_pk_constraint(name)["constrained_columns"] for name in inspector.get_table_names()}
    expected = {table.name: table.primary_key.columns.keys() for table in metadata.sorted_tables}
    return [
        f"primary key of {name}: {actual[name]}"
        for name in expected
        if name in actual and actual[name] != expected[name]
    ]


def _revisions() -> list[str]:
    """The revisions of this version, oldest first."""
    files = Path(migrations.__path__[0], "versions").glob("*.py")
    return sorted(match[0] for file in files if (match := _ID.match(file.name)))


def _revision(connection: Connection) -> str | None:
    """The revision of the database; None: it is empty."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(select(column("version_num")).select_from(table("alembic_version"))).scalar()


def _config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", migrations.__path__[0].replace("%", "%%"))
    return config


def is_newest(connection: Connection) -> bool:
    """True if the database needs no upgrade; False if it is empty. Raises NewerDatabaseError."""
    revision, known = _revision(connection), _revisions()
    if revision is None or revision in known:
        return revision == known[-1]
    _, _, oldest = revision.partition("_from_")
    if not oldest or known[-1] < oldest:
        raise NewerDatabaseError(
            f"the ledger is at revision {revision}, which this version cannot use: use a newer version of tokenweir"
        )
    return True


def _upgrade_file(engine: Engine, say: Say) -> None:
    """All revisions in one transaction."""
    with writing(engine) as connection:
        _run(connection, "head", say)


def _upgrade_shared(engine: Engine, say: Say) -> None:
    """One revision after the other, then the partitions: each in a transaction that excludes other upgrades."""
    for revision in _revisions():
        retried(lambda: _upgrade_to(engine, revision, say), f"revision {revision}", say)  # noqa: B023  called at once
    retried(lambda: _add_partitions(engine, say), "partitions", say)


def _upgrade_to(engine: Engine, revision: str, say: Say) -> None:
    with _alone(engine, say) as connection:
        if not is_newest(connection) and (_revision(connection) or "") < revision:
            say(f"revision {revision}")
            _run(connection, revision, say)


def _add_partitions(engine: Engine, say: Say) -> None:
    with _alone(engine, say) as connection:
        add_partitions(connection, time.time())


@contextmanager
def _alone(engine: Engine, say: Say) -> Iterator[Connection]:
    """A transaction that excludes other upgrades. It waits for other upgrades without limit, but for a table only for a
    time that clients do not notice.

    It polls for the lock: a session that waits in the database would block the other upgrade's CREATE INDEX
    CONCURRENTLY.
    """
    waiting = False
    while True:
        with writing(engine) as connection:
            if try_hold(connection, Lock.SCHEMA):
                remove_time_limits(connection)
                connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
                yield connection
                return
        if not waiting:
            say("another process changes the ledger's tables: waiting for it")
            waiting = True
        time.sleep(RETRY_S)


def _run(connection: Connection, revision: str, say: Say) -> None:
    from alembic import command

    config = _config()
    config.attributes.update(connection=connection, say=say)
    if not is_newest(connection):  # another process may have upgraded it while this one waited
        command.upgrade(config, revision)
