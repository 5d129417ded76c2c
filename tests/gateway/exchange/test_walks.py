"""Random walks of exchanges of the real gateway, over real sockets, until every line of the table was taken.

The test is the provider and the client, by hand. Only what would take time or megabytes is done by the call that the
event loop would make: a deadline expires, the client's connection is full or empty again.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from proxy.gateway.exchange.deadlines import ARMED
from proxy.gateway.exchange.exchange import Exchange
from proxy.gateway.exchange.lifecycle import TABLE, Action, Cell, Client, Event, Lifecycle, Phase
from proxy.http.server import wait_until
from tests.gateway.inprocess import Gateway, gateway
from tests.support.net import ask, chat_request, listening

pytestmark = pytest.mark.io

SEED = 9
WALKS_MAX = 1500
STEPS_MAX = 14
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":" water"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
PLAIN = b'{"choices":[{"index":0,"message":{"content":"water"},"finish_reason":"stop"}]}'
HEADS = {
    True: b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
    False: b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(PLAIN),
}
REFUSAL = b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
# The relay takes pieces past the table.
NEEDED = {cell for cell in TABLE if cell[2] is not Event.PIECE}


class Bug(Exception):
    """Planted."""


class ProviderByHand:
    """Answers nothing by itself."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                await reader.readexactly(length)
                self.asked.put_nowait(writer)


class Filling:
    """A client's transport whose buffer is full after the next write."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def write(self, data: bytes) -> None:
        transport = self._exchange._client._request.transport
        assert transport is not None
        transport.write(data)
        if self._exchange._life.client is Client.READING:
            self._exchange._connection.pause_writing()


class Walk:
    """One exchange, and what the test can do to it."""

    def __init__(
        self, made: Gateway, exchange: Exchange, provider: asyncio.StreamWriter, rng: random.Random, *, streams: bool
    ) -> None:
        self._rng = rng
        self.gateway = made
        self.exchange = exchange
        self.streams = streams
        self._provider = provider
        self._sent = 0
        self._done = False

    @property
    def where(self) -> tuple[Phase, Client]:
        return self.exchange._life.phase, self.exchange._life.client

    def can(self) -> dict[Event, Callable[[], None]]:
        """What can be done now that brings an event of the table."""
        phase, client = self.where
        relays = self.exchange._body is not None
        found: dict[Event, Callable[[], None]] = {
            event: lambda event=event: self.exchange._expired(event)  # type: ignore[misc]
            for event in ARMED.get(self.where, ())
        }
        found |= {Event.SHUT_DOWN: self.exchange.shut_down, Event.BUG: self._bug}
        if client is Client.BLOCKED:
            found[Event.DRAINED] = self.exchange._connection.resume_writing
        elif client is not Client.GONE:
            found[Event.FULL] = self.exchange._connection.pause_writing
        if phase is Phase.ASKING:
            found |= {
                Event.ACCEPTED: lambda: self._provider.write(HEADS[self.streams]),
                Event.REFUSED: lambda: self._provider.write(REFUSAL),
                Event.UNREACHABLE: self._provider.transport.abort,
            }
        if phase is Phase.ANSWERED and not relays:
            found[Event.START] = self._durable
        if relays and phase in (Phase.ANSWERED, Phase.BODY):
            found |= {Event.PIECE: self._piece, Event.END: self._end, Event.BREAK: self._break}
        if phase is Phase.BODY:
            found[Event.BUDGET_CUT] = self.exchange._ran_short
        if client is not Client.GONE:
            if self.gateway.provider.settings.on_client_disconnect == "drain" or (relays and not self.streams):
                found[Event.LEFT_DRAIN] = self._leave
            else:
                found[Event.LEFT_CANCEL] = self._leave
            if phase is Phase.CLOSING:
                found[Event.LEFT_CANCEL] = self._leave
            if phase is Phase.BODY:
                found[Event.LEFT_SERVED] = self._leave_served
        return {event: do for event, do in found.items() if (phase, client, event) in TABLE}

    def _bug(self) -> None:
        self.exchange._broke_down(Bug())

    def _durable(self) -> None:
        durable = self.gateway.outbox.durable
        assert durable is not None
        durable.set_result(None)

    def _piece(self) -> None:
        if self.streams:
            self._provider.write(b"%x\r\n%b\r\n" % (len(EVENT), EVENT))
        elif self._sent < len(PLAIN) - 1:
            self._provider.write(PLAIN[self._sent : self._sent + 1])
            self._sent += 1

    def _fills(self) -> None:
        """Sometimes the client is full after a piece, and what follows comes in the same read."""
        body = self.exchange._body
        if self.where == (Phase.BODY, Client.READING) and self._rng.random() < 0.3:
            assert body is not None
            body.relay._transport = Filling(self.exchange)  # type: ignore[assignment]

    def _break(self) -> None:
        if self.streams:
            self._fills()
            self._provider.write(b"%x\r\n%b\r\nno size\r\n" % (len(EVENT), EVENT))
        else:
            self._provider.transport.abort()

    def _end(self) -> None:
        self._fills()
        if self.streams:
            done = b"" if self._done else b"%x\r\n%b\r\n" % (len(DONE), DONE)
            self._provider.write(done + b"0\r\n\r\n")
        else:
            self._provider.write(PLAIN[self._sent :])

    def _leave(self) -> None:
        transport = self.exchange._client._request.transport
        if transport is not None:
            transport.abort()

    def _leave_served(self) -> None:
        self._done = True
        assert self.exchange._body is not None
        self.exchange._body.relay.piece(DONE)
        self._leave()

    def plant(self) -> None:
        """Sometimes an action fails, or fills the client's connection."""
        action = self._rng.choice(
            [Action.FINISH, Action.STOP, Action.DELIVER, Action.RESPOND, Action.BEGIN, Action.SEND_ERROR_EVENT]
        )
        real = Exchange._DO[action]

        def fails(_exchange: Exchange) -> None:
            raise Bug

        def fills(exchange: Exchange) -> None:
            real(exchange)
            if exchange._life.client is Client.READING:
                exchange._connection.pause_writing()

        self.exchange._DO = {**Exchange._DO, action: self._rng.choice([fails, fills])}  # type: ignore[misc]

    def paused_as_it_should(self) -> bool:
        answer = self.exchange._asking.answer
        if self.where[0] is not Phase.BODY or answer is None or not answer._ours:
            return True
        transport = answer._connection._transport
        return (
            transport is None
            or transport.is_closing()
            or transport.is_reading() == (self.where[1] is not Client.BLOCKED)
        )


