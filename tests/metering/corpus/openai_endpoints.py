"""Recorded answers of OpenAI's further endpoints, and the usage that each must be read as."""

from __future__ import annotations

import json
from typing import Any

from proxy.metering.dialect import Dialect
from proxy.metering.dialects.openai.completions import OPENAI_COMPLETIONS
from proxy.metering.dialects.openai.plain import OPENAI_EMBEDDINGS, OPENAI_MODERATIONS, OPENAI_RERANK
from proxy.metering.dialects.openai_media.images import OPENAI_IMAGES
from proxy.metering.dialects.openai_media.speech import OPENAI_SPEECH
from proxy.metering.dialects.openai_media.transcriptions import OPENAI_TRANSCRIPTIONS
from proxy.metering.usage import Usage
from tests.metering.corpus.corpus import records_named

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


def records_of(dialect: Dialect, names: tuple[str, ...]) -> list[dict[str, Any]]:
    """The corpus has one name for both directions of audio."""
    found = records_named(*names)
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


def unfinished(record: dict[str, Any]) -> bool:
    """The exceptions: streams that never end."""
    return bool(record["streamed"]) and record["provider_host"] == WRITER
