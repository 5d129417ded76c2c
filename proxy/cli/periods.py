"""`tokenweir periods`, `receipt` and `verify`: closed months, and proofs of the contents of their statements.

Invariant: `verify` needs no configuration and no ledger.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxy.cli.common import (
    Failure,
    WrongUsage,
    add_yes,
    confirm,
    json_line,
    load_settings,
    store_of,
    with_commands,
    with_config,
)
from proxy.cli.output import add_json, add_list_options, print_list, result_line
from proxy.cli.progress import Progress
from proxy.cli.values import duration, month
from proxy.foundation.times import iso_utc
from proxy.foundation.users import operator
from proxy.settings import Settings

if TYPE_CHECKING:
    from proxy.billing.period import Month
    from proxy.ledger.archive.archives import Archive
    from proxy.ledger.periods.closing import Period
    from proxy.runtime.machine.ledger_stores import LedgerStores
    from proxy.runtime.machine.unsettled import Unsettled

# Interval at which unsettled records are counted.
LOOK_S = 1.0


def add_commands(commands: Any) -> None:
    periods = with_commands(commands, "periods", "close months, so that their statements never change")
    listed = with_config(periods, "list", "list the closed months, oldest first", _list)
    add_list_options(listed)
    close = with_config(
        periods, "close", "close a month, and all open months before it", _close, action="periods.close"
    )
    close.add_argument("month", type=month, metavar="2026-11", help="calendar month in UTC; must be over")
    left = close.add_mutually_exclusive_group()
    left.add_argument("--wait", type=duration, default=0, metavar="10m", help="how long to wait for unsettled records")
    left.add_argument(
        "--leave", action="store_true", help="close even if records are pending; they go on a later statement"
    )
    add_yes(close)
    add_json(close, "print one JSON object for each month that it closes, as `periods list` does")
    receipt = with_config(
        commands,
        "receipt",
        "print the receipt of an exchange: its lines on statements, with the proof",
        _receipt,
        quiet="",
    )
    receipt.add_argument("exchange_id", metavar="EXCHANGE_ID")
    verify = commands.add_parser("verify", help="check a statement or a receipt from files only", description=_VERIFY)
    verify.add_argument("file", type=Path, metavar="FILE", help="a statement as JSON, or a receipt")
    verify.add_argument("--entries", type=Path, metavar="FILE", help="entries of the statement")
    verify.add_argument(
        "--statement", type=Path, metavar="FILE", help="statement that must contain the receipt's exchange"
    )
    verify.add_argument("--digest", type=_digest, metavar="HEX", help="expected digest; fail if the file has none such")
    add_json(verify, "print one JSON object for each computed digest")
    verify.set_defaults(run=_verify)


def _digest(text: str) -> str:
    if not re.fullmatch("[0-9a-f]{64}", text):
        raise argparse.ArgumentTypeError(f"must be a digest of 64 hexadecimal digits, not {text!r}")
    return text


_VERIFY = "check every sum and every digest of a statement or a receipt, from files only"


def _list(options: argparse.Namespace) -> None:
    from proxy.cli.list_tables import PERIODS
    from proxy.ledger.archive.archives import read_archives
    from proxy.ledger.periods.closing import read_periods
    from proxy.storage.database import reading

    with store_of(options) as store, reading(store.engine) as connection:
        archives = {archive.month: archive for archive in read_archives(connection)}
        shown = (_period_json(period, archives.get(period.month)) for period in read_periods(connection))
        print_list(options, PERIODS, shown)


def _period_json(period: Period, archive: Archive | None) -> dict[str, Any]:
    return {
        "month": str(period.month),
        "closed_at": iso_utc(period.closed_at),
        "closed_by": period.closed_by,
        "issued_at": None if period.issued_at is None else iso_utc(period.issued_at),
        "entries": period.entries,
        "digest": period.digest,
        "left_behind": list(period.left_behind),
        "archive": _archive_json(archive),
    }


def _archive_json(archive: Archive | None) -> dict[str, Any] | None:
    if archive is None:
        return None
    return {
        "file": archive.file,
        "sha256": archive.sha256,
        "entries": archive.entries,
        "statements_until": str(archive.statements_until),
        "archived_at": iso_utc(archive.archived_at),
        "archived_by": archive.archived_by,
        "removed": archive.removed,
    }


def _close(options: argparse.Namespace) -> None:
    from proxy.ledger.periods.closing import PeriodError, close, issue_all, read_periods, require_over
    from proxy.storage.database import reading

    month = options.month
    until = time.monotonic() + options.wait
    settings = load_settings(options.config)
    require_over(month, time.time())  # before it is asked whether to close it
    with store_of(options) as store:
        left = [] if _is_closed(store, month) else _unsettled(settings, store, month)
        while left and time.monotonic() < until:
            time.sleep(LOOK_S)
            left = _unsettled(settings, store, month)
        if left and not options.leave:
            raise PeriodError(f"{month}: some records are not settled:\n{_listed(left)}\n{_WAYS}")
        if not _is_closed(store, month):
            _print_checks(settings, store, month)
            confirm(options, f"Close {month} and every open month before it? This cannot be undone.")
        months = close(store.ledger, month, by=operator(), left_behind=left, letterhead=settings.statement)
        issue_all(store.engine)
        if options.json:
            with reading(store.engine) as connection:
                for period in read_periods(connection):
                    if period.month in months:
                        print(json_line(_period_json(period, None)))
            return
    if not months:
        print(f"tokenweir: {month} was closed already")
    for one in months:
        print(f"tokenweir: {one} is closed")
    if months and left:
        print(f"tokenweir: not settled yet, for later statements:\n{_listed(left)}")


def _is_closed(store: LedgerStores, month: Month) -> bool:
    from proxy.ledger.periods.closing import read_closings
    from proxy.storage.database import reading

    with reading(store.engine) as connection:
        return read_closings(connection).closed_at(month) is not None


def _print_checks(settings: Settings, store: LedgerStores, month: Month) -> None:
    """Print what an operator should know before the month is closed."""
    from proxy.runtime.machine.unsettled import closing_checks

    for one in asyncio.run(closing_checks(settings, store.engine, month, asyncio.to_thread)):
        if one.state != "ok":
            print(f"tokenweir: {month}: {one.words}", file=sys.stderr)


_WAYS = "Settle them (`tokenweir dead-letters list`), wait with --wait 10m, or close the month without them by --leave."


def _listed(left: list[Unsettled]) -> str:
    lines = []
    for one in left:
        examples = f": {', '.join(one['examples'])}{', …' if one['count'] > len(one['examples']) else ''}"
        lines.append(f"  {one['what']}: {one['count']}{examples if one['examples'] else ''}")
    return "\n".join(lines)


def _unsettled(settings: Settings, store: LedgerStores, month: Month) -> list[Unsettled]:
    from proxy.runtime.machine.unsettled import unsettled

    return asyncio.run(unsettled(settings, store.engine, month, asyncio.to_thread))


def _receipt(options: argparse.Namespace) -> None:
    from proxy.reports.receipts import read_receipt

    with store_of(options) as store:
        print(json_line(read_receipt(store.engine, options.exchange_id)))


def _verify(options: argparse.Namespace) -> None:
    document = _json_file(options.file)
    if document.get("object") not in ("statement", "receipt"):
        raise Failure(f"{options.file}: is neither a statement as JSON nor a receipt")
    try:
        digests = (_verified_statement if document["object"] == "statement" else _verified_receipt)(document, options)
    except (KeyError, TypeError) as missing:
        raise Failure(f"{options.file}: is incomplete: {missing}") from None
    if options.digest is not None and options.digest not in digests:
        raise Failure(f"--digest: {options.digest} is not found; {options.file} has {', '.join(sorted(digests))}")


def _verified_statement(statement: dict[str, Any], options: argparse.Namespace) -> set[str]:
    from proxy.reports.receipts import check_statement

    if options.statement is not None:
        raise WrongUsage("--statement: needs a receipt")
    with Progress("verifying", "entries", total=statement["entries"]) as progress:
        check_statement(statement, None if options.entries is None else progress.each(_lines(options.entries)))
    proven = {name: statement[name] for name in ("number", "month", "scope_id", "digest")}
    entries = None if options.entries is None else statement["entries"]
    text = f"ok: statement {statement['number']} adds up; digest {statement['digest']}"
    print(result_line(options, {"object": "statement", **proven, "entries": entries}, text))
    if options.entries is not None and not options.json:
        print(f"tokenweir: ok: it has the sum and the digest of its {statement['entries']} entries")
    return {statement["digest"]}


def _verified_receipt(receipt: dict[str, Any], options: argparse.Namespace) -> set[str]:
    from proxy.reports.receipts import check_receipt

    if options.entries is not None:
        raise WrongUsage("--entries: needs a statement")
    digests = check_receipt(receipt)
    exchange_id, proven, number = receipt["exchange_id"], digests, None
    if options.statement is not None:
        statement = _json_file(options.statement)
        number, scope = statement.get("number"), (statement["month"], statement["scope_id"])
        if scope not in digests or digests[scope] != statement.get("digest"):
            raise Failure(f"{options.statement}: statement {number} does not have this exchange")
        proven = {scope: digests[scope]}
    for (of_month, scope_id), digest in proven.items():
        fields = {"object": "receipt", "exchange_id": exchange_id, "number": number, "month": of_month}
        text = f"ok: {exchange_id} is in statement {number}; digest {digest}"
        if number is None:
            text = f"ok: {exchange_id} is part of {of_month} {scope_id}; digest {digest}"
        print(result_line(options, {**fields, "scope_id": scope_id, "digest": digest}, text))
    return set(digests.values())


def _json_file(path: Path) -> dict[str, Any]:
    document = json.loads(path.read_text("utf-8"))
    if not isinstance(document, dict):
        raise Failure(f"{path}: is not a JSON object")
    return document


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with open(path, encoding="utf-8", newline="\n") as file:
        for line in file:
            yield json.loads(line)
