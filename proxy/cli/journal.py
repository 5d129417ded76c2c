"""`tokenweir journal …`: work on the journals of this machine, also while the proxies run."""

from __future__ import annotations

import argparse
from typing import Any

from proxy.cli.common import json_line, load_settings, store_of, with_commands, with_config


def add_commands(commands: Any) -> None:
    journal = with_commands(commands, "journal", "settle again the records that the ledger has lost")
    help_text = "find the settled records in the journals of this machine that the ledger has lost, and settle them"
    replay = with_config(journal, "replay", help_text, _replay, action="journal.replay", quiet="")
    replay.add_argument("--dry-run", action="store_true", help="only count the lost records")


def _replay(options: argparse.Namespace) -> None:
    from proxy.runtime.machine.lost_records import lost, settle_again

    settings = load_settings(options.config)
    with store_of(options) as store:
        for one in lost(settings, store.ledger):
            found = {"journal": str(one.journal), "node": one.node, "lost": len(one.records)}
            results = {"dry_run": True} if options.dry_run else settle_again(store.ledger, one.records)
            print(json_line({**found, **results}))
