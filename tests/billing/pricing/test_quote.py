"""A quote is never less than the charge of an exchange that keeps within its own limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.billing.pricing.prices import charge
from proxy.billing.pricing.quote import completion_tokens, completion_tokens_bound, quote
from proxy.billing.record import BillableParts, Price, Rates
from proxy.metering.usage import Usage

MUCH = 1 << 62
RATE = st.integers(0, 10**13)
PRICES = st.builds(lambda a, b, c: Price("p", (Rates(a, b, c),)), RATE, RATE, RATE)
COUNTS = st.integers(0, 1_000_000)


@given(PRICES, COUNTS, COUNTS, st.data())
def test_it_is_an_upper_bound(price: Price, prompt: int, completion: int, draw: st.DataObject) -> None:
    held = quote(price, prompt_tokens=prompt, completion_tokens=completion, nusd_max=MUCH)
    used = Usage(
        prompt_tokens=draw.draw(st.integers(0, prompt)),
        cached_tokens=draw.draw(st.integers(0, prompt)),
        completion_tokens=draw.draw(st.integers(0, completion)),
    )
    assert charge(price, used, BillableParts.EVERYTHING) <= held.nusd
    assert held.tokens == prompt + completion


@given(PRICES, COUNTS, COUNTS, st.integers(0, 10**9))
def test_it_is_bounded_per_request(price: Price, prompt: int, completion: int, most: int) -> None:
    assert quote(price, prompt_tokens=prompt, completion_tokens=completion, nusd_max=most).nusd <= most


def test_the_tier_is_the_prompts() -> None:
    price = Price("p", (Rates(1_000_000, 0, 2_000_000), Rates(3_000_000, 0, 6_000_000, above_prompt_tokens=100)))
    assert quote(price, prompt_tokens=100, completion_tokens=10, nusd_max=MUCH).nusd == 120
    assert quote(price, prompt_tokens=101, completion_tokens=10, nusd_max=MUCH).nusd == 363


def test_without_a_price_there_is_no_money_to_hold() -> None:
    assert quote(None, prompt_tokens=5, completion_tokens=6, nusd_max=MUCH).nusd == 0
    assert quote(None, prompt_tokens=5, completion_tokens=6, nusd_max=MUCH).tokens == 11


def test_how_many_tokens_the_answers_may_have() -> None:
    assert completion_tokens(requested=None, n=1, default=4096, model_max=None) == 4096
    assert completion_tokens(requested=None, n=3, default=4096, model_max=1000) == 3000
    assert completion_tokens(requested=300, n=3, default=4096, model_max=None) == 300
    assert completion_tokens(requested=3 * 999_999_999, n=3, default=4096, model_max=8192) == 3 * 8192


@pytest.mark.parametrize(
    ("asked", "n", "model_max", "most"),
    [
        (None, 1, None, None),
        (None, 3, 100, 300),
        (50, 1, None, 50),
        (50, 1, 100, 50),
        (400, 1, 100, 100),
        (400, 2, 100, 200),
        (400, 4, 100, 400),
    ],
)
def test_answers_are_bounded_by_the_request_and_by_the_model(
    asked: int | None, n: int, model_max: int | None, most: int | None
) -> None:
    assert completion_tokens_bound(requested=asked, n=n, model_max=model_max) == most
    if most is not None:
        assert completion_tokens(requested=asked, n=n, default=10**6, model_max=model_max) == most
