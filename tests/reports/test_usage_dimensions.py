"""Usage by dimension: the same sums by another way of adding up, whatever has been added to the daily sums so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace as replace_filter
from datetime import datetime, time
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

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
from proxy.reports.buckets import DAY_S, Buckets
from proxy.reports.dimensions import DimensionFilter, of_exchanges, stored_dimensions
from proxy.reports.entry_reader import EntryFilter, EntryReader, count_entries
from proxy.reports.exchange_search import ExchangeFilter, read_exchanges
from proxy.reports.usage import UsageFilter, id_from, read_usage
from tests.ledger.entries import a_store, an_entry, emptied
from tests.support.examples import examples

pytestmark = pytest.mark.io

MIDNIGHT = 1_793_059_200
SPAN = {"begin": MIDNIGHT - DAY_S, "end": MIDNIGHT + DAY_S}
TEAM = "tag:team"
NUMBERS = ("prompt_tokens", "cached_tokens", "completion_tokens", "requests", "charge_nusd", "cost_nusd", "unpriced",
           "unknown_cost", "unknown_cost_charge_nusd")  # fmt: skip


def an_exchange(number: int, random: Random, around: int = MIDNIGHT, days: int = 1) -> list[LedgerEntry]:
    """Its entries, the terminal one first."""
    at = around + random.randrange(-days * DAY_S, days * DAY_S)
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


def begin_of(at: float, wanted: UsageFilter) -> int:
    if wanted.time_zone is None:
        return int(at) // wanted.bucket_s * wanted.bucket_s
    zone = ZoneInfo(wanted.time_zone)
    return int(datetime.combine(datetime.fromtimestamp(at, zone), time(), zone).timestamp())


def plain(exchanges: list[list[LedgerEntry]], wanted: UsageFilter) -> Counter[tuple[Any, ...]]:
    """Charges, costs, tokens and requests, added up entry by entry."""
    total = Counter[tuple[Any, ...]]()
    for entries in exchanges:
        dimensions = stored_dimensions(entries[0].details)
        if any(dimensions.get(name) not in ids for name, ids in wanted.dimensions.items()):
            continue
        first = entries[0]
        if not wanted.begin <= first.started_at < wanted.end:
            continue
        begin = wanted.begin if wanted.is_total else begin_of(first.started_at, wanted)
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


def local(wanted: UsageFilter, random: Random, zone: str, around: int) -> UsageFilter:
    """By days of this zone, from one to some days long."""
    days = Buckets(DAY_S, zone)
    begin = days.floor(around + random.randrange(-2 * DAY_S, DAY_S))
    end = days.ceil(begin + random.randrange(1, 4 * DAY_S))
    return replace_filter(wanted, begin=begin, end=end, bucket_s=DAY_S, time_zone=zone)


# A zone, and a moment on a day on which its clocks change: by an hour (in Cairo at midnight), by half an hour, or not.
CHANGES = [
    ("Europe/Berlin", 1_792_886_400), ("America/New_York", 1_772_953_200), ("Africa/Cairo", 1_776_988_800),
    ("Australia/Lord_Howe", 1_775_314_800), ("Asia/Kathmandu", MIDNIGHT), ("Pacific/Kiritimati", MIDNIGHT),
]  # fmt: skip


@settings(max_examples=examples(8), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), change=st.sampled_from(CHANGES))
def test_days_of_a_time_zone_add_up_to_the_nano_dollar(engine: Engine, seed: int, change: tuple[str, int]) -> None:
    random, (zone, around) = Random(seed), change
    emptied(engine)
    exchanges = [an_exchange(number, random, around, days=3) for number in range(random.randint(1, 16))]
    settled(engine, exchanges, random)
    for some in random.sample([*asked(), UsageFilter(**SPAN, bucket_s=DAY_S)], 3):
        daily = replace_filter(local(some, random, zone, around), is_total=False)
        total = replace_filter(daily, is_total=True)
        by_day, whole = totals(engine, daily), totals(engine, total)
        for wanted, found in ((daily, by_day), (total, whole)):
            known = {key: number for key, number in found.items() if key[0] in NUMBERS[:6]}
            assert not_0(known) == not_0(plain(exchanges, wanted))
        of_days = Counter[tuple[Any, ...]]()
        for (name, _, *groups), number in by_day.items():
            of_days[name, total.begin, *groups] += number
        assert not_0(of_days) == not_0(whole), "unknown amounts, too"


def test_lengths_of_days_in_a_time_zone() -> None:
    hours = set()
    for zone, around in CHANGES:
        days = Buckets(DAY_S, zone)
        begin = days.floor(around)
        assert begin <= around < days.end_of(begin)
        assert days.ceil(begin) == begin
        hours.add((days.end_of(begin) - begin) / 3_600)
    assert hours == {23, 24, 24.5, 25}


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
