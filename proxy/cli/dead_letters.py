"""`tokenweir dead-letters …`: records that could not be settled. Invariants: each dead letter that is retried or
dropped is printed; none is deleted."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from proxy.billing.entries import LedgerEntry
from proxy.billing.record import validate_record
from proxy.billing.settlement import entry
from proxy.cli.common import json_line, store_of, with_commands, with_config
from proxy.cli.output import add_json, print_table
from proxy.cli.values import REASON, Printable
from proxy.foundation.times import iso_utc

if TYPE_CHECKING:
    from proxy.ledger.settling.dead_letters import DeadLetters, StoredDeadLetter
    from proxy.runtime.machine.ledger_stores import LedgerStores

# In a list for people: enough of an id to name a dead letter.
_ID_CHARS = 12
DEAD_LETTER_ID = Printable(64, chars_min=8)


def add_commands(commands: Any) -> None:
    dead_letters = with_commands(commands, "dead-letters", "list, retry or drop records that could not be settled")
    listed = with_config(dead_letters, "list", "print the open dead letters, oldest first", _list)
    form = listed.add_mutually_exclusive_group()
    add_json(form, "print one JSON object per line, with every field")
    form.add_argument("--wide", action="store_true", help="print every column, also beyond the terminal's width")
    retry = with_config(
        dead_letters, "retry", "settle dead letters again", _retry, action="dead-letters.retry", quiet=""
    )
    which = retry.add_mutually_exclusive_group(required=True)
    which.add_argument("id", nargs="?", type=DEAD_LETTER_ID, metavar="ID", help="an id, or its first characters")
    which.add_argument("--all", action="store_true", help="all open dead letters")
    drop = with_config(
        dead_letters,
        "drop",
        "mark a dead letter as dropped; it is not deleted",
        _drop,
        action="dead-letters.drop",
        quiet="",
    )
    drop.add_argument("id", type=DEAD_LETTER_ID, metavar="ID", help="an id, or its first characters")
    drop.add_argument("--reason", type=REASON, required=True, metavar="TEXT", help="recorded in the dead letter")


def _list(options: argparse.Namespace) -> None:
    from proxy.cli.list_tables import DEAD_LETTERS

    with store_of(options) as store:
        dead_letters = _dead_letters(store)
        rows = []
        for dead_letter in dead_letters.open():
            differences = _differences(store, dead_letters, dead_letter)
            rows.append({**_json(dead_letter), **({"differences": differences} if differences else {})})
    if options.json:
        for row in rows:
            print(json_line(row))
    elif rows:
        print_table(DEAD_LETTERS, rows, wide=options.wide, below=_print_differences)


def _print_differences(row: dict[str, Any]) -> None:
    for name, (ours, theirs) in row.get("differences", {}).items():
        print(f"    {name}: the ledger has {ours}, the record {theirs}")


def _retry(options: argparse.Namespace) -> int:
    """Returns 1 if a dead letter stays open."""
    from proxy.ledger.settling.dead_letters import DeadLetterError

    failures = 0
    with store_of(options) as store:
        dead_letters = _dead_letters(store)
        for dead_letter in dead_letters.open() if options.all else [dead_letters.named(options.id)]:
            try:
                print(
                    json_line(
                        {
                            "id": dead_letter.id,
                            "exchange_id": dead_letter.exchange_id,
                            "result": dead_letters.retry(dead_letter),
                        }
                    )
                )
            except DeadLetterError as refusal:
                failures += 1
                print(f"tokenweir: {dead_letter.id[:_ID_CHARS]}: {refusal}", file=sys.stderr)
    return 1 if failures else 0


def _drop(options: argparse.Namespace) -> None:
    with store_of(options) as store:
        dead_letters = _dead_letters(store)
        dead_letter = dead_letters.named(options.id)
        dead_letters.drop(dead_letter, options.reason, time.time())
    print(json_line({"id": dead_letter.id, "exchange_id": dead_letter.exchange_id, "result": "dropped"}))


def _differences(
    store: LedgerStores, dead_letters: DeadLetters, dead_letter: StoredDeadLetter
) -> dict[str, tuple[Any, Any]]:
    """The differences in a conflict: field → value in the ledger and in the record. Empty if either cannot be read."""
    from proxy.ledger.settling.dead_letters import DeadLetterError
    from proxy.reports.entry_reader import entry_json
    from proxy.reports.exchanges import read_exchange

    exchange = None if dead_letter.exchange_id is None else read_exchange(store.engine, dead_letter.exchange_id)
    same = (
        [one for one in exchange.entries if (one.kind, one.seq) == (dead_letter.kind, dead_letter.seq)]
        if exchange
        else []
    )
    if not dead_letter.reason.startswith("conflict:") or not same:
        return {}
    try:
        ours, theirs = _flat(entry_json(same[0])), _flat(entry_json(dead_letters.entry(dead_letter)))
    except DeadLetterError:
        return {}
    names = dict.fromkeys([*ours, *theirs])
    return {name: (ours.get(name), theirs.get(name)) for name in names if ours.get(name) != theirs.get(name)}


def _flat(fields: dict[str, Any]) -> dict[str, Any]:
    details = {f"details.{name}": value for name, value in (fields.get("details") or {}).items()}
    return {name: value for name, value in fields.items() if name != "details"} | details


def _dead_letters(store: LedgerStores) -> DeadLetters:
    from proxy.journal.frames import decode_record
    from proxy.ledger.settling.dead_letters import DeadLetters

    def to_entry(payload: bytes) -> LedgerEntry:
        record = decode_record(payload)
        validate_record(record)
        return entry(record)

    return DeadLetters(store.engine, store.ledger, to_entry=to_entry)


def _json(dead_letter: StoredDeadLetter) -> dict[str, Any]:
    return {name: iso_utc(value) if isinstance(value, float) else value for name, value in asdict(dead_letter).items()}
