"""Requests and answers in every wire language beside chat."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from proxy.demo.script import Script, Send
from tests.gateway.deployment import SOON_S, Deployment
from tests.metering import fixtures
from tests.metering.dialects import gemini
from tests.support.net import Response, chat_request, connect

ASKED = {"messages": [{"role": "user", "content": "How much water goes over the weir?"}]}
OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "later"}}
ANSWERED = {
    "id": "chatcmpl-8",
    "choices": [{"index": 0, "message": {"content": "Much."}, "finish_reason": "stop"}],
    "usage": fixtures.usage(30, 20, 50),
}
BILLED = {"billed_units": {"input_tokens": 5}, "tokens": {"input_tokens": 30, "output_tokens": 20}}
SPOKEN = {"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": "Much more than before."}}}}
ENDED = {"type": "message-end", "delta": {"finish_reason": "COMPLETE", "usage": BILLED}}


def named(*events: dict[str, Any]) -> list[bytes]:
    """Events with the name that their type is."""
    return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events]


@dataclass(frozen=True)
class Language:
    """What one of them says. Prompt 30, completion 20; the first events hold some of the text, not the end."""

    name: str
    path: str
    """with the model, where it is named there"""
    upstream: str
    asked: dict[str, Any]
    events: list[bytes]
    answer: dict[str, Any]
    begun: int = 1
    """events before a client leaves"""
    key: str = "authorization"
    content_type: str = "text/event-stream"
    error: Any = field(default_factory=lambda: {"error": {"code": "429", "message": "later"}})
    refused: tuple[str, ...] = ("error", "message")
    """where the words of a refusal stand"""
    names: str = "model"
    """the field that names the model"""
    plain: str = ""
    """the path of an answer that is no stream, where the path alone says whether it is one"""
    end: bytes = b""
    """what follows the last event"""
    running: int | None = None
    """completion tokens that the provider has counted when a client leaves"""
    wrong: tuple[dict[str, Any], str] = field(default_factory=lambda: ({"stream": "yes"}, "must be a boolean"))
    """a field with a wrong value, and what its refusal says"""

    @property
    def whole(self) -> list[bytes]:
        """A stream to its last byte."""
        return [*self.events, self.end] if self.end else self.events

    def at(self, model: str, *, streamed: bool = True) -> str:
        return (self.path if streamed else self.plain or self.path).replace("{model}", model)

    def request(self, model: str, **more: Any) -> dict[str, Any]:
        """In a path, the whole name; in the body, what the scripted provider finds its script by."""
        if self.plain:
            return self.asked
        named = model.partition("/")[2] if "{model}" in self.path else model
        return self.asked | {self.names: named} | more

    def streamed(self, events: list[bytes], *more: Any) -> Script:
        return Script(steps=(*map(Send, events), *more), headers=(("Content-Type", self.content_type),))


_USED = {"input_tokens": 30, "output_tokens": 20}

_SEED = {"type": "message", "id": "msg_1", "content": [], "usage": {"input_tokens": 30, "output_tokens": 1}}

MESSAGES = Language(
    "messages",
    "/v1/messages",
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
    {"id": "msg_2", "type": "message", "content": [{"type": "text", "text": "Much."}], "usage": _USED},
    begun=3,
    key="x-api-key",
    error=OVERLOADED,
)

_TOTAL = _USED | {"total_tokens": 50}

RESPONSES = Language(
    "responses",
    "/v1/responses",
    "/v1/responses",
    {"input": "How much water?"},
    named(
        {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress", "usage": None}},
        {"type": "response.output_text.delta", "output_index": 0, "delta": "Much more than before."},
        {"type": "response.completed", "response": {"id": "resp_1", "status": "completed", "usage": _TOTAL}},
    ),
    {"id": "resp_2", "status": "completed", "output": [], "usage": _TOTAL},
    begun=2,
    error=OVERLOADED,
)


def chat(name: str, path: str, upstream: str, **more: Any) -> Language:
    """One whose answers are chat/completions'."""
    said = fixtures.sse(*fixtures.say("Much more than before."))
    last = fixtures.sse(fixtures.chunk(finish="stop", usage=fixtures.usage(30, 20, 50)))
    return Language(
        name, path, upstream, more.pop("asked", ASKED), [said, last, fixtures.sse(fixtures.DONE)], ANSWERED, **more
    )


