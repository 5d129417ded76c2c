"""`tokenweir dead-letters …`: what could not be settled. Law: each one that is dealt with is said; none is deleted."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from proxy.cli.common import acts_as, json_line, store_of, with_commands, with_config

if TYPE_CHECKING:
    from proxy.billing.entries import LedgerEntry
    from proxy.ledger.settling.dead_letters import DeadLetters, StoredDeadLetter
    from proxy.runtime.machine.ledger_stores import LedgerStores

# Of an id, in a list for people: as much as names a letter.
_ID_CHARS = 12


def add_commands(commands: Any) -> None:
    """Make them known."""
    letters = with_commands(commands, "dead-letters", "records that could not become entries")
    listed = with_config(letters, "list", "those that nobody has dealt with, oldest first")
    listed.add_argument("--json", action="store_true", help="one object per line, every field")
    listed.set_defaults(run=_list)
    retry = with_config(letters, "retry", "settle them after all")
    which = retry.add_mutually_exclusive_group(required=True)
    which.add_argument("id", nargs="?", metavar="ID", help="or the beginning of one")
    which.add_argument("--all", action="store_true", help="every open one")
    acts_as(retry, "dead-letters.retry", _retry)
    drop = with_config(letters, "drop", "decide against one; it is kept")
    drop.add_argument("id", metavar="ID", help="or the beginning of one")
    drop.add_argument("--reason", required=True, metavar="TEXT", help="why, for whoever looks later")
    acts_as(drop, "dead-letters.drop", _drop)


def _list(options: argparse.Namespace) -> int:
    with store_of(options) as store:
        for letter in _letters(store).open():
            print(json_line(_json(letter)) if options.json else _line(letter))
    return 0


def _retry(options: argparse.Namespace) -> int:
    """Exit code 1 if one of them stays open."""
    from proxy.ledger.settling.dead_letters import DeadLetterError

    left = 0
    with store_of(options) as store:
        letters = _letters(store)
        for letter in letters.open() if options.all else [letters.named(options.id)]:
            try:
                print(json_line({"id": letter.id, "exchange_id": letter.exchange_id, "became": letters.retry(letter)}))
            except DeadLetterError as refusal:
                left += 1
                print(f"tokenweir: {letter.id[:_ID_CHARS]}: {refusal}", file=sys.stderr)
    return 1 if left else 0


def _drop(options: argparse.Namespace) -> int:
    with store_of(options) as store:
        letters = _letters(store)
        letter = letters.named(options.id)
        letters.drop(letter, options.reason, time.time())
    print(json_line({"id": letter.id, "exchange_id": letter.exchange_id, "became": "dropped"}))
    return 0


def _letters(store: LedgerStores) -> DeadLetters:
    from proxy.billing.settlement import entry
    from proxy.journal.frames import decode_record
    from proxy.ledger.settling.dead_letters import DeadLetters

    def to_entry(payload: bytes) -> LedgerEntry:
        return entry(decode_record(payload))

    return DeadLetters(store.engine, store.ledger, to_entry=to_entry)


def _json(letter: StoredDeadLetter) -> dict[str, Any]:
    from msgspec.structs import asdict

    from proxy.reports.reports import iso_utc

    return {name: iso_utc(value) if isinstance(value, float) else value for name, value in asdict(letter).items()}


def _line(letter: StoredDeadLetter) -> str:
    from proxy.reports.reports import iso_utc

    seen = f"{iso_utc(letter.last_seen)[:19].replace('T', ' ')}  {letter.times_seen:>4} ×"
    return f"{letter.id[:_ID_CHARS]}  {seen}  {letter.exchange_id or '–':36}  {letter.reason}"
