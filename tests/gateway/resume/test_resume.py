"""Streams that broke off on the client's side are taken up again: what comes is what would have come, and costs nothing
more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.billing.record import Outcome
from proxy.gateway.tapes.tape import EMPTY_BYTES
from proxy.gateway.tapes.tapes import Tapes
from proxy.http.server import wait_until
from proxy.metering.usage import UsageSource
from proxy.settings import Drain
from tests.gateway.inprocess import Gateway, gateway
from tests.gateway.responses.stage import ASKED, KEYS, TOKENS, stage, the_record, tokens
from tests.support import sse
from tests.support.by_hand import ProviderByHand, Reading, asking, get, provider_by_hand
from tests.support.clients import Clients
from tests.support.examples import examples
from tests.support.net import ask, chat_request

pytestmark = pytest.mark.io

ROLE = b'data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant"}}]}\n\n'
STOP = b'data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
COUNTS = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":9,"total_tokens":14}}\n\n'
DONE = b"data: [DONE]\n\n"


def word(text: str) -> bytes:
    return b"data: %b\n\n" % json.dumps({"id": "c", "choices": [{"index": 0, "delta": {"content": text}}]}).encode()


EVENTS = [ROLE, *(word(f" word {number}") for number in range(12)), STOP, COUNTS, DONE]
STREAM = b"".join(EVENTS)
CLIENTS = STREAM.replace(COUNTS, b"")


def a_tape(**changes: Any) -> Tapes:
    return Tapes(**({"bytes_max": 1 << 20, "total_bytes_max": 1 << 22, "kept_s": 60.0} | changes))


@pytest.fixture
async def provider() -> AsyncIterator[ProviderByHand]:
    async with provider_by_hand() as made:
        yield made


@pytest.fixture
def tapes() -> Tapes:
    return a_tape()


@pytest.fixture
async def proxy(provider: ProviderByHand, tapes: Tapes, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with gateway(tmp_path, provider.url, keys=KEYS, tapes=tapes) as made:
        yield made


async def begun(proxy: Gateway, provider: ProviderByHand, events: list[bytes], **more: Any) -> tuple[Reading, Any]:
    """A client that has read these events; and its provider."""
    client = await asking(proxy.url, chat_request(ask("electron", **more), key="anna"))
    answering = await provider.asked.get()
    answering.begin()
    for event in events:
        answering.send(event)
    assert await client.head() == 200
    await client.take(len(b"".join(events)))
    return client, answering


async def resumed(proxy: Gateway, client: Reading, after: int | None = None, **more: str) -> Reading:
    path = f"/v1/exchanges/{client.headers['x-tokenweir-exchange']}/stream"
    again = await asking(proxy.url, get(path if after is None else f"{path}?after={after}", **more))
    await again.head()
    return again


async def left(proxy: Gateway, client: Reading) -> None:
    """The client is gone, and the proxy knows it."""
    client.leave()
    live = list(proxy.handler.live)
    assert await wait_until(
        lambda: all(one.running().state == "draining" for one in live), deadline_s=10, every_s=0.005
    )


def finish(answering: Any, events: list[bytes]) -> None:
    for event in events:
        answering.send(event)
    answering.end()


@pytest.mark.parametrize("ends", ["before", "after"])
async def test_a_stream_is_taken_up_where_it_broke_off(
    proxy: Gateway, provider: ProviderByHand, tapes: Tapes, ends: str
) -> None:
    """Though the provider's policy is `cancel`: the stream is drained."""
    client, answering = await begun(proxy, provider, EVENTS[:4])
    await left(proxy, client)
    if ends == "before":
        finish(answering, EVENTS[4:])
        await the_record(proxy)
    again = await resumed(proxy, client, 4)
    assert (again.status, again.headers["content-type"]) == (200, "text/event-stream")
    assert again.headers["x-tokenweir-exchange"] == client.headers["x-tokenweir-exchange"]
    if ends == "after":
        answering.send(EVENTS[4])
        assert await again.take(1) == EVENTS[4], "as it comes"
        finish(answering, EVENTS[5:])
    assert client.body + await again.rest() == CLIENTS
    assert again.ended
    record = await the_record(proxy)
    assert (record.outcome, record.reading.source) == (Outcome.CLIENT_LEFT, UsageSource.REPORTED)
    assert (record.reading.usage.prompt_tokens, record.reading.usage.completion_tokens) == (5, 9)
    assert (record.events, record.bytes) == (4, len(client.body))
    assert record.details["policy"] == "resume"
    assert record.details.get("taken_up") == (1 if ends == "after" else None)
    again = await resumed(proxy, client)
    assert await again.rest() == CLIENTS, "and once more, from the beginning"
    assert len(proxy.outbox.records) == 1


