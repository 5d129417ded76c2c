"""`tokenweir reconcile --provider`: compare the ledger with a provider's bill.

Invariants: the command only reads. After a failed pull nothing is compared. It exits with 0 only if the uncertainties
recorded in the ledger explain every difference.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from io import BytesIO
from math import ceil
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxy.billing.money import usd_text
from proxy.cli.common import Failure, WrongUsage, json_line, load_settings, store_of, whole_file
from proxy.cli.output import print_table
from proxy.cli.values import moment
from proxy.foundation.names import UnknownNameError
from proxy.reports.tables import Column, Table

if TYPE_CHECKING:
    from proxy.reconciliation.provider_bill.bill import BillSubject, ProviderBill
    from proxy.reconciliation.provider_bill.check import Compared, Row

ALL = "all"
"""the text in the table for the day or the model of a total"""

_FIELDS = (
    "day", "model", "kind", "provider", "ledger", "difference", "estimated", "unknown_exchanges", "explained_less",
    "explained_more", "ended_later", "began_earlier", "verdict",
)  # fmt: skip
# Longer model names are cut off in the table.
_MODEL_CHARS_MAX = 40
_NUMBERS = ("provider", "ledger", "difference", "estimated")


def add_options(reconcile: argparse.ArgumentParser) -> None:
    """Add the options of this comparison."""
    bill = reconcile.add_argument_group("comparison with a provider's bill")
    bill.add_argument("--provider", metavar="NAME", help="compare the entries of this provider; needs --file or --pull")
    source = bill.add_mutually_exclusive_group()
    source.add_argument(
        "--file", type=Path, metavar="FILE", help="the provider's export of usage or costs (OpenAI, Anthropic)"
    )
    source.add_argument(
        "--pull",
        action="store_true",
        help="fetch usage and costs from the provider's API: whole days (UTC), by default yesterday; needs "
        "providers.NAME.admin_key",
    )
    bill.add_argument(
        "--save", type=Path, metavar="FILE", help="with --pull: write the pulled pages to a file, for --file"
    )
    bill.add_argument("--until", type=moment, metavar="TIME", help="only usage before this time (see --since)")


def run(options: argparse.Namespace) -> int:
    """Compare and print. Returns 1 if a difference is not explained."""
    from proxy.reconciliation.provider_bill.check import compare
    from proxy.reconciliation.provider_bill.provider_sums import read_ledger_totals

    bill, spans = _bill(options)
    with store_of(options) as store:
        ours = {subject: read_ledger_totals(store.engine, options.provider, times) for subject, times in spans.items()}
    if not any(ours.values()) and options.provider not in load_settings(options.config).providers:
        raise UnknownNameError("--provider: no provider of this name is configured or in the ledger")
    compared = compare(bill, ours)
    _print(compared, options)
    if bill.goes_on:
        print("tokenweir: the export is incomplete: its last page has a next page", file=sys.stderr)
    return 0 if compared.explained else 1


def _bill(options: argparse.Namespace) -> tuple[ProviderBill, dict[BillSubject, list[tuple[int, int]]]]:
    """The export, and the time spans of each of its subjects. Raises Failure that names the file or the provider."""
    from proxy.reconciliation.provider_bill.bill import BillError
    from proxy.reconciliation.provider_bill.file import read_bill

    if options.file is None and not options.pull:
        raise WrongUsage("--provider: needs the provider's export: --file, or --pull")
    if options.save is not None and not options.pull:
        raise WrongUsage("--save: needs --pull")
    where = f"providers.{options.provider}" if options.pull else str(options.file)
    try:
        with _pulled(options, time.time()) if options.pull else options.file.open("rb") as file:
            bill = read_bill(file, since=options.since, until=options.until)
        spans = {subject: bill.spans(subject) for subject in bill.subjects}
    except BillError as wrong:
        raise Failure(f"{where}: {wrong}") from wrong
    if not any(spans.values()):
        raise Failure(f"{where}: no bucket is within --since and --until")
    return bill, spans


def _pulled(options: argparse.Namespace, now: float) -> BytesIO:
    """The pages of the provider's API, as a file for --save. Raises Failure, PullError."""
    from proxy.reconciliation.provider_bill.pull import pull, whole_days

    provider = load_settings(options.config).providers.get(options.provider)
    if provider is None:
        raise UnknownNameError("--provider: no provider of this name is configured")
    content = asyncio.run(pull(provider, *whole_days(options.since, options.until, now)))
    if options.save is not None:
        with whole_file(options.save) as file:
            file.write(content)
    return BytesIO(content)


