"""What a scripted answer is, and the exact writes and waits it comes down to.

Law: pure. A script is a value that travels as JSON (bytes as base64); the same script gives the same bytes,
cut at the same places, whoever plays it. Three things are chosen apart: the body (steps), how it is framed
(HTTP chunks), and where the wire is cut (separate writes).
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from itertools import groupby
from random import Random
from typing import Annotated, Literal

from msgspec import Meta, Struct

from proxy.demo.shapes import Json, json_bytes

Count = Annotated[int, Meta(ge=0)]
Milliseconds = Annotated[float, Meta(ge=0)]
Pairs = tuple[tuple[str, str], ...]

# Longest random piece when none is named: small enough to fall inside every event of a fixture.
PIECE_BYTES_MAX = 64


class Step(Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag=str.lower):
    """One thing an answer does."""


class Send(Step, frozen=True):
    """Body bytes, `times` over: one HTTP chunk, unless the script's `chunking` says otherwise."""

    body: bytes
    tokens: Count = 0
    """counted as generated before the first byte is written"""
    times: Count = 1


class Raw(Step, frozen=True):
    """Bytes that go out exactly so, without framing."""

    body: bytes
    tokens: Count = 0


class Trickle(Step, frozen=True):
    """Body bytes in pieces of `size` bytes, each followed by a wait."""

    body: bytes
    size: Annotated[int, Meta(ge=1)] = 1
    ms: Milliseconds = 1


class Wait(Step, frozen=True):
    """Silence."""

    ms: Milliseconds


class Stall(Step, frozen=True):
    """Silence until the client leaves."""


class Reset(Step, frozen=True):
    """RST: the connection is gone at once, whatever was on its way."""


class Fin(Step, frozen=True):
    """The connection is closed in order, whatever of the answer is missing."""

    complete: bool = False
    """nothing is missing: closing is how this answer ends"""


class End(Step, frozen=True):
    """The answer ends as its framing has it: last chunk and trailers, length, or close. Said or not, last."""


AnyStep = Send | Raw | Trickle | Wait | Stall | Reset | Fin | End
WireStep = Raw | Wait | Stall | Reset | Fin
_Inner = Send | WireStep | End
_FLOW = (Send, Raw, Trickle, Wait)


class Cut(Struct, frozen=True, forbid_unknown_fields=True):
    """Where bytes that follow each other are parted; nothing set: where the script's steps are.

    The first that is set wins: `seed` random pieces of 1 to `size` (else PIECE_BYTES_MAX) bytes; `at` these
    absolute offsets; `size` every so many bytes; `whole` nowhere.
    """

    whole: bool = False
    size: Count = 0
    at: tuple[Count, ...] = ()
    seed: int | None = None


AS_SENT = Cut()


class Script(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="script"):
    """One answer, byte by byte."""

    steps: tuple[AnyStep, ...]
    status: int = 200
    headers: Pairs = (("Content-Type", "text/event-stream"),)
    """as written; the framing header is added"""
    framing: Literal["chunked", "length", "close", "raw"] = "chunked"
    """raw: no head and no framing, the steps are the whole answer"""
    http: Literal["1.0", "1.1"] = "1.1"
    chunking: Cut = AS_SENT
    """how the body is parted into HTTP chunks"""
    wire: Cut = AS_SENT
    """how all bytes, head included, are parted into writes"""
    wire_pause_ms: Milliseconds | None = None
    """between two writes; 0 only lets others run, None does not even that"""
    chunk_extension: str = ""
    """with its semicolon, after each chunk size"""
    trailers: Pairs = ()
    gzip: bool = False
    """the body is compressed, flushed at each step, and says so"""
    declared_length: Count | None = None
    """what Content-Length claims, where that is a lie"""
    prelude: bytes = b""
    """garbage before the status line"""
    delay_ms: Milliseconds = 0
    """before the head"""
    refuse_stream_options: Literal[0, 400, 422] = 0
    """the status that the request gets for as long as it has `stream_options`; 0: they are taken"""
    on_leave: Literal["stop", "generate"] = "stop"
    """what becomes of the tokens after the client has left"""

    @property
    def keeps_alive(self) -> bool:
        """True if the connection can serve another request after a proper end."""
        framed = self.framing in {"chunked", "length"} and self.http == "1.1" and self.declared_length is None
        return framed and not any(name.lower() == "connection" and value == "close" for name, value in self.headers)


class Shape(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="shape"):
    """An answer generated for each request, in the language of one provider."""

    language: Literal["tera", "tensorloop", "siliconstorm", "siliconstorm-fulltext", "electron", "openai"]
    writes: Literal["text", "reasoning", "tools"] = "text"
    tokens: Annotated[int, Meta(ge=1, le=1_000_000)] = 24
    """generated unless the request's limit is lower; bounded, for a stream is built before it is sent"""
    text: Annotated[str, Meta(min_length=1)] | None = None
    """told again and again; None: the built-in tale"""
    pace_ms: Milliseconds = 0
    """between two tokens"""
    first_ms: Milliseconds = 0
    """before the head"""
    reports_usage: bool = True
    """False: never says its usage in a stream, whatever the request asks"""
    refuse_stream_options: Literal[0, 400, 422] = 0
    chunking: Cut = AS_SENT
    wire: Cut = AS_SENT


