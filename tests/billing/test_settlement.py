"""Settlement: the policy line by line, and a record's entry: derived, explained, never silently free."""

from __future__ import annotations

import json
from itertools import product
from typing import Any
from uuid import uuid5

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from proxy.billing.entries import ENTRIES, LedgerEntry
from proxy.billing.pricing.prices import configured
from proxy.billing.record import BillableParts, Outcome, UsageRecord
from proxy.billing.settlement import POLICY, Situation, bills, content_hash, entry, situation
from proxy.metering.usage import NOTHING, Reading, Usage, UsageSource
from tests.billing.records import COST, ESTIMATED, OPENED, PRICE, RECORD, REPORTED

SOURCES = list(UsageSource)
YES_NO = [True, False]
ENDED_BY_US = [Outcome.CLIENT_LEFT, Outcome.BUDGET_CUT, Outcome.SHUT_DOWN]
FAILED = [Outcome.UPSTREAM_FAILED, Outcome.UPSTREAM_STALLED]


def billed(outcome: Outcome, source: UsageSource, *, accepted: bool = True, delivered: bool = True) -> BillableParts:
    return bills(situation(outcome, source=source, accepted=accepted, delivered=delivered), {})


@pytest.mark.parametrize(("source", "accepted", "delivered"), list(product(SOURCES, YES_NO, YES_NO)))
def test_served_bills_everything_and_refused_nothing(source: UsageSource, accepted: bool, delivered: bool) -> None:
    assert billed(Outcome.SERVED, source, accepted=accepted, delivered=delivered) is BillableParts.EVERYTHING
    assert billed(Outcome.REFUSED_UPSTREAM, source, accepted=accepted, delivered=delivered) is BillableParts.NOTHING


@pytest.mark.parametrize(("outcome", "source", "delivered"), list(product(ENDED_BY_US, SOURCES, YES_NO)))
def test_once_the_provider_accepted_prompt_and_output_are_billed(
    outcome: Outcome, source: UsageSource, delivered: bool
) -> None:
    assert billed(outcome, source, accepted=True, delivered=delivered) is BillableParts.EVERYTHING
    assert billed(outcome, source, accepted=False, delivered=delivered) is BillableParts.NOTHING


@pytest.mark.parametrize(("outcome", "accepted"), list(product(FAILED, YES_NO)))
def test_a_provider_that_failed(outcome: Outcome, accepted: bool) -> None:
    def of(source: UsageSource, *, delivered: bool) -> BillableParts:
        return billed(outcome, source, accepted=accepted, delivered=delivered)

    assert of(UsageSource.REPORTED, delivered=True) is BillableParts.EVERYTHING
    assert of(UsageSource.REPORTED, delivered=False) is BillableParts.PROMPT
    for unreported in (UsageSource.ESTIMATED, UsageSource.NONE):
        assert of(unreported, delivered=True) is BillableParts.OUTPUT
        assert of(unreported, delivered=False) is BillableParts.NOTHING


@pytest.mark.parametrize(("source", "accepted"), list(product(SOURCES, YES_NO)))
def test_a_crash_bills_what_was_under_way(source: UsageSource, accepted: bool) -> None:
    assert billed(Outcome.CRASHED, source, accepted=accepted, delivered=True) is BillableParts.EVERYTHING
    assert billed(Outcome.CRASHED, source, accepted=accepted, delivered=False) is BillableParts.NOTHING


def test_every_situation_has_a_line_and_is_reached() -> None:
    reached = {
        situation(outcome, source=source, accepted=accepted, delivered=delivered)
        for outcome, source, accepted, delivered in product(Outcome, SOURCES, YES_NO, YES_NO)
    }
    assert reached == set(Situation) == set(POLICY)


def test_a_providers_own_line_takes_the_place_of_ours() -> None:
    own = {"client_left": "output", "failed_empty": "prompt"}
    assert bills(Situation.CLIENT_LEFT, own) is BillableParts.OUTPUT
    assert bills(Situation.FAILED_EMPTY, own) is BillableParts.PROMPT
    assert bills(Situation.SERVED, own) is BillableParts.EVERYTHING


