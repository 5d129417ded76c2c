"""The body of a request: whatever comes, it is an object that was understood, or a 400 that says why."""

from __future__ import annotations

import asyncio
import gzip
import json
import tracemalloc
import zlib
from collections.abc import Callable
from time import process_time
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import HttpVersion10, HttpVersion11, StreamReader
from aiohttp.base_protocol import BaseProtocol
from hypothesis import given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy

from proxy.http import json_body, request_body
from proxy.http.errors import ApiError
from proxy.http.json_body import (
    CONTAINERS_MAX,
    DEPTH_MAX,
    ELEMENTS_MAX,
    LONG_DIGITS,
    LONG_DIGITS_MAX,
    MEMBERS_MAX,
    parse_object,
    serialise,
)
from proxy.http.request_body import read_body
from proxy.metering.wire import content_coding
from tests.http.documents import NEARLY, OBJECTS, whole
from tests.support.examples import examples
from tests.support.waiting import beside


def code_of(body: bytes) -> str | None:
    """Why `body` is refused; None if it is not. The refusal can always be sent."""
    refusal = _refused(body)
    if refusal is None:
        return None
    assert refusal.status == 400
    assert json.loads(refusal.body())["error"]["message"]
    return refusal.code


def _refused(body: bytes) -> ApiError | None:
    try:
        parse_object(body)
    except ApiError as refusal:
        return refusal
    return None


@given(OBJECTS)
def test_what_is_sent_up_is_what_was_parsed(document: dict[str, Any]) -> None:
    for text in (json.dumps(document), json.dumps(document, ensure_ascii=False), json.dumps(document, indent=1)):
        parsed = parse_object(text.encode("utf-8", "surrogatepass") if text.isascii() else _utf8(text))
        assert parsed == document
        assert _typed(parsed) == _typed(document)
        assert parse_object(serialise(parsed)) == parsed
        assert _typed(json.loads(serialise(parsed))) == _typed(parsed)


def _utf8(text: str) -> bytes:
    """UTF-8, with whatever UTF-8 cannot hold escaped."""
    return text.encode("utf-8", "backslashreplace")


def _typed(value: Any) -> Any:
    """`value` with 1, 1.0 and true told apart."""
    match value:
        case dict():
            return {name: _typed(inner) for name, inner in value.items()}
        case list():
            return [_typed(inner) for inner in value]
        case _:
            return type(value).__name__, repr(value)


