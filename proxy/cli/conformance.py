"""`tokenweir conformance`: test any gateway; prints what the gateway relayed and billed in each case.

Invariants: the command needs no configuration of Tokenweir, and reads bills only by the command in `--bills`. It exits
with 0 only if at least one case ran and no case that ran has a fault.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from typing import TYPE_CHECKING, Any

from proxy.cli.common import Failure, WrongUsage, add_command, json_line
from proxy.cli.output import add_json, cut_to_terminal, painted
from proxy.cli.progress import Progress
from proxy.cli.values import duration, option_value

if TYPE_CHECKING:
    from proxy.conformance.cases import Case
    from proxy.conformance.score import CaseResult

_KEY = "TOKENWEIR_CONFORMANCE_KEY"
_PROVIDER = "127.0.0.1:9911"


def add_commands(commands: Any) -> None:
    help_text = "test any gateway with exchanges whose correct bills are known"
    conformance = add_command(commands, "conformance", help_text, _conformance)
    conformance.add_argument("--gateway", type=_url, metavar="URL", help="the gateway's address: http://127.0.0.1:8080")
    conformance.add_argument("--key", help=f"a key of the gateway (default: ${_KEY})")
    bills = "prints the gateway's bills: one JSON object per line, with model, prompt_tokens, completion_tokens and, "
    conformance.add_argument("--bills", metavar="COMMAND", help=bills + "if known, charge_usd or cost_usd")
    provider = f"address at which the suite's provider listens (default {_PROVIDER})"
    conformance.add_argument("--provider", type=_address, metavar="HOST:PORT", default=_PROVIDER, help=provider)
    restart = "kills the gateway with SIGKILL and starts it again; without it, cases with a restart are skipped"
    conformance.add_argument("--restart", metavar="COMMAND", help=restart)
    conformance.add_argument(
        "--only",
        type=_pattern,
        metavar="NAME",
        action="append",
        default=[],
        help="cases: chat-stream, anthropic-*; may be repeated",
    )
    wait_help = "longest wait for the bills (default 30s)"
    conformance.add_argument("--wait", type=duration, metavar="30s", default="30s", help=wait_help)
    add_json(conformance, "print one JSON object per case")
    conformance.add_argument("--list", action="store_true", help="print the cases without running them")


def _conformance(options: argparse.Namespace) -> int:
    from proxy.conformance.cases import selected
    from proxy.conformance.score import summary

    cases = selected(options.only)
    if options.list:
        for case in cases:
            print(json_line(_listed(case)) if options.json else f"{case.model:50}  {case.what}")
        return 0
    results = _run(options, cases)
    if not options.json:
        print(cut_to_terminal(f"  {'case':31}  {'relayed':16}  {'billed':30}  completion tokens: booked, true"))
    for result in results:
        print(json_line(_json(result)) if options.json else _line(result))
    if not options.json:
        print(f"\n{summary(results)}")
    ran = [result for result in results if result.ran]
    return 0 if ran and all(result.right for result in ran) else 1


def _run(options: argparse.Namespace, cases: list[Case]) -> list[CaseResult]:
    from proxy.conformance.run import Plan, RunError, run
    from proxy.settings.variables import variable

    key = options.key or variable(os.environ, _KEY) or ""
    for name, value in (("--gateway", options.gateway), ("--key", key), ("--bills", options.bills)):
        if not value:
            raise WrongUsage(f"{name} is required")
    host, port = options.provider
    plan = Plan(
        options.gateway, key, options.bills, cases, host, port,
        options.wait, options.restart,
    )  # fmt: skip
    with Progress("running", "cases", total=len(cases)) as shown:

        def progress(name: str) -> None:
            shown.what, shown.done = name, shown.done + 1

        try:
            return asyncio.run(run(plan, progress))
        except RunError as refusal:
            raise Failure(str(refusal)) from None


def _url(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"must be a URL, such as http://127.0.0.1:8080, not {text!r}")
    return text


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise argparse.ArgumentTypeError(f"must be HOST:PORT, such as {_PROVIDER}, not {text!r}")
    return host.strip("[]"), int(port)


def _pattern(text: str) -> str:
    from proxy.conformance.cases import selected

    option_value(lambda one: selected([one]), text)
    return text


def _listed(case: Case) -> dict[str, Any]:
    return {"case": case.upstream_model, "model": case.model, "wire": case.wire.name, "what": case.what}


def _json(result: CaseResult) -> dict[str, Any]:
    truth, bill = result.truth, result.bill
    return {
        **_listed(result.case),
        "relayed": result.relayed,
        "billed": result.billed,
        "right": result.right if result.ran else None,
        "exchanges": truth.exchanges,
        "reported": truth.reported,
        "true": {
            "prompt_tokens": truth.prompt_tokens,
            "completion_tokens": truth.completion_tokens,
            "usd": None if truth.usd is None else f"{truth.usd:f}",
        },
        "booked": {
            "lines": bill.lines,
            "prompt_tokens": bill.prompt_tokens,
            "completion_tokens": bill.completion_tokens,
            "usd": None if bill.usd is None else f"{bill.usd:f}",
        },
    }


def _line(result: CaseResult) -> str:
    sign = ("✓" if result.right else "✗") if result.ran else "·"
    counts = f"{result.bill.completion_tokens:5} {result.truth.completion_tokens:5}" if result.ran else ""
    line = f"{sign} {result.case.upstream_model:31}  {result.relayed:16}  {result.billed:30}  {counts}".rstrip()
    severity = ("ok" if result.right else "error") if result.ran else "warning"
    return painted(sign, severity) + cut_to_terminal(line)[1:]
