"""What a charge is the sum of, as people and programs read it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from proxy.billing.money import nusd_rounded_half_up
from proxy.billing.pricing.prices import configured
from proxy.billing.record import BillableParts, Fallback, Price, Rates
from proxy.billing.settlement import entry
from proxy.metering.usage import Reading, ServedAs, Usage, UsageSource
from proxy.reports.explain import addends_json, addends_of, sum_text
from proxy.reports.table_text import why
from tests.billing.pricing.strategies import SERVICES, USAGES, prices
from tests.ledger.priced_entries import a_real_entry, a_real_record

USD = 10**9
PRICE = configured(
    Rates(USD, USD // 10, 4 * USD, cache_write=2 * USD, searches=10 * USD, request=USD // 200, audio_hour=USD)
)


def test_a_charge_is_told_as_a_sum() -> None:
    usage = Usage(1_000, 300, 50, 5, 1_050, cache_write_tokens=100, searches=2, audio_ms=60_000)
    said = sum_text(a_real_entry(price=PRICE, usage=usage))
    assert said == (
        "0.042696667 = 600 input × 1 per million + 300 cached_input × 0.1 per million + 100 cache_write × 2 per million"
        " + 60000 ms of audio × 1 per hour + 0.005 request"
        " + 45 output × 4 per million + 5 reasoning × 4 per million + 2 searches × 10 per thousand"
    )
    fast = replace(a_real_record(price=configured(*PRICE.tiers, service_tiers={"flex": (Rates(USD, USD, USD),)})))
    fast = replace(fast, reading=replace(fast.reading, service_tier="flex"))
    assert sum_text(entry(fast)).endswith(", served as flex")
    twice = {"speed:fast": "2", "geography:us": "1.1"}
    fast = a_real_record(price=configured(Rates(USD, USD, USD), multipliers=twice), usage=Usage(10, 0, 5))
    fast = replace(fast, reading=replace(fast.reading, speed="fast", geography="us"))
    said = sum_text(entry(fast))
    assert said == (
        "0.000033 = 10 input × 2.2 per million + 5 output × 2.2 per million"
        ", prices of tokens × 2 for speed:fast, prices of tokens × 1.1 for geography:us"
    )


@given(prices(), USAGES, st.sampled_from(BillableParts), SERVICES)
def test_it_adds_up_to_the_charge(price: Price, usage: Usage, bills: BillableParts, served_as: ServedAs) -> None:
    record = a_real_record(price=price, usage=usage)
    line = entry(replace(record, bills=bills, reading=replace(record.reading, **asdict(served_as))))
    if line.charge_nusd is None:
        assert addends_json(line) == []
    else:
        assert nusd_rounded_half_up(sum(one.parts for one in addends_of(line))) == line.charge_nusd
    assert bool(sum_text(line)) == bool(addends_json(line))


@pytest.mark.parametrize(
    "broken",
    [
        {"kind": "adjustment"}, {"charge_nusd": None}, {"details": {}}, {"details": {"price": "dear"}},
        {"details": {"price": {"version": "v"}}},
        {"details": {"price": {"version": "v", "input": []}, "billed": "prompt"}},
    ],
    ids=str,
)  # fmt: skip
def test_what_has_no_sum_has_none(broken: dict[str, Any]) -> None:
    line = replace(a_real_entry(), **broken)
    assert (sum_text(line), addends_json(line)) == ("", [])


def test_what_nobody_priced_is_named() -> None:
    line = entry(replace(a_real_record(), reading=Reading(Usage(images=2), UsageSource.REPORTED)))
    assert "no price for images" in why(line)


def test_the_fallback_model_of_a_limit_is_named() -> None:
    record = a_real_record()
    opened = replace(record.opened, fallback=Fallback("dear", "rule_1"))
    line = entry(replace(record, opened=opened))
    assert line.details["fallback"] == {"model": "dear", "limit": "rule_1"}
    assert "instead of dear, by a limit" in why(line)
