"""What one side of a session may send at the expense of others: memory, the event loop's time, and how often."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import ClientWebSocketResponse, WSMsgType, web
from aiohttp.http import WebSocketWriter

from proxy.gateway.websocket import session
from proxy.gateway.websocket.dial import MESSAGE_BYTES_MAX
from proxy.http import websocket
from proxy.http.websocket import Allowance
from proxy.http.websocket_frames import FRAGMENT_BYTES, FRAGMENTS_MIN
from tests.gateway.websocket.sockets import Client, Stage
from tests.support.turns import measured_turns

pytestmark = pytest.mark.io

TEXT, CONTINUED, PING, PONG = 0x01, 0x00, 0x89, 0x8A
FRAMES = 1_000


def frame(first: int, payload: bytes = b"", *, masked: bool = True) -> bytes:
    """With a mask that changes nothing."""
    return (
        bytes([first, 0x80 | len(payload)]) + bytes(4) + payload if masked else bytes([first, len(payload)]) + payload
    )


REFUSED = frame(TEXT | 0x80, b'{"type":"x","type":"x"}')


def write(socket: ClientWebSocketResponse | web.WebSocketResponse, wire: bytes) -> None:
    writer = socket._writer
    assert isinstance(writer, WebSocketWriter)
    writer.transport.write(wire)


async def until_parsed(client: Client) -> None:
    """Wait until the proxy has parsed what was written before. The client has no autoping."""
    await client.socket.ping(b"last")
    while (await client.receive()) != (WSMsgType.PONG, b"last", ""):
        pass


@pytest.mark.parametrize("kind", [PING, PONG])
async def test_pings_and_pongs_are_not_counted_as_bodies(on: Stage, kind: int) -> None:
    uploads = on.gateway.handler._uploads
    before = uploads.bytes_left
    async with on.talk(autoping=False) as (client, link):
        write(client.socket, frame(kind, b"x" * 125) * 300)
        await until_parsed(client)
        assert uploads.bytes_left == before
        begin = frame(TEXT, b'{"type":')
        write(client.socket, begin + frame(kind, b"y" * 125) * 300 + frame(kind))
        await until_parsed(client)
        assert before - uploads.bytes_left == len(b'{"type":'), "the message alone is counted"
        write(client.socket, frame(CONTINUED | 0x80, b'"x"}'))
        await link.hear("x")
    await on.until_over()
    assert uploads.bytes_left == before


async def test_an_unfinished_message_gives_its_bytes_back(on: Stage) -> None:
    uploads = on.gateway.handler._uploads
    before = uploads.bytes_left
    async with on.talk(autoping=False) as (client, _):
        write(client.socket, frame(TEXT, b"{") + frame(CONTINUED, b"x" * 100) * 500)
        await until_parsed(client)
        assert before - uploads.bytes_left >= 50_000
        client.abort()
        await on.until_over()
    assert uploads.bytes_left == before


async def test_a_message_arrives_in_time(on: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "BODY_S", 0.1)
    async with on.talk() as (client, link):
        await asyncio.sleep(0.2)
        await client.say({"type": "x"})
        await link.hear("x")
        write(client.socket, frame(TEXT, b"{"))
        await asyncio.sleep(0.2)
        write(client.socket, frame(CONTINUED, b"}"))
        assert await client.hear_end() == (1008, "This message did not arrive in time.")
        assert await link.until_gone() == (1001, "")


@pytest.mark.parametrize("masked", [True, False], ids=["client", "provider"])
async def test_a_message_has_no_endless_fragments(on: Stage, *, masked: bool) -> None:
    """Empty ones pass the limit of a message's size."""
    reason = "This message has too many fragments."
    bytes_max = (1 << 20) if masked else MESSAGE_BYTES_MAX
    count = FRAGMENTS_MIN + bytes_max // FRAGMENT_BYTES + 1
    async with on.talk() as (client, link):
        sender = client.socket if masked else link.socket
        write(sender, frame(TEXT, masked=masked) + frame(CONTINUED, masked=masked) * count)
        if masked:
            assert await client.hear_end() == (1009, reason)
        else:
            assert await link.until_gone() == (1009, reason)
            assert (await client.hear_end())[0] == 1011


@pytest.mark.parametrize("masked", [True, False], ids=["provider", "client"])
async def test_only_a_clients_frames_are_masked(on: Stage, *, masked: bool) -> None:
    """RFC 6455, 5.1."""
    async with on.talk() as (client, link):
        write(link.socket if masked else client.socket, frame(TEXT | 0x80, b'{"type":"x"}', masked=masked))
        if masked:
            assert await link.until_gone() == (1002, "A frame is masked.")
            assert (await client.hear_failure()) == ("upstream_failed", 1011)
        else:
            assert await client.hear_end() == (1002, "A frame is not masked.")
            assert await link.until_gone() == (1001, "")
        assert not link.heard


