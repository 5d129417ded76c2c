"""`tokenweir statement`: the monthly bill of a customer, as a file or by e-mail. Invariant: the lines add up to the
nano-dollar."""

from __future__ import annotations

import argparse
import socket
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxy.cli.common import (
    Failure,
    WrongUsage,
    add_owner_options,
    add_yes,
    confirm,
    json_line,
    load_settings,
    owner_of,
    store_of,
    whole_file,
    with_config,
)
from proxy.cli.dimension_options import dimension_name, values_exported
from proxy.cli.values import email_address, month, time_zone
from proxy.foundation.users import operator

if TYPE_CHECKING:
    from proxy.billing.period import Month
    from proxy.reports.statement import Statement
    from proxy.runtime.machine.ledger_stores import LedgerStores


def add_commands(commands: Any) -> None:
    statement = with_config(
        commands,
        "statement",
        "write the monthly statement of a key, a project or an organization, as billed",
        _statement,
    )
    add_owner_options(statement)
    statement.add_argument("--month", type=month, required=True, metavar="2026-11", help="calendar month")
    statement.add_argument(
        "--time-zone",
        type=time_zone,
        metavar="ZONE",
        help="time zone of the month and its days: Europe/Berlin (default: UTC); such a statement is provisional, "
        "since months are closed in UTC",
    )
    statement.add_argument("--format", choices=("html", "csv", "json", "pdf"), help="default: html")
    statement.add_argument(
        "--by",
        type=dimension_name,
        metavar="DIMENSION",
        help="add a section by end_user, session, run or tag:NAME; recorded in the audit log",
    )
    statement.add_argument("--output", type=Path, metavar="FILE", help="write to this file, not to standard output")
    statement.add_argument(
        "--entries", type=Path, metavar="FILE", help="also write the entries of a closed month, for `tokenweir verify`"
    )
    statement.add_argument(
        "--send",
        action="store_true",
        help="send the statement of a closed month by e-mail (settings `statement.mail`), as PDF if the extra pdf is "
        "installed, else as HTML; recorded in the audit log",
    )
    statement.add_argument(
        "--to",
        type=email_address,
        metavar="ADDRESS",
        help="with --send: to this address (default: that of the customer in the settings)",
    )
    add_yes(statement)


def _statement(options: argparse.Namespace) -> None:
    from proxy.reports.statement import read_statement

    whole = replace(options.month, time_zone=options.time_zone)
    if whole.since > time.time():
        raise WrongUsage(f"--month: {options.month} has not begun")
    if options.format == "pdf" and options.output is None and sys.stdout.isatty():
        raise WrongUsage("--output: is required for PDF if standard output is a terminal")
    if options.format == "csv" and options.by is not None:
        raise WrongUsage("--by: cannot be combined with --format csv, whose columns are summed")
    if options.send or options.to is not None:
        _check_send(options)
        _send(options, whole)
        return
    kind = options.format or "html"
    with store_of(options) as store, nullcontext() if options.by is None else values_exported(store, options):
        letterhead = load_settings(options.config).statement
        statement = read_statement(store.engine, _owner(store, options), whole, options.by, letterhead)
        if options.entries is not None:
            _write_entries(store, statement, options.entries)
    content = _rendered(statement, kind)
    if options.output is None:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    else:
        with whole_file(options.output) as file:
            file.write(content)


def _check_send(options: argparse.Namespace) -> None:
    if not options.send:
        raise WrongUsage("--to: needs --send")
    for name in ("format", "output", "entries", "by", "time_zone"):
        if getattr(options, name) is not None:
            raise WrongUsage(f"--send: cannot be combined with --{name.replace('_', '-')}")


def _send(options: argparse.Namespace, month: Month) -> None:
    from proxy.console.api.hidden_providers import statement_without_providers
    from proxy.ledger.accounts.audit_log import Actor
    from proxy.reports.statement import read_statement
    from proxy.reports.statement_mail import (
        SEND,
        earlier_sending,
        require_address,
        send_statement,
        sent_text,
        statement_mail,
    )

    settings = load_settings(options.config)
    with store_of(options) as store:
        statement = read_statement(store.engine, _owner(store, options), month, None, settings.statement)
        statement = statement_without_providers(statement) if settings.hide_providers else statement
        mail = statement_mail(statement, settings.statement, options.to)
        require_address(mail)
        sent = earlier_sending(store.audit_log, mail.number)
        if sent is not None:
            confirm(options, f"{mail.number}: {sent_text(sent)}. Send it again?", by_default=False)
        by = Actor(operator(), "cli", socket.gethostname())
        with store.audit_log.operation(by, SEND, mail.number, mail.details) as entry:
            send_statement(mail, store.audit_log, entry, again=sent is not None, now=time.time())
    print(f"tokenweir: {mail.attachment} is sent to {mail.to}", file=sys.stderr)


def _write_entries(store: LedgerStores, statement: Statement, path: Path) -> None:
    from proxy.reports.receipts import statement_lines

    if statement.issued is None:
        raise Failure(f"--entries: {statement.month} is not closed: its entries can change")
    with whole_file(path) as file:
        for line in statement_lines(store.engine, statement.owner, statement.month):
            file.write(f"{json_line(dict(line))}\n".encode())


def _owner(store: LedgerStores, options: argparse.Namespace) -> Any:
    from proxy.reports.statement import StatementOwner

    return StatementOwner(*owner_of(store, options))


def _rendered(statement: Statement, kind: str) -> bytes:
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
