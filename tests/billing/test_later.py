"""The usage that a provider reports after an estimate: the exchange then costs what it would have cost by it."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from proxy.billing.adjustment import NUMBERS
from proxy.billing.correction import CorrectionRequest, corrected, exchange_totals, rerated, unexplained
from proxy.billing.details import EntryDetails
from proxy.billing.entries import LedgerEntry
from proxy.billing.later import (
    TIER_DOUBTFUL,
    UNANSWERED,
    answered,
    is_answer,
    may_change,
    unanswered,
    was_asked,
)
from proxy.billing.pricing.prices import configured
from proxy.billing.record import BillableParts, Outcome, Price, Rates
from proxy.metering.metered import Metered
from proxy.metering.usage import ModelUsage, ServedAs, Usage
from tests.billing.estimates import ESTIMATE, SEEN, TOLD, estimated, in_time, metered
from tests.billing.records import COST, PRICE

TIERED = configured(
    Rates(input=100, cached_input=50, output=400),
    Rates(input=200, cached_input=100, output=800, above_prompt_tokens=950),
)
STATED = replace(PRICE, stated=("1.1",))
DEARER = configured(Rates(input=300_000_000, cached_input=50_000_000, output=900_000_000))
LISTS = {"plain": (PRICE, COST), "tiered": (TIERED, TIERED), "stated": (STATED, STATED), "none": (None, None)}


def settled(
    entries: list[LedgerEntry], told: Metered | None, lists: tuple[Any, Any] = (PRICE, COST), **how: Any
) -> LedgerEntry:
    now = exchange_totals(entries)
    return unanswered(now) if told is None else answered(now, told, lambda *_: lists, {}, **how)


def total(entries: list[LedgerEntry], name: str) -> int | None:
    known = [number for one in entries if (number := getattr(one, name)) is not None]
    return sum(known) if known else None


ENDED = (
    Outcome.CLIENT_LEFT, Outcome.BUDGET_CUT, Outcome.SHUT_DOWN, Outcome.UPSTREAM_FAILED, Outcome.UPSTREAM_STALLED,
    Outcome.SERVED,
)  # fmt: skip


@pytest.mark.parametrize("lists", LISTS)
@pytest.mark.parametrize("outcome", ENDED)
def test_it_costs_what_it_would_have_cost(outcome: Outcome, lists: str) -> None:
    """By the list, by the tier of the longer prompt, by the stated cost; also where an estimate bills only output."""
    told = metered(stated_usd=Decimal("0.0123") if lists == "stated" else None)
    entries = [estimated(outcome, LISTS[lists])]
    entries.append(settled(entries, told, LISTS[lists]))
    expected = in_time(outcome, told, LISTS[lists])
    for name in NUMBERS:
        assert total(entries, name) == getattr(expected, name), name
    assert unexplained(entries) == []
    now, said = exchange_totals(entries), EntryDetails.of(entries[1].details)
    assert (entries[1].usage_source, entries[1].estimator, now.source) == ("provider_later", None, "provider_later")
    assert now.bills == EntryDetails.of(expected.details).billed
    assert (said.by, said.adjusts, said.usage) == ("provider", entries[0].entry_id, {"told": 1})
    assert was_asked(entries)
    assert not was_asked(entries[:1])


def test_a_report_that_equals_the_estimate_is_said_all_the_same() -> None:
    entries = [estimated()]
    entries.append(settled(entries, metered(ESTIMATE.usage)))
    assert {name: getattr(entries[1], name) or 0 for name in NUMBERS} == dict.fromkeys(NUMBERS, 0)
    assert exchange_totals(entries).source == "provider_later"


def test_without_an_answer_the_estimate_stands_and_is_flagged() -> None:
    entries = [estimated()]
    before = exchange_totals(entries)
    entries.append(settled(entries, None))
    after = exchange_totals(entries)
    assert (after.usage, after.charge_nusd, after.cost_nusd) == (before.usage, before.charge_nusd, before.cost_nusd)
    assert (after.source, after.bills, entries[1].usage_source) == ("estimated", before.bills, "estimated")
    assert EntryDetails.of(entries[1].details).flags == [UNANSWERED]
    assert was_asked(entries)
    assert unexplained(entries) == []


@pytest.mark.parametrize("estimates", [False, True])
def test_a_count_that_is_too_low_for_the_text_is_flagged(estimates: bool) -> None:
    """It is taken as reported, or not at all, as the operator has set; more than was seen is no contradiction."""
    entries = [estimated()]
    entries.append(
        settled(entries, metered(replace(TOLD, completion_tokens=0, total_tokens=1000)), estimates=estimates)
    )
    assert EntryDetails.of(entries[1].details).refuted == {"completion_tokens": {"reported": 0, "at_least": 2}}
    assert exchange_totals(entries).usage.completion_tokens == (50 if estimates else 0)
    assert unexplained(entries) == []
    more = settled(entries[:1], metered(replace(TOLD, completion_tokens=90_000, total_tokens=91_000)), estimates=True)
    assert EntryDetails.of(more.details).refuted is None


def test_what_an_operator_has_set_stays() -> None:
    first = estimated()
    by_hand = corrected(exchange_totals([first]), CorrectionRequest(charge_nusd=7), "goodwill")
    assert by_hand is not None
    entries = [first, by_hand]
    entries.append(settled(entries, metered()))
    now = exchange_totals(entries)
    assert (now.charge_nusd, now.usage) == (7, TOLD)
    assert (EntryDetails.of(entries[2].details).stands or {}).keys() == {"charge_usd"}
    assert unexplained(entries) == []
    counted = corrected(exchange_totals([first]), CorrectionRequest(completion_tokens=60), "counted")
    assert counted is not None
    entries = [first, counted]
    before = exchange_totals(entries)
    entries.append(settled(entries, metered()))
    after = exchange_totals(entries)
    assert (after.usage, after.charge_nusd, after.cost_nusd) == (before.usage, before.charge_nusd, before.cost_nusd)
    assert (EntryDetails.of(entries[2].details).stands or {})["completion_tokens"] == TOLD.completion_tokens
    assert unexplained(entries) == []


def adjusted(entries: list[LedgerEntry], **sets: int) -> list[LedgerEntry]:
    line = corrected(exchange_totals(entries), CorrectionRequest(**sets), "by hand")
    assert line is not None
    return [*entries, line]


@pytest.mark.parametrize("outcome", [Outcome.UPSTREAM_FAILED, Outcome.CLIENT_LEFT])
@pytest.mark.parametrize("lists", ["plain", "stated"])
def test_after_counts_set_by_hand_nothing_is_calculated_with_the_report(outcome: Outcome, lists: str) -> None:
    """Neither its billed parts, nor its stated cost, nor its source: rerating at the same prices adds nothing."""
    entries = adjusted([estimated(outcome, LISTS[lists])], completion_tokens=60)
    before = exchange_totals(entries)
    entries.append(settled(entries, metered(stated_usd=Decimal(5)), LISTS[lists]))
    assert exchange_totals(entries) == replace(before, next_seq=before.next_seq + 1)
    assert rerated(exchange_totals(entries), *LISTS[lists]) is None
    said = EntryDetails.of(entries[2].details)
    assert (entries[2].usage_source, said.billed, said.stated_usd, said.price) == ("estimated", None, None, None)
    assert (said.stands or {})["completion_tokens"] == TOLD.completion_tokens
    assert (said.flags, was_asked(entries), unexplained(entries)) == (None, True, [])
    older = replace(entries[2], usage_source="provider_later", details={**entries[2].details, "billed": "nothing"})
    assert exchange_totals([*entries[:2], older]) == exchange_totals(entries), "earlier versions wrote these"


HIGH = replace(TOLD, completion_tokens=90_000, total_tokens=91_000)
TOO_HIGH = {"completion_tokens": {"reported": 90_000, "at_most": 506}}  # with 50 of reasoning


@pytest.mark.parametrize("estimates", [False, True])
@pytest.mark.parametrize(("outcome", "own_text"), [(Outcome.SERVED, False), (Outcome.CLIENT_LEFT, True)])
def test_a_count_that_is_too_high_for_the_whole_text_is_flagged(
    outcome: Outcome, own_text: bool, estimates: bool
) -> None:
    """The text is whole if the client got all of it, or if the stored answer has it."""
    entries = [estimated(outcome)]
    told = metered(HIGH, evidence=SEEN) if own_text else metered(HIGH)
    assert may_change(exchange_totals(entries), told)
    entries.append(settled(entries, told, estimates=estimates))
    assert EntryDetails.of(entries[1].details).refuted == TOO_HIGH
    assert exchange_totals(entries).usage.completion_tokens == (50 if estimates else 90_000)
    assert unexplained(entries) == []


@pytest.mark.parametrize(
    ("refuted", "told", "is_taken"),
    [
        ({"completion_tokens": {"reported": 90_000, "at_most": 456}}, HIGH, False),
        ({"completion_tokens": {"reported": 90_000, "at_most": 456}}, TOLD, True),
        ({"prompt_tokens": {"reported": 1, "at_least": 1_407}}, TOLD, False),
        ({"prompt_tokens": {"reported": 1, "at_least": 1_000}}, TOLD, True),
    ],
)
def test_what_was_refuted_is_not_taken_later(refuted: dict[str, Any], told: Usage, is_taken: bool) -> None:
    """Nor another count outside of the same bound, whatever the setting is now; both numbers are shown."""
    (count,) = refuted
    entries = [estimated(details=EntryDetails(refuted=refuted))]
    assert may_change(exchange_totals(entries), metered(told)) is not is_taken
    entries.append(settled(entries, metered(told)))
    now, said = exchange_totals(entries), EntryDetails.of(entries[1].details)
    assert now.usage == (told if is_taken else ESTIMATE.usage)
    expected = None if is_taken else {count: {**refuted[count], "reported": getattr(told, count)}}
    assert (said.refuted, said.flags) == (expected, None if is_taken else [UNANSWERED])
    assert unexplained(entries) == []


def test_what_was_refuted_and_taken_is_taken_later_too() -> None:
    refuted = {"prompt_tokens": {"reported": 900, "at_least": 1_407}}
    entries = [estimated(details=EntryDetails(refuted=refuted))]
    entries.append(settled(entries, metered(replace(TOLD, prompt_tokens=900, total_tokens=1150))))
    assert EntryDetails.of(entries[1].details).refuted == refuted
    assert exchange_totals(entries).source == "provider_later"


@pytest.mark.parametrize(
    ("told", "may"),
    [
        (metered(), False),
        (metered(Usage(0, None, 0, None, 0)), True),
        (metered(Usage(0, None, 250, None, 250)), True),
        (metered(Usage(900, None, 0, None, 900)), True),
        (metered(flags=("other_tokenizer",)), True),
    ],
)
def test_zeros_and_counts_of_another_tokenizer_may_change(told: Metered, may: bool) -> None:
    assert may_change(exchange_totals([estimated()]), told) is may


def test_a_prompt_of_no_tokens_is_flagged() -> None:
    entries = [estimated()]
    entries.append(settled(entries, metered(Usage(0, None, 250, None, 250))))
    assert EntryDetails.of(entries[1].details).refuted == {"prompt_tokens": {"reported": 0, "at_least": 1}}


IMAGES = configured(Rates(0, 0, 0, image=40_000_000))


def test_other_models_that_the_report_does_not_know_stay_in_the_charge() -> None:
    other = ModelUsage("gpt-image-1", Usage(images=2))
    entries = [estimated(seen=metered(None, other_models=(other,)), prices_of=lambda _: (IMAGES, IMAGES))]
    before = exchange_totals(entries)
    entries.append(settled(entries, metered(ESTIMATE.usage)))
    now = exchange_totals(entries)
    assert (now.charge_nusd, now.cost_nusd) == (before.charge_nusd, before.cost_nusd)
    assert (now.other_models, now.charge_nusd) == (before.other_models, 80_000_000 + 110_000)
    assert unexplained(entries) == []
    assert rerated(now, PRICE, COST) is None
    told = metered(ESTIMATE.usage, other_models=(replace(other, usage=Usage(images=3)),))
    known = answered(before, told, lambda _, model: (PRICE, COST) if model is None else (IMAGES, IMAGES), {})
    assert exchange_totals([entries[0], known]).charge_nusd == 120_000_000 + 110_000, "the report's own counts"


FLEX = configured(
    Rates(100_000_000, 50_000_000, 400_000_000), service_tiers={"flex": (Rates(50_000_000, 25_000_000, 200_000_000),)}
)


def test_the_terms_that_the_stream_reported_apply_where_the_report_has_none() -> None:
    flex = ServedAs("flex")
    reading = replace(ESTIMATE, service_tier="flex")
    entries = [estimated(lists=(FLEX, FLEX), seen=metered(None, served_as=flex), reading=reading)]
    for told, charge_nusd, applied in ((None, 55_000, "flex"), ("default", 110_000, "default")):
        line = settled(entries, metered(ESTIMATE.usage, served_as=ServedAs(told)), (FLEX, FLEX))
        now = exchange_totals([*entries, line])
        assert (now.charge_nusd, now.served_as.service_tier) == (charge_nusd, applied)
        assert EntryDetails.of(line.details).flags is None
        assert unexplained([*entries, line]) == []


def test_other_terms_than_those_of_a_list_that_has_changed_are_flagged() -> None:
    reading = replace(ESTIMATE, service_tier="flex")
    entries = [estimated(lists=(FLEX, FLEX), seen=metered(None, served_as=ServedAs("flex")), reading=reading)]
    for told, flags in ((None, None), ("default", [TIER_DOUBTFUL])):
        entries.append(settled(entries[:1], metered(ESTIMATE.usage, served_as=ServedAs(told))))
        assert (entries[-1].charge_nusd, EntryDetails.of(entries[-1].details).flags) == (0, flags), "at flex's prices"


TIERS = Rates(1_000_000_000, 0, 0), Rates(2_000_000_000, 0, 0, above_prompt_tokens=950)
TWO, CHANGED = configured(*TIERS), configured(Rates(1_000_000_001, 0, 0), TIERS[1])


@pytest.mark.parametrize(("before", "told"), [(900, 1000), (1000, 900)])
def test_a_prompt_of_another_tier_of_a_changed_list_is_flagged(before: int, told: int) -> None:
    """It is charged at the estimate's tier: the other one of that list is not known any more."""
    reading = replace(ESTIMATE, usage=Usage(before, None, 50, None, before + 50))
    entries = [estimated(lists=(TWO, TWO), reading=reading)]
    report = metered(Usage(told, None, 50, None, told + 50))
    for lists, rate, flags in (
        ((TWO, TWO), 2 if told > 950 else 1, None),
        ((CHANGED, CHANGED), 2 if before > 950 else 1, [TIER_DOUBTFUL]),
    ):
        line = settled(entries, report, lists)
        assert exchange_totals([*entries, line]).charge_nusd == told * rate * 1_000
        assert EntryDetails.of(line.details).flags == flags
        assert unexplained([*entries, line]) == []
    same = settled(entries, metered(Usage(before + 1, None, 50, None, before + 51)), (CHANGED, CHANGED))
    assert EntryDetails.of(same.details).flags is None
    gone = settled(entries, report, (None, None))
    assert EntryDetails.of(gone.details).flags == ([TIER_DOUBTFUL] if before > told else None)


