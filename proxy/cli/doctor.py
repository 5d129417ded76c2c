"""`tokenweir doctor`: is this deployment fit to serve? Law: it changes nothing; exit code 0: nothing fails."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxy.cli.common import json_line, load_settings
from proxy.settings import Settings, SettingsError, from_environment

if TYPE_CHECKING:
    from proxy.doctor.finding import Finding

_SIGNS = {"ok": "✓", "note": "!", "fails": "✗"}


def add_commands(commands: Any) -> None:
    """Make them known."""
    words = "check a deployment from end to end, and say what to do"
    doctor = commands.add_parser("doctor", help=words, description=words)
    doctor.add_argument("--config", type=Path, metavar="FILE", help="without it, providers come from the environment")
    call = "ask it for one token: that is on the provider's bill, and not in the ledger"
    doctor.add_argument("--call", metavar="MODEL", help=call)
    doctor.add_argument("--json", action="store_true", help="one object per line")
    doctor.set_defaults(run=_doctor)


def _doctor(options: argparse.Namespace) -> int:
    from proxy.doctor.examine import checks, examine
    from proxy.doctor.finding import Case, fails

    try:
        case = Case(_settings(options.config), time.time(), options.call)
    except SettingsError as refusal:
        findings = [fails("configuration", str(refusal), "mend this field: nothing starts before")]
    else:
        findings = examine(case, checks(case))
    for finding in findings:
        for line in [json_line(_json(finding))] if options.json else _lines(finding):
            print(line)
    failed = sum(finding.mark == "fails" for finding in findings)
    if not options.json:
        print(f"\n{failed} of {len(findings)} fail" if failed else "\nnothing fails")
    return 1 if failed else 0


def _settings(config: Path | None) -> Settings:
    return from_environment(os.environ)[0] if config is None else load_settings(config)


def _json(finding: Finding) -> dict[str, Any]:
    return {"check": finding.check, "mark": finding.mark, "said": finding.said, "advice": finding.advice}


def _lines(finding: Finding) -> list[str]:
    advice = [f"  {'':18}  → {finding.advice}"] if finding.advice else []
    return [f"{_SIGNS[finding.mark]} {finding.check:18}  {finding.said}", *advice]
