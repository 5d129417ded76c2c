"""`tokenweir ledger`: print the entries and how each charge was calculated."""

from __future__ import annotations

import argparse
import signal
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self

from proxy.billing.entries import EntryKind, LedgerEntry
from proxy.cli.common import json_line, load_settings, store_of, with_config
from proxy.cli.dimension_options import add_dimension_filters, dimension_filter
from proxy.cli.output import Form, add_json, form_of
from proxy.cli.values import Whole, moment
from proxy.foundation.names import UnknownNameError

if TYPE_CHECKING:
    from proxy.runtime.machine.ledger_stores import LedgerStores

# How often `ledger --follow` polls.
FOLLOW_S = 0.25


def add_commands(commands: Any) -> None:
    ledger = with_config(commands, "ledger", "print the entries, oldest first", _ledger)
    add_json(ledger, "print one JSON object per line, with every field")
    ledger.add_argument("--key", metavar="ALIAS", help="only this key")
    ledger.add_argument("--model", metavar="MODEL", help="only this model")
    add_dimension_filters(ledger)
    ledger.add_argument(
        "--since",
        type=moment,
        metavar="TIME",
        help="only exchanges since: 2026-11-01, 2026-11-01T12:00:00Z, 90m, 24h, 7d",
    )
    ledger.add_argument("--explain", action="store_true", help="print the parts of each charge, and flags")
    ledger.add_argument("--limit", type=Whole(1), metavar="N", help="only the last N entries")
    columns = ledger.add_mutually_exclusive_group()
    columns.add_argument(
        "--columns", type=_column_names, metavar="NAME,…", help="these columns; without it, those that fit the terminal"
    )
    columns.add_argument("--wide", action="store_true", help="all columns, also the exchange's id and the cost")
    ledger.add_argument("--follow", action="store_true", help="keep printing new entries, until Ctrl-C")

    exchange = with_config(commands, "exchange", "print everything about one exchange", _exchange)
    exchange.add_argument("exchange", metavar="EXCHANGE_ID", help="the answer's header x-tokenweir-exchange")
    add_json(exchange, "print one JSON object per entry, with every field")


def _exchange(options: argparse.Namespace) -> None:
    from proxy.reports.exchange_text import exchange_lines
    from proxy.reports.exchanges import read_exchange

    with store_of(options) as store:
        found = read_exchange(store.engine, options.exchange)
        if found is None:
            raise UnknownNameError(f"{options.exchange}: {_why_absent(store, options.exchange)}")
        if options.json:
            for entry in found.entries:
                until = _entries_until(store, entry)
                print(_entry_text(store, entry, until, ((), None, None), as_json=True, explain=True))
            return
        for text in exchange_lines(found, store.dimension_values().shown(found.dimensions.values())):
            print(text)


def _why_absent(store: LedgerStores, exchange_id: str) -> str:
    from proxy.ledger.archive.archives import absent
    from proxy.storage.database import reading

    with reading(store.engine) as connection:
        return absent(connection, exchange_id)


def _ledger(options: argparse.Namespace) -> None:
    with Interruption() as interruption:
        _entries(options, interruption)


def _entries(options: argparse.Namespace, interruption: Interruption) -> None:
    from proxy.reports.entry_reader import EntryFilter, EntryReader
    from proxy.reports.table_text import ENTRIES

    form = _form(options)
    with store_of(options) as store:
        entry_filter = EntryFilter(
            key_alias=options.key,
            model=options.model,
            since=options.since,
            dimensions=dimension_filter(store, options),
        )
        reader = EntryReader(store.engine, entry_filter)
        if not options.json:
            print(ENTRIES.header(*form[:2]))
        is_empty = True
        while True:
            for entry in _last(reader.new_entries(), options.limit):
                is_empty = False
                until = _entries_until(store, entry) if options.explain else []
                text = _entry_text(store, entry, until, form, as_json=options.json, explain=options.explain)
                print(text, flush=options.follow)
                if interruption.requested:
                    break
            if interruption.requested and not options.follow:  # an incomplete list must not exit with 0
                raise KeyboardInterrupt
            if is_empty:
                _refuse_unknown_names(store, options)
                is_empty = False
            if interruption.requested or not options.follow:
                return
            time.sleep(FOLLOW_S)


