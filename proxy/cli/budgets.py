"""`tokenweir budgets …`: show the limit counters, and rebuild them. Invariant: counters are caches of the ledger;
deleting them costs one read of the ledger."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from proxy.billing.money import usd_text
from proxy.cli.common import json_line, load_settings, store_of, with_commands, with_config
from proxy.cli.output import add_json, print_table, prints_json
from proxy.foundation.times import iso_utc
from proxy.settings import Settings

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from proxy.billing.reservation import CounterState
    from proxy.budgets.thresholds import Subject


def add_commands(commands: Any) -> None:
    budgets = with_commands(commands, "budgets", "show spend and reservations of each budget, or rebuild the counters")
    show = with_config(
        budgets, "show", "print the state of every limit counter that was used; spend is by usage date", _show
    )
    form = show.add_mutually_exclusive_group()
    add_json(form)
    form.add_argument("--wide", action="store_true", help="print every column, however long the lines")
    help_text = "compare every counter with the ledger, print each with its difference, and read all sums again"
    with_config(budgets, "rebuild", help_text, _rebuild, action="budgets.rebuild", quiet="")


def _show(options: argparse.Namespace) -> None:
    from proxy.budgets.thresholds import subjects
    from proxy.cli.list_tables import BUDGETS
    from proxy.ledger.settling.spend import scope_of

    with store_of(options) as store:
        states = asyncio.run(_counter_states(load_settings(options.config)))
        known = subjects(store.engine, {scope_of(state.counter_id) for state in states})
    shown = [_json(state, known.get(scope_of(state.counter_id))) for state in states]
    if options.json:
        for one in shown:
            print(json_line(one))
    else:
        print_table(BUDGETS, shown, wide=options.wide)


def _rebuild(options: argparse.Namespace) -> None:
    from proxy.cli.list_tables import DRIFT

    with store_of(options) as store:
        drift = asyncio.run(_rebuilt(load_settings(options.config), store.engine))
    shown = [{"counter_id": counter_id, "drift_usd": usd_text(nusd)} for counter_id, nusd in sorted(drift.items())]
    if prints_json(options):
        for one in shown:
            print(json_line(one))
    elif shown:
        print_table(DRIFT, shown)
    else:
        print("no budget was used yet: there is no counter to compare")


async def _counter_states(settings: Settings) -> Sequence[CounterState]:
    from proxy.budgets.open_budgets import open_budgets

    async with aclosing(open_budgets(settings, "cli")) as budgets:
        return await budgets.counter_states()


async def _rebuilt(settings: Settings, engine: Engine) -> dict[str, int]:
    from proxy.budgets.open_budgets import open_budgets, rebuilt

    async with aclosing(open_budgets(settings, "cli")) as budgets:
        return await rebuilt(budgets, engine)


def _json(state: CounterState, subject: Subject | None) -> dict[str, Any]:
    from proxy.ledger.settling.spend import scope_of

    scope_id = scope_of(state.counter_id)
    budget = None if subject is None or scope_id != state.counter_id else subject.limits.budget_nusd
    return {
        "counter_id": state.counter_id,
        "scope_id": scope_id,
        "scope_kind": None if subject is None else subject.kind,
        "name": None if subject is None else subject.name,
        "window_start": iso_utc(state.since) if state.since else None,
        "budget_usd": None if budget is None else usd_text(budget),
        "spent_usd": None if state.spent is None else usd_text(state.spent),
        "held_usd": usd_text(state.reserved),
        "running": state.open,
        "unsettled": state.closed,
    }
