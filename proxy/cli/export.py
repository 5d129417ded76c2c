"""`tokenweir export`: entries as files for other programs. Law: a file is there when it is whole."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from proxy.cli.common import Failure, store_of, whole_file, with_config

if TYPE_CHECKING:
    from proxy.reports.reports import EntryFilter
    from proxy.runtime.machine.ledger_stores import LedgerStores

# A bar that is drawn more often than this costs more than it tells.
DRAW_S = 0.2
BAR_CHARS = 30

_T = TypeVar("_T")


def add_commands(commands: Any) -> None:
    """Make them known."""
    export = with_config(commands, "export", "entries as a file for other programs, in the order they were settled")
    export.add_argument("--format", choices=("csv", "parquet", "focus"), default="csv", help="focus: FOCUS 1.2")
    export.add_argument(
        "--since", metavar="T", help="begun at or after: 2026-11-01, 2026-11-01T12:00:00Z, 90m, 24h, 7d"
    )
    export.add_argument("--until", metavar="T", help="begun before")
    export.add_argument("--key", metavar="KEY_ID|ALIAS", help="of this key only")
    export.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="FOCUS becomes Parquet if this ends in .parquet",
    )
    export.set_defaults(run=_export)


def _export(options: argparse.Namespace) -> int:
    from proxy.ledger.accounts.owners import owners_of
    from proxy.reports.export import ENTRIES, with_owners, write_csv, write_parquet
    from proxy.reports.focus import FOCUS, is_charge
    from proxy.reports.reports import EntryReader, count_entries

    in_parquet = options.format == "parquet" or (options.output is not None and options.output.suffix == ".parquet")
    if options.format == "csv" and in_parquet:
        raise Failure("--output: a CSV file would not be called .parquet")
    if in_parquet and options.output is None and sys.stdout.isatty():
        raise Failure("--output: Parquet is nothing for a terminal")
    write = write_parquet if in_parquet else write_csv
    columns = FOCUS if options.format == "focus" else ENTRIES
    with store_of(options) as store:
        wanted = _wanted(store, options)
        settled: Iterable[Any] = EntryReader(store.engine, wanted).settled()
        if sys.stderr.isatty():
            settled = with_bar(settled, count_entries(store.engine, wanted), sys.stderr)
        if columns is FOCUS:
            settled = (one for one in settled if is_charge(one[0]))
        with nullcontext(sys.stdout.buffer) if options.output is None else whole_file(options.output) as file:
            write(file, columns, with_owners(settled, partial(owners_of, store.engine)))
            file.flush()
    return 0


def _wanted(store: LedgerStores, options: argparse.Namespace) -> EntryFilter:
    """Up to now: what is settled meanwhile is for the next export."""
    from proxy.ledger.settling.spend import ledger_time
    from proxy.reports.reports import EntryFilter, since_from

    now = time.time()
    return EntryFilter(
        since=None if options.since is None else since_from(options.since, now),
        until=None if options.until is None else since_from(options.until, now),
        key_ids=None if options.key is None else (store.keys.one(options.key).key_id,),
        settled_by=ledger_time(store.engine) / 1e6,
    )


def with_bar(some: Iterable[_T], count: int, terminal: IO[str]) -> Iterator[_T]:
    """The same, while a bar grows on a terminal; it is wiped away at the end."""
    drawn_at = 0.0
    try:
        for number, one in enumerate(some, 1):
            if (now := time.monotonic()) - drawn_at >= DRAW_S:
                drawn_at = now
                full = BAR_CHARS * number // max(count, number)
                terminal.write(f"\r{'█' * full}{'░' * (BAR_CHARS - full)} {number:,} of {max(count, number):,}")
                terminal.flush()
            yield one
    finally:
        terminal.write("\r\x1b[2K")
        terminal.flush()
