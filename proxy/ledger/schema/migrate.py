"""Bring the database to the version this code is written for. Law: all of an upgrade is one transaction that holds
the write lock from its start, so any number of processes may do it at once."""

from __future__ import annotations

import time

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, inspect

import migrations
from proxy.ledger.schema.partitions import add_partitions, missing_partitions
from proxy.ledger.schema.tables import metadata
from proxy.storage.database import Lock, hold, is_shared, open_engine, reading, writing
from proxy.storage.postgres import require_suitable

# On Postgres: others wait for an upgrade of any length, but what it changes it asks for no longer than any writer, so
# that those who read now do not hold up those who come after it.
_PATIENT = "SET LOCAL statement_timeout = 0", "SET LOCAL lock_timeout = 0"
_POLITE = "SET LOCAL lock_timeout = '10s'"


class NewerDatabaseError(ValueError):
    """The database was made by a later version of this program, which must not be written to by this one."""


def migrate(url: str) -> None:
    """Upgrade to the newest revision; nothing to do is fine, and then nothing is written or locked.

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
    """How the database differs from what this code expects: nothing, if `migrate` has run."""
    engine = open_engine(url)
    try:
        with reading(engine) as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True, "include_name": _is_ours})
            differences = [repr(difference) for difference in compare_metadata(context, metadata)]
            return differences + _other_keys(connection)
    finally:
        engine.dispose()


def _is_ours(name: str | None, kind: str, _parents: object) -> bool:
    """A month's partition is not a table of its own."""
    return kind != "table" or not str(name).startswith("ledger_entries_")


def _other_keys(connection: Connection) -> list[str]:
    """Primary keys that differ; Alembic does not look."""
    inspector = inspect(connection)
    found = {name: inspector.get_pk_constraint(name)["constrained_columns"] for name in inspector.get_table_names()}
    wanted = {table.name: table.primary_key.columns.keys() for table in metadata.sorted_tables}
    return [f"primary key of {name}: {found[name]}" for name in wanted if name in found and found[name] != wanted[name]]


def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", migrations.__path__[0].replace("%", "%%"))
    return config


def is_newest(connection: Connection) -> bool:
    """Whether there is nothing to upgrade; an empty database is not the newest. Raises NewerDatabaseError."""
    scripts = _scripts()
    found = MigrationContext.configure(connection).get_current_revision()
    if found is not None and found not in {script.revision for script in scripts.walk_revisions()}:
        raise NewerDatabaseError(f"the ledger is at revision {found}, which this version does not know")
    return found == scripts.get_current_head()


def _upgrade(engine: Engine) -> None:
    config = _config()
    with writing(engine) as connection:
        if is_shared(connection):
            for statement in _PATIENT:
                connection.exec_driver_sql(statement)
            hold(connection, Lock.SCHEMA)
            connection.exec_driver_sql(_POLITE)
        if not is_newest(connection):  # another process may just have done it
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
        add_partitions(connection, time.time())