async def test_who_read_everything_may_have_lost_the_end(proxy: Gateway, provider: ProviderByHand) -> None:
    client, answering = await begun(proxy, provider, EVENTS[:1])
    finish(answering, EVENTS[1:])
    assert await client.rest() == CLIENTS
    record = await the_record(proxy)
    assert (record.outcome, record.events) == (Outcome.SERVED, len(EVENTS) - 1)
    again = await resumed(proxy, client, 10)
    assert await again.rest() == b"".join(EVENTS[10:]).replace(COUNTS, b"")


async def test_a_client_that_is_cut_off_unnoticed_is_replaced(proxy: Gateway, provider: ProviderByHand) -> None:
    client, answering = await begun(proxy, provider, EVENTS[:4])
    again = await resumed(proxy, client, 4)
    assert await client.rest() == b"".join(EVENTS[:4])
    assert client.broken
    answering.send(EVENTS[4])
    assert await again.take(1) == EVENTS[4]
    finish(answering, EVENTS[5:])
    assert client.body + await again.rest() == CLIENTS
    assert len(proxy.outbox.records) == 1


async def test_the_number_of_events_may_stand_in_a_header(proxy: Gateway, provider: ProviderByHand) -> None:
    """A client that reconnects by itself repeats the query that it began with."""
    client, answering = await begun(proxy, provider, EVENTS[:4])
    await left(proxy, client)
    finish(answering, EVENTS[4:])
    again = await resumed(proxy, client, 2, Last_Event_ID="4")
    assert await again.rest() == b"".join(EVENTS[4:]).replace(COUNTS, b"")


@pytest.mark.parametrize(
    ("query", "key", "status", "code"),
    [
        ("?after=4", "bert", 404, "stream_not_found"),
        ("?after=4", "annas", 403, "stored_not_allowed"),
        ("?after=99", "anna", 400, "invalid_value"),
        ("?after=x", "anna", 400, "invalid_value"),
        ("?after=-1", "anna", 400, "invalid_value"),
        ("?starting_after=1e3", "anna", 400, "invalid_value"),
        ("?after=4", "nobody", 401, "invalid_api_key"),
    ],
)
async def test_refusals(proxy: Gateway, provider: ProviderByHand, query: str, key: str, status: int, code: str) -> None:
    client, answering = await begun(proxy, provider, EVENTS[:4])
    path = f"/v1/exchanges/{client.headers['x-tokenweir-exchange']}/stream{query}"
    refused = await asking(proxy.url, get(path, key))
    assert await refused.head() == status
    assert json.loads(await refused.rest())["error"]["code"] == code
    answering.send(EVENTS[4])
    assert await client.take(len(client.body) + 1) == b"".join(EVENTS[:5]), "nobody else is disturbed"
    client.leave()
    answering.abort()


@pytest.mark.parametrize("exchange_id", ["x", "01a211ab-c891-7cd3-9bd4-7945fec2922d", "a/b", "%2e%2e"])
async def test_what_is_not_there(proxy: Gateway, exchange_id: str) -> None:
    refused = await asking(proxy.url, get(f"/v1/exchanges/{exchange_id}/stream"))
    assert await refused.head() == 404


