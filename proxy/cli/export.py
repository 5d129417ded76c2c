"""`tokenweir export`: entries as files for other programs. Invariant: a file appears only when it is complete."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxy.cli.common import WrongUsage, store_of, whole_file, with_config
from proxy.cli.dimension_options import values_exported
from proxy.cli.progress import Progress
from proxy.cli.values import moment

if TYPE_CHECKING:
    from proxy.reports.beancount import Balances
    from proxy.reports.entry_reader import EntryFilter
    from proxy.reports.export import Write
    from proxy.runtime.machine.ledger_stores import LedgerStores


def add_commands(commands: Any) -> None:
    export = with_config(
        commands, "export", "write entries as a file for other programs, in order of settlement", _export
    )
    export.add_argument(
        "--format",
        choices=("csv", "parquet", "focus", "beancount"),
        default="csv",
        help="csv (default), parquet, FOCUS 1.2 (a row for each billed unit), or double entry for Beancount",
    )
    export.add_argument(
        "--since",
        type=moment,
        metavar="TIME",
        help="exchanges that began at or after: 2026-11-01, 2026-11-01T12:00:00Z, 90m, 24h, 7d",
    )
    export.add_argument("--until", type=moment, metavar="TIME", help="exchanges that began before")
    export.add_argument("--key", metavar="KEY_ID|ALIAS", help="only this key")
    export.add_argument(
        "--with-dimension-values",
        action="store_true",
        help="end users, sessions, runs and tags as clients sent them, instead of ids; recorded in the audit log",
    )
    export.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="write to this file, not to standard output; FOCUS is written as Parquet if its name ends in .parquet",
    )


def _export(options: argparse.Namespace) -> None:
    from proxy.ledger.accounts.owners import owners_of
    from proxy.ledger.archive.archives import archived_until
    from proxy.ledger.periods.closing import read_closings
    from proxy.ledger.settling.spend import clock_of
    from proxy.reports.dimensions import of_entries
    from proxy.reports.entry_reader import EntryReader, count_entries
    from proxy.reports.export import ENTRIES, with_owners
    from proxy.reports.focus import FOCUS, focus_rows
    from proxy.reports.totals import read_balances
    from proxy.storage.database import reading

    in_parquet = options.format == "parquet" or (options.output is not None and options.output.suffix == ".parquet")
    if options.format in ("csv", "beancount") and in_parquet:
        raise WrongUsage(f"--output: ends in .parquet, but --format is {options.format}")
    if in_parquet and options.output is None and sys.stdout.isatty():
        raise WrongUsage("--output: is required for Parquet if standard output is a terminal")
    if options.format == "beancount" and options.with_dimension_values:
        raise WrongUsage("--with-dimension-values: a Beancount file has no dimensions")
    columns = FOCUS if options.format == "focus" else ENTRIES
    with store_of(options) as store:
        with reading(store.engine) as connection:
            closings, balances = read_closings(connection), read_balances(connection)
            settled_by = clock_of(connection) / 1e6
            archived = archived_until(connection)
        entry_filter = _entry_filter(store, options, settled_by)
        if archived is not None and (entry_filter.since is None or entry_filter.since < archived.until):
            print(
                f"tokenweir: the entries until {archived} are archived: see `tokenweir periods list`", file=sys.stderr
            )
        write = _writer(options, in_parquet, balances if archived is None else None)
        values = store.dimension_values() if options.with_dimension_values else None
        with (
            nullcontext() if values is None else values_exported(store, options),
            Progress("exporting", "entries") as progress,
            nullcontext(sys.stdout.buffer) if options.output is None else whole_file(options.output) as file,
        ):
            if progress.is_shown:
                progress.total = count_entries(store.engine, entry_filter)
            settled: Iterable[Any] = progress.each(EntryReader(store.engine, entry_filter).settled())
            dimensions_of = partial(of_entries, store.engine, values=values)
            sources: Iterable[Any] = with_owners(settled, partial(owners_of, store.engine), closings, dimensions_of)
            write(file, columns, focus_rows(sources) if columns is FOCUS else sources)
            file.flush()


def _writer(options: argparse.Namespace, in_parquet: bool, balances: Balances | None) -> Write:
    """The writer for the format. `balances`: None if some entries are archived."""
    from proxy.reports.beancount import write_beancount
    from proxy.reports.export import write_csv, write_parquet

    if options.format != "beancount":
        return write_parquet if in_parquet else write_csv
    whole = options.since is options.until is options.key is None
    return lambda file, _, sources: write_beancount(file, sources, balances if whole else None)


def _entry_filter(store: LedgerStores, options: argparse.Namespace, settled_by: float) -> EntryFilter:
    """The filter of the options. Entries settled during the export are left for the next export."""
    from proxy.reports.entry_reader import EntryFilter

    return EntryFilter(
        since=options.since,
        until=options.until,
        key_ids=None if options.key is None else (store.keys.one(options.key).key_id,),
        settled_by=settled_by,
    )
