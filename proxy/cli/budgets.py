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
from proxy.foundation.times import iso_utc
from proxy.settings import Settings

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from proxy.billing.reservation import CounterState
    from proxy.budgets.thresholds import Subject

_HEADER = (
    f"{'SCOPE':40}  {'USAGE SINCE':16}  {'BUDGET':>12}  {'SPENT':>12}  {'HELD':>12}  {'RUNNING':>7}  {'UNSETTLED':>9}"
)


def add_commands(commands: Any) -> None:
    budgets = with_commands(commands, "budgets", "show spend and reservations of each budget, or rebuild the counters")
    show = with_config(budgets, "show", "print the state of every limit counter in use; spend is by usage date", _show)
    show.add_argument("--json", action="store_true", help="print one JSON object per line")
    help_text = "compare every counter with the ledger, print each difference, and reload all counters"
    with_config(budgets, "rebuild", help_text, _rebuild, action="budgets.rebuild")


def _show(options: argparse.Namespace) -> None:
    from proxy.budgets.thresholds import subjects
    from proxy.ledger.settling.spend import scope_of

    with store_of(options) as store:
        states = asyncio.run(_counter_states(load_settings(options.config)))
        known = subjects(store.engine, {scope_of(state.counter_id) for state in states})
    if not options.json:
        print(_HEADER)
    for state in states:
        shown = _json(state, known.get(scope_of(state.counter_id)))
        print(json_line(shown) if options.json else _line(shown))


def _rebuild(options: argparse.Namespace) -> None:
    with store_of(options) as store:
        drift = asyncio.run(_rebuilt(load_settings(options.config), store.engine))
    for counter_id, nusd in sorted(drift.items()):
        print(json_line({"counter_id": counter_id, "drift_usd": usd_text(nusd)}))


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


def _line(shown: dict[str, Any]) -> str:
    """A line of the table. A dash: no limit, or not loaded yet."""
    credit = " (less credit)" if shown["counter_id"] != shown["scope_id"] else ""
    scope = f"{shown['scope_kind'] or ''} {shown['name'] or shown['scope_id']}{credit}".strip()
    since = "–" if shown["window_start"] is None else shown["window_start"][:16].replace("T", " ")
    money = "  ".join(f"{shown[name] or '–':>12}" for name in ("budget_usd", "spent_usd", "held_usd"))
    return f"{scope:40}  {since:16}  {money}  {shown['running']:>7}  {shown['unsettled']:>9}"