async def test_of_a_long_stream_the_last_events_are_kept(provider: ProviderByHand, tmp_path: Path) -> None:
    tapes = a_tape(bytes_max=400)
    async with gateway(tmp_path, provider.url, keys=KEYS, tapes=tapes) as proxy:
        client, answering = await begun(proxy, provider, EVENTS[:8])
        await left(proxy, client)
        finish(answering, EVENTS[8:])
        await the_record(proxy)
        assert EMPTY_BYTES < tapes.size <= EMPTY_BYTES + 400
        refused = await resumed(proxy, client, 4)
        assert refused.status == 410
        assert json.loads(await refused.rest())["error"]["code"] == "stream_overwritten"
        again = await resumed(proxy, client, 13)
        assert await again.rest() == STOP + DONE


async def test_a_slow_reader_delays_nobody(provider: ProviderByHand, tmp_path: Path) -> None:
    """And is told when it is overtaken by what had to be dropped."""
    tapes = a_tape(bytes_max=1 << 16)
    long = word("x" * 8000)
    async with gateway(tmp_path, provider.url, keys=KEYS, tapes=tapes, on_client_disconnect="drain") as proxy:
        client, answering = await begun(proxy, provider, EVENTS[:1])
        await left(proxy, client)
        again = await resumed(proxy, client, 1)
        for _ in range(1000):
            answering.send(long)
            await asyncio.sleep(0)
        finish(answering, [STOP, COUNTS, DONE])
        record = await the_record(proxy)
        assert record.reading.source is UsageSource.REPORTED, "it was read to its end"
        body = await again.rest()
        assert again.broken
        assert b"stream_overwritten" in body or body.count(long) < 1000
        assert tapes.size <= EMPTY_BYTES + (1 << 16)


async def test_what_a_drain_did_not_read_is_told(provider: ProviderByHand, tmp_path: Path) -> None:
    async with gateway(tmp_path, provider.url, keys=KEYS, tapes=a_tape(), drain=Drain(seconds=0.3)) as proxy:
        client, answering = await begun(proxy, provider, EVENTS[:4])
        await left(proxy, client)
        answering.send(EVENTS[4])
        record = await the_record(proxy)
        assert (record.details["drain_ended_by"], record.details["policy"]) == ("seconds", "resume")
        assert await wait_until(lambda: answering.gone, deadline_s=5), "nobody waits for more"
        again = await resumed(proxy, client, 4)
        assert (await again.rest()).startswith(EVENTS[4])
        assert b"stream_incomplete" in again.body
        assert again.broken


async def test_whoever_reads_again_keeps_the_drain_going(provider: ProviderByHand, tmp_path: Path) -> None:
    drain = Drain(seconds=0.3, tokens=20)
    async with gateway(tmp_path, provider.url, keys=KEYS, tapes=a_tape(), drain=drain, heartbeat_s=0.05) as proxy:
        client, answering = await begun(proxy, provider, EVENTS[:2])
        await left(proxy, client)
        again = await resumed(proxy, client, 2)
        for number in range(2, 12):
            answering.send(EVENTS[number])
            await asyncio.sleep(0.06)
        finish(answering, EVENTS[12:])
        body = await again.rest()
        assert b": keep-alive\n\n" in body
        assert client.body + body.replace(b": keep-alive\n\n", b"") == CLIENTS
        assert again.ended
        assert "drain_ended_by" not in (await the_record(proxy)).details


async def test_what_the_client_of_an_answer_was_told_is_told_again(proxy: Gateway, provider: ProviderByHand) -> None:
    client, _ = await begun(proxy, provider, EVENTS[:4])
    (exchange,) = proxy.handler.live
    exchange._ran_short()
    told = await client.rest()
    assert b"insufficient_quota" in told
    again = await resumed(proxy, client, 4)
    assert b"".join(EVENTS[:4]) + await again.rest() == told
    assert again.broken


