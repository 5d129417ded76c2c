"""Prices: exact from the configuration, the book's own numbers from the book, and what usage costs at them."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from proxy.billing.money import usd_text
from proxy.billing.pricing.book import PriceBook, _tiers
from proxy.billing.pricing.prices import (
    can_quote,
    charge,
    configured,
    pinned,
    price_text,
    rate_from_usd,
    rates_for,
    unpriced,
)
from proxy.billing.pricing.rules import NO_LIST
from proxy.billing.record import BillableParts, Price, Rates
from proxy.billing.settlement import amount
from proxy.metering.usage import Usage

if TYPE_CHECKING:
    from genai_prices.types import ModelPrice

TEN_CENTS = Rates(input=100_000_000, cached_input=50_000_000, output=400_000_000)
AT = datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp()

COUNTS = st.none() | st.integers(0, 10**8)
USAGES = st.builds(Usage, prompt_tokens=COUNTS, cached_tokens=COUNTS, completion_tokens=COUNTS)
RATE = st.integers(0, 10**13)
PRICES = st.builds(configured, st.builds(Rates, input=RATE, cached_input=RATE, output=RATE))


@pytest.fixture(scope="module")
def book() -> PriceBook:
    return PriceBook()


def usd(price: Price, usage: Usage, bills: BillableParts = BillableParts.EVERYTHING) -> str:
    return usd_text(charge(price, usage, bills))


def test_a_charge_by_hand() -> None:
    price = configured(TEN_CENTS)
    usage = Usage(prompt_tokens=1000, cached_tokens=400, completion_tokens=250)
    assert usd(price, usage) == "0.00018"  # 600 × 0.10 + 400 × 0.05 + 250 × 0.40, per million
    assert usd(price, usage, BillableParts.PROMPT) == "0.00008"
    assert usd(price, usage, BillableParts.OUTPUT) == "0.0001"
    assert usd(price, usage, BillableParts.NOTHING) == "0"


def test_a_tier_holds_above_its_length_and_for_all_tokens() -> None:
    high = Rates(input=200_000_000, cached_input=100_000_000, output=600_000_000, above_prompt_tokens=200_000)
    price = Price("tiered", (TEN_CENTS, high))
    assert rates_for(price, None) == rates_for(price, 0) == rates_for(price, 200_000) == TEN_CENTS
    assert rates_for(price, 200_001) == high
    assert usd(price, Usage(prompt_tokens=200_001, completion_tokens=1_000_000)) == "0.6400002"
    assert price_text(price, 200_001)["above_prompt_tokens"] == 200_000
    assert "above_prompt_tokens" not in price_text(price, 200_000)


@pytest.mark.parametrize(
    ("written", "nusd"),
    [(0.1, 100_000_000), (0, 0), (3, 3_000_000_000), ("0.07", 70_000_000), (1e-7, 100), (10_000, 10**13)],
)
def test_a_written_price_is_an_exact_decimal(written: object, nusd: int) -> None:
    assert rate_from_usd(written) == nusd


@pytest.mark.parametrize(
    "written",
    [-0.1, float("nan"), float("inf"), True, None, "", "free", [1], 10_000.01, "1e999", 1e-10, "-0.000000001"],
)
def test_a_price_that_cannot_be_meant_is_refused(written: object) -> None:
    with pytest.raises(ValueError):
        rate_from_usd(written)


def test_the_version_of_a_configured_price_is_its_numbers() -> None:
    price = configured(TEN_CENTS)
    assert price == configured(Rates(100_000_000, 50_000_000, 400_000_000))
    assert price.version.startswith("config-")
    assert len(price.version) == len("config-") + 8
    assert configured(Rates(100_000_000, 50_000_000, 400_000_001)).version != price.version


def test_the_book_finds_by_address_then_by_name_then_by_model(book: PriceBook) -> None:
    by_address = book.price(provider="mine", base_url="https://api.openai.com/v1", model="gpt-4o-mini", at=AT)
    by_name = book.price(provider="openai", base_url="http://127.0.0.1:9/v1", model="GPT-4o-mini", at=AT)
    by_model = book.price(provider="mine", base_url="http://127.0.0.1:9/v1", model="gpt-4o-mini", at=AT)
    assert by_address is not None
    assert by_address == by_name == by_model
    assert by_address.version.startswith("genai-prices-")
    assert by_address.tiers[0].input > by_address.tiers[0].cached_input > 0


def test_the_address_goes_before_the_name(book: PriceBook) -> None:
    assert book.price(provider="openai", base_url="https://api.groq.com/openai/v1", model="gpt-4o", at=AT) is None


BEDROCK = "https://bedrock-runtime.us-east-1.amazonaws.com"
SONNET = "anthropic.claude-sonnet-4-5-20250929-v1:0"
ARN = "arn:aws:bedrock:us-east-1"


@pytest.mark.parametrize(
    ("base_url", "model", "usd"),
    [
        (BEDROCK, f"global.{SONNET}", "3"),
        (BEDROCK, f"us.{SONNET}", "3.3"),
        (BEDROCK, SONNET, "3.3"),
        (BEDROCK, f"{ARN}::foundation-model/{SONNET}", "3.3"),
        (BEDROCK, f"{ARN}:123456789012:inference-profile/global.{SONNET}", "3"),
        (BEDROCK, f"{ARN}:123456789012:application-inference-profile/a1b2", None),
        (BEDROCK, f"{ARN}:123456789012:provisioned-model/{SONNET}", None),
        (BEDROCK, "us.amazon.nova-lite-v1:0", "0.06"),
        ("https://bedrock-runtime-fips.us-gov-west-1.amazonaws.com", "amazon.nova-pro-v1:0", "0.8"),
        ("https://vpce-0a1-b2.bedrock-runtime.us-east-1.vpce.amazonaws.com", "amazon.nova-pro-v1:0", "0.8"),
        ("https://bedrock-mantle.us-east-1.api.aws/v1", "openai.gpt-oss-120b-1:0", "0.15"),
        ("https://bedrock-runtime.evil.test", "amazon.nova-pro-v1:0", None),
        ("https://aiplatform.googleapis.com/v1/projects/p/locations/global", "claude-sonnet-4-5@20250929", "3"),
        ("https://us-east5-aiplatform.googleapis.com/v1/projects/p/locations/us-east5", "gemini-2.5-pro", "1.25"),
    ],
)
def test_models_of_clouds_are_found_by_the_names_that_they_have_there(
    book: PriceBook, base_url: str, model: str, usd: str | None
) -> None:
    price = book.price(provider="cloud", base_url=base_url, model=model, at=AT)
    assert (None if price is None else Decimal(price.tiers[0].input) / 10**9) == (None if usd is None else Decimal(usd))


@pytest.mark.parametrize("model", ["electron", "no-such-model", "", "x" * 5000, "gpt-4o" * 100])
def test_an_unknown_model_has_no_price(book: PriceBook, model: str) -> None:
    assert book.price(provider="electron", base_url="https://h.example/waves/v1", model=model, at=AT) is None


@pytest.mark.parametrize(
    ("provider", "model", "lacking", "usage", "charged"),
    [
        ("openai", "text-embedding-3-small", ("output",), Usage(prompt_tokens=10**6, completion_tokens=0), "0.02"),
        ("openai", "tts-1", ("input", "output"), Usage(None, None, 9, characters=10**6), "15"),
        ("openai", "whisper-1", ("input", "output"), Usage(audio_ms=3_600_000), "0.36"),
        ("mistral", "mistral-ocr-4-0", ("input", "output"), Usage(pages=500, annotated_pages=100), "2.1"),
        ("cloudflare", "@cf/baai/bge-reranker-base", ("output",), Usage(prompt_tokens=10**6), "0.003"),
    ],
)
def test_a_model_is_priced_though_its_list_lacks_what_it_does_not_make(
    book: PriceBook, provider: str, model: str, lacking: tuple[str, ...], usage: Usage, charged: str
) -> None:
    price = book.price(provider=provider, base_url="", model=model, at=AT)
    assert price is not None
    assert price.lacking == lacking
    made = amount(price, usage, BillableParts.EVERYTHING)
    assert made is not None
    assert usd_text(made) == charged
    assert not unpriced(price.tiers[0], usage, price.lacking)
    again = pinned(price_text(price, 10))
    assert (again.tiers, again.lacking) == (price.tiers[:1], lacking)
    assert price_text(price, 10).keys().isdisjoint(lacking)


INPUT_ONLY = Price("input-only", (replace(TEN_CENTS, output=0),), lacking=("output",))
SPEECH = Price("speech", (Rates(0, 0, 0, characters=10**9),), lacking=("input", "output"))


@pytest.mark.parametrize(
    ("price", "usage", "bills", "missing"),
    [
        (INPUT_ONLY, Usage(prompt_tokens=3, completion_tokens=1), BillableParts.EVERYTHING, ["completion_tokens"]),
        (INPUT_ONLY, Usage(prompt_tokens=3, completion_tokens=1), BillableParts.PROMPT, []),
        (INPUT_ONLY, Usage(prompt_tokens=3, completion_tokens=1), BillableParts.OUTPUT, ["completion_tokens"]),
        (INPUT_ONLY, Usage(prompt_tokens=3), BillableParts.EVERYTHING, []),
        (INPUT_ONLY, Usage(images=3), BillableParts.EVERYTHING, ["images"]),
        (SPEECH, Usage(prompt_tokens=3), BillableParts.PROMPT, ["prompt_tokens"]),
        (SPEECH, Usage(3, None, 2), BillableParts.EVERYTHING, ["prompt_tokens", "completion_tokens"]),
        (SPEECH, Usage(3, None, 2, characters=5), BillableParts.EVERYTHING, []),
    ],
)
def test_tokens_whose_price_the_list_lacks_are_never_silently_free(
    price: Price, usage: Usage, bills: BillableParts, missing: list[str]
) -> None:
    assert unpriced(price.tiers[0], usage, price.lacking, bills) == missing
    assert (amount(price, usage, bills) is None) == bool(missing)


@pytest.mark.parametrize(
    ("price", "asked", "generates", "can"),
    [
        (INPUT_ONLY, Usage(), False, True),
        (INPUT_ONLY, Usage(), True, False),
        (SPEECH, Usage(), True, False),
        (SPEECH, Usage(characters=0, completion_tokens=0), True, False),
        (SPEECH, Usage(characters=5, completion_tokens=7), True, True),
        (configured(TEN_CENTS), Usage(), True, True),
        (NO_LIST, Usage(), True, False),
    ],
)
def test_a_request_can_be_quoted_if_its_list_prices_what_it_may_use(
    price: Price, asked: Usage, generates: bool, can: bool
) -> None:
    assert can_quote(price, asked, generates=generates) is can


@given(PRICES, USAGES, st.sampled_from(list(BillableParts)))
def test_a_list_that_lacks_a_price_charges_as_a_whole_one_or_not_at_all(
    price: Price, usage: Usage, bills: BillableParts
) -> None:
    """What is charged is what the same list with any price of output would charge: nothing is free by omission."""
    made = amount(replace(price, tiers=(replace(price.tiers[0], output=0),), lacking=("output",)), usage, bills)
    assert made is None or made == amount(price, usage, bills)
    assert (made is None) == (
        bool(usage.completion_tokens) and bills in (BillableParts.EVERYTHING, BillableParts.OUTPUT)
    )


@pytest.mark.parametrize(("listed", "nusd"), [(None, 2_000_000_000), (Decimal(0), 0), (Decimal("0.5"), 500_000_000)])
def test_free_cached_tokens_are_free_and_unlisted_ones_cost_what_others_do(listed: Decimal | None, nusd: int) -> None:
    from genai_prices import types as book_types

    price = book_types.ModelPrice(input_mtok=Decimal(2), cache_read_mtok=listed, output_mtok=Decimal(3))
    assert _tiers(price) == (Rates(2_000_000_000, nusd, 3_000_000_000),)


def test_the_price_is_that_of_the_time(book: PriceBook) -> None:
    """Some list prices of the book begin on a date; before it, another one holds."""
    from genai_prices.data import providers as book_providers

    for provider in book_providers:
        for model in provider.models:
            if not isinstance(model.prices, list) or len(model.prices) != 2:
                continue
            start = getattr(model.prices[1].constraint, "start_date", None)
            old, new = (conditional.prices.input_mtok for conditional in model.prices)
            if start is None or old is None or new is None or old == new or provider.id != "openai":
                continue
            day = datetime(start.year, start.month, start.day, tzinfo=UTC).timestamp()
            before, after = (
                book.price(provider="openai", base_url="", model=model.id, at=at) for at in (day - 60, day)
            )
            assert before != after
            return
    pytest.skip("this version of the book has no dated price to test with")


def _their_price(listed: ModelPrice, usage: Usage) -> Decimal:
    """The book's own computation, in USD."""
    from genai_prices import types as book_types

    theirs = {
        "input_tokens": usage.prompt_tokens, "cache_read_tokens": usage.cached_tokens,
        "cache_write_tokens": usage.cache_write_tokens, "cache_write_1h_tokens": usage.cache_write_1h_tokens,
        "output_tokens": usage.completion_tokens, "output_reasoning_tokens": usage.reasoning_tokens,
        "web_searches": usage.searches,  # and the one request that it is
    }  # fmt: skip
    return listed.calc_price(book_types.Usage(**theirs))["total_price"]


