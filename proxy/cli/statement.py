"""`tokenweir statement`: what a customer gets for a month. Law: what it says adds up to the nano-dollar."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxy.cli.common import Failure, json_line, store_of, whole_file, whose, with_config, with_whose

if TYPE_CHECKING:
    from proxy.reports.statement import Statement
    from proxy.runtime.machine.ledger_stores import LedgerStores


def add_commands(commands: Any) -> None:
    """Make them known."""
    statement = with_config(commands, "statement", "what a key, a project or an organization is billed for a month")
    with_whose(statement)
    statement.add_argument("--month", required=True, metavar="2026-11", help="in UTC")
    statement.add_argument("--format", choices=("html", "csv", "json", "pdf"), default="html")
    statement.add_argument("--output", type=Path, metavar="FILE", help="instead of standard output")
    statement.set_defaults(run=_statement)


def _statement(options: argparse.Namespace) -> int:
    from proxy.reports.statement import month_from, read_statement

    month = month_from(options.month)
    if options.format == "pdf" and options.output is None and sys.stdout.isatty():
        raise Failure("--output: a PDF is nothing for a terminal")
    with store_of(options) as store:
        found = read_statement(store.engine, _of(store, options), month)
    written = _written(found, options.format)
    if options.output is None:
        sys.stdout.buffer.write(written)
        sys.stdout.buffer.flush()
    else:
        with whole_file(options.output) as file:
            file.write(written)
    return 0


def _of(store: LedgerStores, options: argparse.Namespace) -> Any:
    from proxy.reports.statement import StatementOwner

    return StatementOwner(*whose(store, options))


def _written(statement: Statement, kind: str) -> bytes:
    from proxy.reports.statement_text import statement_csv, statement_json

    if kind == "json":
        return f"{json_line(statement_json(statement))}\n".encode()
    if kind == "csv":
        return statement_csv(statement).encode()
    if kind == "pdf":
        from proxy.reports.statement_pdf import statement_pdf

        return statement_pdf(statement)
    from proxy.reports.statement_html import statement_html

    return statement_html(statement).encode()