@given(st.binary(max_size=200) | NEARLY | NEARLY.map(lambda inner: b'{"a":' + inner + b"}"))
def test_no_bytes_raise_anything_but_a_refusal(body: bytes) -> None:
    if code_of(body) is None:
        serialise(parse_object(body))


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"),
        (b"[]", "invalid_json"),
        (b'"x"', "invalid_json"),
        (b"null", "invalid_json"),
        (b"{} {}", "invalid_json"),
        ('{"a":1}'.encode("utf-16"), "invalid_json"),
        (b'{"a":"\xff"}', "invalid_json"),
        (b'{"a":"\xed\xa0\x80"}', "invalid_json"),
        (b'{"a":"\n"}', "invalid_json"),
        (b'{"a":NaN}', "invalid_json"),
        (b'{"a":Infinity}', "invalid_json"),
        (b'{"a":-Infinity}', "invalid_json"),
        (b'{"a":1e400}', "invalid_json"),
        (b'{"a":-1e400}', "invalid_json"),
        (b'{"a":01}', "invalid_json"),
        (b'{"a":+1}', "invalid_json"),
        (b'{"a":0x10}', "invalid_json"),
        (b"{'a':1}", "invalid_json"),
        (b'{"a":1,}', "invalid_json"),
        (b'{"a":1}//', "invalid_json"),
        (b'{"a":' + b"9" * 4301 + b"}", "invalid_json"),
        (b'{"a":1,"a":1}', "duplicate_key"),
        (b'{"a":1,"\\u0061":2}', "duplicate_key"),
        (b'{"x":[{"y":{"b":1,"\\u0062":2}}]}', "duplicate_key"),
        (b'{"":1,"":2}', "duplicate_key"),
        (b'{"\\ud800":1,"\\uD800":2}', "duplicate_key"),
        ('{"é":1,"\\u00e9":2}'.encode(), "duplicate_key"),
        (b'{"a":' * (DEPTH_MAX + 1) + b"1" + b"}" * (DEPTH_MAX + 1), "json_too_deep"),
        (b'{"a":' + b"[" * 100_000, "json_too_deep"),
        (b'{"a":' * 100_000, "json_too_deep"),
        (b"[" * 65 + b'"' + b'\\"' * 99_000, "json_too_deep"),
        (b"[]" * 33 + b'"' + b'\\"' * 99_000, "invalid_json"),
        (b'{"n":' + b"9" * 199_000 + b"}", "json_too_large"),
        (b'{"n":1e' + b"9" * 199_000 + b"}", "json_too_large"),
        (b'{"n":1e' + b"9" * 99_000 + b"}", "invalid_json"),
        (b"{" + b'"a":1,' * 19_000 + b'"a":1}', "duplicate_key"),
    ],
)
def test_refused(body: bytes, code: str) -> None:
    assert code_of(body) == code


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":' + b"9" * 4300 + b"}",
        b'{"a":1,"A":2,"b":{"a":1}}',
        b'{"a":[{"b":1},{"b":2}]}',
        b'{"a":' * (DEPTH_MAX - 1) + b"{}" + b"}" * (DEPTH_MAX - 1),
        b'{"a":"' + b"[{" * 1000 + b'"}',
        b'{"a":"\\"' + b"[" * 1000 + b'"}',
        b'{"a":[' + b"[],{}," * 1000 + b"[]]}",
        b'{"a":"\\ud800"}',
        b'{"a":-0.0,"b":5e-324,"c":1.7976931348623157e308}',
        b' \t\r\n{"a" : 1}\n',
    ],
)
def test_taken(body: bytes) -> None:
    assert code_of(body) is None


@pytest.mark.parametrize("number", ["9" * 400, "-" + "9" * 400, str(2**53 + 1), str(2**64), "-0.0", "1e-7", "1.0"])
def test_a_number_goes_up_as_it_came(number: str) -> None:
    sent = serialise(parse_object(f'{{"a":{number}}}'.encode()))
    assert json.loads(sent) == json.loads(f'{{"a":{number}}}')
    if "e" not in number:
        assert sent == f'{{"a":{number}}}'.encode()


@pytest.mark.parametrize("text", ["\ud800", "\udfff\ud800", "a\ud83d", "\u2028\u2029", "\x7f", "😀"])
def test_a_text_goes_up_as_it_came(text: str) -> None:
    sent = serialise(parse_object(json.dumps({"a": text, "é": 1}).encode()))
    sent.decode("utf-8")
    assert json.loads(sent) == {"a": text, "é": 1}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"n":NaN}', "n"),
        (b'{"a":1,"temperature":1e400}', "temperature"),
        (b'{"x":{"y":Infinity}}', "y"),
        (b'{"a":[NaN]}', None),
        (b'{"n":NaN, ', None),
        (b'{"n":NaN,"m":' + b"9" * 5000 + b"}", None),
        (b'{"\\ud800":NaN}', "…"),
        (b'{"a\\u001b[2J":1,"a\\u001b[2J":1}', "…"),
        (b'{"%b":1,"%b":1}' % (b"k" * 500, b"k" * 500), "k" * 64),
        (b'{"n":1,"\\u006e":1}', "n"),
    ],
)
def test_the_field_is_named_where_it_can_be(body: bytes, param: str | None) -> None:
    with pytest.raises(ApiError) as refusal:
        parse_object(body)
    assert refusal.value.param == param
    json.loads(refusal.value.body())


