"""Parts in their wholes: what cannot be a part stands beside its whole, or is not believed; no price is negative."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.billing.money import nusd_rounded_half_up
from proxy.billing.pricing.prices import addends, charge, configured
from proxy.billing.record import BillableParts, Rates
from proxy.billing.reread import read_again
from proxy.metering.counts import fitted, violations
from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.usage import Evidence, Usage, UsageSource
from tests.metering.fixtures import DONE, call, chunk, fed, read_answer, say, sse

VERCEL = {
    "prompt_tokens": 28, "completion_tokens": 5, "total_tokens": 33,
    "completion_tokens_details": {"reasoning_tokens": 49},
}  # fmt: skip


def test_reasoning_outside_completion_and_total_is_billed() -> None:
    """Of Vercel's gateway to Gemini, whose own cost is that of 54."""
    body = sse(*say("It rains."), chunk(finish="stop", usage=VERCEL), DONE)
    found = fed(OPENAI_CHAT.stream_meter(), [body])
    assert (found.usage, found.flags) == (Usage(28, None, 54, 49, 82), ("reasoning_added",))
    assert found.usage_raw == VERCEL
    message = {"role": "assistant", "content": "It rains."}
    plain = read_answer(OPENAI_CHAT, {"choices": [{"index": 0, "message": message}], "usage": VERCEL})
    assert (plain.usage, plain.flags) == (found.usage, found.flags)
    called = sse(chunk(call(0, '{"a":1}', name="sum", id="c")), chunk(finish="tool_calls", usage=VERCEL), DONE)
    assert fed(OPENAI_CHAT.stream_meter(), [called]).usage == found.usage


def test_reasoning_of_another_tokenizer_is_in_the_completion() -> None:
    """Of OpenRouter: an answer that was cut while it reasoned, and whose reasoning another tokenizer counted."""
    used = VERCEL | {
        "completion_tokens": 256,
        "total_tokens": 284,
        "completion_tokens_details": {"reasoning_tokens": 277},
    }
    thought = [chunk({"reasoning": " hm hm hm hm hm"}) for _ in range(80)]
    found = fed(OPENAI_CHAT.stream_meter(), [sse(*thought, chunk(finish="length", usage=used), DONE)])
    assert (found.usage, found.flags) == (Usage(28, None, 256, 277, 284), ("reasoning_exceeds_completion",))


@pytest.mark.parametrize("model", ["gemini-2.5-pro", "models/gemini-3-flash", "google/gemini-2.5-flash"])
def test_googles_compatible_endpoint_has_thoughts_in_the_total_alone(model: str) -> None:
    used = {"prompt_tokens": 35, "completion_tokens": 12, "total_tokens": 109}
    found = read_answer(OPENAI_CHAT, {"model": model, "choices": [], "usage": used})
    assert (found.usage, found.flags) == (Usage(35, None, 74, 62, 109), ("reasoning_added",))
    other = read_answer(OPENAI_CHAT, {"model": "gpt-4o", "choices": [], "usage": used})
    assert (other.usage, other.flags) == (Usage(35, None, 12, None, 109), ("total_mismatch",))


