"""How sessions end: clients that leave at every await, providers that break off or stall, a proxy that stops."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import WSMsgType
from msgspec import structs

from proxy.billing.record import BillableParts, Outcome
from proxy.metering.usage import UsageSource
from proxy.settings import Drain, ForwardProxy, Timeouts
from tests.gateway.websocket.sockets import CREATE, RESPONSES, Stage, ask, begun, done, leave, said, stage, tell
from tests.support.connect_proxy import connect_proxy

pytestmark = pytest.mark.io


@pytest.mark.parametrize("how", ["closes", "is lost"])
@pytest.mark.parametrize(
    ("events", "bills", "source"),
    [
        ([], BillableParts.NOTHING, UsageSource.NONE),
        ([begun()], BillableParts.EVERYTHING, UsageSource.ESTIMATED),
        ([begun(), said("Drei Euro")], BillableParts.EVERYTHING, UsageSource.ESTIMATED),
    ],
)
async def test_a_client_that_leaves_pays_for_what_came(
    on: Stage, how: str, events: list[dict[str, Any]], bills: BillableParts, source: UsageSource
) -> None:
    async with on.answering() as (client, link):
        await link.say(*events)
        for _ in events:
            await client.hear()
        await leave(on, client, how)
        assert await link.until_gone() is not None
    record = await on.record()
    assert (record.outcome, record.bills, record.reading.source) == (Outcome.CLIENT_LEFT, bills, source)
    assert record.details["policy"] == "cancel"
    if len(events) == 2:
        assert record.reading.usage.completion_tokens


async def test_audio_that_was_heard_is_paid(on: Stage) -> None:
    async with on.answering() as (client, link):
        audio = b64encode(bytes(48_000 * 2)).decode()
        await link.say(begun(), {"type": "response.output_audio.delta", "response_id": "resp_1", "delta": audio})
        await client.hear("response.output_audio.delta")
        await leave(on, client, "is lost")
    usage = (await on.record()).reading.usage
    assert (usage.completion_tokens, usage.audio_completion_tokens) == (40, 40)


async def test_what_runs_is_read_on_for_the_bill_where_that_is_the_policy(tmp_path: Path) -> None:
    async with stage(tmp_path, on_client_disconnect="drain") as on, on.answering() as (client, link):
        await tell(client, link, begun(), said("Drei"))
        await client.socket.close()
        await link.say(said(" Euro"), done())
        await link.until_gone()
        await on.until_over()
        record = await on.record()
        assert (record.outcome, record.reading.source) == (Outcome.CLIENT_LEFT, UsageSource.REPORTED)
        assert (record.events, record.details["policy"]) == (2, "drain")


@pytest.mark.parametrize(("drain", "ended_by"), [(Drain(seconds=0.2), None), (Drain(seconds=60, tokens=20), "tokens")])
async def test_a_drain_is_bounded(tmp_path: Path, drain: Drain, ended_by: str | None) -> None:
    async with stage(tmp_path, on_client_disconnect="drain", drain=drain) as on, on.answering() as (client, link):
        await tell(client, link, begun())
        client.abort()
        await on.until(lambda: any(one._left_at for one in on.gateway.sockets.sessions))
        await link.say(said("Drei Euro und noch viel mehr, wie es in so langen Reden üblich ist. " * 20))
        await link.until_gone()
        await on.until_over()
        assert (await on.record()).details.get("drain_ended_by") == ended_by


@pytest.mark.parametrize("how", ["closes", "is lost"])
async def test_a_provider_that_breaks_off_is_paid_for_what_was_delivered(on: Stage, how: str) -> None:
    async with on.answering() as (client, link):
        await tell(client, link, begun(), said("Drei Euro"))
        if how == "closes":
            await link.socket.close(code=3000, message=b"bye")
            assert await client.hear_end() == (3000, "bye")
        else:
            assert link.socket._req is not None
            assert link.socket._req.transport is not None
            link.socket._req.transport.abort()
            assert await client.hear_failure() == ("upstream_failed", 1011)
    record = await on.record()
    assert (record.outcome, record.bills) == (Outcome.UPSTREAM_FAILED, BillableParts.OUTPUT)
    assert record.reading.usage.completion_tokens


@pytest.mark.parametrize(
    ("timeouts", "events", "code", "limit"),
    [
        ({"first_byte_s": 0.2}, [], "upstream_stalled", "no_answer"),
        ({"idle_s": 0.2}, [begun(), said("x")], "upstream_stalled", "silent"),
        ({"total_s": 0.3}, [begun(), said("x")], "upstream_stalled", "too_long"),
    ],
)
async def test_a_provider_that_stalls_is_waited_for_so_long(
    tmp_path: Path, timeouts: dict[str, float], events: list[Any], code: str, limit: str
) -> None:
    limits = Timeouts(**{"connect_s": 0.1, **timeouts})
    async with stage(tmp_path, timeouts=limits) as on, on.answering() as (client, link):
        await link.say(*events)
        assert await client.hear_failure() == (code, 1011)
        record = await on.record()
        assert (record.outcome, record.details["limit"]) == (Outcome.UPSTREAM_STALLED, limit)


async def test_a_session_that_nobody_uses_ends(tmp_path: Path) -> None:
    async with stage(tmp_path, timeouts=Timeouts(total_s=0.2)) as on, on.talk() as (client, link):
        assert (await client.hear_end())[0] == 1000
        assert await link.until_gone() == (1000, "")
        assert on.records == []


async def test_a_client_that_stalls_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.gateway.websocket.session.tick_s", lambda _: 0.05)
    async with stage(tmp_path) as on, on.talk() as (client, link):
        on.session._limits = structs.replace(on.session._limits, write_stall_s=0.3)
        await ask(client, link)
        client.transport.pause_reading()
        await link.say(begun())
        with suppress(ConnectionError):
            while True:
                await link.say(said("x" * 100_000))
        await on.until_over()
        assert (await on.record()).outcome is Outcome.CLIENT_LEFT
        client.abort()


async def test_connections_are_kept_from_being_idle(on: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.gateway.websocket.session.PING_S", 0.05)
    monkeypatch.setattr("proxy.gateway.websocket.session.tick_s", lambda _: 0.05)
    async with on.talk(autoping=False) as (client, link):
        assert (await client.receive()).type is WSMsgType.PING
        socket = on.line.socket
        before = socket.heard_at
        await on.until(lambda: socket.heard_at > before)  # the provider's pong
        await link.say({"type": "x"})


async def test_an_idle_session_ends_when_the_proxy_stops(on: Stage) -> None:
    async with on.talk() as (client, link):
        on.session.stop()
        assert (await client.hear_end())[0] == 1001
        await link.until_gone()


async def test_a_response_that_runs_when_the_proxy_stops_is_finished(on: Stage) -> None:
    async with on.answering() as (client, link):
        await tell(client, link, begun())
        on.session.stop()
        await client.say({"type": "response.create"})
        assert (await client.hear("error"))["error"]["code"] == "shutting_down"
        await tell(client, link, said("Drei"), done())
        assert (await client.hear_end())[0] == 1001
    record = await on.record()
    assert record.outcome is Outcome.SERVED
    assert len(on.records) == 1


async def test_when_the_grace_time_is_over_it_is_cut(on: Stage) -> None:
    async with on.answering() as (client, link):
        await tell(client, link, begun(), said("Drei"))
        on.session.stop()
        (turn,) = on.gateway.handler.live
        turn.shut_down()
        assert await client.hear_failure() == ("shutting_down", 1001)
    assert (await on.record()).outcome is Outcome.SHUT_DOWN


async def test_a_client_that_leaves_while_it_is_admitted_owes_nothing(on: Stage) -> None:
    on.gateway.unlimited.waits = asyncio.Event()
    async with on.talk() as (client, link):
        await client.say({"type": "response.create"})
        await on.until(lambda: bool(on.gateway.unlimited.asked))
        await leave(on, client, "is lost")
        await link.until_gone()
        assert link.kinds == []
        await link.until(lambda one: True)
    async with on.talk() as (client, link):
        await link.say(begun())
        await on.until(lambda: len(on.gateway.unlimited.asked) == 2)
        await leave(on, client, "closes")
    assert on.gateway.outbox.opened == 0


@pytest.mark.parametrize("how", ["is lost", "waits"])
async def test_a_provider_that_never_answers_its_handshake_costs_nothing(how: str, tmp_path: Path) -> None:
    async with connect_proxy("hangs") as tunnel:
        way = ForwardProxy("127.0.0.1", tunnel.port, False, None)
        limits = Timeouts(connect_s=0.3 if how == "waits" else 30)
        async with stage(tmp_path, proxy=way, timeouts=limits) as on, on.client(RESPONSES) as client:
            await client.say(CREATE)
            await on.until(lambda: bool(tunnel.heads))
            if how == "waits":
                assert await client.hear_failure() == ("upstream_proxy_failed", 1011)
            else:
                await leave(on, client, how)
            record = await on.record()
            assert record.outcome is (Outcome.UPSTREAM_FAILED if how == "waits" else Outcome.CLIENT_LEFT)
            assert record.bills is BillableParts.NOTHING
            await on.until(lambda: not tunnel.open)


async def test_a_client_that_leaves_before_it_is_durable_gets_its_record(on: Stage) -> None:
    on.gateway.outbox.holds = True
    async with on.answering() as (client, link):
        await link.say(begun(), said("Drei"))
        await on.until(lambda: on.gateway.outbox.durable is not None)
        await leave(on, client, "is lost")
    record = await on.record()
    assert (record.outcome, record.events) == (Outcome.CLIENT_LEFT, 0)


async def test_a_bug_ends_the_session_and_leaves_a_record(on: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ValueError("of a prompt")

    async with on.answering() as (client, link):
        await tell(client, link, begun(), said("Drei"))
        monkeypatch.setattr("proxy.metering.meter.StreamMeter.feed", broken)
        await link.say(said(" Euro"))
        assert await client.hear_failure() == ("internal_error", 1011)
    record = await on.record()
    assert (record.outcome, record.details["failed"]) == (Outcome.CRASHED, "proxy_bug")
