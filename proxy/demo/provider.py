"""A scripted OpenAI-compatible provider on a real socket, in a process of its own.

Invariants: a script's bytes are written exactly, with the same cuts; the log has the exact counts of each exchange.

    python -m proxy.demo.provider --port 0      prints {"port": N}; ends on SIGTERM or with its parent

POST …/chat/completions     answers by the request's `model`: a registered plan, or one of `answers.BUILT_IN`
POST …                      any other API: answers with the registered script of that model name
POST /_control/scripts      {"name": …, "plan": Script | Shape} registers a plan
GET  /_control/log          {"exchanges": […]}, oldest first; `?since=N`: only those numbered above N
POST /_control/reset        deletes plans and log
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import resource
import signal
import socket
import struct
import time
from collections import ChainMap, deque
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from proxy.demo.answers import BUILT_IN, ScriptedReply, reply
from proxy.demo.script import Fin, Raw, Reset, Script, Shape, Stall, Wait, WireStep, json_script, wire_steps
from proxy.demo.shapes import error_object

# The largest request of a test has a body of 16 MiB.
HEAD_BYTES_MAX = 64 * 1024
BODY_BYTES_MAX = 64 * 1024 * 1024
# Enough for the longest soak test; the oldest exchanges are deleted first.
LOG_EXCHANGES_MAX = 10_000
# More than one per record of the corpus and chunking; a larger number is a test's mistake.
SCRIPTS_MAX = 20_000
# Ten thousand connections may arrive in one burst; the kernel applies its own limit.
BACKLOG = 4096
_FORM_MODEL = re.compile(r'name="model"\r\n\r\n(.*)\r\n')
# Size of a single write, so that the log's count stays accurate when the client stops reading.
WRITE_BYTES_MAX = 64 * 1024
# Of JSON; an agent stands in place of a model.
_MODEL_FIELDS = ("model", "agent_id", "agent")
# Gemini's paths name the model, Azure's the deployment, and Bedrock's the model with escapes.
_NAMED = re.compile(r"/models/([^:]+):|/(?:deployments|model)/([^/]+)/")
# How often the parent process is checked: soon enough to end an orphan, at no noticeable cost.
PARENT_POLL_S = 0.25


@dataclass(slots=True)
class LoggedExchange:
    """The log entry of a request; its fields change until `duration_s` is set."""

    exchange: int
    connection: int
    """requests with the same number came over the same connection"""
    method: str
    path: str
    headers: list[tuple[str, str]]
    """the headers in the order of the request, unchanged"""
    body: Any
    """the parsed JSON, or else the text (of a form: one character per byte), or else None"""
    started_at: float
    """Unix seconds, UTC"""
    response_id: str | None = None
    status: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    """tokens generated so far, whether or not the client read them"""
    bytes_written: int = 0
    """number of bytes accepted by the kernel so far, including heads and framing"""
    client_left_s: float | None = None
    """seconds from the start until the client disconnected early"""
    ended: str | None = None
    """served, client_left, or the script's reset or fin; after client_left it may still be generating"""
    duration_s: float | None = None
    """duration of the exchange; None while it runs"""


@dataclass(frozen=True, slots=True)
class Request:
    """One complete request."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    @property
    def path(self) -> str:
        """The request path without the query."""
        return urlsplit(self.target).path


class Registration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model name and the plan of its answers."""

    name: str
    plan: Script | Shape


