"""`tokenweir archive`: move the entries of closed months to files. Invariant: each entry is in the ledger or a file."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from proxy.cli.common import add_yes, confirm, load_settings, store_of, whole_file, with_config
from proxy.cli.output import add_json, result_line
from proxy.cli.progress import Progress
from proxy.cli.values import folder, month
from proxy.foundation.users import operator

if TYPE_CHECKING:
    from proxy.reports.archive import ArchiveOptions
    from proxy.runtime.machine.ledger_stores import LedgerStores


def add_commands(commands: Any) -> None:
    archive = with_config(
        commands,
        "archive",
        "move the entries of closed months, closed dead letters and the audit log to files",
        _archive,
        action="archive",
    )
    archive.add_argument(
        "--before", type=month, required=True, metavar="2026-01", help="archive the months before this month"
    )
    archive.add_argument("--to", type=folder, required=True, metavar="FOLDER", help="folder of the files")
    archive.add_argument("--dry-run", action="store_true", help="only print the months")
    add_json(archive, "print one JSON object for each month, and for each file of dead letters or audit log")
    add_yes(archive)


def _archive(options: argparse.Namespace) -> None:
    from proxy.reports.archive import ArchiveOptions, alone, months_before
    from proxy.reports.export import require_parquet

    require_parquet()
    configured = load_settings(options.config).sinks
    order = ArchiveOptions(options.before, options.to, operator(), time.time(), tuple(configured))
    with store_of(options) as store, alone(store.engine):
        months = months_before(store.engine, order)
        if options.dry_run:
            for month in months:
                print(result_line(options, {"month": str(month), "dry_run": True}, f"{month} would be archived"))
        else:
            if months:
                confirm(options, f"Move the entries of {', '.join(map(str, months))} from the ledger to {options.to}?")
            _move(options, store, months, order)
    if not months and not options.json:
        print(f"tokenweir: every closed month before {order.before} is archived already")


def _move(options: argparse.Namespace, store: LedgerStores, months: list[Any], order: ArchiveOptions) -> None:
    from proxy.reports.archive import archive, archive_logs, finish

    with Progress("archiving", "entries") as progress:

        def say(line: str) -> None:
            progress.say(f"tokenweir: {line}", file=sys.stderr)

        finish(store.engine, order, say)
        for month in months:
            progress.what, progress.done = f"archiving {month}", 0
            done = archive(store.engine, month, order, whole_file, say, progress.each)
            fields = {"month": str(month), "file": done.file, "sha256": done.sha256, "entries": done.entries}
            text = f"{month}: {done.entries} entries are in {done.file}, SHA-256 {done.sha256}"
            progress.say(result_line(options, fields, text))
        for name, rows in archive_logs(store.engine, order, whole_file):
            progress.say(result_line(options, {"file": name, "rows": rows}, f"{rows} rows are in {name}"))
