"""What a client receives is what the provider sent, to the byte and at once, minus the usage event it did not ask for.

Chunked streams go the short way, those with a length or ended by the connection's close the ordinary one: each law is
tried on both, and both must leave the same entry.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence, Set

import psutil
import pytest

from proxy.demo.script import Raw, Script, Send, Stall, Wait
from proxy.demo.shapes import DONE
from proxy.demo.shapes import sse as event_of
from tests.gateway.deployment import SOON_S, WRITE_STALL_S, Deployment
from tests.gateway.streams import FEW_CUTTINGS, MORE_CUTTINGS, cuttings, told, without_run
from tests.support import sse
from tests.support.net import RawClient, Response, connect

BEAT = b": keep-alive\n\n"
LANGUAGES = ("openai", "tera", "siliconstorm", "siliconstorm-fulltext")


async def relayed(
    deployment: Deployment, events: Sequence[bytes], *, usage: bool | None, few: Set[str]
) -> dict[str, Response]:
    """One stream in every cutting (or in `few`) at once: each must arrive as expected; the responses by model."""
    plans = {
        deployment.plan("cancel", script, "cut"): name for name, script in cuttings(events) if not few or name in few
    }
    responses = await asyncio.gather(*(deployment.post(model, usage=usage) for model in plans))
    body = b"".join(events)
    expected = body if usage else sse.without_usage_event(body)
    for response, name in zip(responses, plans.values(), strict=True):
        assert response.status == 200, name
        assert response.body == expected, name
        assert response.ended == "complete", name
    return dict(zip(plans, responses, strict=True))


@pytest.mark.parametrize(
    ("language", "usage", "few"),
    [
        *((language, None, FEW_CUTTINGS) for language in LANGUAGES[1:]),
        ("openai", None, MORE_CUTTINGS),
        ("openai", True, FEW_CUTTINGS),
        *(
            pytest.param(language, usage, frozenset[str](), marks=pytest.mark.slow)
            for language in LANGUAGES
            for usage in (None, False, True)
        ),
    ],
    ids=lambda one: f"{len(one)} cuttings" if isinstance(one, frozenset) else None,
)
async def test_every_cutting_gives_the_same_bytes_and_the_same_entry(
    deployment: Deployment, language: str, usage: bool | None, few: Set[str]
) -> None:
    events = told(language, 9, reasoning=3 if language == "tera" else 0)
    responses = await relayed(deployment, events, usage=usage, few=few)
    entries = [await deployment.entry(model) for model in responses]
    assert len(entries) == (len(few) or 26)
    first = without_run(entries[0])
    assert all(without_run(entry) == first for entry in entries)
    body = next(iter(responses.values())).body
    assert (first["events"], first["bytes"]) == (len(sse.data_events(body)), len(body))
    assert (first["outcome"], first["usage_source"], first["finish_reason"]) == ("served", "reported", "stop")
    reported = sse.usage(b"".join(events))
    assert reported is not None
    assert (first["prompt_tokens"], first["completion_tokens"]) == (21, reported["completion_tokens"])


async def test_usage_null_on_other_events_stays(deployment: Deployment) -> None:
    events = told("openai", 4)
    assert sum(b'"usage":null' in event for event in events) == len(events) - 2
    response = await deployment.post(deployment.plan("cancel", [Send(event) for event in events]))
    assert response.body == b"".join(events[:-2]) + DONE


async def test_a_usage_event_that_was_asked_for_stays_and_its_siblings_go_up(deployment: Deployment) -> None:
    model = deployment.plan("cancel", [Send(event) for event in told("tera")])
    options = {"include_usage": False, "include_obfuscation": False}
    assert sse.usage((await deployment.post(model, stream_options=options)).body) is None
    assert sse.usage((await deployment.post(model, usage=True)).body) is not None
    asked = [one["body"]["stream_options"] for one in deployment.seen(model)]
    assert asked == [{"include_usage": True, "include_obfuscation": False}, {"include_usage": True}]


async def test_never_inject_sends_the_request_as_it_is_and_strips_nothing(deployment: Deployment) -> None:
    events = told("tera")
    model = deployment.plan("never", [Send(event) for event in events])
    assert (await deployment.post(model)).body == b"".join(events)
    assert "stream_options" not in deployment.seen(model)[0]["body"]


@pytest.mark.parametrize("framing", ["chunked", "length"])
async def test_nothing_waits_for_what_comes_next(deployment: Deployment, framing: str) -> None:
    """The provider falls silent at many offsets: all that it has sent is already there, to the last byte."""
    body = b"".join(told("openai", 6))
    offsets = range(1, len(body), 41)

    async def silent_after(at: int) -> None:
        wire = len(body) if framing == "length" else None
        plan = Script(steps=(Send(body[:at]), Stall()), framing=framing, declared_length=wire)  # type: ignore[arg-type]
        model = deployment.plan("cancel", plan)
        async with await deployment.begin(model, usage=True) as client:
            response = await client.read_body(await client.read_head(SOON_S), until=body[:at], timeout_s=SOON_S)
            assert (response.body, response.ended) == (body[:at], "open")

    await asyncio.gather(*map(silent_after, offsets))
    assert len(offsets) >= 30


async def test_only_an_unfinished_event_that_can_be_the_usage_event_is_held(deployment: Deployment) -> None:
    events = told("openai", 6)
    body = b"".join(events)
    starts = [sum(map(len, events[:n])) for n in range(len(events))]

    async def silent_after(at: int) -> None:
        begun = max(start for start in starts if start < at)
        unfinished = body[begun:at]
        decided = b'"delta":{"' in unfinished or (body[begun:].startswith(DONE) and len(unfinished) > len(b"data: "))
        whole = sse.without_usage_event(body[:begun])
        ended = unfinished in events
        must = whole if ended and b'"choices":[],' in unfinished else whole + unfinished if decided else whole
        model = deployment.plan("cancel", [Send(body[:at]), Stall()])
        async with await deployment.begin(model) as client:
            response = await client.read_head(SOON_S)
            if must:
                await client.read_body(response, until=must, timeout_s=SOON_S)
            assert sse.without_usage_event(body).startswith(response.body)
            assert response.body.startswith(must)
            assert response.ended == "open"

    offsets = sorted({*range(7, len(body), 37), *(start + len(e) for start, e in zip(starts, events, strict=True))})
    await asyncio.gather(*map(silent_after, offsets))
    assert len(offsets) >= 40


async def test_headers_of_a_stream(deployment: Deployment) -> None:
    typed = ("Content-Type", "text/event-stream; charset=utf-8")
    theirs = (
        typed, ("Set-Cookie", "a=b"), ("openai-organization", "org-1"), ("X-Request-Id", "req-1"),
        ("x-ratelimit-remaining-requests", "9"), ("Server", "theirs"), ("Alt-Svc", "h3"), ("Connection", "keep-alive"),
    )  # fmt: skip
    model = deployment.plan("cancel", Script(steps=(Send(DONE),), headers=theirs))
    response = await deployment.post(model)
    headers = {name.lower(): value for name, value in response.headers}
    assert len(headers) == len(response.headers)
    assert headers.pop("date")
    assert headers == {
        "content-type": "text/event-stream; charset=utf-8",
        "cache-control": "no-cache, no-transform",
        "x-accel-buffering": "no",
        "x-request-id": "req-1",
        "x-tokenweir-exchange": (await deployment.entry(model))["exchange_id"],
        "server": "tokenweir",
        "transfer-encoding": "chunked",
    }


@pytest.mark.parametrize("framing", ["chunked", "length"])
async def test_an_http_1_0_client_gets_the_bytes_without_chunks(deployment: Deployment, framing: str) -> None:
    events = told("tera")
    steps = tuple(map(Send, events))
    model = deployment.plan("cancel", Script(steps=steps, framing=framing))  # type: ignore[arg-type]
    async with await connect(deployment.url) as client:
        await client.send(deployment.request(model).replace(b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", 1))
        response = await client.read(SOON_S)
    assert response.header("transfer-encoding") is None
    assert response.wire == sse.without_usage_event(b"".join(events))
    assert (await deployment.entry(model))["outcome"] == "served"


async def test_connections_are_used_again_on_both_sides(deployment: Deployment) -> None:
    events = told("tera")
    plans = [Script(steps=tuple(map(Send, events)), framing=way) for way in ("chunked", "length", "chunked")]  # type: ignore[arg-type]
    models = [deployment.plan("cancel", plan) for plan in plans] * 2
    async with await connect(deployment.url) as client:
        for model in models:
            await client.send(deployment.request(model))
            response = await client.read(SOON_S)
            assert (response.body, response.ended) == (sse.without_usage_event(b"".join(events)), "complete")
    assert len({one["connection"] for model in set(models) for one in deployment.seen(model)}) == 1


async def test_pipelined_requests_are_answered_in_turn(deployment: Deployment) -> None:
    plans = [deployment.plan("cancel", [Send(e) for e in told("tera", n)] + [Wait(20)]) for n in (3, 5, 7)]
    async with await connect(deployment.url) as client:
        await client.send(b"".join(map(deployment.request, plans)))
        responses = [await client.read(SOON_S) for _ in plans]
    entries = [await deployment.entry(model) for model in plans]
    assert [response.ended for response in responses] == ["complete"] * 3
    assert [response.header("x-tokenweir-exchange") for response in responses] == [e["exchange_id"] for e in entries]
    assert [entry["completion_tokens"] for entry in entries] == [3, 5, 7]


def paused(parts: Sequence[bytes], pause_ms: float) -> list[Send | Wait]:
    return [step for part in parts for step in (Send(part), Wait(pause_ms))]


async def test_heartbeats_come_only_between_whole_events(deployment: Deployment) -> None:
    events = told("tera", 3)
    text, usage = events[1], events[-2]
    # Silence: after an event, inside an event, inside the event that is held because it is the usage event.
    parts = [events[0], text[:-20], text[-20:], *events[2:-2], usage[:-9], usage[-9:], DONE]
    response, entry = await deployment.exchange("beating", paused(parts, 130))
    assert response.ended == "complete"
    between = response.body.split(BEAT)
    assert len(between) > 2
    assert b"".join(between) == sse.without_usage_event(b"".join(events))
    assert all(part == b"" or part.endswith(b"\n\n") for part in between)
    assert (entry["events"], entry["bytes"]) == (len(events) - 1, len(b"".join(between)))


async def test_a_silent_wait_for_the_head_has_no_heartbeat(deployment: Deployment) -> None:
    model = deployment.plan("beating", Script(steps=(Send(DONE),), delay_ms=200))
    assert (await deployment.post(model)).body == DONE


def flood(framing: str, blocks: int) -> Script:
    """About `blocks` × 16 KiB of events, as fast as they are taken."""
    text = event_of({"choices": [{"index": 0, "delta": {"content": "weir " * 3200}, "finish_reason": None}]})
    steps = (Send(text, times=blocks), Send(DONE))
    return Script(steps=steps, framing=framing)  # type: ignore[arg-type]


def resident(pid: int) -> int:
    return int(psutil.Process(pid).memory_info().rss)


async def standstill(deployment: Deployment, model: str) -> int:
    """What the provider has written of `model` once it writes no more."""
    written, still = -1, 0
    deadline = time.monotonic() + SOON_S
    while still < 3:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
        now = deployment.seen(model)[0]["bytes_written"]
        still = still + 1 if now == written else 0
        written = now
    return written


@pytest.mark.parametrize("framing", ["chunked", "length"])
async def test_a_client_that_stops_reading_stops_the_provider(deployment: Deployment, framing: str) -> None:
    blocks = 3000
    size = blocks * 16_000
    await deployment.post(deployment.plan("cancel", flood(framing, 100)))
    # For the first one, the allocator takes pages in advance: up to 2 MiB, and none for the next. So do tasks of the
    # process that run every some seconds; not beside each of them.
    grown = 2 << 20
    for _ in range(4):
        if grown <= 1 << 20:
            break
        before = resident(deployment.pid)
        model = deployment.plan("cancel", flood(framing, blocks))
        async with await deployment.begin(model, receive_buffer_bytes=4096) as client:
            await client.read_head(SOON_S)
            written = await standstill(deployment, model)
            grown = resident(deployment.pid) - before
            entry = await deployment.entry(model)  # the write-stall timeout ends it
    assert written < size / 3  # the kernel's buffers on the way, and ours
    assert grown <= 1 << 20
    assert entry["bytes"] <= written
    assert (entry["outcome"], entry["details"]["limit"]) == ("client_left", "write_stall_s")
    assert (entry["usage_source"], entry["completion_tokens"] > 0) == ("estimated", True)
    assert entry["duration_ms"] >= 1000 * WRITE_STALL_S
    assert (await deployment.seen_until(model, "duration_s"))["ended"] == "client_left"


async def read_with_rests(client: RawClient) -> Response:
    """Read to the end, but rest now and then, for less than the write-stall timeout."""
    response = await client.read_head(SOON_S)
    for times in (20, 200):
        await asyncio.sleep(WRITE_STALL_S / 4)
        await client.read_body(response, until=b"weir " * 3200 + b'"},"finish_reason":null}]}\n\n' * (times > 0))
    return await client.read_body(response, timeout_s=SOON_S)


@pytest.mark.parametrize("framing", ["chunked", pytest.param("length", marks=pytest.mark.slow)])
async def test_a_client_that_rests_gets_everything(deployment: Deployment, framing: str) -> None:
    script = flood(framing, 700)
    model = deployment.plan("cancel", script)
    async with await deployment.begin(model, receive_buffer_bytes=4096) as client:
        response = await read_with_rests(client)
    send, done = script.steps
    assert isinstance(send, Send)
    assert isinstance(done, Send)
    assert response.ended == "complete"
    assert response.body == send.body * send.times + done.body
    entry = await deployment.entry(model)
    assert (entry["outcome"], entry["events"]) == ("served", 701)


async def test_raw_bytes_behind_the_end_do_not_reach_the_next_exchange(deployment: Deployment) -> None:
    """A provider that says more than its framing promised: its connection is not used again."""
    forged = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 14\r\n\r\ndata: forged\n\n"
    for way in ("chunked", "length"):
        last = (Raw(b"0\r\n\r\n" + forged),) if way == "chunked" else (Raw(forged),)
        steps = (Send(DONE), *last, Stall())
        model = deployment.plan("cancel", Script(steps=steps, framing=way))  # type: ignore[arg-type]
        assert (await deployment.post(model)).body == DONE
        clean = deployment.plan("cancel", [Send(DONE)])
        assert (await deployment.post(clean)).body == DONE
        assert deployment.seen(clean)[0]["connection"] != deployment.seen(model)[0]["connection"]