@dataclass(slots=True)
class ScriptedProvider:
    """The state that all connections share."""

    built_in: dict[str, Script | Shape]
    scripts: dict[str, Script | Shape] = field(default_factory=dict)
    log: deque[LoggedExchange] = field(default_factory=lambda: deque(maxlen=LOG_EXCHANGES_MAX))
    exchanges: int = 0
    connections: int = 0

    def open(self, request: Request, connection: int) -> tuple[LoggedExchange, ScriptedReply]:
        """Start the log entry of a request and choose its answer."""
        self.exchanges += 1
        body = _parsed(request)
        exchange = LoggedExchange(
            self.exchanges,
            connection,
            request.method,
            request.target,
            list(request.headers),
            body,
            time.time(),
        )
        answer = self.reply_to(request, body, exchange)
        exchange.response_id, exchange.status = answer.response_id, answer.script.status
        exchange.prompt_tokens, exchange.cached_tokens = answer.prompt_tokens, answer.cached_tokens
        self.log.append(exchange)
        return exchange, answer

    def reply_to(self, request: Request, body: Any, exchange: LoggedExchange) -> ScriptedReply:
        """Choose the answer of a request."""
        if request.method != "POST" or not request.path.endswith("/chat/completions"):
            if (script := self._script(request.path, body)) is not None:
                return ScriptedReply(script)
            return ScriptedReply(json_script(error_object(f"no such endpoint: {request.method} {request.path}"), 404))
        # The process id makes ids unique among the providers of a test run.
        response_id = f"chatcmpl-{os.getpid()}-{exchange.exchange}"
        return reply(
            body,
            ChainMap(self.scripts, self.built_in),
            response_id=response_id,
            created=int(exchange.started_at),
        )

    def _script(self, path: str, body: Any) -> Script | None:
        """The registered script of the model that the path or the body names; it is used for any path."""
        plan = self.scripts.get(named(path, body) or "")
        return plan if isinstance(plan, Script) else None

    def control(self, request: Request) -> Script:
        """Answer a request to /_control/…"""
        match request.method, request.path.removeprefix("/_control/"):
            case "POST", "scripts":
                return self._register(request.body)
            case "GET", "log":
                since = int(parse_qs(urlsplit(request.target).query).get("since", ["0"])[0])
                return json_script({"exchanges": [asdict(e) for e in self.log if e.exchange > since]})
            case "POST", "reset":
                self.scripts.clear()
                self.log.clear()
                return json_script({})
            case _:
                return json_script(error_object("no such control"), 404)

    def _register(self, body: bytes) -> Script:
        try:
            registration = msgspec.json.decode(body, type=Registration)
        except msgspec.DecodeError as wrong:
            return json_script(error_object(str(wrong)), 400)
        if len(self.scripts) >= SCRIPTS_MAX:
            return json_script(error_object("too many scripts: POST /_control/reset"), 429)
        self.scripts[registration.name] = registration.plan
        return json_script({"name": registration.name})


class Connection(asyncio.StreamReaderProtocol):
    """One connection: reads requests, plays answers, and detects at once that the client closes or half-closes."""

    def __init__(self, provider: ScriptedProvider) -> None:
        loop = asyncio.get_running_loop()
        # Not `_converse`: asyncio of Python 3.11 would print a traceback for each conversation that a stop cancels.
        super().__init__(asyncio.StreamReader(HEAD_BYTES_MAX, loop), self._begin, loop)
        self._provider = provider
        self._gone = asyncio.Event()
        self._conversation: asyncio.Task[None] | None = None

    def eof_received(self) -> bool | None:
        self._gone.set()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone.set()
        super().connection_lost(exc)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._conversation = asyncio.get_running_loop().create_task(self._converse(reader, writer))

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Without a write buffer, `drain` returns when the kernel has accepted everything: the log's count is exact.
        writer.transport.set_write_buffer_limits(0)
        self._provider.connections += 1
        connection = self._provider.connections
        try:
            while await self._serve(await _read_request(reader), writer, connection):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass  # the client disconnected, or does not speak HTTP: no answer is possible
        finally:
            writer.close()

    async def _serve(self, request: Request, writer: asyncio.StreamWriter, connection: int) -> bool:
        """Answer one request; True if the connection can take another."""
        if request.path.startswith("/_control/"):
            for step in wire_steps(self._provider.control(request)):
                assert isinstance(step, Raw)
                writer.write(step.body)
            await writer.drain()
            return True
        exchange, answer = self._provider.open(request, connection)
        player = _ScriptPlayer(exchange, answer.script, writer, self._gone)
        try:
            return await player.play() and answer.script.keeps_alive
        finally:
            player.close()


