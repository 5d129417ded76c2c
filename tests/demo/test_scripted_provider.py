"""The provider process does on the wire what its scripts say, and its log tells the truth."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from proxy.demo.script import Cut, End, Raw, Script, Send, Shape, Trickle, Wait
from proxy.demo.shapes import DONE
from tests.support import provider as scripts
from tests.support import sse
from tests.support.net import RawClient, Response, ask, chat_request, connect, free_port, post_chat
from tests.support.provider import ROOT, ScriptedProvider
from tests.support.waiting import wait_until

EVENTS = [b'data: {"n":1}\n\n', 'data: {"n":"zwö水"}\n\n'.encode(), DONE]
BODY = b"".join(EVENTS)


async def answer(provider: ScriptedProvider, plan: Script | Shape, **request: object) -> Response:
    return await post_chat(provider.url, ask(provider.script("it", plan), **request))  # type: ignore[arg-type]


@pytest.mark.parametrize("model", ["tera", "tensorloop", "siliconstorm", "electron", "openai"])
async def test_built_in_models_stream_and_log_what_they_generated(provider: ScriptedProvider, model: str) -> None:
    response = await post_chat(provider.url, ask(model, usage=True, max_tokens=7))
    assert (response.status, response.ended) == (200, "complete")
    assert response.chunk_sizes == [len(event.wire) for event in sse.events(response.body)]
    (logged,) = provider.ended()
    usage = sse.usage(response.body)
    assert usage is not None
    assert (logged["prompt_tokens"], logged["completion_tokens"]) == (usage["prompt_tokens"], 7)
    assert logged["response_id"] == sse.chunks(response.body)[0]["id"]
    assert logged["bytes_written"] == len(response.head) + len(response.wire)
    assert logged["ended"] == "served"


async def test_the_log_has_the_request_as_sent(provider: ScriptedProvider) -> None:
    headers = {"X-CaSe": " kept ", "X-CaSe-2": "b"}
    await post_chat(provider.url, ask("tera"), path="/waves/v1/chat/completions", headers=headers)
    (logged,) = provider.ended()
    assert (logged["method"], logged["path"]) == ("POST", "/waves/v1/chat/completions")
    assert ["X-CaSe", "kept"] in logged["headers"]
    assert logged["body"] == ask("tera")
    assert abs(logged["started_at"] - time.time()) < 60


@pytest.mark.parametrize("how", ["event", "whole", "byte", "random"])
async def test_chunking_parts_the_body_and_changes_nothing(provider: ScriptedProvider, how: scripts.Chunking) -> None:
    response = await answer(provider, scripts.sse_script(EVENTS, how=how, seed=3))
    assert (response.body, response.ended) == (BODY, "complete")
    expected = {"event": list(map(len, EVENTS)), "whole": [len(BODY)], "byte": [1] * len(BODY)}
    assert response.chunk_sizes == expected.get(how, response.chunk_sizes)


async def test_wire_cuts_really_arrive_apart(provider: ScriptedProvider) -> None:
    plan = scripts.sse_script([b"0123456789"], wire=Cut(at=(9, 84, 87)), wire_pause_ms=15)
    response = await answer(provider, plan)
    assert (response.body, response.ended) == (b"0123456789", "complete")
    arrivals = [piece.at_s for piece in response.pieces]
    assert len(arrivals) >= 2
    assert arrivals[-1] - response.head_at_s > 0.01


async def test_waits_trickles_and_raw_chunks(provider: ScriptedProvider) -> None:
    steps = (Send(b"a"), Wait(30), Trickle(b"bc", ms=1), Raw(b"0002;q=1\r\nde\r\n"), End())
    response = await answer(provider, Script(steps=steps))
    assert (response.body, response.chunk_sizes, response.ended) == (b"abcde", [1, 1, 1, 2], "complete")
    assert response.pieces[-1].at_s - response.pieces[0].at_s > 0.025


@pytest.mark.parametrize(("how", "ended"), [("reset", "reset"), ("fin", "cut")])
async def test_a_broken_stream_breaks(provider: ScriptedProvider, how: scripts.Ending, ended: str) -> None:
    response = await answer(provider, scripts.broken_after(EVENTS[:2], how))
    assert (response.body, response.ended) == (b"".join(EVENTS[:2]), ended)
    assert provider.ended()[0]["ended"] == how


async def test_a_stall_lasts_until_the_client_leaves(provider: ScriptedProvider) -> None:
    model = provider.script("it", scripts.broken_after(EVENTS[:1], "stall"))
    async with await connect(provider.url) as client:
        await client.send(chat_request(ask(model)))
        response = await client.read_head()
        with pytest.raises(TimeoutError):
            await client.read_body(response, timeout_s=0.1)
        assert (response.body, response.ended) == (EVENTS[0], "open")
        assert provider.log()[0]["duration_s"] is None
    (logged,) = provider.ended()
    assert logged["ended"] == "client_left"
    assert logged["client_left_s"] >= 0.09


@pytest.mark.parametrize("rude", [False, True])
@pytest.mark.parametrize(("language", "generates_on"), [("tera", False), ("electron", False), ("tensorloop", True)])
async def test_what_leaving_does_to_the_generation(
    provider: ScriptedProvider, language: str, generates_on: bool, rude: bool
) -> None:
    model = provider.script("it", Shape(language, tokens=60, pace_ms=4))  # type: ignore[arg-type]
    client = await connect(provider.url)
    await client.send(chat_request(ask(model)))
    await client.read_body(await client.read_head(), until=b'"content":" weir"')
    client.reset() if rude else client.close()
    (logged,) = provider.ended()
    assert logged["ended"] == "client_left"
    assert logged["completion_tokens"] == 60 if generates_on else 2 <= logged["completion_tokens"] < 30


async def test_one_body_three_framings(provider: ScriptedProvider) -> None:
    by_length = Script(steps=tuple(scripts.sends(EVENTS)), framing="length")
    until_close = Script(steps=tuple(scripts.sends(EVENTS)), framing="close", http="1.0")
    for plan in (by_length, until_close, scripts.sse_script(EVENTS)):
        response = await answer(provider, plan)
        assert (response.body, response.ended) == (BODY, "complete")
    assert [one["ended"] for one in provider.ended(3)] == ["served"] * 3


async def test_a_proper_answer_leaves_the_connection_open_for_the_next(provider: ScriptedProvider) -> None:
    kept = provider.script("kept", scripts.sse_script(EVENTS))
    closed = provider.script("closed", Script(steps=(Send(b"x"),), headers=(("Connection", "close"),)))
    async with await connect(provider.url) as client:
        for model in (kept, "tera", kept, closed):
            await client.send(chat_request(ask(model)))
            assert (await client.read()).ended == "complete"
        assert await client.read_to_end() == b""
    assert len({one["connection"] for one in provider.ended(4)}) == 1


async def test_a_chunked_request_is_read_whole(provider: ScriptedProvider) -> None:
    body = json.dumps(ask("tera")).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with await connect(provider.url) as client:
        await client.send(head + b"5;a=b\r\n" + body[:5] + b"\r\n%x\r\n" % len(body[5:]) + body[5:])
        await client.send(b"\r\n0\r\nX-Trailer: 1\r\n\r\n")
        assert (await client.read()).status == 200
    assert provider.ended()[0]["body"] == ask("tera")


async def test_gzip_garbage_silence_redirects_and_errors(provider: ScriptedProvider) -> None:
    response = await answer(provider, scripts.gzipped(EVENTS))
    assert response.header("content-encoding") == "gzip"
    assert gzip.decompress(response.body) == BODY
    response = await answer(provider, scripts.redirect("http://127.0.0.1:1/"))
    assert (response.status, response.header("location")) == (307, "http://127.0.0.1:1/")
    response = await answer(provider, scripts.error_script(429, "slow down", [("Retry-After", "3")]))
    assert (response.status, response.reason, response.header("retry-after")) == (429, "Too Many Requests", "3")
    response = await answer(provider, scripts.json_instead({"object": "chat.completion"}))
    assert (response.header("content-type"), response.status) == ("application/json", 200)
    for plan, expected in ((scripts.garbage(b"\x00\xffnot http"), b"\x00\xffnot http"), (scripts.hangs_up(), b"")):
        async with await connect(provider.url) as client:
            await client.send(chat_request(ask(provider.script("it", plan))))
            assert await client.read_to_end() == expected
    async with await connect(provider.url) as client:
        await client.send(chat_request(ask(provider.script("it", scripts.silent()))))
        with pytest.raises(TimeoutError):
            await client.read_head(timeout_s=0.05)


async def test_stream_options_are_refused_until_they_are_gone(provider: ScriptedProvider) -> None:
    plan = scripts.refuses_stream_options(EVENTS)
    refused = await answer(provider, plan, usage=True)
    assert refused.status == 400
    assert json.loads(refused.body)["error"]["param"] == "stream_options"
    assert (await answer(provider, plan)).body == BODY


async def test_a_very_long_line_and_a_client_that_stops_reading(provider: ScriptedProvider) -> None:
    model = provider.script("it", scripts.long_line(10_000_000, [DONE]))
    client = await RawClient.connect("127.0.0.1", provider.port, receive_buffer_bytes=16 * 1024)
    async with client:
        await client.send(chat_request(ask(model)))
        response = await client.read_head()
        await asyncio.sleep(0.2)
        written = provider.log()[0]["bytes_written"]
        await asyncio.sleep(0.1)
        # The kernel's send buffer grows to a few MiB by itself; beyond it the provider waits.
        assert provider.log()[0]["bytes_written"] == written < 8_000_000
        await client.read_body(response)
        assert response.ended == "complete"
        assert len(response.body) > 9_900_000
        assert response.body.endswith(b'"}\n\n' + DONE)


@pytest.mark.parametrize("streams", [50, pytest.param(300, marks=pytest.mark.thorough)])
async def test_many_streams_at_once(provider: ScriptedProvider, streams: int) -> None:
    model = provider.script("it", Shape("openai", tokens=20, pace_ms=2))
    responses = await asyncio.gather(*(post_chat(provider.url, ask(model, usage=True)) for _ in range(streams)))
    assert {response.ended for response in responses} == {"complete"}
    assert {sse.usage(response.body)["completion_tokens"] for response in responses} == {20}  # type: ignore[index]
    log = provider.ended(streams)
    assert len({one["response_id"] for one in log}) == streams


async def test_unknown_models_paths_and_controls(provider: ScriptedProvider) -> None:
    assert (await post_chat(provider.url, ask("nobody"))).status == 404
    assert (await post_chat(provider.url, b"{not json")).status == 400
    assert (await post_chat(provider.url, ask("tera"), path="/v1/embeddings")).status == 404
    assert (await post_chat(provider.url, b"{}", path="/_control/scripts")).status == 400
    assert (await post_chat(provider.url, b"{}", path="/_control/dance")).status == 404
    assert len(provider.ended(3)) == 3


def test_the_log_waits_no_longer_than_it_is_told(provider: ScriptedProvider) -> None:
    with pytest.raises(TimeoutError):
        provider.ended(1, timeout_s=0.02)


@pytest.mark.process
async def test_it_ends_on_sigterm_with_streams_open(capfd: pytest.CaptureFixture[str]) -> None:
    provider = ScriptedProvider(pace_ms=1000)
    async with await connect(provider.url) as client:
        await client.send(chat_request(ask("tera")))
        await client.read_head()
        started_s = time.monotonic()
        provider.close()
        assert time.monotonic() - started_s < 3
    with pytest.raises(ProcessLookupError):
        os.kill(provider.pid, 0)
    assert capfd.readouterr().err == ""


@pytest.mark.process
def test_it_ends_with_its_parent() -> None:
    program = (
        "import json, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-m', 'proxy.demo.provider'], stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    orphan = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not _runs(orphan), lambda: "the orphan still runs", within_s=5)


def _runs(pid: int) -> bool:
    """True if the process is there and not a zombie that nobody has waited for."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_free_port_is_free() -> None:
    port = free_port()
    with pytest.raises(ConnectionRefusedError):
        asyncio.run(RawClient.connect("127.0.0.1", port))
