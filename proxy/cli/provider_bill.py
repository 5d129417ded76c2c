"""`tokenweir reconcile --provider`: does the provider's own bill say what our ledger says? Law: it only reads; exit
code 0 means that every difference is explained by what our ledger itself says is uncertain."""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxy.billing.money import usd_text
from proxy.cli.common import Failure, json_line, load_settings, store_of

if TYPE_CHECKING:
    from proxy.reconciliation.provider_bill.bill import Bill, BillSubject
    from proxy.reconciliation.provider_bill.check import Compared, Row

ALL = "all"
"""in the table, in place of a day or a model, where days or models are added up"""

_FIELDS = (
    "day", "model", "what", "provider", "ledger", "difference", "estimated", "unknown", "explained_less",
    "explained_more", "left", "came", "verdict",
)  # fmt: skip
# A model's name may be long; the table grows with it up to here.
_MODEL_CHARS_MAX = 40
_NUMBERS = ("provider", "ledger", "difference", "estimated")


def add_options(reconcile: argparse.ArgumentParser) -> None:
    """Those that are about a provider."""
    bill = reconcile.add_argument_group("against a provider's own bill")
    bill.add_argument("--provider", metavar="NAME", help="compare what the ledger has of this provider …")
    bill.add_argument(
        "--file", type=Path, metavar="FILE", help="… with its export of usage or costs (OpenAI, Anthropic)"
    )
    bill.add_argument("--until", metavar="T", help="only what was used before (and --since)")


def run(options: argparse.Namespace) -> int:
    """Compare, print; exit code 1 if anything differs that is not explained."""
    from proxy.reconciliation.provider_bill.check import compare
    from proxy.reconciliation.provider_bill.provider_sums import read_ledger_totals

    bill, spans = _bill(options)
    with store_of(options) as store:
        ours = {subject: read_ledger_totals(store.engine, options.provider, times) for subject, times in spans.items()}
    if not any(ours.values()) and options.provider not in load_settings(options.config).providers:
        raise Failure("--provider: nothing is configured under this name, and nothing of it is in the ledger")
    compared = compare(bill, ours)
    _print(compared, options)
    if bill.goes_on:
        print("tokenweir: the last page of the export says that there are more", file=sys.stderr)
    return 0 if compared.explained else 1


def _bill(options: argparse.Namespace) -> tuple[Bill, dict[BillSubject, list[tuple[int, int]]]]:
    """What the export says, and of which times. Raises Failure that names the file."""
    from proxy.reconciliation.provider_bill.bill import BillError
    from proxy.reconciliation.provider_bill.file import read_bill
    from proxy.reports.reports import since_from

    if options.file is None:
        raise Failure("--provider: give its export, too: --file")
    now = time.time()
    since, until = (None if text is None else since_from(text, now) for text in (options.since, options.until))
    try:
        with options.file.open("rb") as file:
            bill = read_bill(file, since=since, until=until)
        spans = {subject: bill.spans(subject) for subject in bill.subjects}
    except BillError as wrong:
        raise Failure(f"{options.file}: {wrong}") from wrong
    if not any(spans.values()):
        raise Failure(f"{options.file}: no bucket of it is within the time that is asked for")
    return bill, spans


def _print(compared: Compared, options: argparse.Namespace) -> None:
    if options.json:
        for row in _every(compared):
            print(json_line(_fields(row)))
    elif options.csv:
        lines = csv.DictWriter(sys.stdout, _FIELDS, lineterminator="\n")
        lines.writeheader()
        lines.writerows(map(_fields, _every(compared)))
    else:
        for line in _table(compared):
            print(line)


def _every(compared: Compared) -> Iterator[Row]:
    yield from (*compared.rows, *compared.models, *compared.totals)


def _fields(row: Row) -> dict[str, Any]:
    """For programs: `day` and `model` are null where they are added up; money is a decimal string of USD."""
    from math import ceil

    said = {
        "provider": row.provider, "ledger": row.ledger, "difference": row.difference, "estimated": row.estimated,
        "explained_less": ceil(row.less), "explained_more": ceil(row.more), "left": row.left, "came": row.came,
    }  # fmt: skip
    amounts = {name: _amount(row, value) for name, value in said.items()}
    named = {"day": None if row.day is None else str(row.day), "model": row.model, "what": row.kind.value}
    fields = {**named, **amounts, "unknown": row.unknown, "verdict": row.verdict.value}
    return {name: fields[name] for name in _FIELDS}


def _amount(row: Row, value: int) -> Any:
    return usd_text(value) if row.kind.value.endswith("_usd") else value


def _table(compared: Compared) -> Iterator[str]:
    """For people: a line for each number, and a last one that says what it comes to."""
    cells = [
        [title.upper() for title in ("day", "model", "what", *_NUMBERS, "verdict")],
        *map(_cells, _every(compared)),
    ]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    numbers = range(3, 3 + len(_NUMBERS))
    for line in cells:
        parts = (
            text.rjust(w) if at in numbers else text.ljust(w)
            for at, (text, w) in enumerate(zip(line, widths, strict=True))
        )
        yield "  ".join(parts).rstrip()
    differ = sum(row.verdict.value == "differs" for row in (*compared.rows, *compared.models))
    yield f"{differ} numbers differ" if differ else "nothing differs that is not explained"


def _cells(row: Row) -> list[str]:
    fields = _fields(row)
    model = ALL if row.model is None else row.model
    shown = model if len(model) <= _MODEL_CHARS_MAX else model[: _MODEL_CHARS_MAX - 1] + "…"
    what = row.kind.value.replace("_usd", " USD").replace("_", " ")
    return [str(row.day or ALL), shown, what, *(str(fields[name]) for name in _NUMBERS), _why(row)]


def _why(row: Row) -> str:
    """The verdict, and what helps to find the reason."""
    parts = [row.verdict.value]
    if row.difference:
        parts += [f"{_amount(row, row.left)} ended later"] if row.left else []
        parts += [f"{_amount(row, row.came)} began earlier"] if row.came else []
        parts += [f"not known of {row.unknown} exchanges"] if row.unknown else []
    return "; ".join(parts)
