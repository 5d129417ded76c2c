"""What counters count: sums say what all entries come to, and changes are what moves them, on both databases."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, delete, insert, update

from proxy.billing.entries import EntryKind, LedgerEntry
from proxy.billing.limits import credit_counter_id
from proxy.billing.reservation import SpendDelta
from proxy.ledger.schema.account_tables import accounts, api_keys
from proxy.ledger.schema.tables import account_clock, ledger_clock, ledger_entries, usage_daily
from proxy.ledger.settling import account_sums
from proxy.ledger.settling.account_sums import add_up
from proxy.ledger.settling.settling import DROPPED, DeadLetter
from proxy.ledger.settling.spend import changes, ledger_time, settled, sums
from proxy.ledger.settling.store import LedgerStore
from proxy.reconciliation.reconcile import reconcile
from proxy.storage.database import LedgerUnavailable, writing
from tests.ledger.entries import a_store, an_entry, arriving, emptied
from tests.support.examples import examples
from tests.support.ledgers import on_both_databases

pytestmark = pytest.mark.io

DAY_S = 86_400
MIDNIGHT = datetime(2026, 11, 1, tzinfo=UTC).timestamp()
NOON = MIDNIGHT + DAY_S / 2

PROJECTS = {"proj_a": "org_1", "proj_b": "org_1", "proj_c": "org_2"}
KEYS = {"key_1": "proj_a", "key_2": "proj_a", "key_3": "proj_b", "key_4": "proj_c"}
SCOPES = [*KEYS, *PROJECTS, "org_1", "org_2"]


def a_tree(engine: Engine) -> None:
    """Two organizations with three projects and four keys."""
    named = {"name": "", "created_at": MIDNIGHT}
    parents: dict[str, str | None] = {"org_1": None, "org_2": None, **PROJECTS}
    rows = [
        {"account_id": one, "parent_id": parent, "kind": "project" if parent else "organization", "revision": 100 + n}
        for n, (one, parent) in enumerate(parents.items())
    ]
    keys = [
        {"key_id": key, "alias": key, "digest": key.encode(), "hint": "", "project_id": project, "revision": 200 + n}
        for n, (key, project) in enumerate(KEYS.items())
    ]
    with writing(engine) as connection:
        connection.execute(insert(accounts), [{**named, **row} for row in rows])
        connection.execute(insert(api_keys), [{**row, "created_at": MIDNIGHT} for row in keys])


@pytest.fixture
def tree(engine: Engine) -> Engine:
    a_tree(engine)
    return engine


def credit(number: int, scope_id: str, nusd: int) -> LedgerEntry:
    nothing: dict[str, Any] = dict.fromkeys(
        ("prompt_tokens", "cached_tokens", "completion_tokens", "total_tokens", "price_version"), None
    )
    return an_entry(number, kind=EntryKind.CREDIT, key_id=scope_id, charge_nusd=-nusd, cost_nusd=0, model="", **nothing)


def scopes_of(key_id: str) -> list[str]:
    project = KEYS.get(key_id)
    return [key_id] if project is None else [key_id, project, PROJECTS[project]]


def expected(entries: Sequence[LedgerEntry], counter_id: str, since: float) -> int:
    """What all of them come to."""
    scope_id = counter_id.removesuffix("/credit")
    total = 0
    for entry in entries:
        if entry.kind == EntryKind.CREDIT:
            total += (entry.charge_nusd or 0) if counter_id == credit_counter_id(entry.key_id) else 0
        elif scope_id in scopes_of(entry.key_id) and (counter_id != scope_id or round(entry.started_at, 6) >= since):
            total += entry.charge_nusd or 0
    return total


def by_counter(found: Sequence[SpendDelta], counter_id: str, since: float) -> int:
    return sum(one.nusd for one in found if counter_id in one.counter_ids and one.started_at >= since)


# -- sums


def test_an_empty_ledger_has_spent_nothing(tree: Engine) -> None:
    wants = [("key_1", 0.0), ("proj_a", NOON), ("org_1/credit", 0.0), ("key_unknown", 0.0)]
    assert [(one.counter_id, one.since, one.amount, one.as_of_us) for one in sums(tree, wants)] == [
        (counter_id, since, 0, 0) for counter_id, since in wants
    ]
    assert sums(tree, []) == []
    assert ledger_time(tree) == 0
    assert changes(tree, 0, 10) == ([], 0, 0)


@on_both_databases
def test_each_level_counts_its_keys(tree: Engine, store: LedgerStore) -> None:
    store.settle(
        arriving(*(an_entry(n, key_id=key, charge_nusd=10**n) for n, key in enumerate([*KEYS, "key_unknown"])))
    )
    found = {one.counter_id: one.amount for one in sums(tree, [(scope, 0.0) for scope in [*SCOPES, "key_unknown"]])}
    assert found == {
        "key_1": 1, "key_2": 10, "key_3": 100, "key_4": 1_000, "key_unknown": 10_000,
        "proj_a": 11, "proj_b": 100, "proj_c": 1_000, "org_1": 111, "org_2": 1_000,
    }  # fmt: skip


@on_both_databases
def test_a_window_begins_to_the_microsecond(tree: Engine, store: LedgerStore) -> None:
    begun = (NOON - 1e-6, NOON, NOON + 1e-6, MIDNIGHT + DAY_S - 1e-6, MIDNIGHT + DAY_S, MIDNIGHT + 2 * DAY_S)
    store.settle(
        arriving(*(an_entry(n, key_id="key_1", started_at=at, charge_nusd=10**n) for n, at in enumerate(begun)))
    )
    windows = {
        0.0: 111_111, MIDNIGHT: 111_111, NOON - 1e-6: 111_111, NOON: 111_110, NOON + 1e-6: 111_100,
        NOON + 2e-6: 111_000, MIDNIGHT + DAY_S - 1e-6: 111_000, MIDNIGHT + DAY_S: 110_000, NOON + DAY_S: 100_000,
        NOON + 2 * DAY_S: 0,
    }  # fmt: skip
    for scope in ("key_1", "proj_a", "org_1"):
        assert {one.since: one.amount for one in sums(tree, [(scope, since) for since in windows])} == windows


@on_both_databases
def test_a_boundary_between_floats_is_where_a_store_finds_it(tree: Engine, store: LedgerStore) -> None:
    """A window's begin comes out of float arithmetic; an entry's time is a whole microsecond."""
    at = NOON + 0.123457
    store.settle(arriving(an_entry(0, key_id="key_1", started_at=at, charge_nusd=7)))
    (change,), _, _ = changes(tree, 0, 10)
    assert change.started_at == at
    for since in (math.nextafter(at, 0), at, math.nextafter(at, math.inf), at - 1e-6, at + 1e-6):
        (one,) = sums(tree, [("key_1", since)])
        assert one.amount == (7 if change.started_at >= since else 0)


def test_adjustments_count_with_their_exchange(tree: Engine, store: LedgerStore) -> None:
    usage = an_entry(0, key_id="key_1", started_at=NOON, charge_nusd=500)
    store.settle(arriving(usage))
    store.settle(arriving(an_entry(0, kind="adjustment", seq=1, key_id="key_1", started_at=NOON, charge_nusd=-200)))
    store.settle(arriving(an_entry(1, key_id="key_1", started_at=NOON, charge_nusd=None)))
    assert [one.amount for one in sums(tree, [("key_1", NOON), ("proj_a", 0.0), ("key_1", NOON + 1)])] == [300, 300, 0]


@on_both_databases
def test_credit_is_paid_in_for_one_scope_and_is_no_usage(tree: Engine, store: LedgerStore) -> None:
    store.settle(arriving(an_entry(0, key_id="key_1", charge_nusd=5), an_entry(1, key_id="key_3", charge_nusd=70)))
    store.settle(arriving(credit(2, "key_1", 1_000), credit(3, "org_1", 50_000), credit(4, "org_1", -20)))
    wants = [credit_counter_id(scope) for scope in ("key_1", "key_3", "proj_a", "org_1", "org_2")]
    found = {one.counter_id: one.amount for one in sums(tree, [(counter, 0.0) for counter in wants])}
    assert found == {
        "key_1/credit": 5 - 1_000, "key_3/credit": 70, "proj_a/credit": 5, "org_1/credit": 75 - 50_000 + 20,
        "org_2/credit": 0,
    }  # fmt: skip
    began = an_entry().started_at
    usage = sums(tree, [("key_1", 0.0), ("org_1", 0.0), ("key_1", began), ("org_1", began), ("org_1", began + 1)])
    assert [one.amount for one in usage] == [5, 75, 5, 75, 0]


@on_both_databases
def test_sums_are_exact_where_floats_are_not(tree: Engine, store: LedgerStore) -> None:
    charges = [1_234_567_890_123_457 + n for n in range(3)]  # 1.2 million USD and a bit
    for n, charge in enumerate(charges):
        store.settle(arriving(an_entry(n, key_id="key_1", started_at=NOON, charge_nusd=charge)))
    wants = [("key_1", 0.0), ("key_1", NOON), ("org_1", NOON), ("key_1/credit", 0.0)]
    assert {one.amount for one in sums(tree, wants)} == {sum(charges)}


def test_a_ledger_without_its_clock_says_so(tree: Engine) -> None:
    with writing(tree) as connection:
        connection.execute(delete(ledger_clock))
    for asked in (lambda: sums(tree, []), lambda: changes(tree, 0, 1), lambda: ledger_time(tree)):
        with pytest.raises(LedgerUnavailable, match="clock"):
            asked()


# -- changes


def test_a_change_says_where_it_counts(tree: Engine, store: LedgerStore) -> None:
    store.settle(arriving(an_entry(0, key_id="key_3", charge_nusd=5, started_at=NOON + 0.25)))
    store.settle(arriving(credit(1, "org_1", 9)))
    store.settle(arriving(an_entry(2, key_id="key_unknown", charge_nusd=None)))
    (usage, top_up, unknown), until_us, clock_us = changes(tree, 0, 10)
    assert usage.counter_ids == ("key_3", "proj_b", "org_1", "key_3/credit", "proj_b/credit", "org_1/credit")
    assert (usage.exchange_id, usage.nusd, usage.started_at) == (an_entry(0).exchange_id, 5, NOON + 0.25)
    assert (top_up.counter_ids, top_up.nusd) == (("org_1/credit",), -9)
    assert (unknown.counter_ids, unknown.nusd) == (("key_unknown", "key_unknown/credit"), 0)
    assert usage.settled_at_us < top_up.settled_at_us < unknown.settled_at_us == until_us == clock_us


def test_transactions_are_never_cut(tree: Engine, store: LedgerStore) -> None:
    sizes, number = [3, 1, 7, 2, 2, 1], 0
    for size in sizes:
        store.settle(arriving(*(an_entry(number + n) for n in range(size))))
        number += size
    pages, after_us = [], 0
    while after_us < ledger_time(tree):
        found, until_us, _ = changes(tree, after_us, 4)
        assert found[-1].settled_at_us == until_us > after_us
        pages.append(len(found))
        after_us = until_us
    assert pages == [4, 7, 4, 1]
    assert changes(tree, after_us, 4) == ([], after_us, after_us)


def test_a_settling_without_entries_moves_the_time_on(tree: Engine, store: LedgerStore) -> None:
    store.settle(arriving(an_entry(0)))
    _, before_us, _ = changes(tree, 0, 10)
    store.settle(arriving(an_entry(0)))  # again: nothing new
    found, until_us, clock_us = changes(tree, before_us, 10)
    assert found == []
    assert before_us < until_us == clock_us == ledger_time(tree)


def test_a_ledger_that_was_put_back_shows_it(tree: Engine, store: LedgerStore) -> None:
    store.settle(arriving(an_entry(0)))
    now_us = ledger_time(tree)
    assert changes(tree, now_us + 5, 10) == ([], now_us, now_us)


@pytest.mark.parametrize("step_us", [1, 2, 3, 999_999])
def test_no_microsecond_is_lost_or_doubled(tree: Engine, store: LedgerStore, step_us: int) -> None:
    """Times that no float has exactly, one after the other."""
    first_us = 1_793_000_000_000_001
    for n in range(12):
        store.settle(arriving(an_entry(n)))
        with writing(tree) as connection:
            moved = {"settled_at": (first_us + n * step_us) / 1e6}
            connection.execute(
                update(ledger_entries).where(ledger_entries.c.exchange_id == an_entry(n).exchange_id).values(moved)
            )
            connection.execute(update(ledger_clock).values(moved if n == 11 else {"settled_at": 1.0}))
    after_us, seen = 0, []
    for _ in range(12):
        found, after_us, _ = changes(tree, after_us, 1)
        seen += [(one.exchange_id, one.settled_at_us) for one in found]
        assert after_us == first_us + (len(seen) - 1) * step_us
    assert seen == [(an_entry(n).exchange_id, first_us + n * step_us) for n in range(12)]


def test_settled_up_to_a_time(tree: Engine, store: LedgerStore) -> None:
    store.settle(arriving(an_entry(0)))
    first_us = ledger_time(tree)
    store.settle(arriving(an_entry(1), an_entry(2, kind="adjustment", seq=1)))
    ids = [an_entry(n).exchange_id for n in range(3_000)]
    assert settled(tree, ids, first_us) == {ids[0]}
    assert settled(tree, ids, first_us - 1) == set()
    assert settled(tree, ids, ledger_time(tree)) == {ids[0], ids[1]}
    assert settled(tree, ids) == {ids[0], ids[1]}
    assert settled(tree, [], first_us) == set()


def test_what_never_will_be_settled_counts_as_settled(tree: Engine, store: LedgerStore) -> None:
    """Somebody has dropped its letter: nothing is charged, and nothing more is to be held for it."""
    there, dropped = (an_entry(n).exchange_id for n in (1, 2))
    states = {there: "open", dropped: DROPPED}
    letters = [DeadLetter("rejected: DataError", "{}", one, state=state) for one, state in states.items()]
    store.settle([], letters)
    assert settled(tree, [there, dropped]) == {dropped}


# -- the sums of accounts


def found_wrong(engine: Engine) -> list[dict[str, Any]]:
    (found,) = (one for one in reconcile(engine, clock=time.time) if one.name == "accounts")
    return [dict(one) for one in found.examples]


def test_what_is_added_up_is_not_read_again(tree: Engine, store: LedgerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account_sums, "ENTRIES_MAX", 3)
    for number in range(8):
        store.settle(arriving(an_entry(2 * number, key_id="key_1"), an_entry(2 * number + 1, key_id="key_4")))
    wants = [(scope, 0.0) for scope in SCOPES]
    before = [one.amount for one in sums(tree, wants)]
    assert add_up(tree)
    assert [one.amount for one in sums(tree, wants)] == before
    while add_up(tree):
        pass
    assert [one.amount for one in sums(tree, wants)] == before
    assert found_wrong(tree) == []
    with writing(tree) as connection:  # nobody looks at these any more
        connection.execute(delete(ledger_entries))
        connection.execute(delete(usage_daily))
    found = {one.counter_id: one.amount for one in sums(tree, wants)}
    added = ("proj_a", "org_1", "proj_c", "org_2")
    assert [found[scope] for scope in added] == [before[SCOPES.index(scope)] for scope in added]
    assert found["key_1"] == 0
    assert {one["account_id"] for one in found_wrong(tree)} == set(added)


@on_both_databases
def test_any_number_may_add_up_at_once(tree: Engine, store: LedgerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account_sums, "ENTRIES_MAX", 2)
    for number in range(20):
        store.settle(arriving(an_entry(number, key_id="key_1")))
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: add_up(tree), range(60)))
    while add_up(tree):  # who finds another at work does nothing
        pass
    (one,) = sums(tree, [("org_1", 0.0)])
    assert one.amount == 20 * (an_entry(0).charge_nusd or 0)
    assert found_wrong(tree) == []


def test_sums_of_accounts_without_their_clock_say_so(tree: Engine) -> None:
    with writing(tree) as connection:
        connection.execute(delete(account_clock))
    with pytest.raises(LedgerUnavailable, match="account_clock"):
        sums(tree, [("org_1", 0.0)])


SETTLED = st.tuples(
    st.sampled_from([*KEYS, "key_unknown"]),
    st.integers(0, 3 * DAY_S * 1_000_000),
    st.one_of(st.none(), st.integers(-(10**6), 10**12)),
    st.sampled_from(["usage", EntryKind.CREDIT]),
)
STEPS = st.lists(st.lists(SETTLED, min_size=1, max_size=4), max_size=6)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=STEPS, since_us=st.integers(0, 3 * DAY_S * 1_000_000), limit=st.integers(1, 5),
    added=st.sets(st.integers(0, 5)),
)  # fmt: skip
def test_sums_are_what_their_changes_add_up_to(
    engine: Engine, steps: list[list[tuple[str, int, int | None, str]]], since_us: int, limit: int, added: set[int]
) -> None:
    """Whether and whenever those of accounts are added up."""
    emptied(engine)
    a_tree(engine)
    store, entries, since = a_store(engine), [], MIDNIGHT + since_us / 1e6
    for place, step in enumerate(steps):
        batch = []
        for key_id, at_us, charge, kind in step:
            number, scope_id = len(entries) + len(batch), "org_1" if kind == EntryKind.CREDIT and at_us % 2 else key_id
            more = {"kind": kind, "key_id": scope_id, "started_at": MIDNIGHT + at_us / 1e6, "charge_nusd": charge}
            batch.append(an_entry(number, **more))
        store.settle(arriving(*batch))
        entries += batch
        if place in added:
            assert not add_up(engine)
    assert found_wrong(engine) == []
    wants = [(scope, since) for scope in SCOPES] + [(credit_counter_id(scope), 0.0) for scope in SCOPES]
    found, after_us, clock_us = [], 0, ledger_time(engine)
    while after_us < clock_us:
        page, after_us, _ = changes(engine, after_us, limit)
        found += page
    assert sorted(one.exchange_id for one in found) == [one.exchange_id for one in entries]
    for one in sums(engine, wants):
        assert one.as_of_us == clock_us
        assert (
            one.amount == expected(entries, one.counter_id, one.since) == by_counter(found, one.counter_id, one.since)
        )
