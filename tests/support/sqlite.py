"""Migrated ledgers in SQLite: migrated once, then copied."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from proxy.ledger.schema.migrate import migrate
from proxy.storage.database import sqlite_url


@cache
def _empty() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        migrate(sqlite_url(file := Path(folder) / "ledger.db"))
        return file.read_bytes()


def empty_ledger(file: Path) -> str:
    """A new one, as after `migrate`; its URL."""
    file.touch(mode=0o600, exist_ok=False)
    file.write_bytes(_empty())
    return sqlite_url(file)


def with_empty_ledger(data_dir: Path) -> None:
    """Create the ledger's files of a first start in a folder."""
    data_dir.mkdir(mode=0o700)
    empty_ledger(data_dir / "ledger.db")
