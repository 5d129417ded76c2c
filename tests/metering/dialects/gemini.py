"""Gemini's events, as its tests send them."""

from __future__ import annotations

import json
from typing import Any


def counts(prompt: Any = 9, candidates: Any = None, thoughts: Any = None, **more: Any) -> dict[str, Any]:
    """A usageMetadata whose total is right."""
    named = {"promptTokenCount": prompt, "candidatesTokenCount": candidates, "thoughtsTokenCount": thoughts}
    given_ones = {name: value for name, value in named.items() if value is not None}
    total = sum(value for value in (*given_ones.values(), more.get("toolUsePromptTokenCount", 0)))
    return given_ones | {"totalTokenCount": total} | more


def said(*parts: dict[str, Any], used: Any = None, finish: Any = None, index: int = 0) -> dict[str, Any]:
    """An event with one candidate."""
    candidate: dict[str, Any] = {"content": {"parts": list(parts), "role": "model"}, "index": index}
    if finish is not None:
        candidate["finishReason"] = finish
    event = {"candidates": [candidate], "responseId": "resp-1", "modelVersion": "m"}
    return event if used is None else event | {"usageMetadata": used}


def text(*words: str, **more: Any) -> dict[str, Any]:
    return said(*({"text": word} for word in words), **more)


STORY = [
    said({"text": "Weighing it.", "thought": True}, used=counts(9, None, 40)),
    text("The water", used=counts(9, 2, 40)),
    text(" rises.", used=counts(9, 5, 40), finish="STOP"),
]


def sse(*events: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\r\n\r\n" for event in events)


ERROR = {"error": {"code": 503, "message": "the model is overloaded", "status": "UNAVAILABLE"}}

ASKED = {"contents": [{"role": "user", "parts": [{"text": "How much?"}]}]}
