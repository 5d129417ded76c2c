"""A customer's server that gets alerts."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

SECRET = "whsec-canary-41f7"


@dataclass
class Receiver:
    """Believes nothing that is not signed, and answers as it is told."""

    url: str = ""
    answers: list[int | Callable[[], Awaitable[web.Response]]] = field(default_factory=list)
    """what comes first; after these, 204"""
    tried: list[str] = field(default_factory=list)
    got: list[dict[str, Any]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """the ids of messages that are not as documented"""

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        shown = json.loads(body)
        timestamp = request.headers["X-Tokenweir-Timestamp"]
        expected = hmac.new(SECRET.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()
        given = tuple(request.headers[name] for name in ("X-Tokenweir-Signature", "X-Tokenweir-Id", "Content-Type"))
        if (request.method, *given) != ("POST", f"v1={expected}", shown["id"], "application/json"):
            self.wrong.append(shown["id"])
        self.tried.append(shown["id"])
        answer = self.answers.pop(0) if self.answers else 204
        if not isinstance(answer, int):
            return await answer()
        if 200 <= answer < 300:
            self.got.append(shown)
        return web.Response(status=answer, headers={"Location": self.url} if answer == 302 else {})
