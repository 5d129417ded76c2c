"""Reads the spend and the remaining budgets of a key.

Invariants: the ledger is read by an engine and on threads that only these requests use, so that they delay neither the
console nor the settling. Budgets are those of admission: the counters of the budget store, and for a counter without a
known spend the ledger's sum that would seed it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec import structs
from sqlalchemy import Engine

from proxy.billing.grants import GrantState
from proxy.billing.keys import AccountKind, ApiKey
from proxy.billing.limit_rules import RuleScope
from proxy.billing.limits import LimitCounter, Scope, credit_counter_id, limit_counters, quota_of
from proxy.billing.money import Nusd
from proxy.billing.reservation import CounterState
from proxy.budgets.budget_state import BudgetState, credit_state, window_state
from proxy.budgets.store import BudgetStore
from proxy.budgets.thresholds import KEY, RULE, Subject
from proxy.gateway.key_info.allowance import KeyAllowance
from proxy.keys.access import KeyAccess
from proxy.ledger.grants.burning import read_current_states
from proxy.ledger.settling.spend import sums
from proxy.reports.exchanges import SettledExchange, read_own_exchange
from proxy.reports.totals import SpendAndCredit, read_paid
from proxy.storage.executor import BoundedExecutor

# A few questions at once and a few that wait; more get 503.
THREADS = 2
WAITING_MAX = 32

Counter = tuple[str, float]
"""id, and the start of its window in Unix seconds"""


@dataclass(frozen=True, slots=True)
class _FromLedger:
    """Sums of one read, in nUSD."""

    spent: dict[Counter, int]
    paid: dict[str, SpendAndCredit]
    grants: Sequence[GrantState]


@dataclass(frozen=True, slots=True)
class KeyBudgets:
    """A key's spend since some times, and the budgets at all levels that limit it."""

    levels: Sequence[Subject]
    """the levels with limits: key, project, organization, rules"""
    spent_nusd: Sequence[Nusd]
    """the key's own spend since each of the requested times"""
    budgets: Sequence[BudgetState]
    grants: Sequence[GrantState]
    """the usable grants of the key, its project and its organization, in the order of their use at each level"""

    @property
    def tightest(self) -> BudgetState | None:
        """The budget with the least left; None: no budget applies."""
        return min(self.budgets, key=lambda one: one.left_nusd, default=None)


class KeyReads:
    """Reads for clients. `close` it before the process ends."""

    def __init__(self, engine: Engine, budgets: BudgetStore) -> None:
        """`engine`: used here only; `close` disposes it."""
        self.engine = engine
        self.threads = BoundedExecutor(THREADS, name="key info", waiting_max=WAITING_MAX)
        self.allowance = KeyAllowance()
        self._budgets = budgets

    async def budgets(
        self, key: ApiKey, access: KeyAccess, scopes: Sequence[Scope], since: Sequence[float]
    ) -> KeyBudgets:
        """The state of the budgets of these levels, and the key's spend since each time. Raises OSError."""
        levels = list(_levels(access, scopes))
        now = self._budgets.time()
        counters = list(_money_counters(scopes, now))
        ids = [one.counter_id for one in counters]
        stored = {one.counter_id: one for one in await self._budgets.counter_states(ids)} if ids else {}
        unknown = [(one.counter_id, one.since) for one in counters if not _is_seeded(one, stored)]
        prepaid = [one.scope_id for one in levels if one.limits.prepaid]
        own = [(key.key_id, one) for one in since]
        owners = access.payer.key_id, access.payer.project_id, access.payer.organization_id
        ledger = await self.threads.run(_read, self.engine, [*own, *unknown], prepaid, owners)
        states = {one.counter_id: _state(one, stored, ledger) for one in counters}
        spent = [Nusd(ledger.spent[one]) for one in own]
        return KeyBudgets(levels, spent, list(_budgets(levels, states, ledger, now)), ledger.grants)

    async def exchange(self, key: ApiKey, named: str) -> SettledExchange | None:
        """A settled exchange of this key, by its id or its provider's response id. Raises OSError."""
        return await self.threads.run(read_own_exchange, self.engine, key.key_id, named)

    async def close(self) -> None:
        """End the threads, then the connections."""
        await asyncio.to_thread(self.threads.close)
        self.engine.dispose()


def _levels(access: KeyAccess, scopes: Iterable[Scope]) -> Iterable[Subject]:
    payer = access.payer
    known = {
        payer.key_id: (KEY, payer.key_alias),
        payer.project_id: (AccountKind.PROJECT, payer.project),
        payer.organization_id: (AccountKind.ORGANIZATION, payer.organization),
    }
    for scope in scopes:
        kind, name = (RULE, scope.rule.name) if isinstance(scope, RuleScope) else known[scope.scope_id]
        yield Subject(scope.scope_id, kind, name, scope.limits, scope.created_at)


def _money_counters(scopes: Iterable[Scope], now: float) -> Iterable[LimitCounter]:
    every = (one for scope in scopes for one in limit_counters(scope, now) if one.nusd_max is not None)
    return (one for one in every if quota_of(one.counter_id) is None)


def _is_seeded(counter: LimitCounter, stored: dict[str, CounterState]) -> bool:
    """Whether the store knows the spend of the current window."""
    state = stored.get(counter.counter_id)
    return state is not None and state.since == counter.since and state.spent is not None


def _state(counter: LimitCounter, stored: dict[str, CounterState], ledger: _FromLedger) -> CounterState:
    state = stored.get(counter.counter_id) or CounterState(counter.counter_id, counter.since, None, 0, 0, 0)
    if _is_seeded(counter, stored):
        return state
    return structs.replace(state, since=counter.since, spent=ledger.spent[counter.counter_id, counter.since])


def _read(engine: Engine, wanted: Sequence[Counter], prepaid: Sequence[str], owners: Sequence[str]) -> _FromLedger:
    spent = {(one.counter_id, one.since): one.amount for one in sums(engine, wanted)} if wanted else {}
    grants = [one for one in read_current_states(engine, *owners) if one.granted and one.left > 0]
    return _FromLedger(spent, read_paid(engine, prepaid) if prepaid else {}, grants)


def _budgets(
    levels: Iterable[Subject], states: dict[str, CounterState], ledger: _FromLedger, now: float
) -> Iterable[BudgetState]:
    for level in levels:
        own, credit = states.get(level.scope_id), states.get(credit_counter_id(level.scope_id))
        found = (
            None if own is None else window_state(own, level, now),
            None if credit is None else credit_state(credit, level, ledger.paid[level.scope_id].credit_nusd),
        )
        yield from filter(None, found)
