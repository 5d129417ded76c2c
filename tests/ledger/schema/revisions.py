"""Runs a revision that is in no file."""

from __future__ import annotations

from collections.abc import Callable

from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine

from proxy.ledger.schema.migrate import _alone, _config
from proxy.storage.database import writing


def run_revision(engine: Engine, revision: Callable[[], None], said: list[str]) -> None:
    """As `tokenweir migrate` runs a revision."""
    config = _config()
    with _alone(engine, said.append) if engine.dialect.name == "postgresql" else writing(engine) as connection:
        config.attributes.update(connection=connection, say=said.append)
        script = ScriptDirectory.from_config(config)

        def upgrade(_revision: object, _context: object) -> list[object]:
            revision()
            return []

        with EnvironmentContext(config, script, fn=upgrade):
            script.run_env()
