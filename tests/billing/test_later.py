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
from proxy.billing.later import UNANSWERED, answered, is_answer, unanswered, was_asked
from proxy.billing.pricing.prices import configured
from proxy.billing.record import BillableParts, Outcome, Price, Rates
from proxy.metering.metered import Metered
from proxy.metering.usage import Usage
from tests.billing.estimates import ESTIMATE, TOLD, estimated, in_time, metered
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
