"""`tokenweir reconcile`: is the ledger right? Law: it only reads; exit code 0 means that every check was made and none
found a difference."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from proxy.cli.words import json_line, store_of, with_config
from proxy.settings import load

if TYPE_CHECKING:
    from proxy.ledger.reconcile import Finding


def add_commands(commands: Any) -> None:
    """Make them known."""
    reconcile = with_config(commands, "reconcile", "check every invariant of the ledger, also while it is written to")
    reconcile.add_argument("--json", action="store_true", help="one object per check")
    reconcile.add_argument("--since", metavar="T", help="only what was settled since: 24h, 2026-11-01, … (quicker)")
    reconcile.add_argument(
        "--grace", default="5m", metavar="5m", help="how long a record may be on its way (default 5m)"
    )
    reconcile.set_defaults(run=_reconcile)


def _reconcile(options: argparse.Namespace) -> int:
    from proxy.billing.durations import seconds_from
    from proxy.compose.outside import outside_of
    from proxy.ledger.reconcile import reconcile
    from proxy.ledger.reports import since_from

    grace_s = seconds_from(options.grace)
    since = None if options.since is None else since_from(options.since, time.time())
    with store_of(options) as store:
        known, outside = True, None
        try:
            outside = asyncio.run(outside_of(load(options.config, os.environ)))
        except OSError as unavailable:
            known = False
            print(f"tokenweir: what is in the queue is not known: {unavailable}", file=sys.stderr)
        findings = reconcile(store.engine, clock=time.time, since=since, grace_s=grace_s, outside=outside)
    for finding in findings:
        for line in [json_line(_json(finding))] if options.json else _lines(finding):
            print(line)
    return 0 if known and all(finding.ok for finding in findings) else 1


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
