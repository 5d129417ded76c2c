"""`tokenweir reconcile`: check the ledger; or, with `--estimates`, show the error of estimates. For `--provider` see
provider_bill.py.

Invariants: the command only reads. It exits with 0 only if every check ran and none found a difference.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from typing import TYPE_CHECKING, Any

from proxy.billing.money import usd_text
from proxy.cli import provider_bill
from proxy.cli.common import WrongUsage, json_line, load_settings, store_of, with_config
from proxy.cli.output import add_json, cut_to_terminal, painted
from proxy.cli.progress import Progress
from proxy.cli.values import duration, moment
from proxy.settings import Settings

if TYPE_CHECKING:
    from proxy.reconciliation.estimates import ModelEstimates
    from proxy.reconciliation.integrity import RecordsInFlight
    from proxy.reconciliation.reconcile import CheckFinding


def add_commands(commands: Any) -> None:
    reconcile = with_config(
        commands, "reconcile", "check every invariant of the ledger, or compare it with a provider's bill", _reconcile
    )
    form = reconcile.add_mutually_exclusive_group()
    add_json(form, "print one JSON object per check, or per compared number")
    form.add_argument("--wide", action="store_true", help="with --provider: print every column")
    form.add_argument("--csv", action="store_true", help="with --provider: print one CSV line per compared number")
    since = "only entries settled since 24h, 2026-11-01, … (quicker); with --provider: only usage since"
    reconcile.add_argument("--since", type=moment, metavar="TIME", help=since)
    reconcile.add_argument(
        "--grace",
        type=duration,
        default="5m",
        metavar="5m",
        help="how long a record may take to reach the ledger (default 5m)",
    )
    reconcile.add_argument(
        "--estimates",
        action="store_true",
        help="print instead, by model, the errors of estimates: of those whose usage the provider reported afterwards",
    )
    provider_bill.add_options(reconcile)


def _reconcile(options: argparse.Namespace) -> int:
    if options.provider is not None:
        return provider_bill.run(options)
    if options.file is not None or options.pull or options.save or options.until is not None or options.csv:
        raise WrongUsage("--file, --pull, --save, --until and --csv: need --provider")
    return _estimates(options) if options.estimates else _integrity(options)


def _estimates(options: argparse.Namespace) -> int:
    from proxy.reconciliation.estimates import estimates

    with store_of(options) as store:
        found = estimates(store.engine, options.since)
    for of_model in found:
        print(json_line(_estimates_json(of_model)) if options.json else cut_to_terminal(_estimates_line(of_model)))
    return 0


def _estimates_json(of_model: ModelEstimates) -> dict[str, Any]:
    return {
        "provider": of_model.provider,
        "model": of_model.model,
        "reported": of_model.reported,
        "unanswered": of_model.unanswered,
        "prompt_error": of_model.prompt.mean,
        "prompt_bias": of_model.prompt.bias,
        "completion_error": of_model.completion.mean,
        "completion_bias": of_model.completion.bias,
        "charge_usd": usd_text(of_model.charge_nusd),
    }


def _estimates_line(of_model: ModelEstimates) -> str:
    counts = "; ".join(
        f"{name} ±{error.mean:.1%}, bias {error.bias:.3f}"
        for name, error in (("prompt", of_model.prompt), ("completion", of_model.completion))
        if error.mean is not None and error.bias is not None
    )
    asked = f"{of_model.reported} reported, {of_model.unanswered} unanswered"
    adjusted = f"adjusted by {usd_text(of_model.charge_nusd)} USD"
    return "  ".join(filter(None, (f"{of_model.provider}/{of_model.model}", asked, counts, adjusted)))


def _integrity(options: argparse.Namespace) -> int:
    from proxy.reconciliation.reconcile import reconcile

    settings = load_settings(options.config)
    with store_of(options) as store:
        in_flight = None if settings.queue is None else _in_flight(settings)
        with Progress("checking the ledger", "checks") as shown:

            def progress(name: str, done: int, total: int) -> None:
                shown.what, shown.done, shown.total = f"checking {name}", done, total

            findings = reconcile(
                store.engine,
                clock=time.time,
                since=options.since,
                grace_s=options.grace,
                in_flight=in_flight,
                progress=progress,
            )
    for finding in findings:
        for line in [json_line(_json(finding))] if options.json else _lines(finding):
            print(line)
    complete = settings.queue is None or in_flight is not None
    return 0 if complete and all(finding.ok for finding in findings) else 1


def _in_flight(settings: Settings) -> RecordsInFlight | None:
    """The records in the queue. None, with a message, if the queue cannot be read; the ledger is checked in any
    case."""
    from proxy.runtime.machine.records_in_flight import read_records_in_flight

    try:
        return asyncio.run(read_records_in_flight(settings))
    except OSError as unavailable:
        print(f"tokenweir: queue: cannot be read: {unavailable}", file=sys.stderr)
        return None


def _json(finding: CheckFinding) -> dict[str, Any]:
    return {
        "check": finding.name,
        "ok": finding.ok,
        "description": finding.description,
        "differences": finding.differences,
        "in_flight": finding.in_flight,
        "examples": list(finding.examples),
    }


def _lines(finding: CheckFinding) -> list[str]:
    result = "ok" if finding.ok else f"{finding.differences} differ"
    in_flight = f" ({finding.in_flight} in flight)" if finding.in_flight else ""
    examples = (
        "    " + ", ".join(f"{name}: {value}" for name, value in example.items()) for example in finding.examples
    )
    rest = cut_to_terminal(f"{finding.name:12}  {result:10}  {finding.description}{in_flight}")[24:]
    shown = painted(f"{result:10}", "ok" if finding.ok else "error")
    return [f"{finding.name:12}  {shown}{rest}", *examples]
