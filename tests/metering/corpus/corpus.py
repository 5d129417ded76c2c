"""The recorded exchanges of real providers, and ways to cut their bytes."""

from __future__ import annotations

import functools
import gzip
import json
import random
import zlib
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

CORPUS = Path(__file__).parents[4] / "shared" / "corpus"

AT_ONE_CUT_OR_EVERY = pytest.mark.parametrize(
    "every", [pytest.param(False, id="one cut"), pytest.param(True, id="every cut", marks=pytest.mark.real)]
)
"""of a test that reads every record: in the gate each at one cut, in `make real` each at every one"""

FIELDS = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "total_tokens")

# The records that say what cannot be, all of them: what is read instead (`counts.fitted`). Vercel's own costs are those
# of these completions.
VERCEL = "charmbracelet/fantasy/providertests/testdata/TestVercel"
AZURE_GROK = (
    "crmne/ruby_llm/spec/fixtures/vcr_cassettes/chat_function_calling_azure_grok-4-1-fast-non-reasoning_can_use_"
)
FITTED: dict[str, dict[str, int | None]] = {
    f"{VERCEL}Common/gemini-2.5-flash/multi_tool_streaming.yaml#0": {"completion_tokens": 47, "total_tokens": 104},
    f"{VERCEL}Common/gemini-2.5-flash/simple_streaming.yaml#0": {"completion_tokens": 27, "total_tokens": 36},
    f"{VERCEL}Common/gemini-2.5-flash/tool_streaming.yaml#0": {"completion_tokens": 53, "total_tokens": 81},
    f"{VERCEL}Thinking/gemini-3-pro-preview/thinking-streaming.yaml#0": {"completion_tokens": 70, "total_tokens": 98},
    f"{VERCEL}Thinking/gemini-3-pro-preview/thinking-streaming.yaml#1": {"completion_tokens": 57, "total_tokens": 97},
    # Google's compatible endpoint: thoughts in the total alone
    "pydantic/pydantic-ai/tests/models/cassettes/test_openai/test_compatible_api_with_tool_calls_without_id.yaml#0": {
        "completion_tokens": 74, "reasoning_tokens": 62,
    },
    f"{AZURE_GROK}parallel_tool_calls.yml#0": {"cached_tokens": None},
    f"{AZURE_GROK}tools_without_parameters_in_multi-turn_streaming_conversations.yml#2": {"cached_tokens": None},
    f"{AZURE_GROK}tools_without_parameters_in_multi-turn_streaming_conversations.yml#3": {"cached_tokens": None},
    "0xPlaygrounds/rig/tests/cassettes/mistral/multimodal_content/streaming_agent_sends_audio.yaml#0": {
        "prompt_tokens": 386,
    },
    "crmne/ruby_llm/spec/fixtures/vcr_cassettes/"
    "chat_audio_models_mistral_voxtral-small-latest_can_understand_mp3_audio.yml#0": {"prompt_tokens": 384},
}  # fmt: skip


@functools.cache
def lines_of(name: str) -> list[bytes]:
    """The lines of one of the corpus's two files: each is one record in JSON."""
    packed = (CORPUS / name).read_bytes()
    return (gzip.decompress(packed) if name.endswith(".gz") else packed).split(b"\n")


def all_lines() -> list[bytes]:
    return [*lines_of("open.jsonl"), *lines_of("more_streams.jsonl.gz")]


@functools.cache
def records_named(*dialects: str) -> list[dict[str, Any]]:
    """All records that the corpus has under these names."""
    quoted = [f'"{name}"'.encode() for name in dialects]
    found = [json.loads(line) for line in all_lines() if any(name in line for name in quoted)]
    return [record for record in found if record["dialect"] in dialects]


def cuts(body: bytes, seed: str) -> Iterator[list[bytes]]:
    rng = random.Random(seed)
    yield [body]
    yield body.splitlines(keepends=True)
    at = sorted({0, len(body), *(rng.randrange(len(body) + 1) for _ in range(40))})
    yield [body[a:b] for a, b in pairwise(at)]
    inside = [at for at in range(1, len(body)) if body[at] & 0xC0 == 0x80]  # inside UTF-8
    yield [body[a:b] for a, b in zip([0, *inside], [*inside, len(body)], strict=True)]


def some_cuts(ways: Iterable[list[bytes]], seed: str, *, every: bool) -> list[list[bytes]]:
    """`every`: all of the ways; otherwise one of them, which one depends on the seed."""
    found = list(ways)
    return found if every else [found[zlib.crc32(seed.encode()) % len(found)]]
