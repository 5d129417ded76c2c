"""A provider's admin API on this machine: a real HTTP server with pages, and with every fault it can have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from multidict import MultiMapping

from tests.reconciliation.provider_bill.bills import page
from tests.support.web_server import serving

KEY = "sk-admin-c4n4ry-c4n4ry-c4n4ry-c4n4ry"

Answer = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@dataclass
class AdminServer:
    """Serves the pages of each path in order, an empty page where there are none."""

    pages: dict[str, list[Any]] = field(default_factory=dict)
    """path below /v1/ → its pages; all but the last one get a cursor to the next"""
    faults: list[Answer] = field(default_factory=list)
    """answers of the first requests, in order"""
    always: Answer | None = None
    """then the answer of all others"""
    requests: list[tuple[str, list[tuple[str, str]]]] = field(default_factory=list)
    """paths and queries, as they came"""
    headers: list[MultiMapping[str]] = field(default_factory=list)
    url: str = ""
    released: asyncio.Event = field(default_factory=asyncio.Event)
    """set at the end: answers that hang may go"""

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests.append((request.path.removeprefix("/v1/"), list(request.query.items())))
        self.headers.append(request.headers)
        fault = self.faults.pop(0) if self.faults else self.always
        if fault is not None:
            return await fault(request)
        pages = self.pages.get(self.requests[-1][0], [page()])
        number = int(request.query.get("page", "cursor=0").partition("=")[2])
        more = number + 1 < len(pages)
        cursor = f"cursor={number + 1}" if more else None
        return web.json_response({**pages[number], "has_more": more, "next_page": cursor})

    def asked(self, path: str) -> list[list[tuple[str, str]]]:
        return [query for name, query in self.requests if name == path]


@asynccontextmanager
async def admin_server(**parts: Any) -> AsyncIterator[AdminServer]:
    server = AdminServer(**parts)
    async with serving(server.answer) as url:
        server.url = f"{url}/v1"
        try:
            yield server
        finally:
            server.released.set()


def status(code: int, **headers: str) -> Answer:
    """This status, with a text that no error may quote."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return web.json_response({"error": {"message": f"Incorrect key: {KEY}"}}, status=code, headers=named)

    return answer


def text(content: str | bytes, kind: str = "application/json") -> Answer:
    body = content.encode() if isinstance(content, str) else content

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=body, content_type=kind)

    return answer


async def cut_off(request: web.BaseRequest) -> web.StreamResponse:
    """A body that ends before its length."""
    answer = web.StreamResponse(headers={"Content-Length": "1000"})
    await answer.prepare(request)
    await answer.write(b'{"object": "page", "data": [')
    assert request.transport is not None
    request.transport.abort()
    return answer


async def endless(request: web.BaseRequest) -> web.StreamResponse:
    """A body that goes on until its reader leaves."""
    answer = web.StreamResponse()
    await answer.prepare(request)
    while True:
        await answer.write(b" " * 65_536)


def silent(server: AdminServer) -> Answer:
    """Nothing, until the test is over."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        await server.released.wait()
        return web.Response()

    return answer