def _form(options: argparse.Namespace) -> Form:
    """The columns to print, and how."""
    from proxy.reports.table_text import ENTRIES

    names, width, paint = form_of(ENTRIES, wide=options.wide)
    return (names, width, paint) if options.columns is None else (options.columns, None, paint)


def _column_names(text: str) -> Sequence[str]:
    """The type of `--columns`."""
    from proxy.reports.table_text import COLUMNS

    names = tuple(name.strip().lower() for name in text.split(","))
    unknown = [name for name in names if name not in COLUMNS]
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no column {unknown[0]!r}: must be of {', '.join(COLUMNS)}")
    return names


def _last(entries: Iterable[LedgerEntry], limit: int | None) -> Iterable[LedgerEntry]:
    return entries if limit is None else deque(entries, maxlen=limit)


def _refuse_unknown_names(store: LedgerStores, options: argparse.Namespace) -> None:
    """Nothing was found: raise ValueError or Failure if there is no such key or model, rather than no entry of it."""
    if options.key is not None:
        store.keys.one(options.key)
    if options.model is not None:
        from proxy.settings import route

        if route(load_settings(options.config).models, options.model) is None:
            raise UnknownNameError(
                f"--model: the configuration has no model {options.model!r}, and the ledger no entry of it"
            )


class Interruption:
    """Records the first Ctrl-C instead of raising, since a library may swallow the exception. The second one raises."""

    def __init__(self) -> None:
        self.requested = False
        self._before = signal.getsignal(signal.SIGINT)

    def __enter__(self) -> Self:
        signal.signal(signal.SIGINT, self._interrupted)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _interrupted(self, *_: object) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


def _entries_until(store: LedgerStores, entry: LedgerEntry) -> list[LedgerEntry]:
    """The entries of the exchange up to a correction; empty for another entry."""
    from proxy.reports.exchanges import read_exchange

    found = read_exchange(store.engine, entry.exchange_id) if entry.kind == EntryKind.ADJUSTMENT else None
    return [] if found is None else [one for one in found.entries if one.kind != entry.kind or one.seq <= entry.seq]


def _entry_text(
    store: LedgerStores,
    entry: LedgerEntry,
    until: Sequence[LedgerEntry],
    form: Form,
    *,
    as_json: bool,
    explain: bool,
) -> str:
    from proxy.reports.dimensions import dimensions_text, stored_dimensions
    from proxy.reports.entry_reader import entry_json
    from proxy.reports.explain import (
        addends_json,
        batch_text,
        correction_json,
        correction_text,
        stated_text,
        sum_text,
    )
    from proxy.reports.flags import contradiction_lines, flag_lines, unread_lines
    from proxy.reports.table_text import ENTRIES

    if not explain:
        return json_line(entry_json(entry)) if as_json else ENTRIES.line(entry, *form)
    dimensions = stored_dimensions(entry.details)
    shown = store.dimension_values().shown(dimensions.values()) if dimensions else {}
    if as_json:
        values = {name: shown[value_id]._asdict() for name, value_id in dimensions.items()}
        more = {"addends": addends_json(entry), "dimensions": values} | correction_json(until)
        return json_line(entry_json(entry) | more)
    why = [dimensions_text(dimensions, shown), batch_text(entry), sum_text(entry), correction_text(until)]
    why += [stated_text(entry), *flag_lines(entry), *contradiction_lines(entry), *unread_lines(entry)]
    return "\n    ".join((ENTRIES.line(entry, *form), *filter(None, why)))
