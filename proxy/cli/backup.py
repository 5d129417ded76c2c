"""`tokenweir backup`: copy the SQLite ledger and the key pepper.

Invariants: the command works while a server runs, and overwrites no file. Files in use and files that can be rebuilt
(journals, budgets, the estimator's state) are not copied.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from proxy.cli.common import Failure, json_line, load_settings, with_config
from proxy.cli.output import add_json
from proxy.cli.progress import Progress
from proxy.foundation.files import write_private


def add_commands(commands: Any) -> None:
    backup = with_config(
        commands, "backup", "copy a SQLite ledger and the key pepper, also while a server runs", _backup
    )
    backup.add_argument("folder", type=Path, metavar="FOLDER", help="destination; created if it does not exist")
    add_json(backup, "print the paths of the copies as one JSON object")


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
    if not options.json:
        print(f"tokenweir: {copy}")
    pepper, its_copy = settings.data_dir / "pepper", options.folder / "pepper"
    has_pepper = settings.key_pepper is None and pepper.exists()
    if has_pepper:
        write_private(its_copy, pepper.read_bytes())
    if options.json:
        print(json_line({"ledger": str(copy), "pepper": str(its_copy) if has_pepper else None}))
    elif has_pepper:
        print(f"tokenweir: {its_copy} (store it apart from the ledger, or encrypt both)")


def _megabytes(file: Path) -> int:
    """The size of a file in bytes; 0: there is no such file."""
    return file.stat().st_size // 1_000_000 if file.exists() else 0
