"""The recorded exchanges of real providers, and ways to cut their bytes."""

from __future__ import annotations

import functools
import gzip
import json
import re
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.metering.fixtures import cut_at, in_pieces

CORPUS = Path(__file__).parents[4] / "shared" / "corpus"
FILES = ("open.jsonl", "more_streams.jsonl.gz")

NEEDS_CORPUS = pytest.mark.skipif(not CORPUS.exists(), reason="the recorded corpus ../shared/corpus is not here")
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


_DIALECT = re.compile(rb'"dialect": ?"([^"]+)"')


@functools.cache
def _lines_of(name: str) -> dict[str, list[bytes]]:
    """The lines of one file by their dialects: each is one record in JSON."""
    packed = (CORPUS / name).read_bytes()
    found: dict[str, list[bytes]] = defaultdict(list)
    for line in filter(None, (gzip.decompress(packed) if name.endswith(".gz") else packed).split(b"\n")):
        dialect = _DIALECT.search(line)
        assert dialect is not None
        found[dialect[1].decode()].append(line)
    return found


@functools.cache
def records_in(name: str, *dialects: str) -> list[dict[str, Any]]:
    """All records that one file has under these names."""
    return [json.loads(line) for dialect in dialects for line in _lines_of(name).get(dialect, ())]


def records_named(*dialects: str) -> list[dict[str, Any]]:
    """All records that the corpus has under these names."""
    return [record for name in FILES for record in records_in(name, *dialects)]


def all_records() -> Iterator[dict[str, Any]]:
    for name in FILES:
        yield from (json.loads(line) for lines in _lines_of(name).values() for line in lines)


def _at_random(body: bytes, seed: str) -> list[bytes]:
    rng = Random(seed)
    return cut_at(body, (rng.randrange(len(body) + 1) for _ in range(40)))


_WAYS = (
    lambda body, _: [body],
    lambda body, _: body.splitlines(keepends=True),
    _at_random,
    lambda body, _: cut_at(body, (found.start() for found in re.finditer(rb"[\x80-\xbf]", body))),  # inside UTF-8
)


def cuts(record: dict[str, Any], *, every: bool = True) -> Iterator[list[bytes]]:
    """The body of a record, cut in each way; without `every` in one of them, which depends on its id.
    A short body is cut into single bytes, too."""
    body, seed = record["body"].encode(), record["id"]
    for way in _WAYS if every else (_WAYS[zlib.crc32(seed.encode()) % len(_WAYS)],):
        yield way(body, seed)
    if every and len(body) < 6_000:
        yield in_pieces(body, 1)
