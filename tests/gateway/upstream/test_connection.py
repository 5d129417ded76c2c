"""One connection to a provider, without a network: every cut gives the same body, and what was given back to the pool
is no longer steered by who had it before."""

from __future__ import annotations

import asyncio
import socket

import pytest

from proxy.gateway.upstream.client import Answer
from proxy.gateway.upstream.connection import EARLY_BYTES_MAX, INTERIM_MAX, WRITTEN_BYTES_MAX, UpstreamConnection
from proxy.gateway.upstream.failures import UpstreamFailedError
from proxy.http.framing import HEAD_BYTES_MAX
from tests.gateway.upstream.connections import CHUNKED, CLOSED, LAST, Heard, Pool
from tests.http.frames import framed, unframed
from tests.support.waiting import until

EVENTS = [b"data: a\n\n", b"data: b\n\n", "data: 水\n\n".encode()]
BODY = b"".join(EVENTS)
SIZED = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY)
FORGED = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno"


def answered(connection: UpstreamConnection, wire: bytes, heard: Heard | None = None) -> Answer:
    """What comes of a request once `wire` is there; its body goes to `heard`."""
    asked = connection.ask(b"request")
    connection.data_received(wire)
    made = Answer(asked.result(), connection)
    if heard is not None:
        made.relay_to(heard)
    return made


async def test_head_and_body_at_every_cut_and_the_connection_is_usable_again() -> None:
    for wire in (CHUNKED + b"".join(map(framed, EVENTS)) + LAST, SIZED + BODY):
        for at in range(1, len(wire)):
            pool, heard = Pool(), Heard()
            connection, transport = pool.connected()
            asked = connection.ask(b"request")
            for piece in (wire[:at], wire[at:]):
                connection.data_received(piece)
                if asked.done() and not heard.ended and not heard.payload:
                    Answer(asked.result(), connection).relay_to(heard)
                    asked = asyncio.get_running_loop().create_future()
            assert (heard.payload, heard.ended) == (BODY, ["complete"]), at
            assert pool.rested == [connection], at
            assert connection.usable
            assert transport.reading
            again = connection.ask(b"request")
            connection.data_received(CHUNKED)
            assert again.result().chunked


@pytest.mark.parametrize("head", [b"9 ", b"9\t", b"9;a=b", b"9 ;a"])
async def test_a_chunk_whose_head_is_not_just_digits_is_written_anew(head: bytes) -> None:
    heard = Heard()
    connection, _ = Pool().connected()
    answered(connection, CHUNKED, heard)
    verbatim: list[bytes | None] = []
    heard.piece = lambda payload, framed=None: verbatim.append(framed)  # type: ignore[method-assign]
    for size in (head, b"9", b"009"):
        connection.data_received(size + b"\r\ndata: a\n\n\r\n")
    assert verbatim == [None, b"9\r\ndata: a\n\n\r\n", b"009\r\ndata: a\n\n\r\n"]


async def test_only_what_begins_with_a_chunk_is_offered_as_it_came() -> None:
    known = framed(b"data: b\n\n")
    for begun, pieces, times in (
        (b"", [known, known], 2),
        (known[:4], [known[4:], known, known], 2),
        (b"%x\r\n" % len(known), [known, b"\r\n", known], 1),  # the first is payload, whatever it looks like
    ):
        heard = Heard(known)
        connection, _ = Pool().connected()
        answered(connection, CHUNKED + begun, heard)
        for piece in (*pieces, LAST):
            connection.data_received(piece)
        assert (heard.known, heard.ended) == (times, ["complete"]), begun


async def test_interim_answers_are_passed_over_at_every_cut() -> None:
    wire = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n" + CHUNKED
    for at in range(1, len(wire)):
        connection, _ = Pool().connected()
        asked = connection.ask(b"request")
        connection.data_received(wire[:at])
        connection.data_received(wire[at:])
        assert asked.result().status == 200


async def test_interim_answers_are_bounded_however_they_arrive() -> None:
    interim = b"HTTP/1.1 102 Processing\r\n\r\n"
    for pieces in ([interim * 3000 + SIZED], [interim] * 3000):
        connection, transport = Pool().connected()
        asked = connection.ask(b"request")
        for piece in pieces:
            connection.data_received(piece)
        with pytest.raises(UpstreamFailedError, match="too many interim answers"):
            asked.result()
        assert transport.closed


async def test_each_request_may_have_as_many_interim_answers_as_the_first() -> None:
    pool = Pool()
    connection, _ = pool.connected()
    for requests in (1, 2):
        answered(connection, b"HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n" * INTERIM_MAX + SIZED + BODY, Heard())
        assert len(pool.rested) == requests


