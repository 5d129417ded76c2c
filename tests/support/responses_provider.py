"""A provider with stored and background responses, like OpenAI's, in the process of the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.support.web_server import as_json, serving

USAGE = {
    "input_tokens": 11, "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 7, "output_tokens_details": {"reasoning_tokens": 3}, "total_tokens": 18,
}  # fmt: skip
SECRET = "sk-canary-of-the-provider"
RUNNING = ("queued", "in_progress")


@dataclass
class ResponsesProvider:
    """Responses of the provider, and received requests."""

    url: str = ""
    stored: dict[str, dict[str, Any]] = field(default_factory=dict)
    told: dict[str, list[bytes]] = field(default_factory=dict)
    """the events of each response"""
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    """method, path with query, Authorization"""
    failing: list[int] = field(default_factory=list)
    """statuses of the next requests for a response"""
    instead: bytes | None = None
    """the answer to the next request that makes one"""
    ignores: bool = False
    """ignore `background`: generate each response at once"""
    waits: bool = False
    """until it is told to finish"""
    streams_stay: bool = False
    """open, when their answer has ended, without an event"""
    usage_of_cancelled: Any = None
    moved: asyncio.Condition = field(default_factory=asyncio.Condition)
    streams: list[web.BaseRequest] = field(default_factory=list)

    @property
    def readers(self) -> int:
        """Of streams."""
        return sum(request.transport is not None for request in self.streams)

    def polls(self, response_id: str) -> int:
        return sum(method == "GET" and path.endswith(response_id) for method, path, _ in self.asked)

    async def say(self, response_id: str, text: str) -> None:
        delta = {"type": "response.output_text.delta", "item_id": "msg_1", "output_index": 0, "content_index": 0}
        self.stored[response_id]["status"] = "in_progress"
        await self._tell(response_id, {**delta, "delta": text, "logprobs": []})

    async def finish(self, response_id: str, status: str = "completed", usage: Any = USAGE) -> None:
        """A response in the background has ended."""
        text = {"type": "output_text", "text": "Much.", "annotations": []}
        message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [text]}
        ended = {"status": status, "usage": usage, "output": [] if status == "cancelled" else [message]}
        if status == "failed":
            ended |= {"error": {"code": "server_error", "message": "It failed."}}
        if status == "incomplete":
            ended |= {"incomplete_details": {"reason": "max_output_tokens"}}
        self.stored[response_id] |= ended
        if not self.streams_stay:
            await self._tell(response_id, {"type": f"response.{status}", "response": self.stored[response_id]})

    async def _tell(self, response_id: str, event: dict[str, Any]) -> None:
        told = self.told[response_id]
        data = json.dumps({**event, "sequence_number": len(told)})
        async with self.moved:
            told.append(f"event: {event['type']}\ndata: {data}\n\n".encode())
            self.moved.notify_all()

    async def lose(self, response_id: str) -> None:
        """It is deleted, or has expired."""
        async with self.moved:
            del self.stored[response_id]
            self.moved.notify_all()

    def runs(self, response_id: str) -> bool:
        """It is neither ended nor deleted."""
        response = self.stored.get(response_id)
        return response is not None and response["status"] in RUNNING

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        path, _, _ = request.raw_path.partition("?")
        self.asked.append((request.method, request.raw_path, request.headers.get("Authorization", "")))
        parts = path.removeprefix("/v1/responses").strip("/").split("/")
        if request.method == "POST" and parts == [""]:
            return await self._make(request)
        if self.failing:
            return as_json({"error": {"message": "It fails."}}, self.failing.pop(0))
        response = self.stored.get(parts[0])
        if response is None:
            return as_json({"error": {"message": f"Response with id '{parts[0]}' not found.", "type": "x"}}, 404)
        if request.method == "DELETE":
            await self.lose(parts[0])
            return as_json({"id": parts[0], "object": "response", "deleted": True})
        if parts[1:] == ["cancel"] and self.runs(parts[0]):
            await self.finish(parts[0], "cancelled", usage=self.usage_of_cancelled)
        if parts[1:] == ["input_items"]:
            part = {"type": "input_text", "text": "How much?"}
            item = {"type": "message", "id": "msg_0", "role": "user", "status": "completed", "content": [part]}
            return as_json(
                {"object": "list", "data": [item], "first_id": "msg_0", "last_id": "msg_0", "has_more": False}
            )
        if request.query.get("stream") == "true":
            return await self._stream(request, parts[0], int(request.query.get("starting_after", "-1")) + 1)
        return as_json(response)

    async def _make(self, request: web.BaseRequest) -> web.StreamResponse:
        asked = json.loads(await request.read())
        if self.instead is not None:
            return web.Response(body=self.instead, content_type="application/json")
        response_id = f"resp_{len(self.told):04d}"
        background = bool(asked.get("background")) and not self.ignores
        self.stored[response_id] = response = {
            "id": response_id, "object": "response", "created_at": 1, "model": asked["model"], "output": [],
            "background": background, "status": "queued" if background else "in_progress", "usage": None, "error": None,
            "incomplete_details": None, "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
        }  # fmt: skip
        self.told[response_id] = []
        await self._tell(response_id, {"type": "response.created", "response": dict(response)})
        if not background and not self.waits:
            await self.finish(response_id)
        return await self._stream(request, response_id, 0) if asked.get("stream") else as_json(response)

    async def _stream(self, request: web.BaseRequest, response_id: str, at: int) -> web.StreamResponse:
        """Until the response has ended."""
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        told = self.told[response_id]
        self.streams.append(request)
        with suppress(ConnectionError):
            while at < len(told) or self.runs(response_id) or self.streams_stay:
                for event in told[at:]:
                    await reply.write(event)
                at = max(at, len(told))  # it may begin beyond what was told
                async with self.moved:
                    while len(told) <= at and (self.runs(response_id) or self.streams_stay):
                        await self.moved.wait()
        self.streams.remove(request)
        return reply


@asynccontextmanager
async def responses_provider() -> AsyncIterator[ResponsesProvider]:
    made = ResponsesProvider()
    async with serving(made.serve) as url:
        made.url = f"{url}/v1"
        yield made
