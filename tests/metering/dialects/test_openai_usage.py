"""OpenAI's usage object: counts that are neither prompt nor completion as a whole, and what is odd among them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from proxy.metering.counts import fitted, later, violations
from proxy.metering.dialects.openai.usage import usage_of
from proxy.metering.estimator.estimate import Estimator, reading
from proxy.metering.metered import Metered
from proxy.metering.usage import (
    NOTHING,
    UNITS_MAX,
    Evidence,
    Reading,
    ServedAs,
    Usage,
    UsageSource,
    service_in_tier,
    service_of,
)

PLAIN: dict[str, Any] = {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150}
COUNTS = Usage(100, None, 50, None, 150)


def details(prompt: dict[str, Any] | None = None, completion: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"prompt_tokens_details": prompt or {}, "completion_tokens_details": completion or {}}


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        (details({"cache_write_tokens": 30}), {"cache_write_tokens": 30}),
        (details({"cache_write_tokens": 0}), {"cache_write_tokens": 0}),
        ({"cache_creation_input_tokens": 7}, {"cache_write_tokens": 7}),
        (details({"cache_write_tokens": 3}) | {"cache_creation_input_tokens": 7}, {"cache_write_tokens": 7}),
        (
            {"cache_creation_input_tokens": 7, "cache_creation": {"ephemeral_1h_input_tokens": 2}},
            {"cache_write_tokens": 7, "cache_write_1h_tokens": 2},
        ),
        (
            details({"audio_tokens": 9}, {"audio_tokens": 8}),
            {"audio_prompt_tokens": 9, "audio_completion_tokens": 8},
        ),
        ({"server_tool_use_details": {"web_search_requests": 3}}, {"searches": 3}),
        ({"num_search_queries": 4}, {"searches": 4}),
        ({"num_sources_used": 5}, {"searches": 5}),
        ({"server_tool_use_details": None, "cache_creation": [], "num_sources_used": None}, {}),
    ],
    ids=str,
)
def test_where_each_count_is_told(raw: dict[str, Any], found: dict[str, int]) -> None:
    assert usage_of(PLAIN | raw, set()) == msgspec.structs.replace(COUNTS, **found)


@pytest.mark.parametrize(
    "raw",
    [
        details({"cache_write_tokens": -1}),
        details({}, {"audio_tokens": "1"}),
        {"num_search_queries": True},
        {"num_sources_used": UNITS_MAX + 1},
    ],
    ids=str,
)
def test_an_invalid_count_spoils_itself_only(raw: dict[str, Any]) -> None:
    flags: set[str] = set()
    assert usage_of(PLAIN | raw, flags) == COUNTS
    assert flags == {"usage_invalid"}


@pytest.mark.parametrize(
    ("more", "flags"),
    [
        ({"cached_tokens": 60, "cache_write_tokens": 40, "cache_write_1h_tokens": 40, "audio_prompt_tokens": 100}, []),
        ({"cached_tokens": 60, "cache_write_tokens": 41}, ["cache_exceeds_prompt"]),
        ({"cache_write_tokens": 101}, ["cache_write_exceeds_prompt"]),
        ({"cache_write_tokens": 1, "cache_write_1h_tokens": 2}, ["cache_write_1h_exceeds_cache_write"]),
        ({"audio_prompt_tokens": 101}, ["audio_exceeds_prompt"]),
        ({"reasoning_tokens": 50, "audio_completion_tokens": 50}, []),
        ({"audio_completion_tokens": 51}, ["audio_exceeds_completion"]),
    ],
    ids=str,
)
def test_parts_above_their_whole_are_flagged(more: dict[str, int], flags: list[str]) -> None:
    assert list(violations(msgspec.structs.replace(COUNTS, **more))) == flags


@pytest.mark.parametrize(
    ("counts", "completion"),
    [((9, 5, 54, 40), 45), ((9, 45, 54, 40), 45), ((9, 5, 14, 40), 5), ((9, 5, 14, 0), 5), ((9, 5, None, 40), 5)],
)
def test_reasoning_that_the_total_has_is_part_of_the_completion(counts: tuple[int, ...], completion: int) -> None:
    """Whatever was seen: xAI's leaves reasoning out of the completion, and bills it like the rest."""
    prompt, told, total, reasoning = counts
    raw = {"prompt_tokens": prompt, "completion_tokens": told, "total_tokens": total, "reasoning_tokens": reasoning}
    usage = usage_of(raw, set())
    found, flags = fitted(usage, 0.0)
    assert (found.completion_tokens, found.total_tokens, found.reasoning_tokens) == (completion, total, reasoning)
    assert ("reasoning_added" in flags) == (completion != told)


def test_of_two_usages_each_count_is_the_higher() -> None:
    first, second = Usage(searches=2, cache_write_tokens=5), Usage(searches=1, audio_ms=9)
    assert later(first, second) == (Usage(searches=2, cache_write_tokens=5, audio_ms=9), True)


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ("priority", "priority"), ("Flex", "flex"), (" batch ", "batch"), ("on_demand", "on_demand"), ("auto", None),
        ("", None), (None, None), (7, "other"), (["priority"], "other"), ("two words", "other"), ("x" * 33, "other"),
        ("é", "other"),
    ],
)  # fmt: skip
def test_a_fact_is_one_short_word_that_says_what_was_done(said: object, word: str | None) -> None:
    assert service_of(said) == ServedAs(service_tier=word)
    assert service_of("flex", said, said) == ServedAs("flex", word, word)


def read(usage: Usage | None) -> Reading:
    """What an exchange used whose answer came to an end and reported this."""
    metered = Metered(
        usage=usage, usage_raw=None, evidence=Evidence(), finish_reason=None, response_id=None, complete=True,
        failed=None, events=1, flags=(), timings={}, served_as=service_in_tier("flex"),
    )  # fmt: skip
    return reading(
        metered, estimator=Estimator(), model_key="p/m", prompt_tokens_estimate=8, completion_tokens_max=None,
        bytes_seen=10, accepted=usage is not None,
    )  # fmt: skip


def test_what_is_counted_in_other_units_is_not_estimated_in_tokens() -> None:
    usage = Usage(images=2)
    assert read(usage) == Reading(usage, UsageSource.REPORTED, service_tier="flex")
    assert read(None) == NOTHING


def test_an_estimate_beside_reported_counts_keeps_them() -> None:
    found = read(Usage(prompt_tokens=40, cache_write_tokens=30, searches=1))
    assert (found.source, found.service_tier) == (UsageSource.ESTIMATED, "flex")
    assert found.usage == Usage(40, None, 0, None, 40, cache_write_tokens=30, searches=1)