@pytest.mark.parametrize(
    "wire",
    [
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * HEAD_BYTES_MAX + b"\r\n\r\n",
        b"\x16\x03\x01\r\n\r\n",
        b"x" * (HEAD_BYTES_MAX + 1),
    ],
    ids=["switch", "long", "tls", "endless"],
)
async def test_an_answer_that_is_none_fails_and_closes(wire: bytes) -> None:
    pool = Pool()
    connection, transport = pool.connected()
    asked = connection.ask(b"request")
    connection.data_received(wire)
    with pytest.raises(UpstreamFailedError):
        asked.result()
    assert transport.closed
    assert not connection.usable


@pytest.mark.parametrize("way", [CHUNKED + framed(BODY) + LAST, SIZED + BODY], ids=["chunked", "length"])
async def test_an_answer_nobody_asked_for_makes_the_connection_unusable_at_every_cut(way: bytes) -> None:
    for at in range(len(FORGED)):
        connection, transport = Pool().connected()
        heard = Heard()
        answered(connection, way + FORGED[:at], heard)
        connection.data_received(FORGED[at:])
        assert (heard.payload, heard.ended) == (BODY, ["complete"])
        assert transport.closed, at
        assert not connection.usable, at


@pytest.mark.parametrize(
    ("wire", "says_end", "ended"),
    [
        (CHUNKED + framed(BODY), True, "broken"),
        (CHUNKED + framed(BODY) + b"0\r\n", True, "broken"),
        (CHUNKED + framed(BODY) + LAST, True, "complete"),
        (SIZED.replace(b"Length: ", b"Length: 9") + BODY, True, "broken"),
        (SIZED + BODY, True, "complete"),
        (CLOSED + BODY, True, "complete"),
        (CLOSED + BODY, False, "broken"),
    ],
)
@pytest.mark.parametrize("early", [False, True])
async def test_the_connection_s_end_before_and_after_somebody_came_for_the_body(
    wire: bytes, says_end: bool, ended: str, early: bool
) -> None:
    """Nothing of the body is lost, and a break is told, however early it came."""
    pool, heard = Pool(), Heard()
    connection, _ = pool.connected()
    asked = connection.ask(b"request")
    connection.data_received(wire)
    if not early:
        Answer(asked.result(), connection).relay_to(heard)
    if says_end:
        connection.eof_received()
    connection.connection_lost(None if says_end else ConnectionResetError())
    if early:
        Answer(asked.result(), connection).relay_to(heard)
    assert (heard.payload, heard.ended) == (BODY, [ended])
    assert not connection.usable


async def test_a_connection_lost_before_the_head_fails_the_request() -> None:
    connection, _ = Pool().connected()
    asked = connection.ask(b"request")
    connection.data_received(CHUNKED[:9])
    connection.connection_lost(None)
    with pytest.raises(UpstreamFailedError):
        asked.result()
    with pytest.raises(UpstreamFailedError):
        connection.ask(b"request").result()


async def test_bad_framing_breaks_the_relay_and_the_connection_after_all_that_was_good() -> None:
    for early in (b"", framed(EVENTS[0])):
        wire = (early + b"".join(map(framed, EVENTS)) + b"zz\r\n").removeprefix(early * 2)
        for at in range(len(wire)):
            pool, heard = Pool(), Heard()
            connection, transport = pool.connected()
            answered(connection, CHUNKED + early, heard)
            for piece in (wire[:at], wire[at:]):
                if piece:
                    connection.data_received(piece)
            assert (heard.payload, heard.ended, transport.closed) == (BODY, ["broken"], True), at
            assert pool.rested == []


async def test_a_break_that_came_before_the_relay_breaks_it_after_all_that_was_good() -> None:
    heard = Heard()
    connection, transport = Pool().connected()
    answered(connection, CHUNKED + framed(BODY) + b"zz\r\n", heard)
    assert (heard.payload, heard.ended, transport.closed) == (BODY, ["broken"], True)


async def test_a_bug_of_the_sink_s_own_ends_the_body_there() -> None:
    """Whatever comes after it, the client may lack a piece: that is no complete body."""

    class Buggy(Heard):
        def piece(self, payload: bytes, framed: bytes | None = None) -> None:
            raise RuntimeError("a bug")

    heard = Buggy()
    connection, _ = Pool().connected()
    answered(connection, CHUNKED, heard)
    with pytest.raises(RuntimeError):
        connection.data_received(framed(b"data: a\n\n"))
    assert heard.ended == ["failed"]


async def test_what_comes_before_the_relay_is_bounded() -> None:
    connection, transport = Pool().connected()
    asked, heard = connection.ask(b"request"), Heard()
    connection.data_received(CHUNKED)
    chunk, sent = framed(b"x" * 8000), b""
    while transport.reading:
        sent += chunk
        connection.data_received(chunk)
        assert len(sent) < 2 * EARLY_BYTES_MAX
    Answer(asked.result(), connection).relay_to(heard)
    await until(lambda: transport.reading)
    assert heard.payload == unframed(sent)


