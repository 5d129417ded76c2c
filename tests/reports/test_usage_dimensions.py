"""Usage by dimension: the same sums by another way of adding up, whatever has been added to the daily sums so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace as replace_filter
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine

from proxy.billing.details import EntryDetails
from proxy.billing.dimensions import END_USER, SESSION
from proxy.billing.entries import EntryKind, LedgerEntry
from proxy.ledger.accounts.credit import credit_entry
from proxy.ledger.dimensions import sums
from proxy.ledger.settling.store import Arrival
from proxy.reports.dimensions import DimensionFilter, of_exchanges, stored_dimensions
from proxy.reports.entry_reader import EntryFilter, EntryReader, count_entries
from proxy.reports.exchanges import ExchangeFilter, read_exchanges
from proxy.reports.usage import DAY_S, UsageFilter, id_from, read_usage
from tests.ledger.entries import a_store, an_entry, emptied
from tests.support.examples import examples

pytestmark = pytest.mark.io

MIDNIGHT = 1_793_059_200
SPAN = {"begin": MIDNIGHT - DAY_S, "end": MIDNIGHT + DAY_S}
TEAM = "tag:team"
NUMBERS = ("prompt_tokens", "cached_tokens", "completion_tokens", "requests", "charge_nusd", "cost_nusd", "unpriced",
           "unknown_cost", "unknown_cost_charge_nusd")  # fmt: skip


def an_exchange(number: int, random: Random) -> list[LedgerEntry]:
    """Its entries, the terminal one first."""
    at = MIDNIGHT + random.randrange(-DAY_S, DAY_S)
    exchange_id = f"{id_from(at)}7{number:03x}-8000-{number:012x}"

    def amount() -> int | None:
        return random.choice([None, 0, 1, -5, 999_999_999, 3 * 10**9 + 7])

    def entry(kind: str, seq: int, details: dict[str, Any]) -> LedgerEntry:
        numbers = {"charge_nusd": amount(), "cost_nusd": amount(), "prompt_tokens": random.choice([None, 5, 70])}
        names = {"key_id": f"key-{number % 2}", "model": "ab"[number % 3 % 2]}
        return an_entry(exchange=exchange_id, kind=kind, seq=seq, started_at=at, details=details, **names, **numbers)

    has = {END_USER: ["v_a", "v_b", "overflow", None], SESSION: ["v_s", None], TEAM: ["v_red", None, None]}
    chosen = {name: value for name, values in has.items() if (value := random.choice(values)) is not None}
    later = [entry(EntryKind.ADJUSTMENT, seq, {"why": "so"}) for seq in range(1, 1 + random.choice([0, 0, 1, 2]))]
    vain = [entry(EntryKind.ATTEMPT, 1, {})] * random.choice([0, 0, 1])
    return [entry(EntryKind.USAGE, 0, EntryDetails(dimensions=chosen or None).stored()), *vain, *later]


def settled(engine: Engine, exchanges: list[list[LedgerEntry]], random: Random) -> None:
    """In any order, the terminal entry of an exchange first; some of them are added to the daily sums."""
    store, waiting = a_store(engine), [list(one) for one in exchanges]
    while waiting := [one for one in waiting if one]:
        part = [one.pop(0) for one in random.sample(waiting, random.randint(1, len(waiting)))]
        store.settle([Arrival(entry) for entry in part])
        if random.random() < 0.4:
            sums.add_up(engine)


def totals(engine: Engine, wanted: UsageFilter) -> Counter[tuple[Any, ...]]:
    """(Number's name, begin of the bucket, groups) → number."""
    found, end = read_usage(engine, wanted, 1_000)
    assert end == wanted.end
    return Counter({
        (name, one.begin, *(getattr(one, group) for group in wanted.groups)): getattr(one, name)
        for one in found
        for name in NUMBERS
    })  # fmt: skip


def not_0(found: Mapping[tuple[Any, ...], int]) -> dict[tuple[Any, ...], int]:
    return {key: number for key, number in found.items() if number}


def over_groups(found: Counter[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    """The sums over the last group column."""
    total = Counter[tuple[Any, ...]]()
    for (*key, _), number in found.items():
        total[tuple(key)] += number
    return total


def plain(exchanges: list[list[LedgerEntry]], wanted: UsageFilter) -> Counter[tuple[Any, ...]]:
    """Charges, costs, tokens and requests, added up entry by entry."""
    total = Counter[tuple[Any, ...]]()
    for entries in exchanges:
        dimensions = stored_dimensions(entries[0].details)
        if any(dimensions.get(name) not in ids for name, ids in wanted.dimensions.items()):
            continue
        first = entries[0]
        begin = wanted.begin if wanted.is_total else int(first.started_at) // wanted.bucket_s * wanted.bucket_s
        of = {"key_id": first.key_id, "model": first.model, "value_id": dimensions.get(wanted.by_dimension or "")}
        group = (begin, *(of[name] for name in wanted.groups))
        for entry in entries:
            for name in NUMBERS[:6]:
                more = entry.kind == EntryKind.USAGE if name == "requests" else getattr(entry, name)
                total[name, *group] += more or 0
    return total


def asked() -> Iterator[UsageFilter]:
    for width in (DAY_S, 3_600):
        for is_total in (False, True):
            every = UsageFilter(**SPAN, bucket_s=width, is_total=is_total)
            for name in (END_USER, TEAM, "tag:nobody"):
                yield replace_filter(every, by_dimension=name)
                yield replace_filter(every, by_dimension=name, by_key=True, by_model=True)
            yield replace_filter(every, dimensions={END_USER: {"v_a", "overflow"}})
            yield replace_filter(every, dimensions={END_USER: {"v_a", "v_b"}}, by_dimension=END_USER)
            yield replace_filter(every, dimensions={SESSION: {"v_s"}, TEAM: {"v_red"}}, by_dimension=END_USER)


@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_the_groups_of_a_dimension_add_up_to_the_official_sums(engine: Engine, seed: int) -> None:
    """With corrections, failed attempts, unknown amounts, and entries that are not in the daily sums yet."""
    random = Random(seed)
    emptied(engine)
    exchanges = [an_exchange(number, random) for number in range(random.randint(1, 12))]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sums, "ENTRIES_MAX", random.choice([1, 3, 100]))
        settled(engine, exchanges, random)
    a_store(engine).settle([Arrival(credit_entry("paid", "key-1", "anna", 5 * 10**9, "paid", MIDNIGHT + 5.0))])
    for wanted in random.sample(list(asked()), 3):
        found = totals(engine, wanted)
        official = plain(exchanges, wanted)
        assert not_0({key: number for key, number in found.items() if key[0] in NUMBERS[:6]}) == not_0(official)
        if not wanted.dimensions:
            without = replace_filter(wanted, by_dimension=None)
            assert not_0(over_groups(found)) == not_0(totals(engine, without))


@settings(max_examples=examples(10), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_lists_have_the_exchanges_and_entries_with_a_dimension(engine: Engine, seed: int) -> None:
    """Added to the daily sums or not, page by page."""
    random = Random(seed)
    emptied(engine)
    every = [an_exchange(number, random) for number in range(random.randint(1, 12))]
    settled(engine, every, random)
    for wanted in ({END_USER: {"v_a", "overflow"}}, {TEAM: {"v_red"}, END_USER: {"v_a"}}, {SESSION: {"v_x"}}):
        matching = [
            entries
            for entries in every
            if all(stored_dimensions(entries[0].details).get(name) in ids for name, ids in wanted.items())
        ]
        ids = sorted((entries[0].exchange_id for entries in matching), reverse=True)
        assert listed(engine, wanted) == ids
        read = EntryReader(engine, EntryFilter(dimensions=wanted)).new_entries()
        assert {entry.entry_id for entry in read} == {entry.entry_id for entries in matching for entry in entries}
        assert count_entries(engine, EntryFilter(dimensions=wanted)) == sum(map(len, matching))
    ids_ = [entries[0].exchange_id for entries in every]
    with_some = {one[0].exchange_id: found for one in every if (found := stored_dimensions(one[0].details))}
    assert of_exchanges(engine, ids_) == with_some


def listed(engine: Engine, wanted: DimensionFilter) -> list[str]:
    ids, after = list[str](), None
    while True:
        found, after = read_exchanges(engine, ExchangeFilter(dimensions=wanted, after=after), 2)
        ids += [one.terminal.exchange_id for one in found]
        if after is None:
            return ids
