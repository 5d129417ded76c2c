"""Recorded answers of OpenAI's other endpoints, and of those who copy them: usage equal to the truth told beside them.

By rule, not by the record: what generates nothing has 0 completion tokens, and `total_tokens` alone is the prompt; what
is counted in other units (search units, seconds, images) has the truth in its raw object, or in the answer itself:
pictures in `data`, the `duration` of a transcript. Of speech the recorder kept JSON, which is not read.
"""

from __future__ import annotations

import functools
import gzip
import json
from typing import Any

import pytest
from msgspec import structs

from proxy.metering.dialect import Dialect
from proxy.metering.dialects.openai.completions import OPENAI_COMPLETIONS
from proxy.metering.dialects.openai.embeddings import OPENAI_EMBEDDINGS
from proxy.metering.dialects.openai.moderations import OPENAI_MODERATIONS
from proxy.metering.dialects.openai.rerank import OPENAI_RERANK
from proxy.metering.dialects.openai_media.images import OPENAI_IMAGES
from proxy.metering.dialects.openai_media.speech import OPENAI_SPEECH
from proxy.metering.dialects.openai_media.transcriptions import OPENAI_TRANSCRIPTIONS
from proxy.metering.usage import Usage
from tests.metering.test_corpus_languages import CORPUS, cuts, metered

NOTHING_GENERATED = (OPENAI_EMBEDDINGS, OPENAI_MODERATIONS, OPENAI_RERANK)
# The names that the corpus has for each, and how many records there are.
NAMES: tuple[tuple[Dialect, tuple[str, ...], int], ...] = (
    (OPENAI_COMPLETIONS, ("openai.completions",), 41),
    (OPENAI_EMBEDDINGS, ("openai.embeddings", "mistral.embeddings"), 23),
    (OPENAI_MODERATIONS, ("openai.moderations",), 4),
    (OPENAI_RERANK, ("cohere.rerank", "other.rerank"), 12),
    (OPENAI_IMAGES, ("openai.images",), 4),
    (OPENAI_SPEECH, ("openai.audio",), 1),
    (OPENAI_TRANSCRIPTIONS, ("openai.audio",), 3),
)
# Its streams of completions are in a language of its own, which never says that it ends.
WRITER = "api.writer.com"

pytestmark = pytest.mark.skipif(not CORPUS.exists(), reason="the recorded corpus ../shared/corpus is not here")


@functools.cache
def recorded() -> list[dict[str, Any]]:
    """All records of these endpoints."""
    packed = gzip.decompress((CORPUS / "more_streams.jsonl.gz").read_bytes())
    lines = (CORPUS / "open.jsonl").read_bytes().split(b"\n") + packed.split(b"\n")
    names = {name for _, each, _ in NAMES for name in each}
    quoted = [f'"{name}"'.encode() for name in names]
    found = [json.loads(line) for line in lines if any(name in line for name in quoted)]
    return [record for record in found if record["dialect"] in names]


def records_of(dialect: Dialect, names: tuple[str, ...]) -> list[dict[str, Any]]:
    """The corpus has one name for both directions of audio."""
    found = [record for record in recorded() if record["dialect"] in names]
    return [one for one in found if names != ("openai.audio",) or one["path"].endswith(dialect.upstream_path)]


def expected(dialect: Dialect, record: dict[str, Any]) -> Usage | None:
    """What the truth, or the rule where the truth is in other units, says."""
    truth = record["truth"]
    if truth is None or truth.get("unusual"):
        return _in_units(dialect, record)
    details = truth["usage_raw"].get("input_token_details", {})
    prompt, completion = truth["prompt_tokens"], truth["completion_tokens"]
    if dialect in NOTHING_GENERATED:
        prompt = truth["total_tokens"] if prompt is None else prompt
        completion = completion or 0
    return Usage(
        prompt, truth["cached_tokens"], completion, truth["reasoning_tokens"], truth["total_tokens"],
        audio_prompt_tokens=details.get("audio_tokens"),
    )  # fmt: skip


def _in_units(dialect: Dialect, record: dict[str, Any]) -> Usage | None:
    truth, raw = record["truth"], (record["truth"] or {}).get("usage_raw", {})
    if dialect is OPENAI_IMAGES:
        return Usage(images=len(json.loads(record["body"])["data"]))
    if dialect is OPENAI_TRANSCRIPTIONS:
        return Usage(audio_ms=round(1000 * raw.get("seconds", json.loads(record["body"]).get("duration"))))
    return truth and Usage(searches=raw.get("billed_units", raw)["search_units"])


@pytest.mark.parametrize(("dialect", "names", "count"), NAMES, ids=[dialect.name for dialect, *_ in NAMES])
def test_usage_is_the_truth_at_every_cut(dialect: Dialect, names: tuple[str, ...], count: int) -> None:
    records = records_of(dialect, names)
    assert len(records) == count
    for record in records:
        results = [metered(dialect, record, pieces) for pieces in cuts(record["body"].encode(), record["id"])]
        assert all(result == results[0] for result in results), record["id"]
        told = results[0].usage
        without = {"cache_write_tokens": None, "audio_completion_tokens": None}  # of chats that were recorded here
        assert (told and structs.replace(told, **without)) == _chats(expected(dialect, record), told), record["id"]
        assert (results[0].complete or record["status"] != 200) != unfinished(record), record["id"]


def unfinished(record: dict[str, Any]) -> bool:
    """The exceptions: streams that never end."""
    return bool(record["streamed"]) and record["provider_host"] == WRITER


def _chats(usage: Usage | None, told: Usage | None) -> Usage | None:
    """`usage`; the truth does not say how much of a chat's prompt was audio."""
    if usage is None or told is None or usage.audio_prompt_tokens is not None:
        return usage
    return structs.replace(usage, audio_prompt_tokens=told.audio_prompt_tokens)
