"""A long piece from a provider is read in parts: others run in between, nothing is lost, reordered or read twice."""

from __future__ import annotations

import asyncio

import pytest

from proxy.gateway.upstream.client import Answer
from proxy.gateway.upstream.connection import PIECE_BYTES_MAX, CatchUp, UpstreamConnection
from proxy.metering.wire.parts import PART_BYTES, PART_MARKS, Parts, marks_in
from tests.gateway.upstream.connections import CHUNKED, CLOSED, LAST, FakeTransport, Heard, Pool
from tests.http.frames import framed
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("each_step_is_a_turn")

BODY = b"data: 0\n\n" * 2_000
SIZED = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY)
WIRES = {
    "length": (SIZED, BODY),
    "one chunk": (CHUNKED, framed(BODY) + LAST),
    "chunks": (CHUNKED, framed(b"data: 0\n\n") * 2_000 + LAST),
}


class Slow(Heard):
    """Also counts the turns in which it got something. `work`: steps that each piece leaves."""

    def __init__(self, work: int = 0) -> None:
        super().__init__()
        self.turns = 0
        self.work, self.left = work, 0
        asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self.turns += 1
        asyncio.get_running_loop().call_soon(self._next_turn)

    def piece(self, payload: bytes, framed: bytes | None = None) -> CatchUp | None:
        assert not self.left, "it has work left"
        super().piece(payload, framed)
        self.left = self.work
        return self._catch_up if self.work else None

    def _catch_up(self) -> bool:
        self.left -= 1
        return not self.left


def relaying(head: bytes, heard: Heard, pool: Pool | None = None) -> tuple[UpstreamConnection, FakeTransport, Answer]:
    connection, transport = (pool or Pool()).connected()
    asked = connection.ask(b"request")
    connection.data_received(head)
    answer = Answer(asked.result(), connection)
    answer.relay_to(heard)
    return connection, transport, answer


@pytest.mark.parametrize("name", WIRES)
@pytest.mark.parametrize("work", [0, 3])
async def test_a_long_piece_is_read_in_several_turns(name: str, work: int) -> None:
    head, wire = WIRES[name]
    pool, heard = Pool(), Slow(work)
    connection, transport, _ = relaying(head, heard, pool)
    connection.data_received(wire)
    assert len(heard.payload) < len(BODY)
    assert not transport.reading
    await until(lambda: heard.ended)
    assert (heard.payload, heard.ended) == (BODY, ["complete"])
    assert heard.turns >= marks_in(BODY) // PART_MARKS - 1
    assert pool.rested == [connection]
    assert transport.reading


@pytest.mark.parametrize("name", WIRES)
async def test_what_comes_meanwhile_comes_after(name: str) -> None:
    head, wire = WIRES[name]
    heard = Slow()
    connection, _, _ = relaying(head, heard)
    for at in range(0, len(wire), 5_000):
        connection.data_received(wire[at : at + 5_000])
    await until(lambda: heard.ended)
    assert (heard.payload, heard.ended) == (BODY, ["complete"])


async def test_a_long_piece_may_come_with_the_head() -> None:
    heard = Slow()
    relaying(SIZED + BODY, heard)
    assert len(heard.payload) < len(BODY)
    await until(lambda: heard.ended)
    assert (heard.payload, heard.ended) == (BODY, ["complete"])


@pytest.mark.parametrize(
    ("head", "says_end", "ended"), [(CLOSED, True, "complete"), (SIZED, True, "broken"), (CLOSED, False, "broken")]
)
@pytest.mark.parametrize("early", [False, True])
async def test_the_end_of_the_connection_is_noticed_after_all_of_it(
    head: bytes, says_end: bool, ended: str, early: bool
) -> None:
    body = BODY[:-9]
    heard, pool = Slow(), Pool()
    connection, _ = pool.connected()
    asked = connection.ask(b"request")
    connection.data_received(head)
    answer = Answer(asked.result(), connection)
    if not early:
        answer.relay_to(heard)
    connection.data_received(body)
    if says_end:
        connection.eof_received()
    connection.connection_lost(None if says_end else ConnectionResetError())
    if early:
        answer.relay_to(heard)
    assert not heard.ended
    await until(lambda: heard.ended)
    assert (heard.payload, heard.ended) == (body, [ended])
    assert pool.gone == [connection]


async def test_backpressure_outlasts_the_parts() -> None:
    heard = Slow()
    connection, transport, answer = relaying(SIZED, heard)
    connection.data_received(BODY[:-9])
    answer.pause_reading()
    await until(lambda: len(heard.payload) == len(BODY) - 9)
    await asyncio.sleep(0)
    assert not transport.reading
    answer.resume_reading()
    assert transport.reading


async def test_who_reads_on_waits_for_the_parts() -> None:
    heard = Slow()
    connection, transport, answer = relaying(SIZED, heard)
    connection.data_received(BODY[:-9])
    answer.pause_reading()
    answer.resume_reading()
    assert not transport.reading
    await until(lambda: transport.reading)
    assert heard.payload == BODY[:-9]


async def test_nothing_is_read_after_it_was_given_up() -> None:
    heard = Slow()
    connection, transport, answer = relaying(SIZED, heard)
    connection.data_received(BODY)
    answer.close()
    had = heard.payload
    for _ in range(9):
        await asyncio.sleep(0)
    assert (heard.payload, heard.ended, transport.closed) == (had, [], True)


@pytest.mark.parametrize("more", [b"H", BODY])
async def test_bytes_after_the_body_make_the_connection_unusable(more: bytes) -> None:
    heard, pool = Slow(), Pool()
    _, transport, _ = relaying(SIZED, heard, pool)
    pool_connection = relaying(SIZED, heard := Slow(), pool)[0]
    pool_connection.data_received(BODY + more)
    await until(lambda: heard.ended)
    assert (heard.payload, heard.ended, pool.rested) == (BODY, ["complete"], [])
    assert not pool_connection.usable
    assert transport.reading


async def test_bad_framing_breaks_it_after_all_that_was_good() -> None:
    heard = Slow()
    connection, transport, _ = relaying(CHUNKED, heard)
    connection.data_received(framed(BODY) + b"zz\r\n" + framed(b"never"))
    await until(lambda: heard.ended)
    assert (heard.payload, heard.ended, transport.closed) == (BODY, ["broken"], True)


async def test_a_bug_in_a_later_part_ends_the_body() -> None:
    class Buggy(Slow):
        def piece(self, payload: bytes, framed: bytes | None = None) -> CatchUp | None:
            if self.payload:
                raise RuntimeError("a bug")
            return super().piece(payload, framed)

    heard, raised = Buggy(), []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context["exception"]))
    connection, transport, _ = relaying(SIZED, heard)
    connection.data_received(BODY)
    await until(lambda: heard.ended)
    assert (heard.ended, transport.closed, len(raised)) == (["failed"], True, 1)


@pytest.mark.parametrize(
    "wire", [b"[" * 9_999, b"x" * 300_000, b"data: {}\n\n" * 9_999, b"\r" * 9_999, b'{"a":1},' * 50_000]
)
def test_each_part_is_little_work(wire: bytes) -> None:
    parts, taken = Parts(wire), []
    while parts:
        taken.append(parts.take())
    assert b"".join(taken) == wire
    assert all(marks_in(part) <= PART_MARKS + 2 and len(part) <= PART_BYTES for part in taken)
    assert len(taken) < 8 + len(wire) // PART_BYTES + 4 * marks_in(wire) // PART_MARKS
    assert PIECE_BYTES_MAX <= 4 * PART_MARKS