@pytest.fixture
async def provider() -> AsyncIterator[tuple[ProviderByHand, str]]:
    by_hand = ProviderByHand()
    async with listening(by_hand.serve) as url:
        yield by_hand, f"{url}/v1"


@pytest.fixture
def visited(monkeypatch: pytest.MonkeyPatch) -> Counter[Cell]:
    """The lines that were taken."""
    taken: Counter[Cell] = Counter()
    step = Lifecycle.step

    def counted(life: Lifecycle, event: Event) -> tuple[Action, ...]:
        taken[life.phase, life.client, event] += 1
        return step(life, event)

    monkeypatch.setattr(Lifecycle, "step", counted)
    return taken


async def test_every_line_is_taken_and_every_walk_keeps_the_promises(
    tmp_path: Path, provider: tuple[ProviderByHand, str], visited: Counter[Cell], caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(SEED)
    by_hand, url = provider
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        gateways = [
            await stack.enter_async_context(gateway(tmp_path / policy, url, on_client_disconnect=policy))
            for policy in ("cancel", "drain")
        ]
        walks = 0
        while walks < WALKS_MAX and not set(visited) >= NEEDED:
            walks += 1
            made = rng.choice(gateways)
            trail = await walk(made, by_hand, rng, visited, group)
            assert len(made.outbox.records) == made.outbox.opened, trail
            assert {held.closed for held in made.unlimited.held} == {1}, trail
    assert NEEDED - set(visited) == set(), f"not taken in {walks} walks"
    assert set(visited) <= NEEDED, "what cannot happen happened"


async def walk(
    made: Gateway, by_hand: ProviderByHand, rng: random.Random, visited: Counter[Cell], group: asyncio.TaskGroup
) -> list[object]:
    """One exchange, to its end. What was done to it."""
    streams = rng.random() < 0.7
    made.outbox.holds = rng.random() < 0.5
    reader, writer = await asyncio.open_connection("127.0.0.1", int(made.url.rpartition(":")[2]))
    got = group.create_task(everything(reader))
    writer.write(chat_request(ask("electron", stream=streams)))
    asked = await by_hand.asked.get()
    (exchange,) = made.handler.live
    one = Walk(made, exchange, asked, rng, streams=streams)
    if rng.random() < 0.3:
        one.plant()
    trail: list[object] = [streams, made.outbox.holds]
    for _ in range(STEPS_MAX):
        can = one.can()
        if not can or exchange not in made.handler.live:
            break
        new = [event for event in can if not visited[(*one.where, event)]]
        # What ends an exchange is done less often than what leads on, so that walks get far.
        leads = [event for event in can if TABLE[(*one.where, event)].end is None]
        event = rng.choice(new if new and rng.random() < 0.9 else leads if leads and rng.random() < 0.7 else list(can))
        trail.append((*one.where, event))
        can[event]()
        await settled()
        assert one.paused_as_it_should(), trail
    if one.exchange._life.phase is not Phase.ENDED:
        durable = made.outbox.durable
        if durable is not None and not durable.done():
            durable.set_result(None)
        writer.transport.abort()
        asked.transport.abort()
    over = await wait_until(lambda: exchange not in made.handler.live, deadline_s=10, every_s=0.001)
    assert over, f"{one.where}: {trail}"
    made.outbox.durable = None
    writer.transport.abort()
    asked.transport.abort()
    body = await got
    assert body.count(b"HTTP/1.1 ") <= 1, (trail, body)
    if b"\r\n\r\n" in body and b"chunked" in body.partition(b"\r\n\r\n")[0]:
        assert body.count(b"0\r\n\r\n") <= 1, (trail, body)
        assert b"0\r\n\r\n" not in body or body.endswith(b"0\r\n\r\n"), (trail, body)
    return trail


async def everything(reader: asyncio.StreamReader) -> bytes:
    """What the client gets, to the end of its connection."""
    got = b""
    with suppress(ConnectionError):
        while piece := await reader.read(65536):
            got += piece
    return got


async def settled() -> None:
    """All that follows has happened: some turns of the loop, and what sockets need."""
    for _ in range(4):
        await asyncio.sleep(0)
    await asyncio.sleep(0.001)
