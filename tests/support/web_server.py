"""A small HTTP server in the process of a test."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web


@asynccontextmanager
async def serving(serve: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    """Run a server that answers each request with `serve`; returns its URL."""
    runner = web.ServerRunner(web.Server(serve, access_log=None), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def as_json(document: Any, status: int = 200) -> web.Response:
    """The answer with this body, without the charset that aiohttp's own names."""
    return web.Response(body=json.dumps(document).encode(), status=status, content_type="application/json")
