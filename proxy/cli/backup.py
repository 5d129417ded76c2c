"""`tokenweir backup`: copy the SQLite ledger and the key pepper.

Invariants: the command works while a server runs, and overwrites no file. Files in use and files that can be rebuilt
(journals, budgets, the estimator's state) are not copied.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from proxy.cli.common import Failure, load_settings, with_config


def add_commands(commands: Any) -> None:
    backup = with_config(
        commands, "backup", "copy a SQLite ledger and the key pepper, also while a server runs", _backup
    )
    backup.add_argument("folder", type=Path, metavar="FOLDER", help="destination; created if it does not exist")


def _backup(options: argparse.Namespace) -> None:
    from proxy.ledger.schema.backup import copy_ledger

    settings = load_settings(options.config)
    if settings.ledger is not None:
        raise Failure("ledger: on Postgres; back it up with pg_dump: see docs/operations/running.md")
    options.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    copy_ledger(settings.data_dir / "ledger.db", options.folder / "ledger.db")
    print(f"tokenweir: {options.folder / 'ledger.db'}")
    pepper = settings.data_dir / "pepper"
    if settings.key_pepper is None and pepper.exists():
        _copy_private(pepper, options.folder / "pepper")
        print(f"tokenweir: {options.folder / 'pepper'} (store it apart from the ledger, or encrypt both)")


def _copy_private(file: Path, to: Path) -> None:
    fd = os.open(to, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as copy:
        copy.write(file.read_bytes())
        copy.flush()
        os.fsync(fd)
