"""Recorded answers in dialects other than chat, and what is known to be wrong in them."""

from __future__ import annotations

from typing import Any

from proxy.metering.dialect import Dialect
from proxy.metering.metered import Metered
from proxy.metering.usage import Usage
from tests.metering.corpus.corpus import FIELDS
from tests.metering.fixtures import fed

SEVERAL = (b'"type":"message_start"', b'"type":"response.created"')


def spoken(record: dict[str, Any]) -> bool:
    """Cohere's first version of chat is another language, which is not spoken here."""
    return record["dialect"] != "cohere.chat" or record["path"].partition("?")[0] != "/v1/chat"


def metered(dialect: Dialect, record: dict[str, Any], pieces: list[bytes]) -> Metered:
    headers = record["response_headers"]
    framing = dialect.framing((headers.get("content-type") or "").partition(";")[0], streamed=record["streamed"])
    return fed(dialect.plain_meter(headers) if framing is None else dialect.stream_meter(framing), pieces)


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


UNFINISHED = "lmnr-ai/lmnr-ts/packages/lmnr/test/recordings/google-genai-creates-a-streaming-genai-span.json#0"


def exception_of_gemini(record: dict[str, Any]) -> str | None:
    """Why the truth of a record of Gemini is not what it used."""
    if record["id"] == UNFINISHED:
        return "unfinished"
    return "tools" if (record["truth"] or {}).get("tool_use_prompt_tokens") else None