def test_our_charge_is_the_books_own_for_every_model_it_lists(book: PriceBook) -> None:
    from genai_prices.data import providers as book_providers

    known = {
        "input_mtok", "cache_read_mtok", "cache_write_mtok", "cache_write_1h_mtok", "output_mtok",
        "output_reasoning_mtok", "web_searches_kcount", "requests_kcount",
    }  # fmt: skip
    compared = 0
    for provider in book_providers:
        if provider.id not in ("openai", "anthropic", "google", "x-ai", "deepseek", "groq", "mistral", "perplexity"):
            continue
        for model in provider.models:
            listed = model.get_prices(datetime.fromtimestamp(AT, UTC))
            ours = book.price(provider=provider.id, base_url="", model=model.id, at=AT)
            if ours is None or {name for name, value in vars(listed).items() if value is not None} - known:
                continue
            if provider.find_model(model.id) is not model:
                continue
            for prompt in (7, 128_000, 300_000):
                usage = Usage(
                    prompt_tokens=prompt, cached_tokens=prompt // 3, completion_tokens=1234, reasoning_tokens=321,
                    cache_write_tokens=prompt // 4, cache_write_1h_tokens=prompt // 8, searches=2,
                )  # fmt: skip
                exact = _their_price(listed, usage) * 1_000_000_000
                assert abs(charge(ours, usage, BillableParts.EVERYTHING) - exact) <= Decimal("0.5"), model.id
            compared += 1
    assert compared > 50


