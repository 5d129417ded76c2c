"""Lists of budgets: filtered, ordered and paged.

Invariants: the list has the budgets of keys that are not revoked, of accounts and of rules, used or not: of unused keys
the UNUSED_LISTED_MAX newest, of unused accounts UNUSED_MAX, and of the counters of rules the RULES_LISTED_MAX that are
used the most.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Engine, select

from proxy.billing.reservation import CounterState
from proxy.budgets.budget_state import BudgetState
from proxy.budgets.thresholds import RULE
from proxy.ledger.schema.account_tables import api_keys
from proxy.reports.budget_states import read_budget_states
from proxy.storage.database import reading

UNUSED_LISTED_MAX = 10_000
# A rule may have a counter for each of a million end users.
RULES_LISTED_MAX = 500
NEARLY = 0.8
"""the used share from which a budget is nearly exhausted"""


class BudgetStatus(StrEnum):
    """How much of a budget is spent."""

    EXHAUSTED = "exhausted"
    NEARLY_EXHAUSTED = "nearly_exhausted"
    """80 % or more"""
    ACTIVE = "active"


class BudgetOrder(StrEnum):
    """The orders of the list."""

    BUDGET = "budget"
    """the used share"""
    SPEND = "spend"
    NAME = "name"


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetFilter:
    """Selects the budgets that meet every condition that is not None."""

    text: str | None = None
    """a part of the name or id of the owner, or of a value of a dimension; in any case"""
    kind: str | None = None
    """of the owner: key, project, organization or rule"""
    status: BudgetStatus | None = None
    order: BudgetOrder = BudgetOrder.BUDGET
    descending: bool = True


def read_budgets(
    engine: Engine, counters: Sequence[CounterState], now: float, key_id: str | None = None
) -> list[BudgetState]:
    """All budgets. `key_id`: only those of this key. Raises LedgerUnavailable."""
    of_key = None if key_id is None else [key_id]
    states = read_budget_states(engine, counters, now, of_key, unused_max=UNUSED_LISTED_MAX)
    revoked = _revoked(engine)
    of_rules = [one for one in states if one.subject.kind == RULE]
    others = [one for one in states if one.subject.kind != RULE and one.subject.scope_id not in revoked]
    return [*others, *heapq.nlargest(RULES_LISTED_MAX, of_rules, key=lambda one: one.used_ratio)]


def status_of(state: BudgetState) -> BudgetStatus:
    """The status of a budget."""
    if state.used_ratio >= 1:
        return BudgetStatus.EXHAUSTED
    return BudgetStatus.NEARLY_EXHAUSTED if state.used_ratio >= NEARLY else BudgetStatus.ACTIVE


def selected(states: Sequence[BudgetState], wanted: BudgetFilter, values: Mapping[str, str]) -> list[BudgetState]:
    """The selected budgets in their order. `values`: value id of a dimension → its text, if `wanted` has a text."""
    found = [one for one in states if _matches(one, wanted, values)]
    found.sort(key=lambda one: (one.subject.name.lower(), one.subject.scope_id, one.window))
    key, falls = _ORDERS[wanted.order], wanted.descending
    return sorted(found, key=key, reverse=falls)


def _matches(state: BudgetState, wanted: BudgetFilter, values: Mapping[str, str]) -> bool:
    if wanted.kind is not None and state.subject.kind != wanted.kind:
        return False
    if wanted.status is not None and status_of(state) is not wanted.status:
        return False
    if wanted.text is None:
        return True
    texts = [state.subject.name, state.subject.scope_id]
    texts += [values.get(value_id, "") for value_id in state.subject.dimensions.values()]
    return any(wanted.text.lower() in one.lower() for one in texts)


_ORDERS: Mapping[BudgetOrder, Callable[[BudgetState], Any]] = {
    BudgetOrder.BUDGET: lambda one: one.used_ratio,
    BudgetOrder.SPEND: lambda one: one.spent_nusd,
    BudgetOrder.NAME: lambda one: one.subject.name.lower(),
}


def _revoked(engine: Engine) -> set[str]:
    """The ids of revoked keys with limits."""
    keys = api_keys.c
    query = select(keys.key_id).where(keys.revoked_at.is_not(None), keys.limits.is_not(None))
    with reading(engine) as connection:
        return set(connection.execute(query).scalars())
