"""Corrections: an exchange comes to what was asked, by one more entry; a second time there is nothing to write."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from msgspec.structs import asdict, replace

from proxy.billing.adjustment import restated
from proxy.billing.correction import (
    AMOUNT_NUSD_MAX,
    CorrectionError,
    CorrectionRequest,
    corrected,
    exchange_totals,
    rerated,
    unexplained,
)
from proxy.billing.entries import TOKENS, LedgerEntry
from proxy.billing.money import usd_text
from proxy.billing.pricing.prices import charge, configured, pinned, price_text
from proxy.billing.record import BillableParts, Price, Rates
from proxy.billing.settlement import content_hash, entry
from proxy.metering.usage import Reading, Usage, UsageSource
from tests.billing.pricing.strategies import SERVICES, prices
from tests.billing.records import COST, ESTIMATED, OPENED, PRICE, RECORD, REPORTED

TERMINAL = entry(RECORD)
DEARER = configured(Rates(input=200_000_000, cached_input=100_000_000, output=800_000_000))


def made(entries: list[LedgerEntry], why: str = "the customer is right", **wanted: Any) -> LedgerEntry:
    """The adjustment, which is also added to `entries`."""
    line = corrected(exchange_totals(entries), CorrectionRequest(**wanted), why)
    assert line is not None
    entries.append(line)
    return line


def test_an_adjustment_is_a_line_of_its_own_that_says_what_and_why() -> None:
    line = made([TERMINAL], charge_nusd=1_000)
    assert (line.kind, line.seq, line.exchange_id) == ("adjustment", 1, TERMINAL.exchange_id)
    assert line.entry_id != TERMINAL.entry_id
    assert line.details == {
        "adjusts": TERMINAL.entry_id,
        "why": "the customer is right",
        "by": "operator",
        "sets": {"charge_usd": "0.000001"},
    }
    assert line.charge_nusd == 1_000 - (TERMINAL.charge_nusd or 0)
    assert [getattr(line, name) for name in (*TOKENS, "cost_nusd", "events", "bytes")] == [0] * 8
    assert (line.duration_ms, line.first_token_ms, line.usage_source) == (0.0, None, "reported")
    same = ("key_id", "key_alias", "model", "started_at", "outcome", "provider_response_id", "price_version")
    assert [getattr(line, name) for name in same] == [getattr(TERMINAL, name) for name in same]
    assert content_hash(line) == content_hash(made([TERMINAL], charge_nusd=1_000))


def test_tokens_without_money_are_priced_as_the_exchange_was() -> None:
    entries = [TERMINAL]
    line = made(entries, completion_tokens=300)
    assert (line.completion_tokens, line.total_tokens, line.prompt_tokens) == (50, 50, 0)
    assert (line.usage_source, line.estimator) == ("corrected", None)
    usage = Usage(1000, 400, 300, 50, 1300)
    now = exchange_totals(entries)
    assert now.usage == usage
    assert (now.charge_nusd, now.cost_nusd) == (
        charge(PRICE, usage, BillableParts.EVERYTHING),
        charge(COST, usage, BillableParts.EVERYTHING),
    )


def test_tokens_with_money_take_the_money_as_it_is_given() -> None:
    entries = [TERMINAL]
    made(entries, completion_tokens=300, charge_nusd=5)
    now = exchange_totals(entries)
    assert now.charge_nusd == 5
    assert now.cost_nusd == charge(COST, now.usage, BillableParts.EVERYTHING)


@pytest.mark.parametrize("bills", list(BillableParts))
def test_what_is_billed_stays_the_policy_of_the_exchange(bills: BillableParts) -> None:
    entries = [entry(replace(RECORD, reading=ESTIMATED, bills=bills))]
    made(entries, prompt_tokens=2_000, completion_tokens=10)
    now = exchange_totals(entries)
    usage = Usage(2_000, None, 10, None, 2_010)
    assert (now.charge_nusd, now.cost_nusd) == (charge(PRICE, usage, bills), charge(COST, usage, bills))


def test_what_nobody_knew_stays_unknown_and_what_is_said_is_known() -> None:
    entries = [entry(replace(RECORD, reading=Reading(Usage(), UsageSource.NONE), opened=replace(OPENED, price=None)))]
    line = made(entries, prompt_tokens=7)
    assert (line.prompt_tokens, line.completion_tokens, line.total_tokens) == (7, None, None)
    assert (line.charge_nusd, exchange_totals(entries).charge_nusd) == (None, None)
    assert line.cost_nusd == charge(COST, Usage(7), BillableParts.EVERYTHING)


def test_the_second_correction_sees_the_first() -> None:
    entries = [TERMINAL]
    made(entries, charge_nusd=10)
    assert corrected(exchange_totals(entries), CorrectionRequest(charge_nusd=10), "again") is None
    line = made(entries, charge_nusd=30)
    assert (line.seq, line.charge_nusd) == (2, 20)


def test_the_last_word_on_an_exchange_says_what_is_billed_and_who_counted() -> None:
    swept = entry(replace(RECORD, reading=ESTIMATED, bills=BillableParts.OUTPUT, details={"swept": True}))
    entries = [swept]
    assert exchange_totals(entries).bills is BillableParts.OUTPUT
    entries.append(restated(entries, TERMINAL, content_hash) or swept)
    now = exchange_totals(entries)
    assert (now.usage, now.charge_nusd, now.cost_nusd) == (REPORTED.usage, TERMINAL.charge_nusd, TERMINAL.cost_nusd)
    assert (now.bills, now.source, now.next_seq) == (BillableParts.EVERYTHING, "reported", 2)
    assert unexplained(entries) == []


@pytest.mark.parametrize("charged", [0, 7, 10**9])
def test_what_an_operator_set_stands_when_a_late_record_comes(charged: int) -> None:
    """Seen: "goodwill: you pay nothing", then a late record, and the customer paid the difference."""
    entries = [entry(replace(RECORD, reading=ESTIMATED, details={"swept": True}))]
    made(entries, charge_nusd=charged)
    entries.append(restated(entries, TERMINAL, content_hash) or TERMINAL)
    now = exchange_totals(entries)
    assert now.charge_nusd == charged
    assert (now.usage, now.cost_nusd) == (REPORTED.usage, TERMINAL.cost_nusd), "what it used is as the record says"
    assert entries[-1].details["stands"] == {"charge_usd": usd_text(TERMINAL.charge_nusd or 0)}
    assert unexplained(entries) == []
    assert rerated(now, DEARER, None) is None
    made(entries, charge_nusd=charged + 1)
    assert exchange_totals(entries).charge_nusd == charged + 1, "the operator's next word counts"


def test_a_count_that_an_operator_set_stands_with_the_money_of_it() -> None:
    entries = [entry(replace(RECORD, reading=ESTIMATED, details={"swept": True}))]
    made(entries, completion_tokens=3)
    before = exchange_totals(entries)
    entries.append(restated(entries, TERMINAL, content_hash) or TERMINAL)
    now = exchange_totals(entries)
    assert (now.usage, now.charge_nusd, now.cost_nusd) == (before.usage, before.charge_nusd, before.cost_nusd)
    assert set(entries[-1].details["stands"]) > {"charge_usd", "cost_usd", "completion_tokens"}
    assert "units" not in entries[-1].details
    assert unexplained(entries) == []


def test_a_record_that_comes_after_a_correction_counts_beside_it() -> None:
    """Each is a difference; and the price that was set right is the one to go on with."""
    entries = [entry(replace(RECORD, reading=ESTIMATED, details={"swept": True}))]
    entries.append(rerated(exchange_totals(entries), DEARER, None) or TERMINAL)
    entries.append(restated(entries, TERMINAL, content_hash) or TERMINAL)
    assert [one.seq for one in entries] == [0, 1, 2]
    assert unexplained(entries) == []
    assert exchange_totals(entries).price == price_text(DEARER, 1000)
    entries.append(rerated(exchange_totals(entries), DEARER, None) or TERMINAL)
    assert exchange_totals(entries).charge_nusd == charge(DEARER, REPORTED.usage, BillableParts.EVERYTHING)


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({}, "nothing is set"),
        ({"charge_nusd": -1}, "charge_usd"),
        ({"cost_nusd": AMOUNT_NUSD_MAX + 1}, "cost_usd"),
        ({"prompt_tokens": -1}, "prompt_tokens"),
        ({"completion_tokens": 10**9}, "completion_tokens"),
        ({"images": 10_001}, "images"),
        ({"prompt_tokens": 399}, "cached_tokens"),
        ({"cached_tokens": 1001}, "cached_tokens"),
        ({"reasoning_tokens": 251}, "reasoning_tokens"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(wanted: dict[str, int], words: str) -> None:
    with pytest.raises(CorrectionError, match=words):
        corrected(exchange_totals([TERMINAL]), CorrectionRequest(**wanted), "why not")


@pytest.mark.parametrize("why", ["", "  ", "x" * 501, "a\nb", "a\x1b[31m"])
def test_a_reason_is_a_sentence(why: str) -> None:
    with pytest.raises(CorrectionError, match="reason: must be 1 to"):
        corrected(exchange_totals([TERMINAL]), CorrectionRequest(charge_nusd=1), why)


def test_without_a_terminal_entry_there_is_nothing_to_correct() -> None:
    for entries in ([], [replace(TERMINAL, kind="adjustment", seq=2)]):
        with pytest.raises(CorrectionError, match="no entry"):
            exchange_totals(entries)


def test_the_pinned_tier_is_not_used_for_prompts_it_does_not_hold_for() -> None:
    tiers = (PRICE.tiers[0], Rates(input=9, cached_input=9, output=9, above_prompt_tokens=900))
    entries = [entry(replace(RECORD, opened=replace(OPENED, price=Price("tiered", tiers))))]
    made(entries, prompt_tokens=901)
    with pytest.raises(CorrectionError, match="above 900"):
        corrected(exchange_totals(entries), CorrectionRequest(prompt_tokens=900), "shorter")
    made(entries, prompt_tokens=900, charge_nusd=1)


def test_another_price_makes_the_money_anew() -> None:
    entries = [TERMINAL]
    line = rerated(exchange_totals(entries), DEARER, COST)
    assert line is not None
    assert line.charge_nusd == TERMINAL.charge_nusd  # twice the price: once more the same
    assert (line.cost_nusd, line.completion_tokens, line.price_version) == (0, 0, DEARER.version)
    assert (line.details["why"], line.details["by"]) == ("rerated", "rerate")
    assert pinned(line.details["price"]).tiers == DEARER.tiers
    assert rerated(exchange_totals([TERMINAL, line]), DEARER, COST) is None
    assert rerated(exchange_totals([TERMINAL]), None, None) is None
    # From now on this is its price.
    made(entries := [TERMINAL, line], completion_tokens=60)
    assert exchange_totals(entries).charge_nusd == charge(DEARER, Usage(1000, 400, 60, 50), BillableParts.EVERYTHING)


def test_the_tier_of_another_price_is_that_of_the_whole_prompt() -> None:
    tiers = (Rates(1, 1, 1), Rates(10**9, 10**9, 10**9, 999), Rates(1, 1, 1, 1000))
    line = rerated(exchange_totals([TERMINAL]), Price("tiered", tiers), None)
    assert line is not None
    assert line.details["price"] == price_text(Price("tiered", tiers), 1000)
    assert exchange_totals([TERMINAL, line]).charge_nusd == 1_250_000


def test_money_that_a_person_has_set_is_not_touched_by_a_price() -> None:
    entries = [TERMINAL]
    made(entries, charge_nusd=0)
    assert rerated(exchange_totals(entries), DEARER, COST) is None
    line = rerated(exchange_totals(entries), DEARER, DEARER)
    assert line is not None
    assert (line.charge_nusd, line.price_version) == (0, TERMINAL.price_version)
    assert exchange_totals([*entries, line]).cost_nusd == charge(
        DEARER, exchange_totals(entries).usage, BillableParts.EVERYTHING
    )


@pytest.mark.parametrize(
    "shown", [{}, {"version": "v"}, {"version": "v", "input": "x", "cached_input": "1", "output": "1"}]
)
def test_what_is_no_price_is_refused(shown: dict[str, str]) -> None:
    with pytest.raises(ValueError):
        pinned(shown)


def test_units_are_set_right_and_priced_like_tokens() -> None:
    price = configured(replace(PRICE.tiers[0], cache_write=10**9, searches=10**10), service_tiers={"flex": PRICE.tiers})
    usage = replace(REPORTED.usage, cache_write_tokens=500, searches=2)
    record = replace(RECORD, opened=replace(OPENED, price=price), reading=replace(REPORTED, usage=usage))
    entries = [entry(record)]
    assert exchange_totals(entries).usage == usage
    line = made(entries, searches=5, cache_write_tokens=0)
    assert line.details["units"] == {"searches": 3, "cache_write_tokens": -500}
    now = exchange_totals(entries)
    assert now.usage == replace(usage, searches=5, cache_write_tokens=0)
    assert now.charge_nusd == charge(price, now.usage, BillableParts.EVERYTHING)
    with pytest.raises(CorrectionError, match="cache_write_1h_tokens"):
        corrected(now, CorrectionRequest(cache_write_1h_tokens=1), "nothing was written")
    assert corrected(now, CorrectionRequest(cache_write_tokens=0), "again") is None


def test_a_new_price_goes_by_how_the_exchange_was_served() -> None:
    record = replace(RECORD, reading=replace(REPORTED, service_tier="priority"))
    price = configured(*PRICE.tiers, service_tiers={"priority": DEARER.tiers})
    entries = [entry(record)]
    assert entries[0].charge_nusd == charge(PRICE, REPORTED.usage, BillableParts.EVERYTHING), (
        "this list has no variants"
    )
    line = rerated(exchange_totals(entries), price, None)
    assert line is not None
    entries.append(line)
    assert exchange_totals(entries).charge_nusd == charge(DEARER, REPORTED.usage, BillableParts.EVERYTHING)
    assert (line.details["price"]["service_tier"], line.price_version) == ("priority", price.version)
    assert rerated(exchange_totals(entries), price, None) is None
    assert unexplained(entries) == []


def test_a_late_record_s_units_are_a_difference_too() -> None:
    usage = replace(REPORTED.usage, cache_write_tokens=500, searches=2)
    old = entry(replace(RECORD, reading=replace(ESTIMATED, usage=replace(usage, searches=3)), details={"swept": True}))
    line = restated([old], entry(replace(RECORD, reading=replace(REPORTED, usage=usage))), content_hash)
    assert line is not None
    assert line.details["units"] == {"cache_write_tokens": 0, "searches": -1}
    assert exchange_totals([old, line]).usage == usage
    nothing = restated([entry(replace(RECORD, details={"swept": True}))], TERMINAL, content_hash)
    assert nothing is not None
    assert "units" not in nothing.details


@pytest.mark.parametrize("units", [7, {"searches": "2"}, {"searches": None}, {"prompt_tokens": 1}, {"apples": 1}])
def test_units_that_are_no_counts_are_not_summed(units: Any) -> None:
    with pytest.raises(ValueError):
        exchange_totals([replace(TERMINAL, details={**TERMINAL.details, "units": units})])


COUNTS = st.integers(0, 10**8)
PRICES = prices()
USAGES = st.builds(Usage, *[st.none() | COUNTS] * len(Usage.__struct_fields__))
RECORDS = st.builds(
    lambda usage, source, served_as, bills, price: replace(
        RECORD,
        reading=Reading(usage, source, **asdict(served_as)),
        bills=bills,
        opened=replace(OPENED, price=price),
    ),
    USAGES,
    st.sampled_from(UsageSource),
    SERVICES,
    st.sampled_from(BillableParts),
    st.none() | PRICES,
)
WANTED = st.builds(CorrectionRequest, **{name: st.none() | COUNTS for name in CorrectionRequest.__struct_fields__})
STEPS = st.lists(WANTED | st.tuples(st.none() | PRICES, PRICES), max_size=6)


@given(RECORDS, STEPS)
def test_after_any_steps_the_sum_is_what_the_last_said_and_every_entry_explains_itself(
    record: Any, steps: list[CorrectionRequest | tuple[Price | None, Price]]
) -> None:
    entries = [entry(record)]
    for step in steps:
        before = exchange_totals(entries)
        if isinstance(step, tuple):
            line = rerated(before, *step)
        else:
            try:
                line = corrected(before, step, "so be it")
            except CorrectionError:
                continue
        entries += [line] if line else []
        after = exchange_totals(entries)
        if isinstance(step, tuple):
            assert rerated(after, *step) is None
            assert after.usage == before.usage
        else:
            assert corrected(after, step, "again") is None
            now = {**structs.asdict(after.usage), "charge_nusd": after.charge_nusd, "cost_nusd": after.cost_nusd}
            assert step.changes.items() <= now.items()
    assert [one.seq for one in entries[1:]] == list(range(1, len(entries)))
    assert len({one.entry_id for one in entries}) == len(entries)
    assert unexplained(entries) == []
    for place, one in enumerate(entries[1:], 1):
        forged = replace(one, charge_nusd=(one.charge_nusd or 0) + 1)
        if one.details["by"] == "rerate" or "charge_usd" in one.details["sets"]:
            assert unexplained([*entries[:place], forged]) == [forged]