def _print(compared: Compared, options: argparse.Namespace) -> None:
    if options.json:
        for row in _every(compared):
            print(json_line(_fields(row)))
    elif options.csv:
        lines = csv.DictWriter(sys.stdout, _FIELDS, lineterminator="\n")
        lines.writeheader()
        lines.writerows(map(_fields, _every(compared)))
    else:
        rows = [_cells(row) for row in _every(compared)]
        print_table(_table_of(rows), rows, wide=options.wide)
        differ = sum(row.verdict.value == "differs" for row in (*compared.rows, *compared.models))
        print(f"{differ} numbers differ" if differ else "every difference is explained")


def _every(compared: Compared) -> Iterator[Row]:
    yield from (*compared.rows, *compared.models, *compared.totals)


def _fields(row: Row) -> dict[str, Any]:
    """A row for programs: `day` and `model` are null in a total; money is a decimal string of USD."""

    numbers = {
        "provider": row.provider, "ledger": row.ledger, "difference": row.difference, "estimated": row.estimated,
        "explained_less": ceil(row.less), "explained_more": ceil(row.more),
        "ended_later": row.ended_later, "began_earlier": row.began_earlier,
    }  # fmt: skip
    amounts = {name: _amount(row, value) for name, value in numbers.items()}
    named = {"day": None if row.day is None else str(row.day), "model": row.model, "kind": row.kind.value}
    fields = {**named, **amounts, "unknown_exchanges": row.unknown, "verdict": row.verdict.value}
    return {name: fields[name] for name in _FIELDS}


def _amount(row: Row, value: int) -> Any:
    return usd_text(value) if row.kind.value.endswith("_usd") else value


def _table_of(rows: Sequence[list[str]]) -> Table:
    """The table for people, as wide as its cells."""
    names = ("day", "model", "kind", *_NUMBERS, "verdict")

    def column(at: int, name: str) -> Column:
        width = max(len(name), *(len(row[at]) for row in rows)) if name != "verdict" else 0
        return Column(name.upper(), width, itemgetter(at), right=name in _NUMBERS, severity=partial(_severity, name))

    columns = {name: column(at, name) for at, name in enumerate(names)}
    return Table(columns, names, left_out=("estimated", "kind", "ledger"))


def _severity(name: str, row: list[str]) -> str | None:
    return "error" if name == "verdict" and row[-1].startswith("differs") else None


def _cells(row: Row) -> list[str]:
    fields = _fields(row)
    model = ALL if row.model is None else row.model
    shown = model if len(model) <= _MODEL_CHARS_MAX else model[: _MODEL_CHARS_MAX - 1] + "…"
    what = row.kind.value.replace("_usd", " USD").replace("_", " ")
    return [str(row.day or ALL), shown, what, *(str(fields[name]) for name in _NUMBERS), _why(row)]


def _why(row: Row) -> str:
    """The verdict, and hints at its reason."""
    parts = [row.verdict.value]
    if row.difference:
        parts += [f"{_amount(row, row.ended_later)} ended later"] if row.ended_later else []
        parts += [f"{_amount(row, row.began_earlier)} began earlier"] if row.began_earlier else []
        parts += [f"unknown for {row.unknown} exchanges"] if row.unknown else []
    return "; ".join(parts)