async def test_another_machine_is_asked(provider: ProviderByHand, tapes: Tapes, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        (tmp_path / "one").mkdir()
        (tmp_path / "two").mkdir()
        one = await stack.enter_async_context(gateway(tmp_path / "one", provider.url, keys=KEYS, tapes=tapes))
        addresses = ["http://127.0.0.1:9", one.url]
        two = await stack.enter_async_context(
            gateway(tmp_path / "two", provider.url, keys=KEYS, tapes=a_tape(), others=addresses)
        )
        addresses.append(two.url)
        client, answering = await begun(one, provider, EVENTS[:4])
        await left(one, client)
        again = await resumed(two, client, 4)
        answering.send(EVENTS[4])
        assert await again.take(1) == EVENTS[4], "as it comes"
        finish(answering, EVENTS[5:])
        assert client.body + await again.rest() == CLIENTS
        assert again.ended
        for after, key, status in ((99, "anna", 400), (4, "bert", 404)):
            assert (await resumed(two, client, after, key=key)).status == status
        assert (len(one.outbox.records), len(two.outbox.records)) == (1, 0)


async def test_responses_are_resumed_as_their_sdk_does_it(tmp_path: Path, clients: Clients) -> None:
    """From memory: the provider is not asked again, until it has what is not there."""
    tapes = a_tape()
    async with stage(tmp_path, clients, tapes=tapes) as on:
        responses, provider = on.anna.responses, on.provider
        provider.waits = True
        stream = await responses.create(**ASKED, stream=True)
        response_id = (await anext(stream)).response.id
        for number in range(6):
            await provider.say(response_id, f" word {number}")
        got = [await anext(stream) for _ in range(2)]
        await stream.close()
        (live,) = on.proxy.handler.live
        assert await wait_until(lambda: live.running().state == "draining", deadline_s=5)
        again = await responses.retrieve(response_id, stream=True, starting_after=got[-1].sequence_number)
        got += [await anext(again) for _ in range(3)]
        await again.close()
        again = await responses.retrieve(response_id, stream=True, starting_after=got[-1].sequence_number)
        await provider.finish(response_id)
        got += [event async for event in again]
        assert [event.sequence_number for event in got] == list(range(1, 8))
        assert got[-1].type == "response.completed"
        assert [method for method, _, _ in provider.asked] == ["POST"]
        assert tokens(await on.record()) == TOKENS
        seen = [event.type async for event in await on.gpt("bert").responses.retrieve(response_id, stream=True)]
        assert seen[-1] == "response.completed", "another key of the project is served by the provider"
        tapes.close()
        again = await responses.retrieve(response_id, stream=True, starting_after=6)
        assert [event.sequence_number async for event in again] == [7]
        assert [method for method, _, _ in provider.asked] == ["POST", "GET", "GET"]
        assert len(on.proxy.outbox.records) == 1


async def test_a_stream_in_the_background_is_resumed_and_then_polled(tmp_path: Path, clients: Clients) -> None:
    """What was not drained the provider has."""
    async with stage(tmp_path, clients, tapes=a_tape(), drain=Drain(seconds=0.3)) as on:
        responses = on.anna.responses
        stream = await responses.create(**ASKED, stream=True, background=True)
        response_id = (await anext(stream)).response.id
        await stream.close()
        again = await responses.retrieve(response_id, stream=True, starting_after=0)
        await on.provider.say(response_id, "So much")
        assert (await anext(again)).sequence_number == 1
        await again.close()
        assert await wait_until(lambda: bool(on.proxy.background.live), deadline_s=5), "it is polled now"
        await on.provider.say(response_id, "more")
        again = await responses.retrieve(response_id, stream=True, starting_after=1)
        assert (await anext(again)).sequence_number == 2
        await on.provider.finish(response_id)
        assert [event.type async for event in again] == ["response.completed"]
        assert tokens(await on.record()) == TOKENS


TEXTS = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=6), min_size=1, max_size=8)


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """A stream, how its bytes are cut, and where its clients leave."""
    events = [ROLE, *map(word, draw(TEXTS)), STOP, COUNTS, DONE]
    if draw(st.booleans()):
        events = [event.replace(b"\n\n", b"\r\n\r\n") for event in events]
    for _ in range(draw(st.integers(0, 2))):
        events.insert(
            draw(st.integers(0, len(events) - 1)), draw(st.sampled_from([b": comment\n\n", b"event: ping\n\n"]))
        )
    wire = b"".join(events)
    # Who leaves after the last event was served: then no byte is waited for, such as the LF of its last CRLF.
    cuts = sorted(set(draw(st.lists(st.integers(1, len(wire) - 2), max_size=12))))
    return {
        "wire": wire,
        "pieces": [wire[start:end] for start, end in zip([0, *cuts], [*cuts, len(wire)], strict=True)],
        "leaves": draw(st.lists(st.integers(0, len(wire)), min_size=1, max_size=3)),
        "old": draw(st.booleans()),
        "early": draw(st.integers(0, 12)),
    }


