"""Bring the database to the version this code is written for. Law: all of an upgrade is one transaction that holds
the write lock from its start, so any number of processes may do it at once."""

from __future__ import annotations

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine

import migrations
from proxy.ledger.database import open_engine, reading, writing
from proxy.ledger.tables import metadata


class NewerDatabaseError(ValueError):
    """The database was made by a later version of this program, which must not be written to by this one."""


def migrate(url: str) -> None:
    """Upgrade to the newest revision; nothing to do is fine. Raises LedgerUnavailable, NewerDatabaseError."""
    engine = open_engine(url)
    try:
        _upgrade(engine)
    finally:
        engine.dispose()


def check(url: str) -> list[str]:
    """How the database differs from what this code expects: nothing, if `migrate` has run."""
    engine = open_engine(url)
    try:
        with reading(engine) as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            return [repr(difference) for difference in compare_metadata(context, metadata)]
    finally:
        engine.dispose()


def _upgrade(engine: Engine) -> None:
    config = Config()
    config.set_main_option("script_location", migrations.__path__[0].replace("%", "%%"))
    with writing(engine) as connection:
        config.attributes["connection"] = connection
        known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
        found = MigrationContext.configure(connection).get_current_revision()
        if found is not None and found not in known:
            raise NewerDatabaseError(f"the ledger is at revision {found}, which this version does not know")
        command.upgrade(config, "head")
