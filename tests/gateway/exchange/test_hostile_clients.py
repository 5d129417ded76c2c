"""What a hostile or half-broken client does to an exchange, from outside, on real sockets."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from statistics import median

import psutil
import pytest

from proxy.demo.script import Script, Send, Shape, Stall, Wait
from proxy.demo.shapes import LANGUAGES, GeneratedAnswer, sse, whole, words
from tests.gateway.deployment import SOON_S, Deployment
from tests.gateway.exchange.priced import Priced
from tests.gateway.streams import TEXT
from tests.support.net import RawClient, ask, chat_request, connect
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import Tokenweir

pytestmark = pytest.mark.process

Make = Callable[..., Tokenweir]
JSON = (("Content-Type", "application/json"),)
DONE = b"data: [DONE]\n\n"
# More than the kernel's buffers of one connection take from us while nobody reads: some 3 MB.
MANY = 40


def piece(size: int) -> bytes:
    """One event of about so many bytes."""
    return sse({"id": "c1", "choices": [{"index": 0, "delta": {"content": "water " * (size // 6)}}]})


def document(tokens: int) -> bytes:
    """A plain answer with its usage at the end."""
    return whole(LANGUAGES["openai"], GeneratedAnswer("chatcmpl-w2", 1_790_000_000, "weir-1", 21, words(tokens, TEXT)))


@pytest.mark.thorough
@pytest.mark.parametrize("less", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_who_reads_nothing_makes_no_provider_send_on(deployment: Deployment, less: int) -> None:
    short = Script(steps=(Send(b'{"a":"%b"}' % (b"a" * 100_000)),), headers=JSON)
    plain, after = deployment.plan("cancel", short), deployment.plan("cancel", short)
    huge = deployment.plan("cancel", [*([Send(piece(64_000)), Wait(1)] * 500), Send(DONE)])
    async with await connect(deployment.url, receive_buffer_bytes=4096) as client:
        await client.send(deployment.request(plain, stream=False) * (2 * MANY))
        taken = await standstill(lambda: len(deployment.seen(plain)))
        assert taken < 2 * MANY, "answers pile up here for who reads none"
    # An answer or two less are taken whole, and leave little room or none for what follows.
    async with await connect(deployment.url, receive_buffer_bytes=4096) as client:
        await client.send(deployment.request(after, stream=False) * (taken - less) + deployment.request(huge))
        await standstill(lambda: len(deployment.seen(after)))
        await standstill(lambda: sum(one["bytes_written"] for one in deployment.seen(huge)))
        assert sum(one["bytes_written"] for one in deployment.seen(huge)) < 16 << 20
        await gone(deployment.tokenweir)


async def standstill(count: Callable[[], int]) -> int:
    """Until it grows no more."""
    before = -1
    while before != (now := count()):
        before = now
        await asyncio.sleep(0.25)
    return now


async def gone(running: Tokenweir) -> None:
    """Wait until no client is connected any more."""
    assert running.child is not None
    process = psutil.Process(running.child.pid)
    async with asyncio.timeout(SOON_S):
        while any(one.laddr.port == running.port and one.status == "ESTABLISHED" for one in process.net_connections()):
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("framing", ["chunked", pytest.param("length", marks=pytest.mark.slow)])
async def test_no_deadline_writes_into_what_a_client_has_not_taken_yet(priced: Priced, framing: str) -> None:
    body = document(30_000)
    assert 100_000 < len(body) < 256 * 1024
    name = priced.provider.script(f"hasty-{framing}", Script(steps=(Send(body),), headers=JSON, framing=framing))  # type: ignore[arg-type]
    model = f"hasty/{name}"
    wire = chat_request(ask(model, stream=False), key=priced.secret)
    async with await connect(priced.url, receive_buffer_bytes=4096) as client:
        await client.send(wire * MANY)
        await asyncio.sleep(1.0)
        assert len(priced.provider.log(name)) < MANY, "the client took all of them: the test shows nothing"
        taken = 0
        while taken < MANY and (answer := await client.read(SOON_S)).ended == "complete":
            assert (answer.status, answer.body) == (200, body)
            taken += 1
        # One that came in several pieces is not read on while the client takes nothing: it may be cut at total_s.
        assert taken == MANY or (answer.ended == "cut" and body.startswith(answer.body))
    outcomes = Counter(entry["outcome"] for entry in priced.entries_of(model, len(priced.provider.log(name))))
    assert outcomes["served"] == taken > 0
    assert outcomes.keys() <= {"served", "upstream_stalled"}


async def test_a_plain_answer_is_read_on_when_its_client_leaves(deployment: Deployment) -> None:
    body = document(40_000)
    model = deployment.plan("cancel", Script(steps=(Send(body[:-9_000]), Wait(300), Send(body[-9_000:])), headers=JSON))
    client = await deployment.begin(model, stream=False)
    response = await client.read_head(SOON_S)
    await client.read_body(response, size=len(body) - 20_000, timeout_s=SOON_S)
    client.reset()
    entry = await deployment.entry(model)
    assert (entry["outcome"], entry["usage_source"], entry["completion_tokens"]) == ("client_left", "reported", 40_000)
    assert entry["bytes"] < len(body)


async def test_what_a_drain_has_read_is_estimated_and_not_what_was_delivered(deployment: Deployment) -> None:
    model = deployment.plan("drain", Shape("openai", tokens=600, reports_usage=False, pace_ms=0.2))
    client = await deployment.begin(model, max_tokens=3000)
    await client.read_body(await client.read_head(SOON_S), until=b"\n\n")
    client.close()
    entry = await deployment.entry(model)
    assert (entry["outcome"], entry["usage_source"]) == ("client_left", "estimated")
    assert entry["bytes"] < 30_000
    assert entry["completion_tokens"] == pytest.approx(600, rel=0.3)


@pytest.mark.parametrize("ended", [False, True])
async def test_a_stream_that_ends_within_its_running_usage_is_not_served(deployment: Deployment, ended: bool) -> None:
    events = [
        sse({
            "id": "c1",
            "choices": [{"index": 0, "delta": {"content": "water "}, "finish_reason": None}],
            "usage": {"prompt_tokens": 9, "completion_tokens": number, "total_tokens": 9 + number},
        })
        for number in (1, 2, 3)
    ]  # fmt: skip
    last = sse({"id": "c1", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}) + DONE
    model = deployment.plan("cancel", [*map(Send, events), *([Send(last)] if ended else [])])
    assert (await deployment.post(model)).status == 200
    entry = await deployment.entry(model)
    assert entry["outcome"] == ("served" if ended else "upstream_failed")
    assert entry["completion_tokens"] == 3


async def test_the_clock_of_a_provider_starts_when_it_is_asked(deployment: Deployment) -> None:
    model = deployment.plan("prompt", Shape("openai", tokens=3))
    wire = deployment.request(model)
    async with await connect(deployment.url) as client:
        await client.send(wire[:-20])
        await asyncio.sleep(0.8)
        await client.send(wire[-20:])
        answer = await client.read(SOON_S)
    assert (answer.status, answer.ended) == (200, "complete")
    entry = await deployment.entry(model)
    assert (entry["outcome"], entry["completion_tokens"]) == ("served", 3)


@pytest.mark.thorough
async def test_a_stream_does_not_keep_its_prompt(tokenweir: Make, provider: ScriptedProvider) -> None:
    streams, prompt = 8, "water " * 100_000
    running = tokenweir()
    key = running.key()
    name = provider.script("long", [Send(piece(60)), Stall()])
    assert running.child is not None
    process = psutil.Process(running.child.pid)
    clients: list[RawClient] = []
    sizes: list[int] = []
    for _ in range(streams + 3):
        client = await connect(running.url)
        clients.append(client)
        body = ask(name) | {"messages": [{"role": "user", "content": prompt}]}
        await client.send(chat_request(body, key=key))
        await client.read_body(await client.read_head(SOON_S), until=b"\n\n")
        sizes.append(process.memory_info().rss)
    for client in clients:
        client.close()
    # The median, because the allocator takes a megabyte at a time: a kept prompt grows every step.
    assert median(after - before for before, after in pairwise(sizes[2:])) < 240 * 1024


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_a_repeated_request_gets_the_stored_answer_however_it_was_framed(priced: Priced, framing: str) -> None:
    body = document(40)
    name = priced.provider.script(framing, Script(steps=(Send(body),), headers=JSON, framing=framing))  # type: ignore[arg-type]
    model = f"once/{name}"
    wire = chat_request(ask(model, stream=False), key=priced.secret, headers={"Idempotency-Key": f"once-{framing}"})
    async with await connect(priced.url) as client:
        await client.send(wire)
        first = await client.read(SOON_S)
        priced.entries_of(model)
        await client.send(wire)
        again = await client.read(SOON_S)
    assert (first.status, first.body) == (200, body)
    assert (again.status, again.body, again.header("idempotent-replayed")) == (200, body, "true")
    assert len(priced.provider.log(name)) == 1


@pytest.mark.thorough
@pytest.mark.parametrize(
    "signals",
    [
        (signal.SIGTERM, signal.SIGINT),
        pytest.param((signal.SIGINT, signal.SIGINT), marks=pytest.mark.slow),
        pytest.param((signal.SIGINT, signal.SIGTERM), marks=pytest.mark.slow),
    ],
)
async def test_a_second_signal_settles_what_runs_and_writes_no_second_head(
    tokenweir: Make, provider: ScriptedProvider, signals: tuple[signal.Signals, ...]
) -> None:
    running = tokenweir(shutdown_grace_s=30)
    key = running.key()
    name = provider.script("running", Shape("openai", tokens=5_000, pace_ms=2))
    plain = provider.script("plain", Script(steps=(Send(b'{"a":'), Stall()), headers=JSON))
    async with await connect(running.url) as client, await connect(running.url) as other:
        await client.send(chat_request(ask(name), key=key))
        response = await client.read_head(SOON_S)
        await client.read_body(response, size=20_000, timeout_s=SOON_S)
        await other.send(chat_request(ask(plain, stream=False), key=key))
        cut = await other.read_head(SOON_S)
        for number in signals:
            running.signal(number)
            await asyncio.sleep(0.3)
        await client.read_body(response, timeout_s=SOON_S)
        await other.read_body(cut, timeout_s=SOON_S)
    assert response.ended in ("cut", "reset")
    assert b"HTTP/1.1" not in response.body + cut.body
    assert b"shutting_down" in response.body
    await asyncio.to_thread(running._wait)
    running.start()
    stream, _ = sorted(running.entries(2), key=lambda entry: entry["model"] != name)
    assert (stream["outcome"], stream["usage_source"]) == ("shut_down", "estimated")
    assert stream["events"] > 50
    assert stream["completion_tokens"] == pytest.approx(stream["events"], rel=0.3)
