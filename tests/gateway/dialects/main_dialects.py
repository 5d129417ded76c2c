"""Requests and answers in the dialects of Anthropic Messages and OpenAI Responses."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.gateway.deployment import SOON_S, Deployment
from tests.support.net import Response, chat_request, connect


def named(*events: dict[str, Any]) -> list[bytes]:
    """Events with the name that their type is."""
    return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events]


@dataclass(frozen=True)
class Language:
    """What one of them says. Prompt 30, completion 20; the first events hold some of the text, not the end."""

    path: str
    asked: dict[str, Any]
    events: list[bytes]
    begun: int
    """events before a client leaves"""
    answer: dict[str, Any]

    def request(self, model: str, **more: Any) -> dict[str, Any]:
        return self.asked | {"model": model} | more


_USED = {"input_tokens": 30, "output_tokens": 20}

_SEED = {"type": "message", "id": "msg_1", "content": [], "usage": {"input_tokens": 30, "output_tokens": 1}}

MESSAGES = Language(
    "/v1/messages",
    {"max_tokens": 99, "messages": [{"role": "user", "content": "How much water?"}]},
    named(
        {"type": "message_start", "message": _SEED},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": "Much more than before."},
        },
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 20}},
        {"type": "message_stop"},
    ),
    3,
    {"id": "msg_2", "type": "message", "content": [{"type": "text", "text": "Much."}], "usage": _USED},
)

_TOTAL = _USED | {"total_tokens": 50}

RESPONSES = Language(
    "/v1/responses",
    {"input": "How much water?"},
    named(
        {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress", "usage": None}},
        {"type": "response.output_text.delta", "output_index": 0, "delta": "Much more than before."},
        {"type": "response.completed", "response": {"id": "resp_1", "status": "completed", "usage": _TOTAL}},
    ),
    2,
    {"id": "resp_2", "status": "completed", "output": [], "usage": _TOTAL},
)


async def ask(
    deployment: Deployment, path: str, document: dict[str, Any], headers: dict[str, str] | None = None
) -> Response:
    """One request, its key where `headers` put it, else in Authorization."""
    given = headers or {}
    key = None if deployment.key in given.values() else deployment.key
    async with await connect(deployment.url) as client:
        await client.send(chat_request(document, path=path, key=key, headers=given))
        return await client.read(SOON_S)