@pytest.mark.process
def test_importing_prices_does_not_load_the_book() -> None:
    code = "import sys, proxy.billing.pricing.prices; sys.exit('genai_prices' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=30).returncode == 0


@pytest.mark.parametrize(
    ("model", "at", "output"),
    [
        ("deepseek-v4-pro", "2026-11-20T02:00Z", "3.96"),  # a Friday
        ("deepseek-v4-pro", "2026-11-20T09:59Z", "3.96"),
        ("deepseek-v4-pro", "2026-11-20T05:00Z", "1.98"),
        ("deepseek-v4-pro", "2026-11-21T02:00Z", "1.98"),  # a Saturday
        ("deepseek-v4-pro", "2026-11-22T07:00Z", "1.98"),
        ("deepseek-v4-pro", "2026-11-22T20:00Z", "1.98"),  # Monday in Beijing, before the peak
        ("deepseek-v4-pro", "2026-11-23T01:00Z", "3.96"),
        ("deepseek-flash", "2026-10-01T02:00Z", "0.6"),  # a holiday
        ("deepseek-flash", "2026-10-08T02:00Z", "1.2"),
        ("deepseek-v4-pro", "2026-08-22T02:00Z", "3.96"),  # the last Saturday with a peak
        ("deepseek-v4-pro", "2026-08-16T15:59Z", "0.87"),
        ("deepseek-v4-pro", "2026-08-16T16:00Z", "1.98"),  # Monday the 17th in Beijing
        ("deepseek-v4-pro", "2026-08-14T02:00Z", "0.87"),  # before there were peaks
        ("deepseek-v4-flash", "2026-08-18T12:00Z", "0.66"),
        ("deepseek-v4-flash", "2026-09-12T02:00Z", "0.6"),
    ],
)
def test_deepseek_s_peak_is_of_hours_and_of_days_in_beijing(book: PriceBook, model: str, at: str, output: str) -> None:
    moment = datetime.fromisoformat(at).timestamp()
    price = book.price(provider="deepseek", base_url="https://api.deepseek.com", model=model, at=moment)
    assert price is not None
    assert usd_text(price.tiers[0].output) == output
