"""`tokenweir reconcile`: is the ledger right? Law: it only reads; exit code 0 means that every check was made and none
found a difference. With `--provider` it is compared with that provider's own bill: see provider_bill.py."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from typing import TYPE_CHECKING, Any

from proxy.cli import provider_bill
from proxy.cli.common import Failure, json_line, load_settings, store_of, with_config
from proxy.settings import Settings

if TYPE_CHECKING:
    from proxy.reconciliation.integrity import RecordsInFlight
    from proxy.reconciliation.reconcile import Finding


def add_commands(commands: Any) -> None:
    """Make them known."""
    reconcile = with_config(
        commands, "reconcile", "check every invariant of the ledger, or compare it with a provider's bill"
    )
    form = reconcile.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one object per check, or per number compared")
    form.add_argument("--csv", action="store_true", help="with --provider: one line per number compared")
    since = "only what was settled since: 24h, 2026-11-01, … (quicker); with --provider: used since"
    reconcile.add_argument("--since", metavar="T", help=since)
    reconcile.add_argument(
        "--grace", default="5m", metavar="5m", help="how long a record may be on its way (default 5m)"
    )
    provider_bill.add_options(reconcile)
    reconcile.set_defaults(run=_reconcile)


def _reconcile(options: argparse.Namespace) -> int:
    if options.provider is not None:
        return provider_bill.run(options)
    if options.file is not None or options.until is not None or options.csv:
        raise Failure("--file, --until and --csv go with --provider: whose export is it?")
    return _with_itself(options)


def _with_itself(options: argparse.Namespace) -> int:
    from proxy.foundation.durations import seconds_from
    from proxy.reconciliation.reconcile import reconcile
    from proxy.reports.reports import since_from

    grace_s = seconds_from(options.grace)
    since = None if options.since is None else since_from(options.since, time.time())
    settings = load_settings(options.config)
    with store_of(options) as store:
        outside = None if settings.queue is None else _outside(settings)
        findings = reconcile(store.engine, clock=time.time, since=since, grace_s=grace_s, outside=outside)
    for finding in findings:
        for line in [json_line(_json(finding))] if options.json else _lines(finding):
            print(line)
    all_known = settings.queue is None or outside is not None
    return 0 if all_known and all(finding.ok for finding in findings) else 1


def _outside(settings: Settings) -> RecordsInFlight | None:
    """What is in the queue; None, and it is said, if that cannot be found out: the ledger is looked at all the same."""
    from proxy.runtime.machine.records_in_flight import read_records_in_flight

    try:
        return asyncio.run(read_records_in_flight(settings))
    except OSError as unavailable:
        print(f"tokenweir: what is in the queue is not known: {unavailable}", file=sys.stderr)
        return None


def _json(finding: Finding) -> dict[str, Any]:
    return {
        "check": finding.name,
        "ok": finding.ok,
        "means": finding.means,
        "differences": finding.differences,
        "in_flight": finding.in_flight,
        "examples": list(finding.examples),
    }


def _lines(finding: Finding) -> list[str]:
    said = "ok" if finding.ok else f"{finding.differences} differ"
    moving = f" ({finding.in_flight} on their way)" if finding.in_flight else ""
    examples = ("    " + ", ".join(f"{name}: {value}" for name, value in one.items()) for one in finding.examples)
    return [f"{finding.name:12}  {said:10}  {finding.means}{moving}", *examples]
