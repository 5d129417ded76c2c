"""Recorded answers of OpenAI's further endpoints, asked for and checked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import structs

from proxy.http.multipart import serialise
from proxy.metering.dialect import NAME, Dialect
from proxy.metering.dialects.openai_media.transcriptions import OPENAI_TRANSCRIPTIONS
from proxy.metering.request import Upload
from proxy.metering.usage import Usage
from tests.gateway.deployment import Deployment
from tests.gateway.dialects.replay import Replay, replays
from tests.metering.corpus.further import FURTHER, further_records, further_usage
from tests.metering.corpus.openai_endpoints import NAMES, expected, records_of, unfinished
from tests.support.net import Response, chat_request

# A request of each, for the model that replays the record.
ASKED: dict[str, dict[str, Any]] = {
    "openai.completions": {"prompt": "Go on."},
    "openai.embeddings": {"input": "Go on."},
    "openai.moderations": {"input": "Go on."},
    "openai.rerank": {"query": "weir", "documents": ["Go on."]},
    "openai.images": {"prompt": "a weir"},
    "openai.speech": {"input": "Go on."},
    "gemini.interactions": {"input": "Go on."},
    "gemini.embed": {"content": {"parts": [{"text": "Go on."}]}},
    "gemini.batch_embed": {"requests": [{"content": {"parts": [{"text": "Go on."}]}}]},
    "gemini.count_tokens": {"contents": [{"parts": [{"text": "Go on."}]}]},
    "cohere.embed": {"texts": ["Go on."]},
    "ollama.embed": {"input": "Go on."},
    "openai.input_tokens": {"input": "Go on."},
    "bedrock.converse": {"messages": [{"role": "user", "content": [{"text": "Go on."}]}]},
    "bedrock.invoke": {"prompt": "Go on."},
    "vertex.predict": {"instances": [{"content": "Go on."}]},
}
_FURTHER = frozenset(dialect for dialect, *_ in FURTHER)


def request(deployment: Deployment, dialect: Dialect, model: str, *, streamed: bool) -> bytes:
    """What a client sends."""
    path = re.sub(r"\{\w+\}", "any", dialect.endpoint.replace(NAME, model))
    if dialect is OPENAI_TRANSCRIPTIONS:
        form = {"model": model, "stream": str(streamed).lower(), "file": Upload("a.mp3", "", b"\xff")}
        kind, pieces = serialise(form)
        return chat_request(b"".join(pieces), path=path, key=deployment.key, headers={"Content-Type": kind})
    usage = {"stream": True, "stream_options": {"include_usage": True}} if streamed else {}
    return chat_request({"model": model} | ASKED[dialect.name] | usage, path=path, key=deployment.key)


def usage_expected(dialect: Dialect, record: dict[str, Any]) -> Usage | None:
    """What the record's truth says; None: nothing."""
    return further_usage(dialect, record) if dialect in _FURTHER else expected(dialect, record)


def check(dialect: Dialect, replay: Replay, response: Response, entry: dict[str, Any]) -> None:
    """The bytes, and the entry."""
    record = replay.record
    where = (record["id"], replay.how, entry)
    assert response.ended == "complete", where
    if record["status"] == 401:
        assert (response.status, b"the proxy's credentials" in response.body) == (502, True), where
        return
    assert (response.status, response.body) == (record["status"], replay.body), where
    if record["status"] >= 400:
        assert (entry["usage_source"], entry["charge_usd"]) == ("none", "0"), where
        return
    broken = unfinished(record)
    assert entry["outcome"] == ("upstream_failed" if broken else "served"), where
    usage = usage_expected(dialect, record)
    assert entry["usage_source"] == (("none" if broken else "estimated") if usage is None else "reported"), where
    counted = entry | entry["details"].get("units", {})
    for name, count in (structs.asdict(usage) if usage else {}).items():
        assert count is None or counted.get(name, 0) == count, where  # units that are 0 are left out


def open_records(corpus: Path) -> Iterator[tuple[Dialect, list[dict[str, Any]]]]:
    """The records of the open set, by the dialect they are asked in."""
    opened = {json.loads(line)["id"] for line in (corpus / "open.jsonl").read_bytes().split(b"\n") if line}
    for dialect, names, _ in NAMES:
        yield dialect, [one for one in records_of(dialect, names) if one["id"] in opened]
    for dialect, name, path in FURTHER:
        yield dialect, [one for one in further_records(name, path) if one["id"] in opened]


def chosen(corpus: Path) -> Iterator[tuple[Dialect, Replay]]:
    """Every other record of the open set and dialect, at one of its chunkings."""
    for dialect, records in open_records(corpus):
        for turn, record in enumerate(records[::2]):
            ways = list(replays([record]))
            yield dialect, ways[turn % len(ways)]