class _ScriptPlayer:
    """Plays one script to one client and updates its log entry."""

    def __init__(
        self, exchange: LoggedExchange, script: Script, writer: asyncio.StreamWriter, gone: asyncio.Event
    ) -> None:
        self._exchange = exchange
        self._script = script
        self._writer = writer
        self._gone = gone
        self._started_s = time.monotonic()

    async def play(self) -> bool:
        """Play to the end; False if the connection cannot be used any more."""
        for step in wire_steps(self._script):
            if self._gone.is_set():
                self._note_leave()
                if self._script.on_leave == "stop":
                    return False
            await self._step(step)
        return self._exchange.ended is None

    def close(self) -> None:
        """Complete the log entry."""
        self._exchange.ended = self._exchange.ended or "served"
        self._exchange.duration_s = self._elapsed_s()

    def _note_leave(self) -> None:
        if self._exchange.ended is None:
            self._exchange.ended = "client_left"
            self._exchange.client_left_s = self._elapsed_s()

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    async def _step(self, step: WireStep) -> None:
        match step:
            case Raw(body, tokens):
                self._exchange.completion_tokens += tokens
                await self._write(body)
            case Wait(ms):
                await self._wait(ms / 1000)
            case Stall():
                await self._gone.wait()
                self._note_leave()
            case Reset():
                self._exchange.ended = self._exchange.ended or "reset"
                self._reset()
            case Fin(complete):
                self._exchange.ended = self._exchange.ended or ("served" if complete else "fin")

    async def _write(self, body: bytes) -> None:
        """Write and wait until the kernel has accepted it; a no-op after the client disconnected."""
        if self._gone.is_set():
            return
        with suppress(ConnectionError):  # `_gone` is then set too, and the next step checks it
            for start in range(0, len(body), WRITE_BYTES_MAX):
                piece = body[start : start + WRITE_BYTES_MAX]
                self._writer.write(piece)
                await self._writer.drain()
                self._exchange.bytes_written += len(piece)
        if self._script.wire_pause_ms is not None:
            await self._wait(self._script.wire_pause_ms / 1000)

    async def _wait(self, wait_s: float) -> None:
        """Sleep; end early when the client disconnects, unless the script continues to generate."""
        if self._gone.is_set() or self._script.on_leave == "generate":
            await asyncio.sleep(wait_s)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._gone.wait()

    def _reset(self) -> None:
        sock: socket.socket = self._writer.get_extra_info("socket")
        linger_0s = struct.pack("ii", 1, 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_0s)
        self._writer.transport.abort()


async def _read_request(reader: asyncio.StreamReader) -> Request:
    """The next complete request. Raises IncompleteReadError at the end of the connection."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    request_line, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
    method, target, _ = request_line.split(" ", 2)
    headers = tuple((name, value.strip()) for name, _, value in (line.partition(":") for line in lines))
    return Request(method, target, headers, await _read_body(reader, headers))


async def _read_body(reader: asyncio.StreamReader, headers: tuple[tuple[str, str], ...]) -> bytes:
    lower = {name.lower(): value for name, value in headers}
    if lower.get("transfer-encoding", "").lower() != "chunked":
        return await reader.readexactly(_bounded(int(lower.get("content-length", "0"))))
    body = b""
    while size := _bounded(int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)):
        body += (await reader.readexactly(size + 2))[:-2]
        _bounded(len(body))
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass  # trailers are ignored
    return body


def _bounded(body_bytes: int) -> int:
    if not 0 <= body_bytes <= BODY_BYTES_MAX:
        raise ValueError(f"a body of {body_bytes} bytes")
    return body_bytes


def _parsed(request: Request) -> Any:
    if any(value.startswith("multipart/") for _, value in request.headers):
        return request.body.decode("latin-1")
    try:
        return json.loads(request.body) if request.body else None
    except ValueError:
        return request.body.decode("utf-8", "replace")


def named(path: str, body: Any) -> str | None:
    """The model that a logged request names."""
    if (found := _NAMED.search(path)) is not None:
        return unquote(found[1] or found[2])
    if isinstance(body, str):
        found = _FORM_MODEL.search(body)
        return None if found is None else found[1]
    named = (body.get(name) for name in _MODEL_FIELDS) if isinstance(body, dict) else ()
    return next((str(name) for name in named if name is not None), None)


async def serve(host: str, port: int, *, pace_ms: float, parent: int) -> None:
    """Serve until SIGTERM or SIGINT, or until the process `parent` is no longer the parent of this one."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    provider = ScriptedProvider(
        {name: msgspec.structs.replace(shape, pace_ms=pace_ms) for name, shape in BUILT_IN.items()}
    )
    server = await loop.create_server(lambda: Connection(provider), host, port, backlog=BACKLOG)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    while not stop.is_set() and os.getppid() == parent:
        with suppress(TimeoutError):
            async with asyncio.timeout(PARENT_POLL_S):
                await stop.wait()
    server.close()


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(prog="proxy.demo.provider", description="a scripted provider")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--pace-ms", type=float, default=0, help="between two tokens of the built-in models")
    parser.add_argument("--parent", type=int, default=os.getppid(), help="end when this is not the parent process")
    options = parser.parse_args()
    _, open_files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files_max, open_files_max))
    try:
        asyncio.run(serve(options.host, options.port, pace_ms=options.pace_ms, parent=options.parent))
    except OSError as failure:  # another one runs already, most likely
        parser.exit(
            1, f"{parser.prog}: cannot listen on {options.host}:{options.port}: {os.strerror(failure.errno or 0)}\n"
        )


if __name__ == "__main__":
    main()
