"""A provider that stores responses, as OpenAI does, in the process of the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.support.web_server import serving

USAGE = {
    "input_tokens": 11, "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 7, "output_tokens_details": {"reasoning_tokens": 3}, "total_tokens": 18,
}  # fmt: skip
SECRET = "sk-canary-of-the-provider"


@dataclass
class ResponsesProvider:
    """Its responses, and what it was asked."""

    url: str = ""
    stored: dict[str, dict[str, Any]] = field(default_factory=dict)
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    """method, path with query, Authorization"""
    failing: list[int] = field(default_factory=list)
    """statuses of the next requests for a response"""
    moved: asyncio.Condition = field(default_factory=asyncio.Condition)

    def polls(self, response_id: str) -> int:
        """How often the response was asked for."""
        return sum(method == "GET" and path.endswith(response_id) for method, path, _ in self.asked)

    async def finish(self, response_id: str, status: str = "completed", usage: Any = USAGE) -> None:
        """A response in the background has ended."""
        text = {"type": "output_text", "text": "Much.", "annotations": []}
        message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [text]}
        ended = {"status": status, "usage": usage, "output": [message]}
        if status == "failed":
            ended |= {"error": {"code": "server_error", "message": "It failed."}}
        if status == "incomplete":
            ended |= {"incomplete_details": {"reason": "max_output_tokens"}}
        async with self.moved:
            self.stored[response_id] |= ended
            self.moved.notify_all()

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        """One request."""
        path, _, _ = request.raw_path.partition("?")
        self.asked.append((request.method, request.raw_path, request.headers.get("Authorization", "")))
        parts = path.removeprefix("/v1/responses").strip("/").split("/")
        if request.method == "POST" and parts == [""]:
            return await self._make(request)
        if self.failing:
            return _json({"error": {"message": "It fails."}}, self.failing.pop(0))
        response = self.stored.get(parts[0])
        if response is None:
            return _json({"error": {"message": f"Response with id '{parts[0]}' not found.", "type": "x"}}, 404)
        if request.method == "DELETE":
            del self.stored[parts[0]]
            return _json({"id": parts[0], "object": "response", "deleted": True})
        if parts[1:] == ["cancel"]:
            await self.finish(parts[0], "cancelled", usage=None)
        if parts[1:] == ["input_items"]:
            part = {"type": "input_text", "text": "How much?"}
            item = {"type": "message", "id": "msg_0", "role": "user", "status": "completed", "content": [part]}
            return _json({"object": "list", "data": [item], "first_id": "msg_0", "last_id": "msg_0", "has_more": False})
        if request.query.get("stream") == "true":
            return await self._stream(request, response)
        return _json(response)

    async def _make(self, request: web.BaseRequest) -> web.StreamResponse:
        asked = json.loads(await request.read())
        response_id = f"resp_{len(self.stored):04d}"
        self.stored[response_id] = response = {
            "id": response_id, "object": "response", "created_at": 1, "model": asked["model"], "output": [],
            "background": asked.get("background", False), "status": "queued", "usage": None, "error": None,
            "incomplete_details": None, "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
        }  # fmt: skip
        if not asked.get("background"):
            await self.finish(response_id)
        return await self._stream(request, response) if asked.get("stream") else _json(response)

    async def _stream(self, request: web.BaseRequest, response: dict[str, Any]) -> web.StreamResponse:
        """Until the response has ended."""
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        await reply.write(_event("response.created", response, 0))
        async with self.moved:
            await self.moved.wait_for(lambda: response["status"] not in ("queued", "in_progress"))
        await reply.write(_event(f"response.{response['status']}", response, 1))
        return reply


def _event(kind: str, response: dict[str, Any], number: int) -> bytes:
    event = {"type": kind, "sequence_number": number, "response": response}
    return f"event: {kind}\ndata: {json.dumps(event)}\n\n".encode()


def _json(document: Any, status: int = 200) -> web.Response:
    return web.Response(body=json.dumps(document).encode(), status=status, content_type="application/json")


@asynccontextmanager
async def responses_provider() -> AsyncIterator[ResponsesProvider]:
    """One that listens."""
    made = ResponsesProvider()
    async with serving(made.serve) as url:
        made.url = f"{url}/v1"
        yield made
