"""The routes for monitoring: `/healthz`, `/readyz` and `/metrics`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from proxy.http.connection import ClientConnection
from proxy.http.server import Routes, Serve
from proxy.telemetry.metrics import CONTENT_TYPE


def constant(body: bytes, content_type: str) -> Serve:
    """A route with a constant response."""

    async def serve(_request: web.BaseRequest, _connection: ClientConnection) -> web.StreamResponse:
        return web.Response(body=body, content_type=content_type)

    return serve


HEALTHZ = constant(b"ok\n", "text/plain")
"""the process and its event loop run"""
ROOT = constant(b"Tokenweir is running\n", "text/plain")
"""for the base URL, which Ollama's command line requests first"""


def add_probes(
    routes: Routes,
    *,
    not_ready: Callable[[], str | None],
    exposition: Callable[[], Awaitable[bytes]] | None,
    digest: Callable[[], str] = str,
) -> None:
    """`not_ready`: the reason why no new requests are accepted; None: they are. `exposition`: None: another listener
    has `/metrics`. `digest`: of the configuration file that applies; empty: there is none."""

    async def readyz(_request: web.BaseRequest, _connection: ClientConnection) -> web.StreamResponse:
        reason = not_ready()
        lines = [reason or "ready", *([f"configuration {digest()}"] if digest() else [])]
        return web.Response(status=503 if reason else 200, text="".join(f"{line}\n" for line in lines))

    routes.local("GET", "/healthz", HEALTHZ)
    routes.local("GET", "/readyz", readyz)
    if exposition is not None:
        routes.local("GET", "/metrics", _metrics(exposition))


def _metrics(exposition: Callable[[], Awaitable[bytes]]) -> Serve:
    async def serve(_request: web.BaseRequest, _connection: ClientConnection) -> web.StreamResponse:
        return web.Response(body=await exposition(), headers={"Content-Type": CONTENT_TYPE})

    return serve
