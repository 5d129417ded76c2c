"""Scripted answers, and the exact writes and waits that they expand to. Pure.

Invariant: the same script yields the same bytes in the same writes. A script is a value with a JSON form (bytes as
base64). Its body (steps), its framing (HTTP chunks) and the cuts between writes are independent.
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

# Default of the longest random piece: small enough to cut every event of a fixture.
PIECE_BYTES_MAX = 64


class Step(Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag=str.lower):
    """One step of an answer."""


class Send(Step, frozen=True):
    """Body bytes, repeated `times`: one HTTP chunk, unless the script's `chunking` cuts it."""

    body: bytes
    tokens: Count = 0
    """counted as generated before the first byte is written"""
    times: Count = 1


class Raw(Step, frozen=True):
    """Bytes written as they are, without framing."""

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
    """Silence until the client disconnects."""


class Reset(Step, frozen=True):
    """RST: the connection ends at once; bytes in flight are lost."""


class Fin(Step, frozen=True):
    """FIN: the connection is closed in order, before the end of the answer."""

    complete: bool = False
    """the answer is complete: its framing ends with the close"""


class End(Step, frozen=True):
    """The end of the answer's framing: last chunk and trailers, length, or close. Implicit if it is not given."""


AnyStep = Send | Raw | Trickle | Wait | Stall | Reset | Fin | End
WireStep = Raw | Wait | Stall | Reset | Fin
_Inner = Send | WireStep | End
_FLOW = (Send, Raw, Trickle, Wait)


class Cut(Struct, frozen=True, forbid_unknown_fields=True):
    """The places where consecutive bytes are cut; by default, between the script's steps.

    The first field that is set applies: `seed`: random pieces of 1 to `size` (or PIECE_BYTES_MAX) bytes; `at`: absolute
    offsets; `size`: every `size` bytes; `whole`: nowhere.
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
    """sent as they are; the framing header is added"""
    framing: Literal["chunked", "length", "close", "raw"] = "chunked"
    """raw: no head and no framing, the steps are the whole answer"""
    http: Literal["1.0", "1.1"] = "1.1"
    chunking: Cut = AS_SENT
    """cuts of the body into HTTP chunks"""
    wire: Cut = AS_SENT
    """cuts of all bytes, head included, into writes"""
    wire_pause_ms: Milliseconds | None = None
    """pause between two writes; 0 yields to the event loop, None does not"""
    chunk_extension: str = ""
    """appended to each chunk size, semicolon included"""
    trailers: Pairs = ()
    gzip: bool = False
    """compress the body, flush at each step, and send Content-Encoding"""
    declared_length: Count | None = None
    """a false Content-Length"""
    prelude: bytes = b""
    """garbage before the status line"""
    delay_ms: Milliseconds = 0
    """pause before the head"""
    refuse_stream_options: Literal[0, 400, 422] = 0
    """the status of requests with `stream_options`; 0: they are accepted"""
    on_leave: Literal["stop", "generate"] = "stop"
    """whether tokens are generated after the client disconnects"""

    @property
    def keeps_alive(self) -> bool:
        """True if the connection can serve another request after the end of this answer."""
        framed = self.framing in {"chunked", "length"} and self.http == "1.1" and self.declared_length is None
        return framed and not any(name.lower() == "connection" and value == "close" for name, value in self.headers)


class Shape(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="shape"):
    """An answer generated for each request, in one provider's format."""

    language: Literal["tera", "tensorloop", "siliconstorm", "siliconstorm-fulltext", "electron", "openai"]
    writes: Literal["text", "reasoning", "tools"] = "text"
    tokens: Annotated[int, Meta(ge=1, le=1_000_000)] = 24
    """tokens to generate, unless the request's limit is lower; bounded, because a stream is built before it is sent"""
    text: Annotated[str, Meta(min_length=1)] | None = None
    """the text, repeated as needed; None: the built-in one"""
    pace_ms: Milliseconds = 0
    """pause between two tokens"""
    first_ms: Milliseconds = 0
    """pause before the head"""
    reports_usage: bool = True
    """False: streams never report usage, even if requested"""
    refuse_stream_options: Literal[0, 400, 422] = 0
    chunking: Cut = AS_SENT
    wire: Cut = AS_SENT


def json_script(payload: Json, status: int = 200, headers: Pairs = ()) -> Script:
    """A plain JSON answer with Content-Length."""
    typed = (("Content-Type", "application/json"), *headers)
    return Script(steps=(Send(json_bytes(payload)),), status=status, headers=typed, framing="length")


def wire_steps(script: Script) -> list[WireStep]:
    """The writes and waits, in order, from the first byte of the head to the end of the answer."""
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
    """The steps with trickles and repetitions expanded, and with the implicit end."""
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
    """The body as one gzip member; each step can be decompressed as soon as it arrives."""
    gzip_container = 31  # zlib's code for the largest window with gzip header and checksum
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
    """Join consecutive steps of `kind` and cut them by `cut`; other steps keep their places."""
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
    """Cuts runs of bytes by one `Cut`; offsets count over all runs."""

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
