"""What can be asked of the proxy: a closed table of routes. Everything else is a 404 in OpenAI's error shape.

Law: a path is matched exactly as it came, undecoded, so that route, meter and upstream can never read it differently.
A route to a provider cannot be registered without the dialect that meters its answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.http_parser import HttpRequestParser, HttpRequestParserPy

from proxy.gateway import errors
from proxy.gateway.connection import ClientConnection, ClientServer, refused_response
from proxy.gateway.errors import ApiError
from proxy.gateway.headers import refuse_ambiguous
from proxy.metering.dialect import Dialect

# How long an idle connection is kept; a later request's head must be whole by then, too.
KEEP_ALIVE_S = 75.0
# Connections waiting to be accepted while the loop is busy.
BACKLOG = 4096

Serve = Callable[[web.BaseRequest, ClientConnection], Awaitable[web.StreamResponse]]
ServeMetered = Callable[[web.BaseRequest, ClientConnection, Dialect], Awaitable[web.StreamResponse]]


class Routes:
    """Method and exact path → who serves it."""

    def __init__(self) -> None:
        self._table: dict[tuple[str, str], Serve] = {}
        self._paths: set[str] = set()

    def local(self, method: str, path: str, serve: Serve) -> None:
        """A route that this proxy answers by itself: nothing goes to a provider."""
        self._add(method, path, serve)

    def metered(self, dialect: Dialect, serve: ServeMetered) -> None:
        """A route to providers. Raises TypeError for a dialect that could not meter what comes back."""
        if not isinstance(dialect, Dialect) or not callable(dialect.stream_meter) or not callable(dialect.plain_meter):
            raise TypeError("a route to a provider needs a dialect with a meter")

        async def serve_dialect(request: web.BaseRequest, connection: ClientConnection) -> web.StreamResponse:
            return await serve(request, connection, dialect)

        self._add("POST", dialect.path, serve_dialect)

    def _add(self, method: str, path: str, serve: Serve) -> None:
        if (method, path) in self._table:
            raise ValueError(f"{method} {path} is registered twice")
        self._table[method, path] = serve
        self._paths.add(path)

    def find(self, method: str, raw_path: str) -> Serve:
        """Raises ApiError 404 or 405."""
        path = raw_path.partition("?")[0]
        serve = self._table.get((method, path))
        if serve is not None:
            return serve
        if path in self._paths:
            raise ApiError(405, f"{method} is not allowed here.", code="method_not_allowed")
        raise errors.unknown_route(method, path)


class Server:
    """Listens, and hands every request to its route."""

    def __init__(self, routes: Routes, *, refused: Callable[[int, str | None], None]) -> None:
        self._routes = routes
        self._refused = refused
        self._server = ClientServer(
            self._serve,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=KEEP_ALIVE_S,
            lingering_time=2.0,
        )
        self._runner = web.ServerRunner(self._server)
        self._sites: list[web.BaseSite] = []

    async def start(self, host: str, port: int, *, reuse_port: bool = False) -> int:
        """Listen; the port in use (for port 0: the one the system chose). Raises OSError."""
        if HttpRequestParser is HttpRequestParserPy:  # it reads some malformed requests that others read differently
            raise OSError("aiohttp runs here without its C parser: install a build that has it")
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, backlog=BACKLOG, reuse_port=reuse_port or None)
        await site.start()
        self._sites.append(site)
        addresses = self._runner.addresses
        return int(addresses[0][1]) if addresses else port

    async def stop_listening(self) -> None:
        """Take no new connection; those that are open go on, idle ones are closed."""
        for site in self._sites:
            await site.stop()
        self._sites.clear()
        self._server.pre_shutdown()

    async def close(self) -> None:
        """Close what is left."""
        await self._server.shutdown(timeout=1.0)
        await self._runner.cleanup()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, ClientConnection)
        try:
            closes = refuse_ambiguous(request)
        except ApiError as refusal:
            return self._refuse(refusal, closes=True)
        try:
            serve = self._routes.find(request.method, request.raw_path)
            response = await serve(request, connection)
        except ApiError as refusal:
            return self._refuse(refusal, closes=closes)
        if closes:
            response.force_close()
        return response

    def _refuse(self, refusal: ApiError, *, closes: bool) -> web.Response:
        self._refused(refusal.status, refusal.code)
        response = refused_response(refusal)
        if closes:
            response.force_close()
        return response


async def wait_until(condition: Callable[[], bool], *, deadline_s: float, every_s: float = 0.02) -> bool:
    """Poll until `condition` holds; False if it does not within `deadline_s`."""
    loop = asyncio.get_running_loop()
    until = loop.time() + deadline_s
    while not condition():
        if loop.time() >= until:
            return False
        await asyncio.sleep(every_s)
    return True