def up_to(body: bytes, number: int) -> bytes:
    """The bytes up to the last one of so many events."""
    found, place, size = 0, 0, 0
    for event in sse.events(body):
        size += len(event.wire)
        if event.payload is not None and found < number:
            found, place = found + 1, size
    return body[:place]


@pytest.mark.hypothesis
def test_every_cut_gives_the_whole_stream(tmp_path: Path) -> None:
    """Of what a client got, as far as it has counted events, and what comes after that."""
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()

        async def opened() -> tuple[ProviderByHand, Gateway]:
            provider = await stack.enter_async_context(provider_by_hand())
            made = gateway(tmp_path, provider.url, keys=KEYS, tapes=a_tape(), slots=64)
            return provider, await stack.enter_async_context(made)

        provider, proxy = runner.run(opened())

        @settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
        @given(cases())
        def each(case: dict[str, Any]) -> None:
            runner.run(asyncio.wait_for(example(provider, proxy, **case), 20))

        try:
            each()
        finally:
            runner.run(stack.aclose())
    assert len(proxy.outbox.records) == proxy.outbox.opened


async def example(
    provider: ProviderByHand,
    proxy: Gateway,
    wire: bytes,
    pieces: list[bytes],
    leaves: list[int],
    early: int,
    *,
    old: bool,
) -> None:
    """`early`: pieces that come before the first client leaves. `old`: it speaks HTTP/1.0."""
    before = len(proxy.outbox.records)
    request = chat_request(ask("electron"), key="anna")
    client = await asking(proxy.url, request.replace(b"HTTP/1.1", b"HTTP/1.0", 1) if old else request)
    answering = await provider.asked.get()
    answering.begin()
    await client.head()
    sent = min(early, len(pieces))
    for piece in pieces[:sent]:
        answering.send(piece)
    expected, got = sse.without_usage_event(wire), b""
    for size in leaves:
        come = up_to(sse.without_usage_event(b"".join(pieces[:sent])), 99)
        await client.take(min(size, len(come) - len(got)))
        client.leave()
        assert expected[len(got) :].startswith(client.body)
        events = len(sse.data_events(got + client.body))
        got = up_to(expected, events)
        for piece in pieces[sent : sent + 2]:
            answering.send(piece)
        sent += 2
        client = await resumed(proxy, client, events)
        assert client.status == 200
    for piece in pieces[sent:]:
        answering.send(piece)
    answering.end()
    assert got + await client.rest() == expected
    assert client.ended
    assert await wait_until(lambda: len(proxy.outbox.records) == before + 1, deadline_s=5, every_s=0.002)
    record = proxy.outbox.records[-1]
    assert (record.reading.usage.prompt_tokens, record.reading.usage.completion_tokens) == (5, 9)
