"""`tokenweir budgets …`: what is left, and whether that is right. Law: counters are caches of the ledger; throwing them
away costs nothing but a reading."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from proxy.cli.common import acts_as, json_line, load_settings, store_of, with_commands, with_config
from proxy.settings import Settings

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from proxy.billing.reservation import CounterState
    from proxy.budgets.thresholds import Subject

_HEADER = f"{'SCOPE':40}  {'WINDOW SINCE':16}  {'BUDGET':>12}  {'SPENT':>12}  {'HELD':>12}  {'OPEN':>6}  {'CLOSED':>6}"


def add_commands(commands: Any) -> None:
    """Make them known."""
    budgets = with_commands(commands, "budgets", "what was spent and is held of each budget")
    show = with_config(budgets, "show", "every gate that requests have passed, and how it stands")
    show.add_argument("--json", action="store_true", help="one object per line")
    show.set_defaults(run=_show)
    words = "compare every counter with the ledger, print by how much it is off, and read all anew"
    acts_as(with_config(budgets, "rebuild", words), "budgets.rebuild", _rebuild)


def _show(options: argparse.Namespace) -> int:
    from proxy.budgets.thresholds import subjects
    from proxy.ledger.settling.spend import scope_of

    with store_of(options) as store:
        standings = asyncio.run(_standings(load_settings(options.config)))
        known = subjects(store.engine, {scope_of(one.gate_id) for one in standings})
    if not options.json:
        print(_HEADER)
    for one in standings:
        shown = _json(one, known.get(scope_of(one.gate_id)))
        print(json_line(shown) if options.json else _line(shown))
    return 0


def _rebuild(options: argparse.Namespace) -> int:
    from proxy.billing.money import usd_text

    with store_of(options) as store:
        drift = asyncio.run(_rebuilt(load_settings(options.config), store.engine))
    for gate_id, nusd in sorted(drift.items()):
        print(json_line({"gate": gate_id, "drift_usd": usd_text(nusd)}))
    return 0


async def _standings(settings: Settings) -> Sequence[CounterState]:
    from proxy.budgets.open_budgets import open_budgets

    budgets = open_budgets(settings, "cli")
    try:
        return await budgets.counter_states()
    finally:
        await budgets.aclose()


async def _rebuilt(settings: Settings, engine: Engine) -> dict[str, int]:
    from proxy.budgets.open_budgets import open_budgets, rebuilt

    budgets = open_budgets(settings, "cli")
    try:
        return await rebuilt(budgets, engine)
    finally:
        await budgets.aclose()


def _json(standing: CounterState, subject: Subject | None) -> dict[str, Any]:
    from proxy.billing.money import usd_text
    from proxy.ledger.settling.spend import scope_of
    from proxy.reports.reports import iso_utc

    scope_id = scope_of(standing.gate_id)
    budget = None if subject is None or scope_id != standing.gate_id else subject.limits.budget_usd
    return {
        "gate": standing.gate_id,
        "scope_id": scope_id,
        "scope_kind": None if subject is None else subject.kind,
        "name": None if subject is None else subject.name,
        "window_start": iso_utc(standing.since) if standing.since else None,
        "budget_usd": None if budget is None else usd_text(budget),
        "spent_usd": None if standing.spent is None else usd_text(standing.spent),
        "held_usd": usd_text(standing.held),
        "open": standing.open,
        "closed": standing.closed,
    }


def _line(shown: dict[str, Any]) -> str:
    """Money that nobody limits, or has read yet: a dash."""
    credit = " (less credit)" if shown["gate"] != shown["scope_id"] else ""
    scope = f"{shown['scope_kind'] or ''} {shown['name'] or shown['scope_id']}{credit}".strip()
    since = "–" if shown["window_start"] is None else shown["window_start"][:16].replace("T", " ")
    money = "  ".join(f"{shown[name] or '–':>12}" for name in ("budget_usd", "spent_usd", "held_usd"))
    return f"{scope:40}  {since:16}  {money}  {shown['open']:>6}  {shown['closed']:>6}"
