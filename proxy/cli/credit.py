"""`tokenweir credit add`: payments and refunds. Invariant: the command prints the entry that it wrote."""

from __future__ import annotations

import argparse
from typing import Any

from proxy.billing.limits import BUDGET_NUSD_MAX
from proxy.cli.common import (
    add_owner_options,
    owner_of,
    store_of,
    with_commands,
    with_config,
)
from proxy.cli.output import print_object
from proxy.cli.values import REASON, Usd
from proxy.foundation.ids import exchange_id


def add_commands(commands: Any) -> None:
    credit = with_commands(commands, "credit", "record payments of keys and accounts")
    add = with_config(
        credit,
        "add",
        "record a payment; a negative amount is a refund",
        _add,
        action="credit.add",
        quiet="id of the entry",
    )
    add_owner_options(add)
    add.add_argument(
        "--usd", dest="nusd", type=Usd(-BUDGET_NUSD_MAX, BUDGET_NUSD_MAX, not_zero=True), required=True, metavar="USD"
    )
    add.add_argument("--reason", type=REASON, required=True, metavar="TEXT", help="recorded in the entry")


def _add(options: argparse.Namespace) -> None:
    from proxy.ledger.accounts.credit import add_credit
    from proxy.reports.entry_reader import entry_json

    with store_of(options) as store:
        scope_id, _, name = owner_of(store, options)
        line = add_credit(
            store.ledger, exchange_id=exchange_id(), scope_id=scope_id, name=name, nusd=options.nusd, why=options.reason
        )
    print_object(options, entry_json(line), "entry_id")