def with_parts(**parts: int) -> Usage:
    return Usage(**{"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150} | parts)


@pytest.mark.parametrize(
    ("parts", "read", "flags"),
    [
        # in their wholes
        ({"cached_tokens": 100}, {"cached_tokens": 100}, []),
        ({"cached_tokens": 60, "cache_write_tokens": 40}, {"cached_tokens": 60, "cache_write_tokens": 40}, []),
        # not believed: all of the prompt is billed as plain
        ({"cached_tokens": 120}, {"cached_tokens": None}, ["cached_exceeds_prompt"]),
        ({"cache_write_tokens": 120}, {"cache_write_tokens": None}, ["cache_write_exceeds_prompt"]),
        (
            {"cached_tokens": 80, "cache_write_tokens": 30},
            {"cached_tokens": None, "cache_write_tokens": None},
            ["cache_exceeds_prompt"],
        ),
        ({"cached_tokens": 120, "cache_write_tokens": 30}, {"cached_tokens": None, "cache_write_tokens": 30},
         ["cached_exceeds_prompt"]),
        ({"cache_write_tokens": 10, "cache_write_1h_tokens": 11},
         {"cache_write_tokens": 10, "cache_write_1h_tokens": None}, ["cache_write_1h_exceeds_cache_write"]),
        ({"audio_prompt_tokens": 101}, {"audio_prompt_tokens": None}, ["audio_exceeds_prompt"]),
        ({"image_prompt_tokens": 101}, {"image_prompt_tokens": None}, ["image_exceeds_prompt"]),
        ({"audio_prompt_tokens": 60, "image_prompt_tokens": 60},
         {"audio_prompt_tokens": None, "image_prompt_tokens": None}, ["media_exceeds_prompt"]),
        ({"audio_completion_tokens": 51}, {"audio_completion_tokens": None}, ["audio_exceeds_completion"]),
        ({"image_completion_tokens": 51}, {"image_completion_tokens": None}, ["image_exceeds_completion"]),
        ({"cached_tokens": 1_100}, {"cached_tokens": None}, ["cached_exceeds_prompt"]),
        # beside it, since it is far larger
        ({"cached_tokens": 20_000}, {"prompt_tokens": 20_100, "cached_tokens": 20_000, "total_tokens": 20_150},
         ["cached_added"]),
        (
            {"cached_tokens": 20_000, "cache_write_tokens": 5},
            {"prompt_tokens": 20_105, "cached_tokens": 20_000, "cache_write_tokens": 5, "total_tokens": 20_155},
            ["cached_added", "cache_write_added"],
        ),
        # beside it, since the total says so
        ({"cached_tokens": 120, "total_tokens": 270}, {"prompt_tokens": 220, "cached_tokens": 120, "total_tokens": 270},
         ["cached_added"]),
        ({"cached_tokens": 90, "total_tokens": 240}, {"prompt_tokens": 190, "cached_tokens": 90, "total_tokens": 240},
         ["cached_added"]),
        (
            {"cached_tokens": 70, "cache_write_tokens": 80, "total_tokens": 300},
            {"prompt_tokens": 250, "cached_tokens": 70, "cache_write_tokens": 80, "total_tokens": 300},
            ["cached_added", "cache_write_added"],
        ),
        ({"audio_prompt_tokens": 375, "total_tokens": 525},
         {"prompt_tokens": 475, "audio_prompt_tokens": 375, "total_tokens": 525}, ["audio_added"]),
        # the total is of something else
        ({"cached_tokens": 90, "total_tokens": 151}, {"cached_tokens": 90, "total_tokens": 151}, ["total_mismatch"]),
        ({"cached_tokens": 120, "total_tokens": 151}, {"cached_tokens": None, "total_tokens": 151},
         ["cached_exceeds_prompt", "total_mismatch"]),
    ],
)  # fmt: skip
def test_one_rule_for_what_exceeds_its_whole(parts: dict[str, int], read: dict[str, Any], flags: list[str]) -> None:
    assert fitted(with_parts(**parts), 0.0) == (with_parts(**read), flags)


@pytest.mark.parametrize(("seen", "completion"), [(0.0, 50), (22.0, 50), (23.0, 109), (500.0, 109)])
def test_reasoning_is_beside_if_the_completion_was_seen(seen: float, completion: int) -> None:
    found, flags = fitted(with_parts(reasoning_tokens=59), seen)
    assert (found.completion_tokens, found.reasoning_tokens) == (completion, 59)
    assert flags == (["reasoning_added"] if completion > 50 else ["reasoning_exceeds_completion"])


def test_120_cached_of_100_cost_what_100_cost() -> None:
    """Not nothing, not what 100 cached ones cost, and not less than nothing."""
    price = configured(Rates(1_000_000, 100_000, 0))
    used = {
        "prompt_tokens": 100,
        "completion_tokens": 0,
        "total_tokens": 100,
        "prompt_tokens_details": {"cached_tokens": 120},
    }
    found = read_answer(OPENAI_CHAT, {"choices": [], "usage": used})
    assert found.flags == ("cached_exceeds_prompt",)
    assert found.usage is not None
    assert charge(price, found.usage, BillableParts.EVERYTHING) == 100


COUNTS = st.none() | st.integers(0, 300) | st.integers(0, 10**8)
FIELDS = (
    "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "total_tokens", "cache_write_tokens",
    "cache_write_1h_tokens", "audio_prompt_tokens", "audio_completion_tokens", "unbilled_prompt_tokens",
    "unbilled_completion_tokens", "image_prompt_tokens", "image_completion_tokens", "audio_ms",
    "timed_audio_tokens",
)  # fmt: skip
USAGES = st.builds(Usage, **dict.fromkeys(FIELDS, COUNTS))
RATE = st.none() | st.integers(0, 10**10)
RATES = st.builds(
    Rates, *[st.integers(0, 10**10)] * 3, cache_write=RATE, cache_write_1h=RATE, audio_input=RATE, audio_output=RATE,
    reasoning=RATE, image_input=RATE, image_output=RATE, audio_hour=RATE,
)  # fmt: skip
PROMPT = {"input", "cached_input", "cache_write", "cache_write_1h", "audio_input", "image_input"}
OUTPUT = {"output", "reasoning", "audio_output", "image_output"}


@given(USAGES, RATES, st.floats(0, 10**8))
def test_no_priced_part_is_negative_and_all_make_the_whole(usage: Usage, rates: Rates, seen: float) -> None:
    found, flags = fitted(usage, seen)
    price = configured(rates)
    parts = addends(rates, found, BillableParts.EVERYTHING)
    assert all(one.units > 0 and one.parts >= 0 for one in parts)
    assert charge(price, found, BillableParts.EVERYTHING) == nusd_rounded_half_up(sum(one.parts for one in parts))
    by_time = found.timed_audio_tokens is not None and rates.audio_hour is not None
    for whole, unbilled, names in (
        (found.prompt_tokens, found.unbilled_prompt_tokens, PROMPT),
        (found.completion_tokens, found.unbilled_completion_tokens, OUTPUT),
    ):
        billed = max(0, (whole or 0) - (unbilled or 0))
        priced = sum(one.units for one in parts if one.name in names)
        assert priced == billed or (by_time and names is PROMPT and priced <= billed)
    assert (found.prompt_tokens or 0) >= (usage.prompt_tokens or 0)
    assert (found.completion_tokens or 0) >= (usage.completion_tokens or 0)
    assert set(violations(found)) <= set(flags), "a reconciliation finds no difference that is not flagged"


@given(USAGES, st.floats(0, 10**8))
def test_what_fits_stays_as_it_was(usage: Usage, seen: float) -> None:
    found, flags = fitted(usage, seen)
    again, more = fitted(found, seen)
    assert again == found
    assert set(more) <= {"total_mismatch", "reasoning_exceeds_completion"}
    if not flags:
        assert found == usage


def test_what_was_added_is_not_taken_back_when_an_entry_is_read_again() -> None:
    """The entry has no output by which it could be told again."""
    again = read_again(_entry({"usage": VERCEL, "flags": ["reasoning_added"]}))
    assert again is not None
    assert again.usage.filled_from(Usage(28, None, 54, 49, 82)) == Usage(28, None, 54, 49, 82)
    older = read_again(_entry({"usage": VERCEL}))
    assert older is not None
    assert older.usage.filled_from(Usage(28, None, 5, 49, 33)) == Usage(28, None, 5, 49, 33)


def _entry(details: dict[str, Any]) -> Any:
    return SimpleNamespace(endpoint="/v1/chat/completions", usage_source=UsageSource.REPORTED, details=details)


def test_evidence_tells_roughly_what_was_seen_beside_reasoning() -> None:
    assert Evidence().tokens_seen == 0
    assert Evidence(chars_latin=40, chars_wide=3, tool_chars=8).tokens_seen == 15
    assert Evidence(chars_latin=40, reasoning_chars=30).tokens_seen == 2.5
    assert Evidence(chars_latin=40, reasoning_chars=90).tokens_seen == 0
