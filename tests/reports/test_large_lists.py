"""Lists of a large deployment: the first page of each takes less than 0.3 s, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from sqlalchemy import Engine

from proxy.billing.limits import limit_counters
from proxy.billing.reservation import CounterState
from proxy.ledger.accounts.key_store import KeyStore
from proxy.reports.account_list import AccountFilter, AccountOrder, read_account_list
from proxy.reports.budget_list import BudgetFilter, BudgetStatus, read_budgets, selected
from proxy.reports.budget_states import fullest, read_budget_states
from proxy.reports.key_list import KeyFilter, KeyOrder, KeyStatus, read_keys
from proxy.storage.database import open_engine
from tests.reports.large_ledger import END, KEYS, S_MAX, fill, shortest_s
from tests.support.reference_loop import slowness

pytestmark = [pytest.mark.io, pytest.mark.slow]


@pytest.fixture
def engine(fresh_ledger_url: str) -> Iterator[Engine]:
    made = open_engine(fresh_ledger_url)
    fill(made, entries=0)
    yield made
    made.dispose()


def test_ten_thousand_keys(engine: Engine) -> None:
    keys = KeyStore(engine, clock=lambda: END)
    counters = [
        CounterState(key.key_id, limit_counters(key.scope, END)[0].since, number * 10**6, 0, 0, 0)
        for number, key in enumerate(keys.every())
    ]
    assert len(counters) == KEYS
    shares: dict[str, float] = {}

    def read_shares() -> None:
        states = fullest(read_budget_states(engine, counters, END))
        shares.update({scope_id: state.used_ratio for scope_id, state in states.items()})

    def read_list(status: BudgetStatus | None) -> None:
        states = read_budgets(engine, counters, END)
        assert len(states) == KEYS
        selected(states, BudgetFilter(status=status, text="service"), {})

    slow = max(1.0, slowness())
    took = {"shares of all budgets": shortest_s(read_shares)}
    for status in (None, BudgetStatus.NEARLY_EXHAUSTED):
        took[f"budgets, {status}"] = shortest_s(partial(read_list, status))
    wanted = [KeyFilter(now=END, order=order) for order in KeyOrder]
    wanted += [KeyFilter(now=END, text=text) for text in ("service 77", "PROJECT 1", "key_099", "nothing")]
    wanted += [KeyFilter(now=END, status=status) for status in KeyStatus]
    wanted += [KeyFilter(now=END, unused=True), KeyFilter(now=END, organization_id="org_003")]
    for one in wanted:
        took[repr(one)] = shortest_s(partial(read_keys, engine, one, shares, first=0, size=50))
    for order in AccountOrder:
        read = partial(read_account_list, engine, AccountFilter(order=order), shares, first=0, size=50)
        took[f"accounts by {order}"] = shortest_s(read)
    for name, seconds in took.items():
        print(f"{seconds / slow:.3f} s  {name}")
    assert max(took.values()) / slow < S_MAX
