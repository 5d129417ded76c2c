"""`tokenweir audit`: the operators' changes, by command or in the console, and their results."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from proxy.cli.common import json_line, store_of, with_config
from proxy.cli.values import moment
from proxy.foundation.times import iso_utc

if TYPE_CHECKING:
    from proxy.ledger.accounts.audit_log import AuditEntry


def add_commands(commands: Any) -> None:
    audit = with_config(commands, "audit", "print the audit log of operators, oldest first", _audit)
    audit.add_argument("--json", action="store_true", help="print one JSON object per line, with every field")
    audit.add_argument(
        "--since",
        type=moment,
        default=0.0,
        metavar="TIME",
        help="at or after: 2026-11-01, 2026-11-01T12:00:00Z, 90m, 24h, 7d",
    )


def _audit(options: argparse.Namespace) -> None:
    with store_of(options) as store:
        for line in store.audit_log.since(options.since):
            print(_json(line) if options.json else _text(line))


def _json(line: AuditEntry) -> str:
    fields = asdict(line)
    # As /v1/audit names them.
    renamed = {"id": fields.pop("act_id"), "at": iso_utc(fields.pop("at")), "message": fields.pop("words")}
    return json_line({**renamed, **fields})


def _text(line: AuditEntry) -> str:
    at = iso_utc(line.at)[:19].replace("T", " ")
    result = line.result if line.words is None else f"{line.result}: {line.words}"
    actor = f"{line.actor} ({line.via}, {line.origin or '–'})"
    return f"{at}  {actor}  {line.action} {line.target or '–'}  {result}"
