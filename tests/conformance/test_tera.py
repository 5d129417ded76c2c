"""Tera: reasoning before content, no keep-alives, a quiet minute is normal, leaving cancels.

Law: each test is one line of what Tera's own pages say about its wire.
"""

from __future__ import annotations

import json
import time

import pytest

from proxy.demo.script import Script, Send, Stall, Wait
from proxy.demo.shapes import words
from tests.conformance.clients import CurlClient, PythonClient
from tests.conformance.leaving import leave_after
from tests.conformance.shapes import fixture
from tests.conformance.stand import BEAT_S, IDLE_S, QUIET_MS, Stand
from tests.support import sse
from tests.support.net import post_chat
from tests.support.sdks import openai

MODEL, REASONER = "Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen3.5-27B"
# What the scripted provider says, if nobody limits it.
TALE = "".join(words(24))


def test_tera_python_sample(stand: Stand, capsys: pytest.CaptureFixture[str]) -> None:
    with stand.one_entry(MODEL) as entry, openai.OpenAI(base_url=stand.base_url, api_key=stand.key) as client:
        stream = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Count the gates."}],
            stream=True,
        )
        for chunk in stream:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
    assert capsys.readouterr().out == TALE
    assert (entry["outcome"], entry["usage_source"], entry["completion_tokens"]) == ("served", "reported", 24)


def test_tera_curl_sample(stand: Stand, curl: CurlClient) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Count the gates."}], "stream": True}
    with stand.one_entry(MODEL) as entry:
        done = curl.run(
            f"{stand.base_url}/chat/completions",
            "-H", f"Authorization: Bearer {stand.key}",
            "-H", "Content-Type: application/json",
            "-d", json.dumps(body),
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sse.text(done.stdout) == TALE
    assert sse.done(done.stdout)
    assert sse.usage(done.stdout) is None
    assert (entry["outcome"], entry["events"]) == ("served", len(sse.data_events(done.stdout)))


def test_tera_reasoning_comes_first_and_is_billed_as_output(stand: Stand, python_client: PythonClient) -> None:
    order: list[str] = []
    with stand.one_entry(REASONER) as entry:
        for chunk in python_client.at(stand).chat.completions.create(
            model=REASONER, messages=[{"role": "user", "content": "Which gate?"}], stream=True
        ):
            delta = chunk.choices[0].delta.to_dict()
            order += [name for name in ("reasoning_content", "content") if delta.get(name)]
    assert order == ["reasoning_content"] * 8 + ["content"] * 16
    assert (entry["reasoning_tokens"], entry["completion_tokens"]) == (8, 24)


def test_tera_reasoning_is_counted_where_usage_never_came(stand: Stand, python_client: PythonClient) -> None:
    shape = fixture("tera", "reasoning_only_length")
    model = stand.plan("tera", shape.script())
    python_client.ask(stand.base_url, stand.key, shape.request(model))
    entry = stand.entry(model)
    assert entry["usage_source"] == "estimated"
    assert entry["completion_tokens"] == 4  # more were seen than `max_tokens` allows
    assert entry["details"]["evidence"]["reasoning_chars"] == len(shape.truth["reasoning"])


def _quiet_in_the_middle(wire: bytes) -> Script:
    first, *rest = sse.events(wire)
    return Script(steps=(Send(first.wire), Wait(QUIET_MS), *(Send(event.wire) for event in rest)))


async def test_tera_quiet_minute_is_not_a_stall(stand: Stand) -> None:
    assert QUIET_MS / 1000 < IDLE_S
    shape = fixture("tera", "plain")
    model = stand.plan("tera-scaled", _quiet_in_the_middle(shape.wire))
    response = await post_chat(stand.url, shape.request(model), key=stand.key)
    assert (response.body, response.ended) == (shape.wire, "complete")  # and no keep-alive of ours in it
    assert stand.entry(model)["outcome"] == "served"


async def test_tera_silence_beyond_the_idle_timer_is_a_stall_and_says_so(stand: Stand) -> None:
    shape = fixture("tera", "plain")
    sent = [event.wire for event in sse.events(shape.wire)[:4]]
    model = stand.plan("tera-scaled", Script(steps=(*map(Send, sent), Stall())))
    response = await post_chat(stand.url, shape.request(model), key=stand.key)
    *relayed, last = sse.events(response.body)
    assert [event.wire for event in relayed] == sent
    assert last.json["error"]["code"] == "upstream_stalled"
    assert response.ended == "cut"
    entry = stand.entry(model)
    assert (entry["outcome"], entry["usage_source"]) == ("upstream_stalled", "estimated")
    assert entry["details"]["delivered_only"]


@pytest.mark.parametrize("asked", [True, False], ids=["usage asked", "usage unasked"])
async def test_tera_heartbeats_where_asked_for_come_between_whole_events_only(stand: Stand, asked: bool) -> None:
    shape = fixture("tera", "plain")
    first, second, *rest = (event.wire for event in sse.events(shape.wire))
    cut = len(second) // 2
    steps = (Send(first), Wait(QUIET_MS), Send(second[:cut]), Wait(QUIET_MS), Send(second[cut:]), *map(Send, rest))
    model = stand.plan("tera-beating", Script(steps=steps))
    response = await post_chat(stand.url, shape.request(model, usage_asked=asked), key=stand.key)
    beat = b": keep-alive\n\n"
    head, _, tail = response.body.partition(second)
    beats = head.removeprefix(first)
    assert beats == beat * beats.count(beat)
    assert 1 <= beats.count(beat) <= QUIET_MS / 1000 / BEAT_S + 1
    assert tail == b"".join(rest)  # none within the half event, and it came whole
    entry = stand.entry(model)
    assert (entry["outcome"], entry["events"], entry["bytes"]) == ("served", shape.truth["events"], len(shape.wire))


def test_tera_leaving_in_silence_cancels_too(stand: Stand, python_client: PythonClient) -> None:
    shape = fixture("tera", "plain")
    sent = sse.events(shape.wire)[:3]
    model = stand.plan("tera", Script(steps=(*(Send(event.wire, 1) for event in sent), Stall())))
    left_at = time.monotonic()
    assert leave_after(stand, python_client, model, texts=2) == "The gate"
    seen = stand.seen_until(model, lambda one: one["client_left_s"] is not None)
    assert time.monotonic() - left_at < 60  # the idle timer of 120 s is not what ended it
    assert seen["ended"] == "client_left"
    assert stand.entry(model)["outcome"] == "client_left"
