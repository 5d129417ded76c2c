"""Streams of Bedrock, as the service writes them."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import quote

from proxy.metering.wire.event_stream import message

Json = dict[str, Any]

STREAM = (("Content-Type", "application/vnd.amazon.eventstream"),)
ASKED: Json = {"messages": [{"role": "user", "content": [{"text": "How high is the water?"}]}]}


def at(model: str, operation: str = "converse-stream") -> str:
    """The path of an operation."""
    return f"/model/{quote(model, safe='')}/{operation}"


def compact(document: Json) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def event(kind: str, document: Json) -> bytes:
    """One event of Converse, padded as the service pads it."""
    headers = {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}
    return message(headers, compact({**document, "p": "abcdefghijk"}))


def chunk(document: Json) -> bytes:
    """One event of a model, as InvokeModelWithResponseStream wraps it."""
    return event("chunk", {"bytes": base64.b64encode(compact(document)).decode()})


def failure(kind: str, text: str = "the sluice is shut") -> bytes:
    headers = {":exception-type": kind, ":content-type": "application/json", ":message-type": "exception"}
    return message(headers, compact({"message": text}))


def delta(text: str, index: int = 0) -> bytes:
    return event("contentBlockDelta", {"delta": {"text": text}, "contentBlockIndex": index})


USAGE = {"inputTokens": 11, "outputTokens": 17, "totalTokens": 28, "serverToolUsage": {}}
TEXTS = ("The ", "water ", "rises.")


def converse(*texts: str, usage: Json | None = None, reason: str = "end_turn", **more: Any) -> list[bytes]:
    """A stream of one block of text."""
    return [
        event("messageStart", {"role": "assistant"}),
        *(delta(text) for text in texts or TEXTS),
        event("contentBlockStop", {"contentBlockIndex": 0}),
        event("messageStop", {"stopReason": reason}),
        event("metadata", {"usage": usage or USAGE, "metrics": {"latencyMs": 642}, **more}),
    ]


METRICS = {"inputTokenCount": 11, "outputTokenCount": 17, "invocationLatency": 900, "firstByteLatency": 300}


def anthropic(*texts: str) -> list[Json]:
    """The events of one of Anthropic's messages."""
    used = {"input_tokens": 11, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0, "output_tokens": 1}
    begun = {
        "id": "msg_bdrk_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-20250514", "content": [],
        "stop_reason": None, "stop_sequence": None, "usage": used,
    }  # fmt: skip
    return [
        {"type": "message_start", "message": begun},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
            for text in texts or TEXTS
        ),
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": 17},
        },
        {"type": "message_stop", "amazon-bedrock-invocationMetrics": METRICS},
    ]
