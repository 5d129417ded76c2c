"""Upgrades of the database to the schema of this version.

Invariant: an upgrade is one transaction that takes the write lock first, so processes may start it concurrently.
Alembic is loaded only for an upgrade: most starts and commands find the newest revision.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, column, inspect, select, table

import migrations
from proxy.ledger.schema.partitions import add_partitions, missing_partitions
from proxy.ledger.schema.tables import metadata
from proxy.storage.database import Lock, hold, is_shared, open_engine, reading, writing
from proxy.storage.postgres import remove_time_limits, require_suitable

if TYPE_CHECKING:
    from alembic.config import Config

# On Postgres: processes wait for a running upgrade without limit, but the upgrade waits for table locks no longer than
# any writer does: its waiting lock request would block later readers.
_PATIENT = "SET LOCAL lock_timeout = 0"
_POLITE = "SET LOCAL lock_timeout = '10s'"


class NewerDatabaseError(ValueError):
    """A later version of this program upgraded the database; this version must not write to it."""


def migrate(url: str) -> None:
    """Upgrade to the newest revision. An up-to-date database is neither written nor locked.

    Raises LedgerUnavailable, LedgerUrlError, NewerDatabaseError, UnsuitableDatabaseError.
    """
    engine = open_engine(url)
    try:
        with reading(engine) as connection:
            if is_shared(connection):
                require_suitable(connection)
            ready = is_newest(connection) and not missing_partitions(connection, time.time())
        if not ready:
            _upgrade(engine)
    finally:
        engine.dispose()


def check(url: str) -> list[str]:
    """The differences between the database and the schema of this version; none after `migrate`."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    engine = open_engine(url)
    try:
        with reading(engine) as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True, "include_name": _is_ours})
            differences = [repr(difference) for difference in compare_metadata(context, metadata)]
            return differences + _key_differences(connection)
    finally:
        engine.dispose()


def _is_ours(name: str | None, kind: str, _parents: object) -> bool:
    """Partitions are not compared."""
    return kind != "table" or not str(name).startswith("ledger_entries_")


def _key_differences(connection: Connection) -> list[str]:
    """Primary keys that differ; Alembic does not compare them."""
    inspector = inspect(connection)
    actual = {name: inspector.get_pk_constraint(name)["constrained_columns"] for name in inspector.get_table_names()}
    expected = {table.name: table.primary_key.columns.keys() for table in metadata.sorted_tables}
    return [
        f"primary key of {name}: {actual[name]}"
        for name in expected
        if name in actual and actual[name] != expected[name]
    ]


def _revisions() -> list[str]:
    """The revisions of this version, oldest first: the numbers at the beginning of their files' names."""
    return sorted(file.name.partition("_")[0] for file in Path(migrations.__path__[0], "versions").glob("[0-9]*.py"))


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
    """Whether there is nothing to upgrade; False for an empty database. Raises NewerDatabaseError."""
    revision, known = _revision(connection), _revisions()
    if revision is not None and revision not in known:
        raise NewerDatabaseError(
            f"the ledger is at revision {revision}, which is unknown to this version: use a newer version of tokenweir"
        )
    return revision == known[-1]


def _upgrade(engine: Engine) -> None:
    from alembic import command

    config = _config()
    with writing(engine) as connection:
        if is_shared(connection):
            remove_time_limits(connection)
            connection.exec_driver_sql(_PATIENT)
            hold(connection, Lock.SCHEMA)
            connection.exec_driver_sql(_POLITE)
        if not is_newest(connection):  # another process may have upgraded it while this one waited
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
        add_partitions(connection, time.time())
