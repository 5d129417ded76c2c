"""A provider with files and batches, OpenAI's and Anthropic's, in the process of the test.

Nothing ends by itself: a test says when a batch has ended, and how its lines were answered.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeAlias

from aiohttp import web

from tests.support.web_server import as_json, serving

SECRET = "sk-canary-of-the-batch-provider"
NOW = 1_790_000_000
USAGE = {
    "prompt_tokens": 11, "prompt_tokens_details": {"cached_tokens": 3}, "completion_tokens": 7, "total_tokens": 18,
}  # fmt: skip
ANTHROPIC_USAGE = {
    "input_tokens": 11, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0, "output_tokens": 7,
    "service_tier": "batch",
}  # fmt: skip
Document: TypeAlias = dict[str, Any]
Before: TypeAlias = Callable[[str, str], Awaitable[web.StreamResponse | None]]
"""method and path → an answer instead of the right one, which may come late"""


def chat_answer(model: str, text: str = "Much.") -> Document:
    """The body of an answer to an OpenAI line."""
    message = {"role": "assistant", "content": text, "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    return {
        "id": "chatcmpl-1", "object": "chat.completion", "created": NOW, "model": model, "choices": [choice],
        "usage": USAGE, "service_tier": "default", "system_fingerprint": None,
    }  # fmt: skip


def message_answer(model: str, text: str = "Much.") -> Document:
    """The body of an answer to an Anthropic line."""
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": model, "stop_reason": "end_turn",
        "stop_sequence": None, "content": [{"type": "text", "text": text}], "usage": ANTHROPIC_USAGE,
    }  # fmt: skip


def _rfc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")


@dataclass
class BatchProvider:
    """Files, batches and received requests of the provider. `openai_url`, `anthropic_url`: base URLs."""

    openai_url: str = ""
    anthropic_url: str = ""
    files: dict[str, Document] = field(default_factory=dict)
    contents: dict[str, bytes] = field(default_factory=dict)
    batches: dict[str, Document] = field(default_factory=dict)
    """of both families"""
    requests: dict[str, list[Document]] = field(default_factory=dict)
    """batch → its lines"""
    results: dict[str, bytes] = field(default_factory=dict)
    """of Anthropic's batches"""
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    """method, path with query, key"""
    before: Before | None = None
    clock: Callable[[], float] = lambda: float(NOW)
    numbers: int = 0

    def when_one_is_made(
        self, do: Callable[[], object] = lambda: None, *, answer: web.StreamResponse | None = None
    ) -> asyncio.Event:
        """In place of making a batch: `do`, then `answer` (None: silence). The event: it was reached."""
        reached = asyncio.Event()

        async def before(method: str, path: str) -> web.StreamResponse | None:
            if method != "POST" or not path.endswith("/batches"):
                return None
            do()
            reached.set()
            if answer is None:
                await asyncio.Event().wait()
            return answer

        self.before = before
        return reached

    def count(self, method: str, end: str) -> int:
        """How often it was asked for a path that ends so."""
        return sum(one == method and path.partition("?")[0].endswith(end) for one, path, _ in self.asked)

    def new_id(self, kind: str) -> str:
        self.numbers += 1
        return f"{kind}{self.numbers:04d}"

    def end(
        self,
        batch_id: str,
        status: str = "completed",
        *,
        answered: Callable[[Document], Document | None] = lambda line: _right(line),
    ) -> None:
        """The batch has ended. `answered`: a line → the body of its answer; None: it failed."""
        pairs = [(line, answered(line)) for line in self.requests[batch_id]]
        (self._end_anthropic if batch_id.startswith("msgbatch_") else self._end_openai)(batch_id, status, pairs)

    def _end_openai(self, batch_id: str, status: str, pairs: list[tuple[Document, Document | None]]) -> None:
        good, bad = [], []
        for line, body in pairs:
            told = {"id": self.new_id("batch_req_"), "custom_id": line["custom_id"]}
            if body is None:
                error = {"code": "batch_expired", "message": "This request could not be executed in time."}
                bad.append(told | {"response": None, "error": error})
            else:
                good.append(told | {"response": {"status_code": 200, "request_id": "r", "body": body}, "error": None})
        batch = self.batches[batch_id]
        batch |= {"status": status, f"{status}_at": int(self.clock()) + 60}
        batch["request_counts"] = {"total": len(pairs), "completed": len(good), "failed": len(bad)}
        for name, lines in (("output_file_id", good), ("error_file_id", bad)):
            if lines:
                text = "".join(json.dumps(line) + "\n" for line in lines)
                batch[name] = self.keep(text.encode(), "batch_output")["id"]

    def _end_anthropic(self, batch_id: str, status: str, pairs: list[tuple[Document, Document | None]]) -> None:
        lines = []
        for line, message in pairs:
            result: Document = {"type": "succeeded", "message": message} if message else {"type": "expired"}
            lines.append({"custom_id": line["custom_id"], "result": result})
        good = sum(message is not None for _, message in pairs)
        counts = {"processing": 0, "succeeded": good, "errored": 0, "canceled": 0, "expired": len(pairs) - good}
        self.batches[batch_id] |= {
            "processing_status": "ended", "ended_at": _rfc(self.clock() + 60), "request_counts": counts,
            "results_url": f"https://api.anthropic.invalid/v1/messages/batches/{batch_id}/results",
        }  # fmt: skip
        self.results[batch_id] = "".join(json.dumps(line) + "\n" for line in lines).encode()

    def keep(self, content: bytes, purpose: str, filename: str = "f.jsonl") -> Document:
        file_id = self.new_id("file-")
        self.contents[file_id] = content
        self.files[file_id] = {
            "id": file_id, "object": "file", "bytes": len(content), "created_at": int(self.clock()),
            "filename": filename, "purpose": purpose, "status": "processed", "expires_at": None,
        }  # fmt: skip
        return self.files[file_id]

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.raw_path.partition("?")[0]
        key = request.headers.get("Authorization", request.headers.get("x-api-key", ""))
        self.asked.append((request.method, request.raw_path, key))
        if self.before is not None and (instead := await self.before(request.method, path)) is not None:
            return instead
        if path.startswith("/anthropic/v1/messages/batches"):
            parts = path.removeprefix("/anthropic/v1/messages/batches").strip("/").split("/")
            return await self._anthropic(request, [part for part in parts if part])
        _, family, _, kind, *parts = path.split("/")
        if kind == "files":
            return await self._files(request, family, parts)
        if kind == "batches":
            return await self._openai(request, parts)
        return as_json(_right({"body": {"model": "m"}} if family == "openai" else {"params": {"model": "m"}}))

    async def _files(self, request: web.BaseRequest, family: str, parts: list[str]) -> web.StreamResponse:
        if request.method == "POST":
            form = await web.Request.post(request)
            sent: Any = form["file"]
            kept = self.keep(sent.file.read(), str(form.get("purpose", "")), sent.filename)
            if family == "anthropic":
                kept |= {
                    "type": "file", "mime_type": "text/plain", "size_bytes": kept["bytes"],
                    "created_at": _rfc(self.clock()),
                }  # fmt: skip
            return as_json(kept)
        if not parts:
            return as_json({"data": list(self.files.values()), "has_more": False})
        if parts[0] not in self.files:
            return as_json({"error": {"message": "No such File object", "type": "invalid_request_error"}}, 404)
        if request.method == "DELETE":
            del self.files[parts[0]]
            return as_json({"id": parts[0], "object": "file", "deleted": True, "type": "file_deleted"})
        if parts[1:] == ["content"]:
            return web.Response(body=self.contents[parts[0]], content_type="application/octet-stream")
        return as_json(self.files[parts[0]])

    async def _openai(self, request: web.BaseRequest, parts: list[str]) -> web.StreamResponse:
        if request.method == "POST" and not parts:
            asked = json.loads(await request.read())
            return as_json(self.make_openai(asked))
        if not parts:
            return as_json(self._listed("batch_"))
        batch = self.batches.get(parts[0])
        if batch is None:
            return as_json({"error": {"message": "No batch found", "type": "invalid_request_error"}}, 404)
        if parts[1:] == ["cancel"]:
            batch |= {"status": "cancelling", "cancelling_at": int(self.clock())}
        return as_json(batch)

    def make_openai(self, asked: Document) -> Document:
        batch_id = self.new_id("batch_")
        lines = self.contents[asked["input_file_id"]].splitlines()
        self.requests[batch_id] = [json.loads(line) for line in lines]
        self.batches[batch_id] = {
            "id": batch_id, "object": "batch", "endpoint": asked["endpoint"], "errors": None,
            "input_file_id": asked["input_file_id"], "completion_window": "24h", "status": "validating",
            "output_file_id": None, "error_file_id": None, "created_at": int(self.clock()),
            "metadata": asked.get("metadata"), "request_counts": {"total": 0, "completed": 0, "failed": 0},
        }  # fmt: skip
        return self.batches[batch_id]

    async def _anthropic(self, request: web.BaseRequest, parts: list[str]) -> web.StreamResponse:
        if request.method == "POST" and not parts:
            return as_json(self.make_anthropic(json.loads(await request.read())["requests"]))
        if not parts:
            return as_json(self._listed("msgbatch_"))
        batch = self.batches.get(parts[0])
        if batch is None:
            return as_json({"type": "error", "error": {"type": "not_found_error", "message": "No such batch"}}, 404)
        if parts[1:] == ["results"]:
            return web.Response(body=self.results[parts[0]], content_type="application/x-jsonl")
        if parts[1:] == ["cancel"]:
            batch |= {"processing_status": "canceling", "cancel_initiated_at": _rfc(self.clock())}
        if request.method == "DELETE":
            del self.batches[parts[0]]
            return as_json({"id": parts[0], "type": "message_batch_deleted"})
        return as_json(batch)

    def make_anthropic(self, requests: list[Document]) -> Document:
        batch_id = self.new_id("msgbatch_")
        self.requests[batch_id] = requests
        counts = {"processing": len(requests), "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0}
        self.batches[batch_id] = {
            "id": batch_id, "type": "message_batch", "processing_status": "in_progress", "request_counts": counts,
            "ended_at": None, "created_at": _rfc(self.clock()), "expires_at": _rfc(self.clock() + 86_400),
            "archived_at": None, "cancel_initiated_at": None, "results_url": None,
        }  # fmt: skip
        return self.batches[batch_id]

    def _listed(self, begin: str) -> Document:
        """The newest first."""
        found = [batch for batch_id, batch in reversed(self.batches.items()) if batch_id.startswith(begin)]
        return {"object": "list", "data": found, "has_more": False}


def _right(line: Document) -> Document:
    """An answer to a line of either family."""
    return chat_answer(line["body"]["model"]) if "body" in line else message_answer(line["params"]["model"])


@asynccontextmanager
async def batch_provider() -> AsyncIterator[BatchProvider]:
    made = BatchProvider()
    async with serving(made.serve) as url:
        made.openai_url, made.anthropic_url = f"{url}/openai/v1", f"{url}/anthropic/v1"
        yield made
