"""The states of many budgets, from the states of their limit counters.

Invariants: the ledger is read a few times for all of them, however many there are. A budget whose counter has no spend,
because no request has used it since the store was emptied, has the spend of the ledger; at most UNUSED_MAX of these are
read. A key without a balance has spent nothing, and needs no read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from msgspec.structs import replace
from sqlalchemy import Engine, select

from proxy.billing.limits import credit_counter_id, quota_of, scope_of
from proxy.billing.money import ZERO_NUSD
from proxy.billing.reservation import CounterState
from proxy.budgets.budget_state import BudgetState, credit_state, window_state
from proxy.budgets.thresholds import KEY, RULE, Subject, subjects
from proxy.ledger.schema.account_tables import accounts, api_keys
from proxy.ledger.schema.tables import balances
from proxy.ledger.settling.spend import IDS_MAX, batches, sums
from proxy.reports.key_spend import read_credits
from proxy.storage.database import reading

# Budgets whose spend is read from the ledger, one by one: those of the newest keys and accounts.
UNUSED_MAX = 500


def read_budget_states(
    engine: Engine,
    counters: Sequence[CounterState],
    now: float,
    scope_ids: Collection[str] | None = None,
    *,
    unused_max: int = UNUSED_MAX,
) -> list[BudgetState]:
    """The budgets and prepaid balances of these counters at `now` (Unix seconds), in their order, then those without a
    counter. `scope_ids`: of these keys and accounts only; None: of all counters, and of the newest `unused_max` keys.
    Raises LedgerUnavailable."""
    counters = [one for one in counters if quota_of(one.counter_id) is None]
    listed = _limited(engine, unused_max) if scope_ids is None else scope_ids
    known = subjects(engine, {*listed, *(scope_of(one.counter_id) for one in counters)})
    counters = _seeded(engine, counters, now, [known[one] for one in listed if one in known])
    prepaid = {one.scope_id for one in known.values() if one.limits.prepaid}
    added = read_credits(engine, prepaid) if prepaid else {}
    states: list[BudgetState | None] = []
    for counter in counters:
        scope_id = scope_of(counter.counter_id)
        if scope_id not in known:
            continue
        if scope_id == counter.counter_id:
            states.append(window_state(counter, known[scope_id], now))
        elif scope_id in prepaid:
            states.append(credit_state(counter, known[scope_id], added.get(scope_id, ZERO_NUSD)))
    return [one for one in states if one is not None]


def _seeded(
    engine: Engine, counters: Sequence[CounterState], now: float, of_scopes: Collection[Subject]
) -> list[CounterState]:
    """The counters. Each budget of these keys and accounts has its spend, from the ledger if the store does not know
    it."""
    found = {one.counter_id: one for one in counters}
    known = {one.counter_id for one in counters if one.spent is not None}
    of_scopes = [one for one in of_scopes if one.scope_id not in known or one.limits.prepaid]
    missing = [one for subject in of_scopes for one in _counters(subject, now) if one[0] not in known]
    charged = _with_balance(engine, of_scopes) if missing else set()
    read = [one for one in missing if scope_of(one[0]) in charged][:UNUSED_MAX]
    totals = [(one.counter_id, one.since, one.amount) for one in sums(engine, read)] if read else []
    totals += [(counter_id, since, 0) for counter_id, since in missing if scope_of(counter_id) not in charged]
    for counter_id, since, spent in totals:
        counter = found.get(counter_id) or CounterState(counter_id, since, None, 0, 0, 0)
        found[counter_id] = replace(counter, since=since, spent=spent)
    return list(found.values())


def _with_balance(engine: Engine, of_scopes: Collection[Subject]) -> set[str]:
    """The ids of the accounts, and of the keys with charges or credit."""
    keys = [one.scope_id for one in of_scopes if one.kind == KEY]
    found = {one.scope_id for one in of_scopes if one.kind != KEY}
    with reading(engine) as connection:
        for ids in batches(keys, IDS_MAX):
            found.update(connection.execute(select(balances.c.key_id).where(balances.c.key_id.in_(ids))).scalars())
    return found


def _limited(engine: Engine, keys_max: int) -> list[str]:
    """The ids of the accounts with limits, and of the newest usable keys with limits."""
    keys, of = api_keys.c, accounts.c
    usable = select(keys.key_id).where(keys.limits.is_not(None), keys.revoked_at.is_(None))
    with reading(engine) as connection:
        newest = connection.execute(usable.order_by(keys.created_at.desc()).limit(keys_max)).scalars()
        limited = connection.execute(select(of.account_id).where(of.limits.is_not(None)).limit(UNUSED_MAX)).scalars()
        return [*limited, *newest]


def _counters(subject: Subject, now: float) -> Iterator[tuple[str, float]]:
    """The id and the beginning of the counters of its budget and its balance."""
    if subject.kind != RULE and subject.limits.budget_at(now) is not None:
        yield subject.scope_id, subject.limits.window_start(subject.created_at, now)
    if subject.kind != RULE and subject.limits.prepaid:
        yield credit_counter_id(subject.scope_id), 0.0


def fullest(states: Iterable[BudgetState]) -> dict[str, BudgetState]:
    """Scope id → the budget or balance of the scope that is used the most."""
    found: dict[str, BudgetState] = {}
    for state in states:
        scope_id = state.subject.scope_id
        if scope_id not in found or state.used_ratio > found[scope_id].used_ratio:
            found[scope_id] = state
    return found
