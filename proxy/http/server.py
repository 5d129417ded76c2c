"""The HTTP server and its closed route table. Every other path returns 404.

Invariants: a path is matched exactly, so that route, meter and upstream interpret it alike. The only variable part that
is read is a name. Escaped characters in it are decoded once, if names may contain them. Other variable parts are single
segments that are not read (a client's project). Common misspellings of base URLs lead to the intended route, and to no
other. An error has the format of the path's dialect, unless the route determines the client's format. A route to a
provider cannot be registered without the dialect that meters its responses.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

from aiohttp import HttpVersion10, web
from aiohttp.http_parser import HttpRequestParser, HttpRequestParserPy

from proxy.foundation.addresses import hosts_of
from proxy.http import errors
from proxy.http.connection import (
    ClientConnection,
    ClientRequest,
    ClientServer,
    LastResponse,
    answer_in_http11,
    refused_response,
)
from proxy.http.cors import Cors
from proxy.http.errors import ApiError
from proxy.http.headers import SERVER, validate_head
from proxy.http.refused_requests import REQUEST_ID, RefusalLog
from proxy.http.websocket_head import asks_for_websocket
from proxy.metering.dialect import NAME, Dialect
from proxy.metering.refusal import OPENAI_ERRORS, ErrorShape

# How long an idle connection is kept; also the limit for the complete head of its next request.
KEEP_ALIVE_S = 75.0
# Connections that wait to be accepted while the event loop is busy.
BACKLOG = 4096
# Turns of the event loop from an accepted connection to its protocol: two in asyncio, one in uvloop.
CONNECTING_TURNS = 3

Serve = Callable[[web.BaseRequest, ClientConnection], Awaitable[web.StreamResponse]]
ServeMetered = Callable[[web.BaseRequest, ClientConnection, Dialect, str | None], Awaitable[web.StreamResponse]]

# In place of a method in the table: a GET that asks for a WebSocket.
WEBSOCKET = "WEBSOCKET"

# In a path of the table: a segment that is not read. In a request: the characters that it may contain.
_UNREAD = re.compile(r"\{\w+\}")
_SEGMENT = r"[A-Za-z0-9._~:%@-]{1,100}"
# A model's name in a path: the characters of names in settings, without segments that another parser could normalise.
_NAMED = re.compile(r"(?![^?]*(?://|/\.{0,2}/|/\.{0,2}$))[A-Za-z0-9@][A-Za-z0-9_.:/@+-]{0,255}", re.ASCII)


def _matching(text: str) -> re.Pattern[str]:
    """A pattern for the beginning of a path, in which any segment matches those that are not read."""
    return re.compile(_SEGMENT.join(map(re.escape, _UNREAD.split(text))), re.ASCII)


class _Template:
    """A template of paths: with a name between two texts, with segments that are not read, or both."""

    def __init__(self, before: str, after: str | None) -> None:
        """`after`: the text after the name; None: there is no name."""
        self.methods: dict[str, Callable[[str | None], Serve]] = {}
        self._after = after
        self._begin = _UNREAD.split(before)[0]
        self._before = _matching(before)

    def read(self, path: str) -> Mapping[str, Serve] | None:
        """Method → handler; None: `path` does not match."""
        after = self._after
        if not path.startswith(self._begin) or (found := self._before.match(path)) is None:
            return None
        if after is None:
            return {method: of(None) for method, of in self.methods.items()} if found.end() == len(path) else None
        name = _unescaped(path[found.end() : len(path) - len(after)])
        if not path.endswith(after) or _NAMED.fullmatch(name) is None:
            return None
        return {method: of(name) for method, of in self.methods.items()}


class Routes:
    """Method and path → handler."""

    def __init__(self) -> None:
        self._table: dict[str, dict[str, Serve]] = {}  # path → method → handler
        # First segment → (text before, text after the name or None) → the template of such paths
        self._templates: dict[str, dict[tuple[str, str | None], _Template]] = {}
        self._shapes: dict[tuple[str, str], ErrorShape] = {}  # (prefix, suffix) of a path → its error format

    def local(self, method: str, path: str, serve: Serve) -> None:
        """A route that the proxy itself answers."""
        self._add(method, path, serve)

    def named(self, method: str, before: str, after: str, of: Callable[[str], Serve]) -> None:
        """A route for every path with a name between `before` and `after`. `of`: name → handler."""
        self._add_template(method, before, after, lambda name: of(name or ""))

    def _add_template(self, method: str, before: str, after: str | None, of: Callable[[str | None], Serve]) -> None:
        templates = self._templates.setdefault(_first_segment(before), {})
        methods = templates.setdefault((before, after), _Template(before, after)).methods
        if method in methods:
            raise ValueError(f"{method} {before}…{after or ''} is registered twice")
        methods[method] = of

    def metered(self, dialect: Dialect, serve: ServeMetered, serve_socket: ServeMetered | None = None) -> None:
        """Routes to providers, for all paths of `dialect`: by POST and, if the dialect supports it, by WebSocket.
        Raises TypeError for a dialect without a meter."""
        if not isinstance(dialect, Dialect) or not callable(dialect.tally) or not dialect.framings:
            raise TypeError("a route to a provider needs a dialect with a meter")
        if dialect.is_posted:
            self._metered("POST", dialect, serve)
        if dialect.socket is not None and serve_socket is not None:
            self._metered(WEBSOCKET, dialect, serve_socket)
        self._shapes[dialect.errors.prefix, ""] = dialect.errors

    def _metered(self, method: str, dialect: Dialect, serve: ServeMetered) -> None:
        def of(named: str | None) -> Serve:
            return lambda request, connection: serve(request, connection, dialect, named)

        for path in dialect.paths:
            before, found, after = path.partition(NAME)
            self._shapes[before, after] = dialect.errors
            if found or _UNREAD.search(path):
                self._add_template(method, before, after if found else None, of)
            else:
                self._add(method, path, of(None))

    def _add(self, method: str, path: str, serve: Serve) -> None:
        methods = self._table.setdefault(path, {})
        if method in methods:
            raise ValueError(f"{method} {path} is registered twice")
        methods[method] = serve

    def find(self, method: str, raw_path: str) -> Serve:
        """The handler; `method`: also WEBSOCKET. Raises ApiError 404, 405 or 426."""
        path = raw_path.partition("?")[0]
        methods = self._table.get(path) or self._methods(self._meant(path))
        serve = methods.get(method) or (methods.get("GET") if method == "HEAD" else None)
        if serve is not None:
            return serve
        if method == WEBSOCKET:
            raise errors.no_upgrade()
        if methods.keys() == {WEBSOCKET}:
            raise errors.upgrade_needed()
        if not methods or self._meant(path) not in self._table:  # with a name, only the methods of its routes are known
            raise errors.unknown_route(method, path)
        raise errors.method_not_allowed(method, _of_http(methods))

    def allowed(self, raw_path: str) -> tuple[str, ...]:
        """The methods of a path; empty if it is unknown."""
        return _of_http(self._methods(self._meant(raw_path.partition("?")[0])))

    def _meant(self, path: str) -> str:
        """The path of the table that `path` is a spelling of; `path` itself if there is none."""
        return next(filter(self._methods, _spellings(path)), path)

    def _methods(self, path: str) -> Mapping[str, Serve]:
        """Method → handler, of this path or the template that matches it."""
        if path in self._table:
            return self._table[path]
        for template in self._templates.get(_first_segment(path), {}).values():
            if (methods := template.read(path)) is not None:
                return methods
        return {}

    def shape(self, raw_path: str) -> ErrorShape:
        """The error format of a path: its dialect's; for an unknown path, that of the longest match."""
        path = self._meant(raw_path.partition("?")[0])
        matches = [both for both in self._shapes if path.endswith(both[1]) and _matching(both[0]).match(path)]
        return self._shapes[max(matches, key=lambda both: len("".join(both)))] if matches else OPENAI_ERRORS