def test_counts_that_the_report_has_not_are_those_that_the_answer_had_reported() -> None:
    """Not estimated ones, and none that do not fit; the total is that of the report."""
    interim = replace(ESTIMATE, usage=Usage(900, 400, 500, 450, 1400, searches=2))
    told = metered(Usage(1000, None, 300, None, None))
    for reported, expected in (
        (Usage(900), Usage(1000, 400, 300, 0, 1300, searches=2)),
        (None, Usage(1000, 0, 300, 0, 1300, searches=0)),
    ):
        entries = [estimated(seen=metered(reported), reading=interim)]
        entries.append(settled(entries, told))
        assert exchange_totals(entries).usage == expected
        assert unexplained(entries) == []


COUNTS = st.integers(0, 10**6)
USAGES = st.tuples(COUNTS, COUNTS, COUNTS, COUNTS).map(
    lambda of: Usage(of[0], min(of[:2]), of[2], min(of[2:]), of[0] + of[2])
)


def rerate(entries: list[LedgerEntry], price: Price) -> list[LedgerEntry]:
    line = rerated(exchange_totals(entries), price, price)
    return [*entries, *([] if line is None else [line])]


@given(USAGES, st.booleans(), st.sampled_from(ENDED))
def test_rerating_before_or_after_comes_to_the_same(told: Usage, before: bool, outcome: Outcome) -> None:
    entries = [estimated(outcome)]
    entries = rerate(entries, DEARER) if before else entries
    entries.append(settled(entries, metered(told)))
    entries = entries if before else rerate(entries, DEARER)
    expected = in_time(outcome, metered(told), (DEARER, DEARER))
    for name in NUMBERS:
        assert (total(entries, name) or 0) == (getattr(expected, name) or 0), name
    assert unexplained(entries) == []