@pytest.mark.parametrize("who", ["client", "provider"])
async def test_a_side_that_has_closed_is_not_waited_for(on: Stage, monkeypatch: pytest.MonkeyPatch, who: str) -> None:
    monkeypatch.setattr(websocket, "CLOSE_S", 60.0)
    async with on.talk() as (client, link):
        if who == "client":
            await client.socket.close(code=1000)
        else:
            await asyncio.gather(link.socket.close(code=1000), client.hear_end())
        await on.until_over()


@pytest.mark.parametrize(
    ("wire", "answer", "answers", "reason"),
    [
        (frame(PING) * 2_000, WSMsgType.PONG, range(1_000, 1_200), "Too many pings and pongs."),
        (REFUSED * 2_000, WSMsgType.TEXT, range(101, 103), "Too many messages were refused."),
    ],
    ids=["pings", "refused messages"],
)
async def test_what_is_answered_has_a_rate(
    on: Stage, wire: bytes, answer: WSMsgType, answers: range, reason: str
) -> None:
    async with on.talk(autoping=False) as (client, link):
        write(client.socket, wire)
        count = 0
        while (message := await client.receive()).type is answer:
            count += 1
        assert count in answers
        assert (message.data, message.extra) == (1008, reason)
        assert await link.until_gone() == (1001, "")


def fragments(*, masked: bool) -> bytes:
    """More than a client's message may have."""
    return frame(TEXT, masked=masked) + frame(CONTINUED, masked=masked) * 3 * FRAMES


@pytest.mark.usefixtures("each_step_is_a_turn")
@pytest.mark.parametrize(
    "wire", [frame(PING) * 2 * FRAMES, frame(PONG) * 2 * FRAMES, REFUSED * 2 * FRAMES, fragments(masked=True)]
)
async def test_a_client_delays_nobody(on: Stage, monkeypatch: pytest.MonkeyPatch, wire: bytes) -> None:
    """Whatever its rate."""
    monkeypatch.setattr(websocket, "CONTROL_FRAMES_MAX", FRAMES)
    monkeypatch.setattr(session, "REFUSED_MAX", FRAMES)
    async with on.talk() as (client, _), measured_turns() as turns:
        write(client.socket, wire)
        assert (await client.hear_end())[0] in (1008, 1009)
    assert turns.count >= FRAMES


@pytest.mark.usefixtures("each_step_is_a_turn")
@pytest.mark.parametrize("kind", [PING, PONG])
async def test_a_provider_delays_nobody_and_has_a_rate(on: Stage, monkeypatch: pytest.MonkeyPatch, kind: int) -> None:
    monkeypatch.setattr(websocket, "CONTROL_FRAMES_MAX", FRAMES)
    async with on.talk() as (client, link), measured_turns() as turns:
        write(link.socket, frame(kind, masked=False) * 2 * FRAMES)
        assert (await client.hear_end())[0] == 1011
        assert await link.until_gone() == (1008, "Too many pings and pongs.")
    assert turns.count >= FRAMES


@pytest.mark.usefixtures("each_step_is_a_turn")
async def test_a_providers_fragments_delay_nobody(on: Stage) -> None:
    async with on.talk() as (client, link), measured_turns() as turns:
        write(link.socket, fragments(masked=False) + frame(CONTINUED | 0x80, b'{"type":"y"}', masked=False))
        await client.hear("y")
    assert turns.count >= FRAMES


@pytest.mark.usefixtures("each_step_is_a_turn")
async def test_messages_that_pass_have_no_rate_and_delay_nobody(on: Stage) -> None:
    """In either direction."""
    async with on.talk() as (client, link), measured_turns() as turns:
        write(client.socket, frame(TEXT | 0x80, b'{"type":"x"}') * FRAMES)
        write(link.socket, frame(TEXT | 0x80, b'{"type":"y"}', masked=False) * FRAMES)
        for _ in range(FRAMES):
            await client.hear("y")
        await link.until(lambda one: len(one.heard) == FRAMES)
    assert turns.count >= FRAMES


def test_an_allowance_grows_back(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(websocket, "monotonic", lambda: now)
    allowance = Allowance(2, 10)
    assert [allowance.take() for _ in range(3)] == [True, True, False]
    now += 0.15
    assert [allowance.take() for _ in range(2)] == [True, False]
    now += 1000
    assert [allowance.take() for _ in range(3)] == [True, True, False]