async def test_leaving_closes_what_has_not_ended_and_nothing_else() -> None:
    for wire, closed in ((b"", True), (CHUNKED, True), (CHUNKED + framed(BODY), True), (SIZED + BODY, False)):
        connection, transport = Pool().connected()
        asked = connection.ask(b"request")
        connection.data_received(wire)
        if asked.done():
            answer = Answer(asked.result(), connection)
            answer.relay_to(Heard())
            answer.close()
        else:
            connection.release_or_abort()
        assert transport.closed is closed, wire


async def test_who_gave_a_connection_back_has_no_say_over_who_has_it_now() -> None:
    pool = Pool()
    connection, transport = pool.connected()
    first = answered(connection, SIZED, Heard())
    first.pause_reading()
    assert not transport.reading
    connection.data_received(BODY)
    assert transport.reading  # back in the pool: the next exchange must be able to read
    first.pause_reading()
    assert transport.reading
    asked = connection.ask(b"second")
    first.close()
    assert not transport.closed
    connection.data_received(SIZED)
    second = Answer(asked.result(), connection)
    heard = Heard()
    second.relay_to(heard)
    second.pause_reading()
    first.resume_reading()
    assert not transport.reading
    first.close()
    connection.data_received(BODY)
    assert (heard.payload, heard.ended, transport.closed) == (BODY, ["complete"], False)


@pytest.mark.parametrize("length", [0, 10, 11])
async def test_a_body_is_read_whole_up_to_a_bound(length: int) -> None:
    connection, transport = Pool().connected()
    answer = answered(connection, b"HTTP/1.1 400 Bad\r\nContent-Length: %d\r\n\r\n" % length + b"x" * length)
    assert await answer.read(10) == (b"x" * length if length <= 10 else None)
    answer.close()
    assert transport.closed is False
    assert connection.usable


async def test_a_body_that_breaks_off_is_not_read() -> None:
    connection, _ = Pool().connected()
    answer = answered(connection, SIZED + b"da")
    connection.connection_lost(None)
    with pytest.raises(UpstreamFailedError):
        await answer.read(10)


@pytest.mark.parametrize("goodbye", [b"", b"HTTP/1.1 408 Request Timeout\r\n\r\n"], ids=["closed", "spoke-first"])
async def test_what_the_kernel_already_knows_of_a_resting_connection_counts(goodbye: bytes) -> None:
    """The provider closes, and before the event loop has looked, somebody wants the connection."""
    ours, theirs = socket.socketpair()
    connection = UpstreamConnection(lambda _: None, lambda _: None)
    await asyncio.get_running_loop().create_connection(lambda: connection, sock=ours)
    assert connection.usable
    theirs.sendall(goodbye)
    theirs.close()
    assert not connection.usable
    connection.close()


async def test_a_long_request_is_written_as_the_provider_takes_it() -> None:
    pieces = [b"head", *(bytes([number]) * 50_000 for number in range(1, 20)), b"x" * 3_000_000]
    connection, transport = Pool().connected()
    connection.ask(*pieces)
    step_bytes = WRITTEN_BYTES_MAX + 64 * 1024
    assert 0 < len(transport.written) <= step_bytes
    connection.pause_writing()
    for _ in range(3):
        await asyncio.sleep(0)
    assert 0 < len(transport.written) <= step_bytes
    steps = 0
    connection.resume_writing()
    while len(transport.written) < len(b"".join(pieces)):
        before, steps = len(transport.written), steps + 1
        await asyncio.sleep(0)
        assert len(transport.written) - before <= 2 * step_bytes
    assert transport.written == b"".join(pieces)
    assert steps > 10


@pytest.mark.parametrize("is_lost", [False, True])
async def test_the_connection_of_an_answer_that_comes_before_the_whole_request_is_not_used_again(
    *, is_lost: bool
) -> None:
    pool, heard = Pool(), Heard()
    connection, transport = pool.connected()
    asked = connection.ask(b"head", b"x" * 3_000_000)
    connection.pause_writing()
    if is_lost:
        connection.connection_lost(None)
    else:
        connection.data_received(SIZED + BODY)
        Answer(asked.result(), connection).relay_to(heard)
        assert (heard.payload, heard.ended, pool.rested, transport.closed) == (BODY, ["complete"], [], True)
    written = transport.written
    connection.resume_writing()
    await asyncio.sleep(0)
    assert transport.written == written
    assert not is_lost or isinstance(asked.exception(), UpstreamFailedError)
