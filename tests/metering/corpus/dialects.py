"""Recorded answers in dialects other than chat, and what is known to be wrong in them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from proxy.metering.dialect import Dialect
from proxy.metering.metered import Metered
from proxy.metering.usage import Usage

CORPUS = Path(__file__).parents[4] / "shared" / "corpus"

FIELDS = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "total_tokens")

SEVERAL = (b'"type":"message_start"', b'"type":"response.created"')


def spoken(record: dict[str, Any]) -> bool:
    """Cohere's first version of chat is another language, which is not spoken here."""
    return record["dialect"] != "cohere.chat" or record["path"].partition("?")[0] != "/v1/chat"


def cuts(body: bytes, seed: str) -> Iterator[list[bytes]]:
    yield [body]
    rng = Random(seed)
    at = sorted({0, len(body), *(rng.randrange(len(body) + 1) for _ in range(40))})
    yield [body[a:b] for a, b in pairwise(at)]
    yield body.splitlines(keepends=True)


def metered(dialect: Dialect, record: dict[str, Any], pieces: list[bytes]) -> Metered:
    content_type = record["response_headers"].get("content-type", "").partition(";")[0]
    framing = dialect.framing(content_type, streamed=record["streamed"])
    meter = dialect.plain_meter() if framing is None else dialect.stream_meter(framing)
    for piece in pieces:
        meter.feed(piece)
    return meter.close()


def in_tokens(usage: Usage | None) -> Usage | None:
    """What the truth speaks of."""
    return usage and Usage(**{name: getattr(usage, name) for name in FIELDS})


def exception(record: dict[str, Any]) -> str | None:
    """Why the truth of a record is not what it used."""
    body = record["body"].encode()
    if any(body.count(one) > 1 for one in SEVERAL):
        return "several"
    raw = (record["truth"] or {}).get("usage_raw", {})
    if record["dialect"] == "cohere.chat" and "reasoning_tokens" in raw.get("tokens", {}):
        return "reasoning"
    steps = raw.get("iterations", ())
    return "compaction" if any(step["type"] == "compaction" for step in steps) else None
