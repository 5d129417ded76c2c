"""Online backups of a SQLite ledger; for Postgres use its own tools.

Invariant: a finished copy is one consistent snapshot that was verified and is on the disk.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from proxy.foundation.files import sync
from proxy.storage.database import BUSY_S_MAX, LedgerUnavailable


def copy_ledger(file: Path, to: Path) -> None:
    """Copy `file` to `to`, with mode 0600. Raises FileExistsError, LedgerUnavailable, OSError."""
    if not file.exists():
        raise LedgerUnavailable(f"there is no ledger at {file}")
    if to.exists():
        raise FileExistsError(f"{to} already exists: use a new folder for each backup")
    draft = draft_of(to)
    os.close(os.open(draft, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600))
    try:
        _copy(file, draft)
    except sqlite3.Error as error:
        draft.unlink(missing_ok=True)
        raise LedgerUnavailable(f"the ledger could not be copied: {error}") from error
    sync(draft)
    draft.replace(to)
    sync(to.parent)


def draft_of(to: Path) -> Path:
    """The file that grows while `copy_ledger` copies to `to`."""
    return to.with_name(f"{to.name}.new")


def _copy(file: Path, draft: Path) -> None:
    source = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_S_MAX)
    with closing(source), closing(sqlite3.connect(draft)) as copy:
        source.backup(copy)  # all pages in one step: one snapshot, despite concurrent writers
        copy.execute("PRAGMA journal_mode=DELETE")  # a single file
        (result,) = copy.execute("PRAGMA quick_check(1)").fetchone()
        if result != "ok":
            raise sqlite3.DatabaseError(f"the copy is damaged, and so is the ledger: {result}")
