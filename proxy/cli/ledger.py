"""`tokenweir ledger`: what was billed, and why."""

from __future__ import annotations

import argparse
import time
from typing import Any

from proxy.cli.words import json_line, store_of, with_config

# How often `ledger --follow` looks.
FOLLOW_S = 0.25


def add_commands(commands: Any) -> None:
    """Make them known."""
    ledger = with_config(commands, "ledger", "the entries, oldest first")
    ledger.add_argument("--json", action="store_true", help="one object per line, every field")
    ledger.add_argument("--key", metavar="ALIAS", help="of this key only")
    ledger.add_argument("--model", metavar="M", help="of this model only")
    ledger.add_argument("--since", metavar="T", help="2026-11-01, 2026-11-01T12:00:00Z, 90m, 24h, 7d")
    ledger.add_argument("--follow", action="store_true", help="go on as entries come")
    ledger.set_defaults(run=_ledger)


def _ledger(options: argparse.Namespace) -> int:
    from proxy.ledger.reports import EntryFilter, EntryReader, entry_json, since_from
    from proxy.ledger.table_text import HEADER, line

    with store_of(options) as store:
        since = None if options.since is None else since_from(options.since, time.time())
        reader = EntryReader(store.engine, EntryFilter(key_alias=options.key, model=options.model, since=since))
        if not options.json:
            print(HEADER)
        try:
            while True:
                for entry in reader.new_entries():
                    print(json_line(entry_json(entry)) if options.json else line(entry), flush=options.follow)
                if not options.follow:
                    return 0
                time.sleep(FOLLOW_S)
        except KeyboardInterrupt:
            return 0
