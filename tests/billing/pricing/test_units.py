"""Charges in every unit that is priced: exact, rounded once, no token twice; variants by how an answer was served."""

from __future__ import annotations

import hashlib
from decimal import Decimal
from typing import Any

import pytest
from genai_prices import types as book_types
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from proxy.billing.money import nusd_rounded_half_up, usd_text
from proxy.billing.pricing.book import _tiers
from proxy.billing.pricing.prices import (
    OPTIONAL,
    addends,
    charge,
    configured,
    multiplied,
    pinned,
    price_text,
    rates_for,
    unpriced,
    unpriced_service,
)
from proxy.billing.pricing.quote import quote
from proxy.billing.record import BillableParts, Price, Rates
from proxy.billing.settlement import amount
from proxy.metering.usage import ServedAs, Usage, service_of
from tests.billing.pricing.strategies import COUNTS, RATE, RATES, SERVICES, USAGES, WORDS, exact_nusd, half_up, prices

USD = 10**9
PLAIN = Rates(input=2 * USD, cached_input=USD // 5, output=8 * USD)
FULL = replace(
    PLAIN, cache_write=5 * USD // 2, cache_write_1h=4 * USD, audio_input=40 * USD, audio_output=80 * USD,
    reasoning=3 * USD, image=USD // 25, audio_hour=36 * USD // 100, characters=15 * USD, searches=10 * USD,
    request=USD // 200, image_input=4 * USD, image_output=30 * USD, file_searches=5 * USD // 2,
    pages=4 * USD, annotated_pages=5 * USD, cached_audio_input=3 * USD // 10, cached_image_input=8 * USD // 100,
)  # fmt: skip
BILLS = st.sampled_from(BillableParts)
SERVED = SERVICES | st.just(service_of("default", "standard", "global"))
# A count, and the price of one of it: what more of it adds.
WHOLES = (
    "prompt_tokens", "completion_tokens", "images", "audio_ms", "characters", "searches", "file_searches", "pages",
)  # fmt: skip
PARTS = {
    "cached_tokens": ("prompt_tokens", "cached_input", "input"),
    "cache_write_tokens": ("prompt_tokens", "cache_write", "input"),
    "audio_prompt_tokens": ("prompt_tokens", "audio_input", "input"),
    "cache_write_1h_tokens": ("cache_write_tokens", "cache_write_1h", "cache_write"),
    "reasoning_tokens": ("completion_tokens", "reasoning", "output"),
    "audio_completion_tokens": ("completion_tokens", "audio_output", "output"),
    "image_prompt_tokens": ("prompt_tokens", "image_input", "input"),
    "image_completion_tokens": ("completion_tokens", "image_output", "output"),
    "annotated_pages": ("pages", "annotated_pages", "pages"),
    "cached_audio_tokens": ("cached_tokens", "cached_audio_input", "cached_input"),
    "cached_image_tokens": ("cached_tokens", "cached_image_input", "cached_input"),
}


@pytest.mark.parametrize(
    ("usage", "usd"),
    [
        (Usage(prompt_tokens=1_000_000), "2"),
        (Usage(prompt_tokens=1_000_000, cache_write_tokens=400_000), "2.2"),  # 0.6 × 2 + 0.4 × 2.5
        (Usage(prompt_tokens=1_000_000, cache_write_tokens=400_000, cache_write_1h_tokens=100_000), "2.35"),
        (Usage(prompt_tokens=1_000_000, cached_tokens=500_000, cache_write_tokens=500_000), "1.35"),
        (Usage(prompt_tokens=1_000_000, audio_prompt_tokens=10_000), "2.38"),
        # 100 fresh audio × 40 + 200 cached audio × 0.3 + 300 cached text × 0.2 + 400 text × 2
        (Usage(1_000, 500, audio_prompt_tokens=300, cached_audio_tokens=200), "0.00492"),
        (Usage(1_000, 500, image_prompt_tokens=300, cached_image_tokens=200), "0.001276"),
        (Usage(1_000, 100, audio_prompt_tokens=50, cached_audio_tokens=900), "0.00183"),  # more parts than tokens
        (Usage(completion_tokens=1_000_000, reasoning_tokens=200_000), "7"),  # 0.8 × 8 + 0.2 × 3
        (Usage(completion_tokens=1_000_000, audio_completion_tokens=100_000), "15.2"),
        (
            Usage(prompt_tokens=1_000_000, audio_prompt_tokens=10_000, audio_ms=10_000, timed_audio_tokens=10_000),
            "1.981",
        ),
        (Usage(prompt_tokens=1_000_000, image_prompt_tokens=500_000), "3"),
        (Usage(completion_tokens=1_125, image_completion_tokens=1_120), "0.03364"),  # 1,120 × 30 + 5 × 8
        (Usage(completion_tokens=9, image_completion_tokens=9, reasoning_tokens=4), "0.000162"),
        (Usage(prompt_tokens=0, file_searches=2), "0.005"),
        (Usage(images=3), "0.12"),
        (Usage(audio_ms=90_000), "0.009"),  # a minute and a half at 0.006 a minute
        (Usage(characters=1_000), "0.015"),
        (Usage(pages=7), "0.028"),
        (Usage(pages=7, annotated_pages=2), "0.03"),
        (Usage(pages=7, annotated_pages=9), "0.035"),
        (Usage(prompt_tokens=0, searches=2), "0.02"),
        (Usage(prompt_tokens=1_000_000, unbilled_prompt_tokens=900_000, cached_tokens=500_000), "0.02"),
        (Usage(completion_tokens=1_000_000, unbilled_completion_tokens=1, reasoning_tokens=999_999), "2.999997"),
        (Usage(prompt_tokens=5, unbilled_prompt_tokens=9, completion_tokens=5, unbilled_completion_tokens=9), "0"),
        (Usage(), "0"),
    ],
    ids=str,
)
def test_a_charge_by_hand(usage: Usage, usd: str) -> None:
    without_fee = configured(replace(FULL, request=None))
    assert usd_text(charge(without_fee, usage, BillableParts.EVERYTHING)) == usd
    fee = charge(configured(FULL), usage, BillableParts.EVERYTHING) - charge(
        without_fee, usage, BillableParts.EVERYTHING
    )
    assert fee == USD // 200


@given(prices(), USAGES, BILLS, SERVED)
def test_it_is_the_exact_sum_rounded_once(
    price: Price, usage: Usage, bills: BillableParts, served_as: ServedAs
) -> None:
    nusd = charge(price, usage, bills, served_as)
    assert nusd == half_up(exact_nusd(price, usage, bills, served_as)) >= 0
    shown = addends(rates_for(price, usage.prompt_tokens, served_as), usage, bills)
    assert nusd == nusd_rounded_half_up(sum(one.parts for one in shown))
    assert all(one.units > 0 for one in shown)
    assert len({one.name for one in shown}) == len(shown)


@given(RATES, USAGES, st.sampled_from([BillableParts.EVERYTHING, BillableParts.PROMPT, BillableParts.OUTPUT]))
def test_no_token_is_two_things(rates: Rates, usage: Usage, bills: BillableParts) -> None:
    usage = replace(usage, timed_audio_tokens=None)  # those that are priced by their time are none of these
    units = {one.name: one.units for one in addends(rates, usage, bills)}
    of_prompt = (
        "input", "cached_input", "cache_write", "cache_write_1h", "audio_input", "image_input", "cached_audio_input",
        "cached_image_input",
    )  # fmt: skip
    prompt = sum(units.get(name, 0) for name in of_prompt)
    output = sum(units.get(name, 0) for name in ("output", "reasoning", "audio_output", "image_output"))
    billed = [
        max(0, (getattr(usage, f"{side}_tokens") or 0) - (getattr(usage, f"unbilled_{side}_tokens") or 0))
        for side in ("prompt", "completion")
    ]
    assert prompt == (billed[0] if bills is not BillableParts.OUTPUT else 0)
    assert output == (billed[1] if bills is not BillableParts.PROMPT else 0)


@given(RATES, USAGES, BILLS, st.sampled_from(WHOLES), st.integers(0, 10**6))
def test_more_never_costs_less(rates: Rates, usage: Usage, bills: BillableParts, name: str, more: int) -> None:
    grown = replace(usage, **{name: (getattr(usage, name) or 0) + more})
    assert charge(configured(rates), usage, bills) <= charge(configured(rates), grown, bills)


@given(RATES, st.sampled_from(sorted(PARTS)), st.integers(0, 1000), st.integers(0, 1000))
def test_a_part_moves_a_charge_towards_its_own_price(rates: Rates, part: str, count: int, more: int) -> None:
    whole, own, rest = PARTS[part]
    wholes = dict.fromkeys((whole, "prompt_tokens"), 5_000)
    usages = [Usage(**{**wholes, part: number}) for number in (count, count + more)]
    before, after = (charge(configured(rates), usage, BillableParts.EVERYTHING) for usage in usages)
    otherwise = _rate(rates, rest)
    dearer = _rate(rates, own, otherwise) >= otherwise
    assert (before <= after) if dearer else (before >= after)


def _rate(rates: Rates, name: str, otherwise: int | None = None) -> int:
    found: int | None = getattr(rates, name)
    plain = 0 if name == "pages" else rates.input  # other units than tokens cost nothing without a price
    return found if found is not None else plain if otherwise is None else otherwise


@given(prices(), USAGES, SERVED, st.data())
def test_a_quote_is_an_upper_bound(price: Price, most: Usage, served_as: ServedAs, draw: st.DataObject) -> None:
    """Of whatever is not more than it, however its tokens are made up; searches nobody knows before. It is served as it
    asks to be."""
    most = replace(most, searches=None, file_searches=None)
    tokens = {name: getattr(most, name) or 0 for name in ("prompt_tokens", "completion_tokens")}
    if served_as.longest_prompt_tokens is not None:  # no step has more than all of them
        served_as = replace(
            served_as, longest_prompt_tokens=min(served_as.longest_prompt_tokens, tokens["prompt_tokens"])
        )
    used = {name: draw.draw(st.integers(0, count)) for name, count in asdict(most).items() if count is not None}
    parts = {name: draw.draw(COUNTS) for name in PARTS}
    units = Usage(images=most.images, audio_ms=most.audio_ms, characters=most.characters, pages=most.pages)
    held = quote(price, **tokens, nusd_max=1 << 90, units=units, asked=served_as)
    assert charge(price, Usage(**{**used, **parts}), BillableParts.EVERYTHING, served_as) <= held.nusd
    assert held.tokens == sum(tokens.values())


@pytest.mark.parametrize("part", PARTS)
def test_a_quote_holds_what_the_dearest_part_would_cost(part: str) -> None:
    price = configured(replace(PLAIN, **{PARTS[part][1]: 100 * USD}))
    most = {"prompt_tokens": 10, "completion_tokens": 10}
    whole = PARTS[part][0]
    usage = Usage(**most | ({whole: 10} if whole.startswith("cache") else {}) | {part: 10})
    assert quote(price, **most, nusd_max=1 << 62).nusd == charge(price, usage, BillableParts.EVERYTHING)


@given(prices(), USAGES, BILLS, SERVED)
def test_what_an_entry_shows_of_a_price_makes_the_charge_again(
    price: Price, usage: Usage, bills: BillableParts, served_as: ServedAs
) -> None:
    again = pinned(price_text(price, usage.prompt_tokens, served_as))
    assert again.version == price.version
    assert amount(again, usage, bills, served_as) == amount(price, usage, bills, served_as)
    assert amount(again, usage, bills) == amount(again, usage, bills, served_as), "the variant was chosen for good"


def test_a_variant_holds_by_the_word_of_the_answer_alone() -> None:
    price = configured(PLAIN, service_tiers={"priority": (FULL,), "flex": (Rates(USD, USD, 4 * USD),)})
    usage = Usage(prompt_tokens=1_000_000, completion_tokens=0)
    costs = {
        word: usd_text(charge(price, usage, BillableParts.EVERYTHING, service_of(word)))
        for word in (None, "default", "flex", "x")
    }
    assert costs == {None: "2", "default": "2", "flex": "1", "x": "2"}
    assert price_text(price, 1, service_of("priority"))["service_tier"] == "priority"
    assert "service_tier" not in price_text(price, 1, service_of("default"))
    assert price_text(price, 1, service_of("priority"))["searches"] == "10"


def test_a_price_list_of_before_has_the_version_of_before() -> None:
    assert configured(PLAIN).version == "config-" + hashlib.sha256(b"2000000000/200000000/8000000000/0").hexdigest()[:8]
    assert configured(Rates(100_000_000, 50_000_000, 400_000_000)).version == "config-8abdc940"


@given(RATES, st.sampled_from(OPTIONAL), RATE, WORDS)
def test_other_numbers_have_another_version(rates: Rates, name: str, rate: int, word: str) -> None:
    other = replace(rates, **{name: rate})
    assert (configured(other).version == configured(rates).version) == (other == rates)
    versions = {
        configured(rates).version,
        configured(rates, service_tiers={word: (rates,)}).version,
        configured(rates, service_tiers={"x": (rates,)}).version,
        configured(rates, multipliers={"speed:fast": "6"}).version,
        configured(rates, multipliers={"speed:fast": "2"}).version,
    }
    assert len(versions) == 5


def test_multipliers_multiply_the_prices_of_tokens_and_say_why() -> None:
    by = {"speed:fast": "6", "geography:us": "1.1", "tier:flex": "5/3", "host:eu.example": "1.25"}
    price = Price("v", (FULL,), multipliers=by)
    usage = Usage(prompt_tokens=1_000_000, completion_tokens=0, images=1, searches=1000)
    others = 10 + Decimal("0.04") + Decimal("0.005")

    def cost(*said: str | None) -> Decimal:
        return Decimal(usd_text(charge(price, usage, BillableParts.EVERYTHING, service_of(*said)))) - others

    assert cost(None) == cost("default", "standard", "global") == cost("priority") == Decimal("2.5")
    usual = Price("v", (PLAIN,), multipliers={"tier:default": "2"})
    assert charge(usual, usage, BillableParts.EVERYTHING, service_of("default")) == 4 * USD, "a list may say so"
    assert cost(None, "fast") == 15
    assert cost(None, "fast", "us") == Decimal("16.5")
    assert cost("flex", "fast", "us") == Decimal("27.5")
    assert unpriced_service(price, service_of("priority", "fast", "eu")) == ["tier:priority", "geography:eu"]
    text = price_text(price, 1, service_of(None, "fast", "global"))
    assert text["multipliers"] == {"speed:fast": "6", "host:eu.example": "1.25"}
    assert (text["input"], text["cache_write_1h"], text["searches"]) == ("15", "30", "10")
    assert "multipliers" not in price_text(configured(FULL), 1, service_of("flex"))


def test_a_multiplied_price_is_a_whole_number_of_nusd_half_up() -> None:
    assert multiplied(Rates(3, 0, 1), ("tier:flex", "0.5")).input == 2
    assert multiplied(Rates(1, 0, 2), ("tier:flex", "5/3")) == Rates(2, 0, 3)
    assert multiplied(Rates(10**13, 0, 7), ("a:b", "0.1"), ("c:d", "10")) == Rates(10**13, 0, 7), "rounded once"
    whole = Rates(10, 20, 30, 7, image=5, request=1)
    assert multiplied(whole, ("rule:half", "0.5"), ("tier:priority", "2")) == Rates(10, 20, 30, 7, image=3, request=1)
    assert multiplied(FULL) is FULL


@pytest.mark.parametrize(
    ("tier", "missing"),
    [
        (None, []), ("default", []), ("standard", []), ("on_demand", []), ("flex", []),
        ("priority", ["tier:priority"]), ("batch", ["tier:batch"]), ("turbo", ["tier:turbo"]),
    ],
)  # fmt: skip
def test_a_service_tier_without_prices_is_said(tier: str | None, missing: list[str]) -> None:
    price = configured(PLAIN, service_tiers={"flex": (PLAIN,)})
    served_as = service_of(tier)
    assert unpriced_service(price, served_as) == missing
    assert unpriced_service(Price("free", (Rates(0, 0, 0),)), served_as) == unpriced_service(None, served_as) == []


@pytest.mark.parametrize(
    ("rates", "usage", "missing", "priced"),
    [
        (PLAIN, Usage(prompt_tokens=1, searches=2), ["searches"], True),
        (PLAIN, Usage(prompt_tokens=1, completion_tokens=1, images=2, audio_ms=3), [], True),
        (PLAIN, Usage(images=2), ["images"], False),
        (PLAIN, Usage(images=0), [], True),
        (PLAIN, Usage(audio_ms=3, characters=4), ["audio_ms", "characters"], False),
        (replace(PLAIN, characters=0), Usage(audio_ms=3, characters=4), [], True),
        (replace(PLAIN, request=1), Usage(images=2), [], True),
        (FULL, Usage(images=2, searches=1), [], True),
        (PLAIN, Usage(), [], True),
    ],
    ids=str,
)
def test_what_has_no_price_is_said_and_never_silently_free(
    rates: Rates, usage: Usage, missing: list[str], priced: bool
) -> None:
    assert unpriced(rates, usage) == missing
    assert (amount(configured(rates), usage, BillableParts.EVERYTHING) is not None) == priced
    assert amount(configured(rates), usage, BillableParts.NOTHING) == 0


def test_the_book_s_prices_in_ours() -> None:
    tiered = book_types.TieredPrices(base=Decimal(3), tiers=[book_types.Tier(start=200_000, price=Decimal(6))])
    listed: dict[str, Any] = {
        "input_mtok": tiered, "output_mtok": Decimal(15), "cache_write_mtok": Decimal("3.75"),
        "cache_write_1h_mtok": Decimal(6), "input_audio_mtok": Decimal(1), "output_audio_mtok": Decimal(2),
        "output_reasoning_mtok": Decimal(4), "audio_hours": Decimal(9), "input_audio_hours": Decimal("0.04"),
        "input_mchars": Decimal(22), "web_searches_kcount": Decimal(10), "requests_kcount": Decimal(12),
    }  # fmt: skip
    low, high = _tiers(book_types.ModelPrice(**listed))
    assert low == Rates(
        3 * USD, 3 * USD, 15 * USD, 0, 3_750_000_000, 6 * USD, USD, 2 * USD, 4 * USD, None, 40_000_000, 22 * USD,
        10 * USD, 12_000_000,
    )  # fmt: skip
    assert high == replace(low, input=6 * USD, cached_input=6 * USD, above_prompt_tokens=200_000)
