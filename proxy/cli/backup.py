"""`tokenweir backup`: copy the SQLite ledger and the key pepper.

Invariants: the command works while a server runs, and overwrites no file. Files in use and files that can be rebuilt
(journals, budgets, the estimator's state) are not copied.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from proxy.cli.common import Failure, load_settings, with_config
from proxy.cli.progress import Progress
from proxy.foundation.files import write_private


def add_commands(commands: Any) -> None:
    backup = with_config(
        commands, "backup", "copy a SQLite ledger and the key pepper, also while a server runs", _backup
    )
    backup.add_argument("folder", type=Path, metavar="FOLDER", help="destination; created if it does not exist")


def _backup(options: argparse.Namespace) -> None:
    from proxy.ledger.schema.backup import copy_ledger, draft_of
    from proxy.runtime.machine.data_folder import ledger_file

    settings = load_settings(options.config)
    if settings.ledger is not None:
        raise Failure("ledger: on Postgres; back it up with pg_dump: see docs/operations/running.md")
    options.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    ledger, copy = ledger_file(settings), options.folder / "ledger.db"
    with Progress("copying", "MB", total=_megabytes(ledger), measure=partial(_megabytes, draft_of(copy))):
        copy_ledger(ledger, copy)
    print(f"tokenweir: {options.folder / 'ledger.db'}")
    pepper = settings.data_dir / "pepper"
    if settings.key_pepper is None and pepper.exists():
        write_private(options.folder / "pepper", pepper.read_bytes())
        print(f"tokenweir: {options.folder / 'pepper'} (store it apart from the ledger, or encrypt both)")


def _megabytes(file: Path) -> int:
    """0 if there is no such file."""
    return file.stat().st_size // 1_000_000 if file.exists() else 0