def test_too_many_containers_are_refused_and_braces_in_text_are_not() -> None:
    with pytest.raises(ApiError) as refusal:
        parse_object(b'{"a":[' + b"[]," * CONTAINERS_MAX + b"[]]}")
    assert (refusal.value.status, refusal.value.code) == (400, "json_too_large")
    text = "{[" * CONTAINERS_MAX
    assert whole(parse_object(json.dumps({"a": text}).encode())) == {"a": text}


def objects_of(members: int) -> bytes:
    one = b"{%b}" % b",".join(b'"%d":1' % at for at in range(9_999))
    last = b"{%b}" % b",".join(b'"%d":1' % at for at in range((members - 1) % 9_999))
    return b'{"x":[' + b",".join([one] * ((members - 1) // 9_999) + [last]) + b"]}"


def array_of(value: bytes, count: int) -> bytes:
    return b'{"a":1,"x":[' + b",".join([value] * count) + b"]}"


LONG = b"9" * 4300
STRINGS_MAX = MEMBERS_MAX + MEMBERS_MAX + ELEMENTS_MAX


# Made when they are asked for: megabytes that a run of other tests need not hold.
TOO_MANY: dict[str, Callable[[], bytes]] = {
    "members": lambda: objects_of(MEMBERS_MAX + 1),
    "many members": lambda: objects_of(STRINGS_MAX + 2),
    "elements": lambda: array_of(b"1", ELEMENTS_MAX + 3),
    "fractions": lambda: array_of(b"0.5", ELEMENTS_MAX + 3),
    "strings": lambda: array_of(b'""', STRINGS_MAX + 1),
    "long integers": lambda: array_of(LONG, LONG_DIGITS_MAX // len(LONG) + 1),
    "long fractions": lambda: array_of(b"-0." + LONG, LONG_DIGITS_MAX // len(LONG) + 1),
}
AS_MANY_AS_MAY_BE: dict[str, Callable[[], bytes]] = {
    "members": lambda: objects_of(MEMBERS_MAX),
    "elements": lambda: array_of(b"1", ELEMENTS_MAX),
    "tokens": lambda: array_of(b"[" + b",".join([b"12345"] * 146) + b"]", 2048),
    "long integers": lambda: array_of(LONG, LONG_DIGITS_MAX // len(LONG)),
    "integers": lambda: array_of(b"1" * LONG_DIGITS, 1000),
    "digits in text": lambda: array_of(b'"%s"' % (b"1" * 200_000), 3),
    "JSON in text": lambda: array_of(b'"%s"' % (b'{[:,\\"' * 500_000), 1),
    "escapes": lambda: array_of(b'"\\\\"', 100) + b" " * LONG_DIGITS_MAX,
}


@pytest.mark.parametrize("name", TOO_MANY)
def test_a_body_of_too_many_parts_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(json_body, "_DECODER", None)
    assert code_of(TOO_MANY[name]()) == "json_too_large"


@pytest.mark.parametrize("name", AS_MANY_AS_MAY_BE)
def test_a_body_at_the_bounds_is_parsed_and_text_counts_as_nothing(name: str) -> None:
    body = AS_MANY_AS_MAY_BE[name]()
    assert whole(parse_object(body)) == json.loads(body)


@pytest.mark.parametrize(
    "make",
    [
        lambda n: b"[" * 65 + b'"' + b'\\"' * n,
        lambda n: b"[]" * 33 + b"[" * 33 + b'"' + b'\\"' * n,
        lambda n: b"[]" * 65 + b'"a\\' * n,
        lambda n: b'{"a":[' + b"[]," * n + b"[]]}",
        lambda n: b'{"a":"' + b"\\\\" * n + b'"' + b"[" * 65,
        lambda n: b'"' * n + b"[" * 65,
        lambda n: b"[" * 65 + b"\\" * n,
    ],
)
def test_the_look_for_depth_is_linear(make: Any) -> None:
    """Counted by the CPU's clock, against itself: for ten times the bytes a square takes a hundred times as long."""
    code_of(make(1000))
    small, large = (min(_seconds(make(n)) for _ in range(2)) for n in (10_000, 100_000))
    assert large < 50 * max(small, 2e-4)


def _seconds(body: bytes) -> float:
    started = process_time()
    code_of(body)
    return process_time() - started


# -- reading it from the connection ------------------------------------------------------------------------------


def reader(come: bytes = b"", *, ended: bool = False) -> StreamReader:
    """A body of which so much has come; the rest is still to come, unless it has `ended`."""
    loop = asyncio.get_running_loop()
    protocol = BaseProtocol(loop, parser=None)
    protocol.transport = asyncio.Transport()  # it only has to be there: a body without a connection does not come
    content = StreamReader(protocol, 2**16, loop=loop)
    content.feed_data(come)
    if ended:
        content.feed_eof()
    return content


class Asked:
    """As much of a request as reading its body needs."""

    def __init__(self, content: StreamReader, *, version: Any = HttpVersion11, **headers: str) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.headers = CIMultiDictProxy(CIMultiDict(named))
        self.content = content
        self.version = version
        self.content_length = int(named["Content-Length"]) if "Content-Length" in named else None
        self.written: list[bytes] = []
        self.writer = SimpleNamespace(write=self._write, output_size=0)

    async def _write(self, wire: bytes) -> None:
        self.written.append(wire)
        self.writer.output_size += len(wire)


async def _refusal(asked: Asked, bytes_max: int = 100) -> ApiError:
    with pytest.raises(ApiError) as refusal:
        await read_body(asked, bytes_max=bytes_max)  # type: ignore[arg-type]
    return refusal.value


async def test_a_body_that_is_there_is_read_at_once() -> None:
    assert await read_body(Asked(reader(b"{}", ended=True)), bytes_max=2) == b"{}"  # type: ignore[arg-type]


async def test_a_body_that_says_it_is_too_long_is_not_waited_for() -> None:
    refusal = await _refusal(Asked(reader(), Content_Length="101"))
    assert (refusal.status, refusal.code) == (413, "request_too_large")


@pytest.mark.parametrize("ended", [False, True])
async def test_a_body_that_grows_too_long_is_not_read_on(ended: bool) -> None:
    assert (await _refusal(Asked(reader(b"x" * 101, ended=ended)))).status == 413


@pytest.mark.parametrize(
    "coding", ["br", "zstd", "identity, gzip", "x", "gzip\N{NO-BREAK SPACE}", "\N{EM SPACE}identity"]
)
async def test_other_compressions_are_refused(coding: str) -> None:
    refusal = await _refusal(Asked(reader(), Content_Encoding=coding))
    assert (refusal.status, refusal.param) == (415, "Content-Encoding")


def held(body: bytes, coding: str) -> Asked:
    return Asked(reader(body, ended=True), Content_Encoding=coding)


@pytest.mark.parametrize(
    ("coding", "pack"),
    [("gzip", gzip.compress), ("GZIP", gzip.compress), ("deflate", zlib.compress), ("identity", bytes),
     ("gzip", lambda body: gzip.compress(body[:3]) + gzip.compress(body[3:]))],
)  # fmt: skip
@settings(max_examples=examples(60))
@given(st.binary(max_size=2000), st.integers(1, 800_000))
def test_a_compressed_body_is_read(coding: str, pack: Callable[[bytes], bytes], part: bytes, times: int) -> None:
    body = part * (times // (len(part) or 1) if coding != "identity" else 1)
    grown: list[int] = []

    async def read() -> bytes:
        return await read_body(held(pack(body), coding), bytes_max=len(body) + 100, grew=grown.append)  # type: ignore[arg-type]

    assert asyncio.run(read()) == body
    assert coding == "identity" or sum(grown) == len(body)


PACKED = gzip.compress(b"{}", mtime=0)


@pytest.mark.parametrize("body", [b"{}", PACKED[:-1], PACKED + b"x", b"\x1f\x8b"])
async def test_a_body_that_is_not_compressed_as_it_says_is_refused(body: bytes) -> None:
    refusal = await _refusal(held(body, "gzip"))
    assert (refusal.status, refusal.param) == (400, "Content-Encoding")


@pytest.mark.parametrize("member", [b"", b"x"])
async def test_a_body_of_tiny_members_is_refused_without_delaying_others(
    monkeypatch: pytest.MonkeyPatch, member: bytes
) -> None:
    """Each one copied the rest of the body: an hour for 60 MB."""
    steps: list[int] = []

    class Member:
        def __init__(self, wbits: int) -> None:
            self._member = zlib.decompressobj(wbits)

        def decompress(self, step: bytes, bytes_max: int) -> bytes:
            steps.append(len(step))
            return self._member.decompress(step, bytes_max)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._member, name)

    zlib_here = SimpleNamespace(decompressobj=Member, error=zlib.error)
    monkeypatch.setattr(content_coding, "zlib", zlib_here)
    body = gzip.compress(member) * 10_000
    with pytest.raises(ApiError) as refusal:
        await request_body._decompressed(body, 1 << 20, lambda _size: None)
    assert (refusal.value.status, refusal.value.param) == (400, "Content-Encoding")
    assert len(body) > content_coding.STEP_BYTES >= max(steps)
    assert len(steps) <= content_coding.MEMBERS_MAX


async def test_a_body_may_have_many_members() -> None:
    """As bgzip writes them, and with an empty one at the end."""
    text = b"".join(b"%d," % number for number in range(20_000))
    parts = [text[at : at + 100] for at in range(0, len(text), 100)]
    body = b"".join(map(gzip.compress, [*parts, b""]))
    assert await read_body(held(body, "gzip"), bytes_max=1 << 20) == text  # type: ignore[arg-type]


async def test_a_compressed_body_is_measured_as_it_unfolds() -> None:
    """A thousandth of its size arrives; no more than one slice beyond the limit is ever in memory."""
    grown: list[int] = []
    asked = held(gzip.compress(bytes(16 << 20)), "gzip")
    tracemalloc.start()
    with pytest.raises(ApiError) as refusal:
        await read_body(asked, bytes_max=1 << 20, grew=grown.append)  # type: ignore[arg-type]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (refusal.value.status, sum(grown)) == (413, 1 << 20)
    assert peak < 4 << 20


async def test_a_body_that_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_body, "BODY_S", 0.05)
    assert (await _refusal(Asked(reader()))).status == 408


async def test_a_body_that_trickles_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte buys its share of time at the slowest rate, and no more."""
    monkeypatch.setattr(request_body, "BODY_S", 0.1)
    content = reader()

    async def trickle() -> None:
        while True:
            content.feed_data(b"x")
            await asyncio.sleep(0.005)

    async with asyncio.timeout(5), beside(trickle()):
        refusal = await _refusal(Asked(content), bytes_max=10**9)
    assert refusal.status == 408


async def test_a_slow_body_at_a_fair_rate_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_body, "BODY_S", 0.1)
    monkeypatch.setattr(request_body, "BODY_BYTES_PER_S_MIN", 1)
    content = reader()
    asyncio.get_running_loop().call_later(0.0, content.feed_data, b"x" * 60)
    asyncio.get_running_loop().call_later(0.3, content.feed_data, b"y")
    asyncio.get_running_loop().call_later(0.3, content.feed_eof)
    assert await read_body(Asked(content), bytes_max=100) == b"x" * 60 + b"y"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("version", "told"), [(HttpVersion11, [b"HTTP/1.1 100 Continue\r\n\r\n"]), (HttpVersion10, [])]
)
async def test_who_waits_for_leave_to_send_is_told(version: Any, told: list[bytes]) -> None:
    asked = Asked(reader(b"{}", ended=True), version=version, Expect="100-continue")
    assert await read_body(asked, bytes_max=2) == b"{}"  # type: ignore[arg-type]
    assert asked.written == told
    assert asked.writer.output_size == 0, "the answer proper has not begun"


def test_a_byte_order_mark_before_the_body_is_ignored() -> None:
    """Some editors and shells write one."""
    assert parse_object(b"\xef\xbb\xbf{}") == {}
    with pytest.raises(ApiError):
        parse_object(b"\xef\xbb\xbf\xef\xbb\xbf{}")
