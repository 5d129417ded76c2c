"""AWS's binary event stream: the messages that AWS's own decoder finds, at every cut; damage is only counted."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.metering.wire import event_stream
from proxy.metering.wire.event_stream import EventStreamFramer, exception, message
from proxy.metering.wire.framing import CHUNK_STREAM, EVENT_STREAM
from proxy.metering.wire.outline import LongText
from tests.metering.fixtures import cut_at, in_pieces
from tests.support.linear import assert_linear

# Published with the format: https://github.com/awslabs/aws-c-event-stream, and those of the SDKs.
EMPTY = bytes.fromhex("00000010 00000000 05c248eb 7d98c8ff")
WITH_HEADER = bytes.fromhex(
    "0000003d 00000020 07fd8396 0c636f6e74656e742d74797065 07 0010 6170706c69636174696f6e2f6a736f6e"
    "7b27666f6f273a27626172277d 8d9c08b1"
)

names = st.text(st.characters(codec="ascii", exclude_categories=["C"]), min_size=1, max_size=20)
headers = st.dictionaries(names, st.text(max_size=20), max_size=4)
payloads = st.binary(max_size=60)
messages = st.builds(message, headers, payloads)


def framed(pieces: list[bytes], **options: Any) -> tuple[list[tuple[bytes, bytes, int]], EventStreamFramer]:
    """Payload, name and size (of what is only counted) of each event."""
    framer = EventStreamFramer(**options)
    found = [event for piece in pieces for event in framer.feed(piece)]
    last = framer.close()
    assert framer.at_boundary
    return [(bytes(body), name, getattr(body, "size", 0)) for body, name in (*found, *([last] if last else []))], framer


def cut(body: bytes, at: list[int]) -> list[list[bytes]]:
    """Whole, at these places, and at every byte."""
    return [[body], cut_at(body, at), in_pieces(body, 1)]


@pytest.mark.parametrize(("body", "payload"), [(EMPTY, b""), (WITH_HEADER, b"{'foo':'bar'}")])
def test_published_messages_are_read_and_written(body: bytes, payload: bytes) -> None:
    found, framer = framed([body])
    assert (found, framer.damaged) == ([(payload, b"", 0)], 0)
    assert message({"content-type": "application/json"} if payload else {}, payload) == body


@given(st.lists(messages, max_size=4), st.lists(st.integers(0, 400), max_size=6))
def test_the_messages_are_those_that_aws_finds_at_every_cut(parts: list[bytes], at: list[int]) -> None:
    from botocore.eventstream import EventStreamBuffer

    body = b"".join(parts)
    theirs = EventStreamBuffer()
    theirs.add_data(body)
    wanted = [(one.payload, one.headers.get(":event-type", "").encode()) for one in theirs]
    for pieces in cut(body, at):
        found, framer = framed(pieces)
        assert [(payload, name) for payload, name, size in found if not size] == wanted
        assert (framer.damaged, framer.too_long) == (0, 0)


@given(st.lists(messages, min_size=1, max_size=4), st.data())
def test_a_flipped_bit_loses_events_and_invents_none(parts: list[bytes], data: st.DataObject) -> None:
    body = bytearray(b"".join(parts))
    body[data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    at = data.draw(st.lists(st.integers(0, len(body)), max_size=4))
    whole, _ = framed([b"".join(parts)])
    results = [framed(pieces) for pieces in cut(bytes(body), at)]
    assert all(found == results[0][0] for found, _ in results)
    found, framer = results[0]
    assert framer.damaged == 1
    good = [event for event in found if not event[2]]
    rest = iter(whole)
    assert all(event in rest for event in good), "those that are whole, in their order"
    assert len(good) < len(parts)
    assert sum(size for _, _, size in found) > 0


@pytest.mark.parametrize(
    ("place", "read"),
    [(3, 1), (9, 1), (13, 2), (-6, 2), (-1, 2)],  # prelude, its checksum; headers, payload, checksum
)
def test_after_a_damaged_message_the_next_is_read_unless_its_length_is_unknown(place: int, read: int) -> None:
    first = message({":event-type": "a"}, b"{}")
    second = bytearray(message({":event-type": "b"}, b'{"p":"abc"}'))
    second[place] ^= 1
    third = message({":event-type": "c"}, b"{}")
    found, framer = framed([first + second + third])
    unread = len(second) + (0 if read == 2 else len(third))
    assert [name for _, name, size in found if not size] == [b"a", b"c"][:read]
    assert (sum(size for _, _, size in found), framer.damaged) == (unread, 1)


@pytest.mark.parametrize(
    "headers",
    [b"\x01", b"\x01a", b"\x01a\x07", b"\x01a\x07\x00", b"\x01a\x07\x00\x05abcd", b"\x01a\x09short", b"\x01a\x0a",
     b"\xff\x07"],
)  # fmt: skip
def test_malformed_headers_are_damage(headers: bytes) -> None:
    whole = bytearray(EMPTY)
    prelude = (16 + len(headers)).to_bytes(4) + len(headers).to_bytes(4)
    prelude += event_stream.crc32(prelude).to_bytes(4)
    whole = bytearray(prelude + headers)
    whole += event_stream.crc32(whole).to_bytes(4)
    found, framer = framed([bytes(whole) + message({":event-type": "b"}, b"{}")])
    assert found == [(b"", b"", len(whole)), (b"{}", b"b", 0)]
    assert framer.damaged == 1


def test_headers_of_every_type_are_passed_over() -> None:
    """Types 0 to 9: true, false, byte, short, int, long, bytes, text, timestamp, uuid."""
    values = (b"", b"", b"1", b"12", b"1234", b"12345678", b"\x00\x02ab", b"\x00\x01e", b"12345678", b"0" * 16)
    headers = b"".join(b"\x01%c%c%b" % (97 + kind, kind, value) for kind, value in enumerate(values))
    headers += b"\x0b:event-type\x07\x00\x01e"
    prelude = (16 + len(headers) + 2).to_bytes(4) + len(headers).to_bytes(4)
    prelude += event_stream.crc32(prelude).to_bytes(4)
    body = prelude + headers + b"{}"
    assert framed([body + event_stream.crc32(body).to_bytes(4)])[0] == [(b"{}", b"e", 0)]


@pytest.mark.parametrize(("kind", "name"), [("event", b"x"), ("exception", b"error"), ("error", b"error")])
def test_exceptions_and_errors_are_named_so(kind: str, name: bytes) -> None:
    assert framed([message({":message-type": kind, ":event-type": "x"}, b"{}")])[0] == [(b"{}", name, 0)]


def test_chunks_hold_the_model_s_own_events() -> None:
    inner = json.dumps({"type": "ping"}).encode()
    wire = message(
        {":message-type": "event", ":event-type": "chunk"},
        json.dumps({"p": "abcdef", "bytes": base64.b64encode(inner).decode()}).encode(),
    )
    other = message({":event-type": "chunk"}, b'{"p":"abc"}')
    assert framed([wire + other], chunks=True)[0] == [(inner, b"chunk", 0), (b"", b"", len(other))]
    framer = CHUNK_STREAM.framer()
    assert framer.feed(wire) == [(inner, b"chunk")]
    assert EVENT_STREAM.framer().feed(wire)[0][0].startswith(b'{"p"')


@given(st.lists(st.integers(0, 9000), max_size=5), st.integers(0, 4))
def test_what_is_too_long_is_counted_by_its_size(at: list[int], more: int) -> None:
    long = message({":event-type": "b"}, b"x" * (5000 * more))
    body = message({":event-type": "a"}, b"{}") + long + message({":event-type": "c"}, b"{}")
    for pieces in cut(body, at)[:2]:
        found, framer = framed(pieces, bytes_max=100)
        assert [name for _, name, size in found if not size] == ([b"a", b"c"] if more else [b"a", b"b", b"c"])
        assert sum(size for _, _, size in found) == (len(long) if more else 0)
        assert framer.too_long == (more > 0)


def test_what_cannot_be_read_is_told_while_it_comes() -> None:
    framer = EventStreamFramer()
    assert framer.feed(b"{" * 4000) == []
    assert not framer.at_boundary
    (event,) = framer.feed(b"{" * 200)
    assert isinstance(event[0], LongText)
    assert event[0].size == 4096
    assert framer.close() is not None


def test_of_a_short_beginning_of_a_message_there_is_nothing() -> None:
    whole = message({":event-type": "a"}, b"x" * 5000)
    for size, told in ((0, None), (1, None), (4000, None), (len(whole) - 1, len(whole) - 1)):
        framer = EventStreamFramer()
        assert framer.feed(whole[:size]) == []
        assert framer.at_boundary is (size == 0)
        last = framer.close()
        assert (None if last is None else last[0].size) == told  # type: ignore[attr-defined]


def test_our_own_errors_are_read_by_aws() -> None:
    from botocore.eventstream import EventStreamBuffer

    buffer = EventStreamBuffer()
    buffer.add_data(exception(b'{"message":"no"}', "throttlingException"))
    (told,) = list(buffer)
    assert told.to_response_dict()["status_code"] == 400
    assert (told.headers[":exception-type"], told.payload) == ("throttlingException", b'{"message":"no"}')


def test_an_endless_message_takes_bounded_memory_and_linear_time() -> None:
    head = message({}, b"x" * 100)
    prelude = (1 << 31).to_bytes(4) + b"\0\0\0\0"
    endless = prelude + event_stream.crc32(prelude).to_bytes(4)

    def read(pieces: int) -> None:
        framer = EventStreamFramer()
        framer.feed(head + endless)
        for _ in range(pieces):
            framer.feed(b"x" * 50)
        assert len(framer._held) == 0

    def by_byte(pieces: int) -> None:
        framer = EventStreamFramer()
        whole = message({}, b"x" * pieces)
        for at in range(len(whole)):
            framer.feed(whole[at : at + 1])

    assert_linear(read, 2_000)
    assert_linear(by_byte, 2_000)