def test_what_was_changed_by_hand_in_the_ledger_is_found() -> None:
    entries = [estimated()]
    for told in (metered(), None):
        line = settled(entries, told)
        for name in ("charge_nusd", "cost_nusd"):
            wrong = replace(line, **{name: (getattr(line, name) or 0) + 1})
            assert unexplained([*entries, wrong]) == [wrong]


@pytest.mark.parametrize(
    ("told", "is_one"),
    [
        (metered(), True),
        (metered(None), False),
        (metered(usage_final=False), False),
        (metered(answer_ended=False), False),
        (metered(replace(TOLD, completion_tokens=None)), False),
        (metered(Usage()), False),
        (metered(Usage(searches=0)), False),
        (metered(Usage(images=0)), False),
        (metered(Usage(searches=2)), False),
        (metered(Usage(images=2)), True),
    ],
)
def test_only_all_counts_of_an_ended_answer_are_an_answer(told: Metered, is_one: bool) -> None:
    assert is_answer(told) is is_one


def test_a_prompt_that_nobody_got_an_answer_to_is_billed_by_the_policy() -> None:
    """The provider failed, its usage is known: as if it had been reported in time."""
    entries = [estimated(Outcome.UPSTREAM_FAILED, delivered=False)]
    assert entries[0].charge_nusd == 0
    entries.append(settled(entries, metered()))
    assert exchange_totals(entries).bills is BillableParts.PROMPT
    assert unexplained(entries) == []
