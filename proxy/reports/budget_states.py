"""The states of many budgets, from the states of their limit counters.

Invariant: the ledger is read a few times for all of them, however many there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import Engine

from proxy.billing.limits import quota_of, scope_of
from proxy.billing.money import ZERO_NUSD
from proxy.billing.reservation import CounterState
from proxy.budgets.budget_state import BudgetState, credit_state, window_state
from proxy.budgets.thresholds import subjects
from proxy.reports.key_spend import read_credits


def read_budget_states(engine: Engine, counters: Sequence[CounterState], now: float) -> list[BudgetState]:
    """The budgets and prepaid balances of these counters at `now` (Unix seconds), in their order. Raises
    LedgerUnavailable."""
    of_money = [(scope_of(one.counter_id), one) for one in counters if quota_of(one.counter_id) is None]
    known = subjects(engine, {scope_id for scope_id, _ in of_money})
    prepaid = {one.scope_id for one in known.values() if one.limits.prepaid}
    added = read_credits(engine, prepaid) if prepaid else {}
    states: list[BudgetState | None] = []
    for scope_id, counter in of_money:
        if scope_id not in known:
            continue
        if scope_id == counter.counter_id:
            states.append(window_state(counter, known[scope_id], now))
        elif scope_id in prepaid:
            states.append(credit_state(counter, known[scope_id], added.get(scope_id, ZERO_NUSD)))
    return [one for one in states if one is not None]


def fullest(states: Iterable[BudgetState]) -> dict[str, BudgetState]:
    """Scope id → the budget or balance of the scope that is used the most."""
    found: dict[str, BudgetState] = {}
    for state in states:
        scope_id = state.subject.scope_id
        if scope_id not in found or state.used_ratio > found[scope_id].used_ratio:
            found[scope_id] = state
    return found