def test_an_entry_is_charged_and_explained() -> None:
    line = entry(RECORD)
    assert line.charge_nusd == 180_000
    assert line.cost_nusd == 144_000
    assert line.price_version == PRICE.version
    assert (line.prompt_tokens, line.cached_tokens, line.completion_tokens) == (1000, 400, 250)
    assert (line.reasoning_tokens, line.total_tokens) == (50, 1250)
    assert (line.outcome, line.usage_source, line.finish_reason) == ("served", "reported", "stop")
    assert line.details == {
        "service_tier": "default",
        "billed": "prompt+output",
        "price": {"version": PRICE.version, "input": "0.1", "cached_input": "0.05", "output": "0.4"},
        "cost": {"version": COST.version, "input": "0.08", "cached_input": "0.04", "output": "0.32"},
    }


def test_an_estimate_says_by_whom_and_how_good() -> None:
    line = entry(replace(RECORD, reading=ESTIMATED))
    assert (line.usage_source, line.estimator) == ("estimated", "chars-1")
    assert line.details["expected_error"] == 0.12
    assert not {"capped", "hidden_reasoning"} & line.details.keys()


@pytest.mark.parametrize("hidden", [0, 200])
def test_an_estimate_says_what_it_takes_for_hidden_reasoning(hidden: int) -> None:
    reading = Reading(ESTIMATED.usage, UsageSource.ESTIMATED, "chars-1", 0.5, capped=True, hidden_tokens=hidden)
    line = entry(replace(RECORD, reading=reading))
    assert (line.details["hidden_reasoning"], line.details["capped"]) == (hidden, True)


def test_no_price_is_no_charge_and_says_so() -> None:
    line = entry(replace(RECORD, opened=replace(OPENED, price=None, cost=None)))
    assert line.charge_nusd is None
    assert line.cost_nusd is None
    assert line.price_version is None
    assert line.details["unpriced"] is True
    assert line.details["cost_unknown"] is True


def test_nothing_billed_is_zero_also_without_a_price_and_counts_stay() -> None:
    unpriced = replace(OPENED, price=None, cost=None)
    line = entry(replace(RECORD, opened=unpriced, reading=ESTIMATED, bills=BillableParts.NOTHING))
    assert line.charge_nusd == 0
    assert line.cost_nusd == 0
    assert "unpriced" not in line.details
    assert line.completion_tokens == 250


def test_what_the_provider_reports_it_charges_us_whatever_we_bill() -> None:
    line = entry(replace(RECORD, bills=BillableParts.NOTHING))
    assert line.charge_nusd == 0
    assert line.cost_nusd == 144_000


def test_a_failure_without_usage_after_content_is_flagged() -> None:
    failed = replace(RECORD, outcome=Outcome.UPSTREAM_FAILED, reading=ESTIMATED, bills=BillableParts.OUTPUT)
    line = entry(failed)
    assert line.charge_nusd == 100_000
    assert line.details["delivered_only"] is True
    assert "delivered_only" not in entry(replace(failed, outcome=Outcome.CLIENT_LEFT)).details


def test_a_zero_that_stands_on_no_count_is_flagged() -> None:
    line = entry(replace(RECORD, reading=NOTHING))
    assert line.charge_nusd == 0
    assert line.prompt_tokens is None
    assert line.details["uncounted"] is True
    assert "uncounted" not in entry(replace(RECORD, reading=NOTHING, bills=BillableParts.NOTHING)).details


def test_ids_are_derived_and_differ_by_exchange_kind_and_number() -> None:
    other = replace(OPENED, exchange_id="01936d2e-0000-7000-8000-000000000002")
    adjustment = replace(RECORD, kind="adjustment")
    records = [RECORD, replace(RECORD, opened=other), adjustment, replace(adjustment, seq=1)]
    assert len({entry(record).entry_id for record in records}) == 4
    assert entry(RECORD).entry_id == "6dcb5115-894a-52a5-98f4-6fa61c4c8d3a"  # pinned: it must never change


@given(st.text(st.characters(codec="utf-8"), max_size=80), st.integers(0, 1 << 31))
def test_an_id_is_the_uuid_of_its_name(exchange_id: str, seq: int) -> None:
    record = replace(RECORD, opened=replace(OPENED, exchange_id=exchange_id), seq=seq)
    assert entry(record).entry_id == str(uuid5(ENTRIES, f"{exchange_id}/usage/{seq}"))


