"""`tokenweir audit`: the operators' changes, by command or in the console, and their results."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from proxy.cli.common import json_line, store_of, with_config
from proxy.cli.output import add_json, print_table
from proxy.cli.values import moment
from proxy.foundation.times import iso_utc

if TYPE_CHECKING:
    from proxy.ledger.accounts.audit_log import AuditEntry


def add_commands(commands: Any) -> None:
    audit = with_config(commands, "audit", "print the audit log of operators, oldest first", _audit)
    form = audit.add_mutually_exclusive_group()
    add_json(form, "print one JSON object per line, with every field")
    form.add_argument("--wide", action="store_true", help="print every column, also beyond the terminal's width")
    audit.add_argument(
        "--since",
        type=moment,
        default=0.0,
        metavar="TIME",
        help="at or after: 2026-11-01, 2026-11-01T12:00:00Z, 90m, 24h, 7d",
    )


def _audit(options: argparse.Namespace) -> None:
    from proxy.cli.list_tables import AUDIT

    with store_of(options) as store:
        lines = map(_json, store.audit_log.since(options.since))
        if options.json:
            for line in lines:
                print(json_line(line))
        else:
            print_table(AUDIT, lines, wide=options.wide)


def _json(line: AuditEntry) -> dict[str, Any]:
    fields = asdict(line)
    # As /v1/audit names them.
    renamed = {"id": fields.pop("act_id"), "at": iso_utc(fields.pop("at")), "message": fields.pop("words")}
    return {**renamed, **fields}