def ollama(endpoint: str, asked: dict[str, Any], **said: Any) -> Language:
    ended = {"done": True, "done_reason": "stop", "prompt_eval_count": 30, "eval_count": 20}
    return Language(
        f"ollama.{endpoint}", f"/api/{endpoint}", f"/v1/{endpoint}", asked,
        [json.dumps(line).encode() + b"\n" for line in (said | {"done": False}, ended)], said | ended,
        content_type="application/x-ndjson", error={"error": "later"}, refused=("error",),
    )  # fmt: skip


STORY = [
    gemini.said({"text": "Weighing it.", "thought": True}, used=gemini.counts(30, None, 12)),
    gemini.text("The water", used=gemini.counts(30, 2, 12)),
    gemini.text(" rises.", used=gemini.counts(30, 8, 12), finish="STOP"),
]


def google(name: str, query: str, events: list[bytes], error: Any, **more: Any) -> Language:
    """Gemini's stream in one of its two framings."""
    method = f":streamGenerateContent{query}"
    return Language(
        name, "/v1beta/models/{model}" + method, "/v1/models/{model}" + method, gemini.ASKED, events,
        gemini.text("Much.", used=STORY[-1]["usageMetadata"], finish="STOP"), begun=2, key="x-goog-api-key",
        error=error, plain="/v1beta/models/{model}:generateContent", running=14,
        wrong=({"generationConfig": {"maxOutputTokens": "5"}}, "must be an integer"), **more,
    )  # fmt: skip


_DOCUMENTS = [json.dumps(event, indent=2).encode() for event in STORY]
GEMINI = [
    google("gemini", "?alt=sse", [gemini.sse(event) for event in STORY], gemini.ERROR),
    google(
        "gemini, an array", "", [b"[" + _DOCUMENTS[0], *(b",\r\n" + one for one in _DOCUMENTS[1:])], [gemini.ERROR],
        content_type="application/json; charset=UTF-8", end=b"\n]",
    ),
]  # fmt: skip

LANGUAGES = [
    *GEMINI,
    MESSAGES,
    RESPONSES,
    chat(
        "azure.chat", "/openai/deployments/{model}/chat/completions?api-version=2024-10-21&x=1",
        "/v1/deployments/{model}/chat/completions?api-version=2024-10-21", key="api-key",
    ),
    chat("azure.chat_v1", "/openai/v1/chat/completions", "/v1/v1/chat/completions", key="api-key"),
    chat(
        "mistral.fim", "/v1/fim/completions", "/v1/fim/completions", refused=("message",),
        asked={"prompt": "the water is ", "suffix": "."}, error={"object": "error", "message": "later"},
    ),
    chat(
        "mistral.agents", "/v1/agents/completions", "/v1/agents/completions", refused=("message",), names="agent_id",
        error={"object": "error", "message": "later"},
    ),
    Language(
        "cohere.chat", "/v2/chat", "/v1/chat", ASKED,
        [b"event: content-delta\ndata: %b\n\n" % json.dumps(SPOKEN).encode(),
         b"event: message-end\ndata: %b\n\n" % json.dumps(ENDED).encode()],
        {"id": "r-1", "message": {"content": [{"type": "text", "text": "Much."}]}, "finish_reason": "COMPLETE",
         "usage": BILLED},
        error={"message": "later"}, refused=("message",),
    ),
    ollama("chat", ASKED, message={"content": "Much more than before."}),
    ollama("generate", {"prompt": "the water is "}, response="Much more than before."),
]  # fmt: skip


async def ask(
    deployment: Deployment, path: str, document: dict[str, Any], headers: dict[str, str] | None = None
) -> Response:
    """One request, its key where `headers` put it, else in Authorization."""
    given = headers or {}
    key = None if deployment.key in given.values() else deployment.key
    async with await connect(deployment.url) as client:
        await client.send(chat_request(document, path=path, key=key, headers=given))
        return await client.read(SOON_S)
