"""Recorded answers of OpenAI's other endpoints, and of those who copy them: usage equal to the truth told beside them.

By rule, not by the record: what generates nothing has 0 completion tokens, and `total_tokens` alone is the prompt; what
is counted in other units (search units, seconds, images) has the truth in its raw object.
"""

from __future__ import annotations

import functools
import gzip
import json
from typing import Any

import pytest

from proxy.metering.dialect import Dialect
from proxy.metering.dialects.openai_completions import OPENAI_COMPLETIONS
from proxy.metering.dialects.openai_embeddings import OPENAI_EMBEDDINGS
from proxy.metering.dialects.openai_moderations import OPENAI_MODERATIONS
from proxy.metering.dialects.openai_rerank import OPENAI_RERANK
from proxy.metering.usage import Usage
from tests.metering.test_corpus_languages import CORPUS, cuts, metered

NOTHING_GENERATED = (OPENAI_EMBEDDINGS, OPENAI_MODERATIONS, OPENAI_RERANK)
# The names that the corpus has for each, and how many records there are.
NAMES: tuple[tuple[Dialect, tuple[str, ...], int], ...] = (
    (OPENAI_COMPLETIONS, ("openai.completions",), 41),
    (OPENAI_EMBEDDINGS, ("openai.embeddings",), 16),
    (OPENAI_MODERATIONS, ("openai.moderations",), 4),
    (OPENAI_RERANK, ("cohere.rerank", "other.rerank"), 12),
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


def expected(dialect: Dialect, record: dict[str, Any]) -> Usage | None:
    """What the truth, or the rule where the truth is in other units, says."""
    truth = record["truth"]
    if truth is None:
        return None
    raw = truth["usage_raw"]
    if truth.get("unusual"):
        return _other_units(raw)
    prompt, completion = truth["prompt_tokens"], truth["completion_tokens"]
    if dialect in NOTHING_GENERATED:
        prompt = truth["total_tokens"] if prompt is None else prompt
        completion = completion or 0
    return Usage(prompt, truth["cached_tokens"], completion, truth["reasoning_tokens"], truth["total_tokens"])


def _other_units(raw: dict[str, Any]) -> Usage | None:
    return Usage(searches=raw.get("billed_units", raw)["search_units"])


@pytest.mark.parametrize(("dialect", "names", "count"), NAMES, ids=[dialect.name for dialect, *_ in NAMES])
def test_usage_is_the_truth_at_every_cut(dialect: Dialect, names: tuple[str, ...], count: int) -> None:
    records = [record for record in recorded() if record["dialect"] in names]
    assert len(records) == count
    for record in records:
        results = [metered(dialect, record, pieces) for pieces in cuts(record["body"].encode(), record["id"])]
        assert all(result == results[0] for result in results), record["id"]
        told = results[0].usage
        counts = told and Usage(*[getattr(told, name) for name in Usage.__struct_fields__[:5]], searches=told.searches)
        assert counts == expected(dialect, record), record["id"]
        whole = results[0].complete or record["status"] != 200
        assert whole != (record["provider_host"] == WRITER and record["streamed"]), record["id"]
