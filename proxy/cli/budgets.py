"""`tokenweir budgets …`: show the limit counters, and rebuild them. Invariant: counters are caches of the ledger;
deleting them costs one read of the ledger."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Iterable, Sequence
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
    form.add_argument("--wide", action="store_true", help="print every column, also beyond the terminal's width")
    help_text = "compare every counter with the ledger, print the differences, and read all sums from the ledger again"
    with_config(budgets, "rebuild", help_text, _rebuild, action="budgets.rebuild", quiet="")


def _show(options: argparse.Namespace) -> None:
    from proxy.billing.limits import scope_of
    from proxy.budgets.thresholds import subjects
    from proxy.cli.list_tables import BUDGETS

    with store_of(options) as store:
        states = asyncio.run(_counter_states(load_settings(options.config)))
        scope_ids = {scope_of(state.counter_id) for state in states}
        known, of_rules = subjects(store.engine, scope_ids), _of_rules(store.engine, scope_ids)
    shown = [
        _json(state, known.get(scope_of(state.counter_id))) | of_rules.get(scope_of(state.counter_id), {})
        for state in states
    ]
    if options.json:
        for one in shown:
            print(json_line(one))
    else:
        print_table(BUDGETS, shown, wide=options.wide)


def _rebuild(options: argparse.Namespace) -> None:
    from proxy.cli.list_tables import DRIFT

    with store_of(options) as store:
        drift = asyncio.run(_rebuilt(load_settings(options.config), store.engine))
    shown = [_drift(counter_id, amount) for counter_id, amount in sorted(drift.items())]
    if prints_json(options):
        for one in shown:
            print(json_line(one))
    elif shown:
        print_table(DRIFT, shown)
    else:
        print("no budget was used yet: there is no counter to compare")


def _drift(counter_id: str, amount: int) -> dict[str, Any]:
    """A row of `rebuild`; of a quota, with its measure instead of USD."""
    from proxy.billing.limits import quota_of

    measure = quota_of(counter_id)
    drift = {"drift_usd": usd_text(amount)} if measure is None else {"drift": amount, "measure": measure.value}
    return {"counter_id": counter_id, **drift}


async def _counter_states(settings: Settings) -> Sequence[CounterState]:
    from proxy.budgets.open_budgets import open_budgets

    async with aclosing(open_budgets(settings, "cli")) as budgets:
        return await budgets.counter_states()


async def _rebuilt(settings: Settings, engine: Engine) -> dict[str, int]:
    from proxy.budgets.open_budgets import open_budgets, rebuilt

    async with aclosing(open_budgets(settings, "cli")) as budgets:
        return await rebuilt(budgets, engine)


def _of_rules(engine: Engine, scope_ids: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Id → what only the counters of rules have, those of deleted rules included. Raises LedgerUnavailable."""
    from proxy.billing.limit_rules import CLIENT_RULES, dimensions_of, key_of, rule_of
    from proxy.ledger.dimensions.values import DimensionValues
    from proxy.ledger.limit_rules import rules_with_ids
    from proxy.reports.dimensions import ValueReader
    from proxy.storage.database import reading

    rule_ids = {one: rule_id for one in scope_ids if (rule_id := rule_of(one)) is not None}
    with reading(engine) as connection:
        rules = rules_with_ids(connection, set(rule_ids.values()))
    counted = {one: dimensions_of(rules[rule_id], one) for one, rule_id in rule_ids.items() if rule_id in rules}
    shown = ValueReader(engine, None).shown(value_id for ids in counted.values() for value_id in ids.values())
    capped = {
        one: (key_of(rules[rule_ids[one]], one) or "", next(iter(ids.values())))
        for one, ids in counted.items()
        if rule_ids[one] in CLIENT_RULES
    }
    caps = DimensionValues(engine).caps({value_id for _, value_id in capped.values()})
    return {
        one: {
            "scope_kind": "rule",
            "name": rules[rule_ids[one]].name,
            "deleted": rules[rule_ids[one]].deleted_at is not None,
            "dimensions": {name: shown[value_id]._asdict() for name, value_id in ids.items()},
        }
        | ({"budget_usd": usd_text(caps[capped[one]])} if capped.get(one) in caps else {})
        for one, ids in counted.items()
    }


def _json(state: CounterState, subject: Subject | None) -> dict[str, Any]:
    from proxy.billing.limits import quota_of, scope_of

    scope_id, measure = scope_of(state.counter_id), quota_of(state.counter_id)
    limits = None if subject is None else subject.limits
    counts_money = measure is None
    has_budget = counts_money and limits is not None and scope_id == state.counter_id
    budget = limits.budget_at(time.time()) if has_budget and limits is not None else None
    return {
        "counter_id": state.counter_id,
        "scope_id": scope_id,
        "scope_kind": None if subject is None else subject.kind,
        "name": None if subject is None else subject.name,
        "window_start": iso_utc(state.since) if state.since else None,
        "budget_usd": None if budget is None else usd_text(budget),
        "spent_usd": usd_text(state.spent) if counts_money and state.spent is not None else None,
        "held_usd": usd_text(state.reserved) if counts_money else None,
        "quota": None
        if measure is None
        else {
            "measure": measure.value,
            "max": None if limits is None else limits.quotas.get(measure),
            "used": state.spent,
            "held": state.reserved,
        },
        "running": state.open,
        "unsettled": state.closed,
    }