def _first_segment(path: str) -> str:
    return path[: path.find("/", 1)]


def _of_http(methods: Iterable[str]) -> tuple[str, ...]:
    return tuple(method for method in methods if method != WEBSOCKET)


def _unescaped(name: str) -> str:
    """Decode a name that an SDK escaped (Azure's does): only characters that names may contain, and only once."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), name) if "%" in name else name


_ESCAPED = re.compile(r"%(2b|2d|2e|2f|3a|40|5f)", re.ASCII | re.IGNORECASE)


# A base URL that ends with a slash, before a path that begins with one.
_JOINED = re.compile(r"^((?:/openai)?(?:/v1|/v1beta|/v2|/api)?)//(?!/)", re.ASCII)


def _spellings(path: str) -> Iterator[str]:
    """`path` and its corrections, for base URLs with a slash too many, without `/v1`, or with `/v1` twice."""
    yield path
    path = path.removesuffix("/")
    path = _JOINED.sub(r"\1/", path)
    yield path
    yield f"/v1{path}"
    if path.startswith("/v1/v1/"):
        yield path.removeprefix("/v1")
    if path.startswith("/openai/"):
        yield f"/openai/v1{path.removeprefix('/openai')}"


def _free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        tried.bind((host, 0))
        return int(tried.getsockname()[1])


class CannotListenError(OSError):
    """The address cannot be used; the message is for the operator."""


def why_not(failure: OSError, section: str, host: str, port: int) -> str:
    """The setting that is at fault, and what to do."""
    if isinstance(failure, socket.gaierror):
        return f"{section}.host: {host!r} cannot be resolved"
    match failure.errno:
        case errno.EADDRINUSE:
            return f"{section}.port: another program listens on {host}:{port}: stop it, or choose another port"
        case errno.EADDRNOTAVAIL | None:  # asyncio raises the latter if none of the host's addresses is
            return f"{section}.host: {host} is no address of this machine"
        case errno.EACCES:
            return f"{section}.port: this user may not listen on {port}: choose a port from 1024 up"
    return f"{section}: cannot listen on {host}:{port}: {failure.strerror or failure}"


class Server:
    """Listens, and dispatches requests to their routes."""

    def __init__(
        self,
        routes: Routes,
        *,
        refused: Callable[[int, str | None], None],
        headers: Mapping[str, str] | None = None,
        cors: Cors | None = None,
        refusals: RefusalLog | None = None,
    ) -> None:
        """`headers`: defaults for every response, unless the route has set or sent its own. `cors`: the rules for
        pages of other origins; None: browsers refuse these. `refusals`: keeps the refused requests to models; None:
        they are not kept."""
        self.routes = routes
        self._cors = cors
        # aiohttp adds its name and version, and Python's, to each of its responses that has no such header.
        self._headers = {**dict((SERVER,)), **(headers or {})}
        self._refused = refused
        self._refusals = refusals
        self._server = ClientServer(
            self._serve,
            request_factory=ClientRequest,
            refuse=self._refuse,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=KEEP_ALIVE_S,
            lingering_time=2.0,
        )
        self._listening: list[asyncio.Server] = []
        self._beside: asyncio.Server | None = None
        self._is_replaced = False

    async def start(
        self,
        host: str,
        port: int,
        *,
        section: str = "listen",
        reuse_port: bool = False,
        sockets: Sequence[socket.socket] = (),
    ) -> int:
        """Listen; return the port (for port 0: the one that the system chose). `host`: as `hosts_of` reads it.
        `section`: of the settings, for errors. `sockets`: to listen on in place of `host` and `port`. Raises
        OSError."""
        if HttpRequestParser is HttpRequestParserPy:  # it accepts some ambiguous requests
            raise OSError("aiohttp has no C parser here: install a build with its C extensions")
        loop = asyncio.get_running_loop()
        # Not `start_serving=True`: cancelled there, it would leave a socket that cannot be closed.
        hosts = hosts_of(host)
        try:
            for one in sockets:
                made = await loop.create_server(self._server, sock=one, backlog=BACKLOG, start_serving=False)
                self._listening.append(made)
            if not sockets:
                if port == 0 and len(hosts) > 1:
                    port = _free_port(hosts[0])  # else each would get another one
                made = await loop.create_server(
                    self._server, hosts, port, backlog=BACKLOG, reuse_port=reuse_port or None, start_serving=False
                )
                self._listening.append(made)
        except OSError as failure:
            raise CannotListenError(why_not(failure, section, host, port)) from failure
        for listening in self._listening:
            await listening.start_serving()
        return int(self.sockets[0].getsockname()[1])

    @property
    def sockets(self) -> list[socket.socket]:
        """The sockets that the server listens on."""
        return [one for listening in self._listening for one in listening.sockets]

    async def listen_at(self, path: str) -> None:
        """Listen also on a Unix socket, and replace an earlier socket at this path. Raises OSError."""
        with suppress(FileNotFoundError):
            os.unlink(path)
        self._beside = await asyncio.get_running_loop().create_unix_server(self._server, path)

    async def leave_to_another(self) -> None:
        """Accept no new connections: another process accepts on the same sockets. A connection gets the answer to the
        request that it sends next, and is closed after it. Every accepted one is in `has_connections` afterwards."""
        self._is_replaced = True
        loop = asyncio.get_running_loop()
        # asyncio loses a connection that it has accepted, if the server is closed before its protocol is made.
        for one in self.sockets:
            loop.remove_reader(one.fileno())
        await _turns(CONNECTING_TURNS)
        self._stop()
        await _turns(CONNECTING_TURNS)  # uvloop makes the protocol later, also after it was closed

    @property
    def has_connections(self) -> bool:
        """Whether a client is connected."""
        return bool(self._server.connections)

    async def stop_listening(self) -> None:
        """Accept no new connections and close idle ones; running requests continue."""
        self._stop()
        self._server.pre_shutdown()

    async def close(self) -> None:
        """Close all connections."""
        self._stop()
        await self._server.shutdown(timeout=1.0)

    def _stop(self) -> None:
        for listening in (*self._listening, *filter(None, [self._beside])):
            listening.close()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, ClientConnection)
        try:
            if self._is_replaced and isinstance(request, ClientRequest):
                request.close_after()
            if connection.is_pipelined:  # on some versions of Python, aiohttp serves all that have come at once
                await asyncio.sleep(0)
            if self._cors is not None:
                connection.headers = self._cors.headers(request)
            try:
                must_close = validate_head(request)
            except ApiError as refusal:
                if request.version != HttpVersion10:
                    answer_in_http11(request)
                return self._refuse(refusal, request.raw_path, connection)
            try:
                if self._cors is not None and self._cors.is_preflight(request):
                    response: web.StreamResponse = self._cors.preflight(request, self.routes.allowed(request.raw_path))
                else:
                    is_socket = must_close and asks_for_websocket(request)
                    serve = self.routes.find(WEBSOCKET if is_socket else request.method, request.raw_path)
                    if is_socket:
                        Cors.check_socket(self._cors, request)
                    response = await serve(request, connection)
            except ApiError as refusal:
                return self._refuse(refusal, request.raw_path, connection, must_close=must_close)
            if not response.prepared:
                for name, value in (*self._headers.items(), *connection.headers):
                    response.headers.setdefault(name, value)
            if must_close:
                response.force_close()
            return response
        finally:
            connection.served(request.content)

    def _refuse(
        self,
        refusal: ApiError,
        path: str,
        connection: ClientConnection,
        made: type[web.Response] = web.Response,
        *,
        must_close: bool = True,
    ) -> web.Response:
        self._refused(refusal.status, refusal.code)
        if connection.is_broken:
            must_close, made = True, LastResponse
        response = refused_response(refusal, refusal.shape or self.routes.shape(path), made)
        response.headers.update(self._headers)
        response.headers.update(connection.headers)
        if self._refusals is not None and refusal.about is not None:
            response.headers[REQUEST_ID] = self._refusals.note(refusal)
        if must_close:
            response.force_close()
        return response


@asynccontextmanager
async def serving(
    routes: Routes,
    host: str,
    port: int,
    *,
    refused: Callable[[int, str | None], None],
    reuse_port: bool = False,
    sockets: Sequence[socket.socket] = (),
) -> AsyncIterator[None]:
    """A server for as long as the context lasts. Raises OSError."""
    server = Server(routes, refused=refused)
    try:
        await server.start(host, port, reuse_port=reuse_port, sockets=[one.dup() for one in sockets])
        yield
    finally:
        await server.close()


async def _turns(count: int) -> None:
    """Let the event loop run so many times."""
    for _ in range(count):
        await asyncio.sleep(0)


async def wait_until(condition: Callable[[], bool], *, deadline_s: float, every_s: float = 0.02) -> bool:
    """Poll until `condition` holds; False if it does not within `deadline_s`."""
    loop = asyncio.get_running_loop()
    until = loop.time() + deadline_s
    while not condition():
        if loop.time() >= until:
            return False
        await asyncio.sleep(every_s)
    return True
