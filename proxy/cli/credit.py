"""`tokenweir credit add`: what was paid in, or out again. Law: what is written is printed, and nothing else is."""

from __future__ import annotations

import argparse
from typing import Any

from proxy.cli.common import acts_as, json_line, store_of, usd, whose, with_commands, with_config, with_whose


def add_commands(commands: Any) -> None:
    """Make them known."""
    credit = with_commands(commands, "credit", "what keys and accounts have paid in")
    add = with_config(credit, "add", "pay something in; a negative amount pays it out again")
    with_whose(add)
    add.add_argument("--usd", type=usd, required=True, metavar="USD")
    add.add_argument("--reason", required=True, metavar="TEXT", help="why, for whoever reads the ledger")
    acts_as(add, "credit.add", _add)


def _add(options: argparse.Namespace) -> int:
    from proxy.foundation.ids import exchange_id
    from proxy.ledger.accounts.credit import add_credit
    from proxy.reports.entry_reader import entry_json

    with store_of(options) as store:
        scope_id, _, name = whose(store, options)
        line = add_credit(
            store.ledger, exchange_id=exchange_id(), scope_id=scope_id, name=name, nusd=options.usd, why=options.reason
        )
    print(json_line(entry_json(line)))
    return 0