def json_script(payload: Json, status: int = 200, headers: Pairs = ()) -> Script:
    """A plain JSON answer with its length."""
    typed = (("Content-Type", "application/json"), *headers)
    return Script(steps=(Send(json_bytes(payload)),), status=status, headers=typed, framing="length")


def wire_steps(script: Script) -> list[WireStep]:
    """What is written and waited for, in order, from the first byte of the head to the end of the answer."""
    steps: Iterable[_Inner] = _plain(script.steps)
    if script.gzip:
        steps = _zipped(steps)
    body = list(_recut(steps, Send, script.chunking))
    framed: list[_Inner] = [Wait(script.delay_ms)] if script.delay_ms else []
    if script.framing != "raw":
        framed.append(Raw(script.prelude + _head(script, sum(len(s.body) for s in body if isinstance(s, Send)))))
    for step in body:
        framed += _framed(script, step)
    return [step for step in _recut(framed, Raw, script.wire) if not isinstance(step, Send | End)]


def _plain(steps: tuple[AnyStep, ...]) -> Iterator[_Inner]:
    """The steps without trickles and repetitions, with an end where the script just stops."""
    for step in steps:
        match step:
            case Send(body, tokens, times):
                yield Send(body * times, tokens)
            case Trickle(body, size, ms):
                for start in range(0, len(body), size):
                    yield Send(body[start : start + size])
                    yield Wait(ms)
            case _:
                yield step
    if not steps or isinstance(steps[-1], _FLOW):
        yield End()


def _zipped(steps: Iterable[_Inner]) -> Iterator[_Inner]:
    """The body as one gzip member; each step can be unpacked as soon as it has arrived."""
    gzip_container = 31  # zlib's code for: largest window, gzip head and check sum
    packer = zlib.compressobj(wbits=gzip_container)
    for step in steps:
        match step:
            case Send(body, tokens):
                yield Send(packer.compress(body) + packer.flush(zlib.Z_SYNC_FLUSH), tokens)
            case End():
                yield Send(packer.flush())
                yield step
            case _:
                yield step


def _recut(steps: Iterable[_Inner], kind: type[Send] | type[Raw], cut: Cut) -> Iterator[_Inner]:
    """Join the runs of `kind` and part them as `cut` says; every other step stays between its neighbours."""
    if cut == AS_SENT:
        yield from steps
        return
    cutter = _Cutter(cut)
    for alike, run in groupby(steps, key=lambda step: isinstance(step, kind)):
        if not alike:
            yield from run
            continue
        writes = [step for step in run if isinstance(step, Send | Raw)]
        tokens = sum(step.tokens for step in writes)
        for piece in cutter.pieces(b"".join(step.body for step in writes)):
            yield kind(piece, tokens)
            tokens = 0


class _Cutter:
    """Parts bytes by one `Cut`, keeping count of the offset from run to run."""

    def __init__(self, cut: Cut) -> None:
        self._cut = cut
        self._random = Random(cut.seed)
        self._at = sorted(cut.at)
        self._offset = 0

    def pieces(self, run: bytes) -> Iterator[bytes]:
        """`run` in order, in pieces that are never empty."""
        start = 0
        while start < len(run):
            piece = run[start : start + self._length(len(run) - start)]
            start += len(piece)
            self._offset += len(piece)
            yield piece

    def _length(self, left: int) -> int:
        if self._cut.seed is not None:
            return self._random.randint(1, self._cut.size or PIECE_BYTES_MAX)
        if self._at:
            later = bisect_right(self._at, self._offset)
            return self._at[later] - self._offset if later < len(self._at) else left
        return self._cut.size or left


def _framed(script: Script, step: _Inner) -> Iterator[WireStep]:
    match step:
        case Send(body, tokens) if script.framing != "chunked":
            yield Raw(body, tokens)
        case Send(b"", tokens):
            yield Raw(b"", tokens)  # an empty chunk would be the last one
        case Send(body, tokens):
            size = f"{len(body):x}{script.chunk_extension}\r\n".encode("latin-1")
            yield Raw(size + body + b"\r\n", tokens)
        case End():
            yield from _ending(script)
        case _:
            yield step


def _ending(script: Script) -> Iterator[WireStep]:
    if script.framing == "chunked":
        trailers = "".join(f"{name}: {value}\r\n" for name, value in script.trailers)
        yield Raw(f"0{script.chunk_extension}\r\n{trailers}\r\n".encode("latin-1"))
    if not script.keeps_alive:
        yield Fin(complete=True)


def _head(script: Script, body_bytes: int) -> bytes:
    framing: Pairs = ()
    if script.framing == "chunked":
        framing = (("Transfer-Encoding", "chunked"),)
    elif script.framing == "length":
        length = body_bytes if script.declared_length is None else script.declared_length
        framing = (("Content-Length", str(length)),)
    coding: Pairs = (("Content-Encoding", "gzip"),) if script.gzip else ()
    lines = [f"HTTP/{script.http} {script.status} {_phrase(script.status)}".rstrip()]
    lines += [f"{name}: {value}" for name, value in (*script.headers, *coding, *framing)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