def test_a_record_of_the_version_before_makes_the_entry_of_before() -> None:
    """As it stands in journals and queues, which know neither units nor ways of serving."""
    written = msgspec.json.decode(msgspec.json.encode(RECORD))
    written["reading"] |= {"estimator": None, "expected_error": None}
    for name in ("price", "cost"):
        written["opened"][name]["tiers"][0]["above_prompt_tokens"] = 0
    again = msgspec.convert(written, UsageRecord)
    assert again == RECORD
    # Pinned: what was settled by the version before must not look like something else when it is delivered again.
    assert content_hash(entry(again)) == "830ac798666071535c3371c221561ee3b10625168fb50ac226bdaefb1f7f7f1f"


def test_units_stand_among_the_details_and_are_charged() -> None:
    rates = replace(PRICE.tiers[0], cache_write=10**9, searches=10**10)
    price = configured(rates, service_tiers={"priority": COST.tiers})
    usage = replace(REPORTED.usage, cache_write_tokens=100, audio_prompt_tokens=0, searches=2)
    record = replace(RECORD, opened=replace(OPENED, price=price), reading=replace(REPORTED, usage=usage))
    line = entry(record)
    assert line.details["units"] == {"cache_write_tokens": 100, "searches": 2}
    assert line.charge_nusd == 180_000 + 100 * 900 + 2 * 10_000_000
    assert (line.details["price"]["cache_write"], line.details["price"]["searches"]) == ("1", "10")
    flat = entry(replace(record, reading=replace(record.reading, service_tier="priority")))
    assert (flat.charge_nusd, flat.details["service_tier"]) == (144_000, "priority")
    assert flat.details["unpriced_units"] == ["searches"]
    assert "unpriced_units" not in line.details


def test_units_that_nothing_prices_are_unpriced_not_free() -> None:
    line = entry(replace(RECORD, reading=Reading(Usage(images=2), UsageSource.REPORTED)))
    assert (line.charge_nusd, line.cost_nusd) == (None, None)
    assert (line.details["unpriced"], line.details["unpriced_units"]) == (True, ["images"])
    assert "uncounted" not in line.details


@pytest.mark.parametrize("outcome", list(Outcome))
def test_the_journal_does_not_change_an_entry(outcome: Outcome) -> None:
    record = replace(RECORD, outcome=outcome, duration_ms=812, first_token_ms=120, details={"a": [1, {"b": None}]})
    again = msgspec.json.decode(msgspec.json.encode(record), type=UsageRecord)
    assert entry(again) == entry(record)
    assert content_hash(entry(again)) == content_hash(entry(record))


def test_every_field_counts_in_the_hash_and_the_order_of_details_does_not() -> None:
    line = entry(RECORD)
    changes: list[dict[str, Any]] = [
        {"charge_nusd": 181_000}, {"charge_nusd": None}, {"completion_tokens": None}, {"outcome": "crashed"},
        {"details": {**line.details, "x": 1}}, {"seq": 1},
    ]  # fmt: skip
    changed = [replace(line, **change) for change in changes]
    assert len({content_hash(one) for one in [line, *changed]}) == 1 + len(changed)
    reordered = replace(line, details=dict(reversed(list(line.details.items()))))
    assert content_hash(reordered) == content_hash(line)
    assert len(content_hash(line)) == 64


counts = st.none() | st.integers(0, 10**8)


@given(
    st.sampled_from(Outcome),
    st.sampled_from(BillableParts),
    st.builds(Usage, *[counts] * len(Usage.__struct_fields__)),
    st.sampled_from(UsageSource),
    st.booleans(),
)
def test_every_record_has_an_entry_whose_money_fits_the_ledger(
    outcome: Outcome, what: BillableParts, usage: Usage, source: UsageSource, priced: bool
) -> None:
    opened = replace(OPENED, price=PRICE if priced else None)
    record = replace(RECORD, opened=opened, outcome=outcome, bills=what, reading=Reading(usage, source))
    line: LedgerEntry = entry(record)
    only_units = usage.in_other_units and any((usage.images, usage.audio_ms, usage.characters, usage.searches))
    assert (line.charge_nusd is None) == (what is not BillableParts.NOTHING and (not priced or only_units))
    assert 0 <= (line.charge_nusd or 0) < 2**63
    assert json.loads(json.dumps(line.details)) == line.details
