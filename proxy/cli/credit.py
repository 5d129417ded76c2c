"""`tokenweir credit add`: what was paid in, or out again. Law: what is written is printed, and nothing else is."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from proxy.cli.levels import usd
from proxy.cli.words import acts_as, json_line, store_of, with_config

if TYPE_CHECKING:
    from proxy.compose.store import Store


def add_commands(commands: Any) -> None:
    """Make them known."""
    words = "what keys and accounts have paid in"
    credit = commands.add_parser("credit", help=words, description=words).add_subparsers(required=True, metavar="WHAT")
    add = with_config(credit, "add", "pay something in; a negative amount pays it out again")
    whose = add.add_mutually_exclusive_group(required=True)
    whose.add_argument("--key", metavar="KEY_ID|ALIAS")
    whose.add_argument("--account", metavar="ID|NAME", help="a project or an organization")
    add.add_argument("--usd", type=usd, required=True, metavar="USD")
    add.add_argument("--reason", required=True, metavar="TEXT", help="why, for whoever reads the ledger")
    acts_as(add, "credit.add", _add)


def _add(options: argparse.Namespace) -> int:
    from proxy.gateway.ids import exchange_id
    from proxy.ledger.credit import add_credit
    from proxy.ledger.reports import entry_json

    with store_of(options) as store:
        scope_id, name = _whose(store, options)
        line = add_credit(
            store.ledger, exchange_id=exchange_id(), scope_id=scope_id, name=name, nusd=options.usd, why=options.reason
        )
    print(json_line(entry_json(line)))
    return 0


def _whose(store: Store, options: argparse.Namespace) -> tuple[str, str]:
    """Whose credit it is: its id and its name."""
    from proxy.ledger.account_store import AccountStore

    if options.key is not None:
        key = store.keys.one(options.key)
        return key.key_id, key.alias
    account = AccountStore(store.engine, clock=time.time).one(options.account)
    return account.account_id, account.name
