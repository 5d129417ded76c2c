"""`tokenweir doctor`: check a deployment. Invariants: the command changes nothing; it exits with 0 only if no check
fails."""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxy.cli.common import CONFIG_HELP, add_command, config_file, json_line, load_settings
from proxy.cli.output import add_json, painted
from proxy.foundation.names import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from proxy.doctor.examine import Check
    from proxy.doctor.finding import CheckedDeployment, Finding
    from proxy.settings import Settings

_SIGNS = {"ok": "✓", "warning": "!", "error": "✗"}


def add_commands(commands: Any) -> None:
    doctor = add_command(commands, "doctor", "check a deployment and print what to fix", _doctor)
    doctor.add_argument("--config", type=Path, metavar="FILE", help=f"{CONFIG_HELP}; else the environment")
    call = "request one token of this model; the provider bills it, the ledger does not record it"
    doctor.add_argument("--call", metavar="MODEL", help=call)
    add_json(doctor)


def _doctor(options: argparse.Namespace) -> int:
    from proxy.doctor.examine import checks

    return print_findings(
        lambda: _settings(options.config), checks, options.config, call=options.call, as_json=options.json
    )


def print_findings(
    read: Callable[[], Settings],
    checks: Callable[[CheckedDeployment], Sequence[Check]],
    config: Path | None,
    *,
    call: str | None = None,
    as_json: bool,
) -> int:
    """Read the settings, run the checks, and print what they find. `config`: the file that is named.
    `call`: see `CheckedDeployment`. Returns the exit code."""
    from proxy.doctor.examine import examine
    from proxy.doctor.finding import CheckedDeployment, error
    from proxy.settings import SettingsError

    try:
        case = CheckedDeployment(read(), time.time(), call, config_file(config))
    except SettingsError as refusal:
        *others, last = str(refusal).splitlines()
        findings = [error("configuration", line, "") for line in others]
        findings.append(
            error("configuration", last, "correct the configuration: the proxy does not start with this error")
        )
    else:
        findings = examine(case, checks(case))
    for finding in findings:
        for line in [json_line(asdict(finding))] if as_json else _lines(finding):
            print(line)
    failed = sum(finding.severity == "error" for finding in findings)
    if not as_json:
        print(f"\n{counted(failed, 'fault')}" if failed else "\nno check failed")
    return 1 if failed else 0


def _settings(config: Path | None) -> Settings:
    from proxy.settings import from_environment

    return from_environment(os.environ)[0] if config_file(config) is None else load_settings(config)


def _lines(finding: Finding) -> list[str]:
    advice = [f"  {'':18}  → {finding.advice}"] if finding.advice else []
    return [f"{painted(_SIGNS[finding.severity], finding.severity)} {finding.check:18}  {finding.message}", *advice]
