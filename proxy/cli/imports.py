"""`tokenweir import`: usage that never passed the proxy.

Invariants: every row of the file is checked before the first one is written. If a command is interrupted, the same
command can be run again: it writes the rows that are missing.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxy.billing.money import usd_text
from proxy.cli.common import Failure, load_settings, store_of, with_config
from proxy.cli.output import print_object
from proxy.cli.progress import Progress
from proxy.foundation.names import counted

if TYPE_CHECKING:
    from proxy.billing.entries import LedgerEntry
    from proxy.billing.imported import ImportedRow
    from proxy.billing.keys import ApiKey
    from proxy.billing.record import Price
    from proxy.ledger.importing.importer import ImportResult
    from proxy.runtime.machine.ledger_stores import LedgerStores
    from proxy.settings import Settings

# Errors that are printed; others are counted.
ERRORS_SHOWN = 20
# Clocks may differ.
AHEAD_S_MAX = 300.0
_FORMATS = ("csv", "jsonl", "otlp")
_TABLES = _FORMATS[:2]


def add_commands(commands: Any) -> None:
    words = "book usage that never passed the proxy, from CSV, JSON lines or the OpenTelemetry logs of coding agents"
    add = with_config(commands, "import", words, _import, action="import", quiet="")
    add.add_argument("file", type=Path, metavar="FILE")
    words = "format of the file (default: by its name); otlp: OpenTelemetry logs as JSON lines"
    add.add_argument("--format", choices=_FORMATS, help=words)
    words = "the key that pays for all rows; a row that names another one is an error (default: the key of each row)"
    add.add_argument("--key", metavar="KEY_ID|ALIAS", help=words)
    words = "the provider of rows that name no provider (default: the first one that is configured for the model)"
    add.add_argument("--provider", metavar="NAME", help=words)
    words = "bill the cost that rows state (default: only if the model has no price)"
    add.add_argument("--stated-cost", action="store_true", help=words)
    add.add_argument("--dry-run", action="store_true", help="check the file and print the sums without writing")


def _import(options: argparse.Namespace) -> None:
    from proxy.ledger.importing.importer import Importer

    with store_of(options) as store, Progress("importing", "rows") as shown:
        importer = Importer(store.engine, store.ledger, dry_run=options.dry_run)
        rows = _Rows(options, store)
        rows.check(importer.archived)
        if not options.dry_run:  # a row that contradicts an earlier import stops the command before it writes
            trial = Importer(store.engine, store.ledger, dry_run=True)
            for batch in rows.batches():
                trial.add(batch)
        for batch in rows.batches():
            importer.add(batch)
            shown.done = importer.result.rows
    for note in rows.notes:
        print(f"tokenweir: {note}", file=sys.stderr)
    print_object(options, {**_json(importer.result), **({"dry_run": True} if options.dry_run else {})})


def _json(result: ImportResult) -> dict[str, Any]:
    counts = {name: getattr(result, name) for name in ("rows", "imported", "repeated", "late", "unpriced")}
    sums = {"charge_usd": usd_text(result.charge_nusd), "cost_usd": usd_text(result.cost_nusd)}
    models = {"unpriced_models": sorted(result.unpriced_models)} if result.unpriced else {}
    aliases = Counter(one.key_alias for one in result.by_key.values())
    keys = {
        (one.key_alias if aliases[one.key_alias] == 1 else key_id): {
            "imported": one.imported, "charge_usd": usd_text(one.charge_nusd),
        }
        for key_id, one in result.by_key.items()
    }  # fmt: skip
    return {**counts, **models, **sums, "keys": keys}


class _Rows:
    """The rows of a file, which is read twice: first to check it, then to settle the rows."""

    def __init__(self, options: argparse.Namespace, store: LedgerStores) -> None:
        from proxy.ledger.importing.rows import FileFormat, format_of

        self._options, self._store = options, store
        self._settings: Settings = load_settings(options.config)
        self._format = format_of(options.file) if options.format is None else FileFormat(options.format)
        self._keys: dict[str, ApiKey] = {}
        self.notes: dict[str, None] = {}
        """notes about unusual rows, in the order of the rows"""
        self._seen: Counter[str] = Counter()

    def check(self, archived: Any) -> None:
        """Raises Failure, which names lines and fields, if a row cannot be imported."""
        from proxy.ledger.importing.rows import RowError, read_rows

        errors, number, latest = list[str](), 0, time.time() + AHEAD_S_MAX
        ids: dict[str, int] = {}
        for row in read_rows(self._options.file, self._format):
            why = row.why if isinstance(row, RowError) else self._fault(row, latest, archived, ids)
            if why is not None:
                number += 1
                errors += [f"line {row.line}: {why}"] if number <= ERRORS_SHOWN else []
        if number:
            more = [f"… and {counted(number - len(errors), 'more error')}"] if number > len(errors) else []
            lines = "\n".join((*errors, *more))
            raise Failure(f"{lines}\n{self._options.file}: nothing was imported")

    def _fault(self, row: ImportedRow, latest: float, archived: Any, ids: dict[str, int]) -> str | None:
        """Why a row cannot be imported; None: it can."""
        if row.at > latest:
            return "time: must not be in the future"
        if archived is not None and row.at < archived.until:
            return f"time: the entries of {archived} and before are archived"
        if row.row_id is not None and ids.setdefault(exchange_id := row.exchange_id(), row.line) != row.line:
            return f"id: line {ids[exchange_id]} has the same id and time"
        try:
            self._key(row)
            self._served_by(row)
        except ValueError as wrong:
            return str(wrong)
        return None

    def batches(self) -> Iterator[list[tuple[int, LedgerEntry]]]:
        """All entries, some at a time, each with its line."""
        from proxy.ledger.importing.importer import BATCH_ROWS

        self._seen.clear()
        entries = self._entries()
        while batch := list(islice(entries, BATCH_ROWS)):
            yield batch

    def _entries(self) -> Iterator[tuple[int, LedgerEntry]]:
        from proxy.billing.imported import ImportedRow, imported_record
        from proxy.billing.settlement import entry
        from proxy.ledger.importing.rows import read_rows

        for row in read_rows(self._options.file, self._format):
            if not isinstance(row, ImportedRow):
                raise Failure(f"line {row.line}: the file has changed since it was checked")
            key, served_by = self._key(row), self._served_by(row)
            repetition = self._seen[row.content]
            self._seen[row.content] += 1
            price, cost = self._prices(row, key, served_by)
            dimensions = self._dimensions(row, key)
            record = imported_record(row, row.exchange_id(repetition), key, served_by, price, cost, dimensions)
            yield row.line, entry(record)

    def _key(self, row: ImportedRow) -> ApiKey:
        """Raises ValueError."""
        fixed = self._options.key
        if fixed is None and row.key is None:
            raise ValueError("key: is missing: name a key in the row, or use --key")
        key = self._named_key(row.key or fixed)
        if fixed is not None and key.key_id != self._named_key(fixed).key_id:
            raise ValueError("key: is not that of --key; without --key, each row is billed to the key that it names")
        return key

    def _named_key(self, name: str) -> ApiKey:
        """Raises ValueError."""
        if name not in self._keys:
            self._keys[name] = self._store.keys.one(name)
        return self._keys[name]

    def _served_by(self, row: ImportedRow) -> tuple[str, str]:
        """The provider, and its name of the model. Raises ValueError."""
        from proxy.settings.reading import route

        found = route(self._settings.models, row.model)
        name = row.provider or self._options.provider
        targets = () if found is None else found[0].providers
        target = next((one for one in targets if name in (None, one.provider)), None)
        if target is not None and found is not None:
            return target.provider, target.upstream_model or found[1] or row.model
        if name is None:
            raise ValueError(
                f"provider: is missing, and the model {row.model} is not in the configuration: use --provider"
            )
        if row.source in _TABLES or row.provider is None:  # the events of an agent state the provider of the agent
            self._note(name, row, [one.provider for one in targets])
        return name, row.model

    def _note(self, provider: str, row: ImportedRow, usual: Sequence[str]) -> None:
        if len(self.notes) >= ERRORS_SHOWN:
            return
        if provider not in self._settings.providers:
            known = ", ".join(self._settings.providers)
            self.notes[f"the provider {provider} is not in the configuration, which has {known}"] = None
        elif usual:
            text = f"the configuration serves {row.model} at {', '.join(usual)}, not at {provider}"
            self.notes[f"{text}: these rows have the prices of {provider}"] = None

    def _prices(self, row: ImportedRow, key: ApiKey, served_by: tuple[str, str]) -> tuple[Price | None, Price | None]:
        from proxy.billing.imported import STATED
        from proxy.billing.pricing.prices import can_charge
        from proxy.billing.record import BillableParts

        price, cost = self._lookup.named(row.model, *served_by, row.at, self._payer_of(key.key_id))
        if row.cost_nusd is None:
            return price, cost
        is_priced = price is not None and can_charge(price, row.usage, BillableParts.EVERYTHING)
        is_stated = self._options.stated_cost or row.usage.reported_nothing or not is_priced
        return (STATED, STATED) if is_stated else (price, cost)

    def _dimensions(self, row: ImportedRow, key: ApiKey) -> dict[str, str]:
        from proxy.billing.dimensions import END_USER, hashed
        from proxy.ledger.dimensions.values import DimensionValues

        values = dict(row.dimensions)
        if self._options.dry_run or not values:
            return {}
        pepper = self._store.end_user_pepper()
        if pepper is not None and END_USER in values:
            values[END_USER] = hashed(values[END_USER], pepper)
        named = (key.project_id, tuple(values.items()))
        if named not in self._ids:
            self._ids[named] = DimensionValues(self._store.engine).ids_of(key.project_id, values)
        return self._ids[named]

    @cached_property
    def _ids(self) -> dict[Any, dict[str, str]]:
        return {}

    @cached_property
    def _payer_of(self) -> Any:
        from proxy.ledger.accounts.owners import payer_of

        return payer_of(self._store.engine)

    @cached_property
    def _lookup(self) -> Any:
        from proxy.runtime.machine.price_check import book_in_use
        from proxy.runtime.machine.price_lookup import PriceLookup

        return PriceLookup(self._settings, book_in_use(self._settings, self._store.engine)[1])
