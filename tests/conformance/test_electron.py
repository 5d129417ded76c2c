"""Electron: a path prefix, a cache with a price of its own, and a voice that starts on the first delta.

Law: each test is one line of what Electron's own pages say about its wire.
"""

from __future__ import annotations

from decimal import Decimal

import pytest

from proxy.demo.script import Script, Send, Shape, Stall
from proxy.demo.shapes import words
from tests.conformance.clients import PythonClient
from tests.conformance.leaving import endless, leave_after, near
from tests.conformance.shapes import dollars, fixture
from tests.conformance.stand import SOON_S, Stand
from tests.support import sse
from tests.support.net import chat_request, connect, post_chat
from tests.support.sdks import openai

MODEL = "electron"
TALE = "".join(words(24))


def test_electron_python_sample(stand: Stand, capsys: pytest.CaptureFixture[str]) -> None:
    text, usage = "", None
    with stand.one_entry(MODEL) as entry, openai.OpenAI(base_url=stand.base_url, api_key=stand.key) as client:
        stream = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Say one true thing about rivers."}],
            stream=True,
            stream_options={"include_usage": True},
        )
        for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                print(chunk.choices[0].delta.content, end="", flush=True)
                text += chunk.choices[0].delta.content
            if chunk.usage is not None:
                usage = chunk.usage
    assert capsys.readouterr().out == text == TALE
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (entry["prompt_tokens"], entry["completion_tokens"])
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == entry["cached_tokens"]


@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "whole"])
def test_electron_path_prefix(stand: Stand, python_client: PythonClient, streamed: bool) -> None:
    model = stand.plan("electron", Shape("electron"))
    request = {"model": model, "messages": [{"role": "user", "content": "Go on."}], "stream": streamed}
    python_client.ask(stand.base_url, stand.key, request)
    (seen,) = stand.seen(model)
    assert seen["path"] == "/waves/v1/chat/completions"
    assert stand.entry(model)["endpoint"] == "/v1/chat/completions"


async def test_electron_asked_for_usage_comes_after_the_last_delta_and_before_done(stand: Stand) -> None:
    shape = fixture("electron", "usage_chunk")
    model = stand.plan("electron", shape.script())
    response = await post_chat(stand.url, shape.request(model, usage_asked=True), key=stand.key)
    *deltas, usage, done = sse.data_events(response.body)
    assert sse.is_usage_event(usage)
    assert done.done
    assert not any(sse.is_usage_event(event) for event in deltas)


async def test_electron_unasked_usage_does_not_come_and_is_billed(stand: Stand) -> None:
    shape = fixture("electron", "usage_chunk")
    model = stand.plan("electron", shape.script())
    response = await post_chat(stand.url, shape.request(model), key=stand.key)
    assert response.body == sse.without_usage_event(shape.wire) != shape.wire
    assert stand.entry(model)["usage_source"] == "reported"


def test_electron_cached_tokens_have_their_own_price(stand: Stand, python_client: PythonClient) -> None:
    shape = fixture("electron", "usage_chunk_cached")
    model = stand.plan("electron", shape.script())
    python_client.ask(stand.base_url, stand.key, shape.request(model))
    entry = stand.entry(model)
    assert (entry["prompt_tokens"], entry["cached_tokens"]) == (1040, 1024)
    assert Decimal(entry["charge_usd"]) == dollars(1040, 6, cached=1024) < dollars(1040, 6)


def test_electron_zero_cached_is_not_unreported(stand: Stand, python_client: PythonClient) -> None:
    for system, cached in (("electron", 0), ("tensorloop", None)):
        shape = fixture(system, "usage_chunk")
        model = stand.plan(system, shape.script())
        python_client.ask(stand.base_url, stand.key, shape.request(model))
        assert stand.entry(model)["cached_tokens"] == cached


def test_electron_leaving_is_billed_once(stand: Stand, python_client: PythonClient) -> None:
    model = stand.plan("electron", endless("electron", tokens=50))
    leave_after(stand, python_client, model, texts=3)
    entry = stand.entry(model)
    (seen,) = stand.seen(model)
    assert (entry["outcome"], entry["usage_source"]) == ("client_left", "reported")
    assert entry["completion_tokens"] == seen["completion_tokens"] == 50
    assert Decimal(entry["charge_usd"]) == dollars(seen["prompt_tokens"], 50, cached=seen["cached_tokens"])


def test_electron_a_retry_after_leaving_is_a_second_line_and_charges_the_first_no_second_time(
    stand: Stand, python_client: PythonClient
) -> None:
    model = stand.plan("electron", endless("electron", tokens=50))
    leave_after(stand, python_client, model, texts=3)
    (first,) = stand.entries(model)
    request = {"model": model, "messages": [{"role": "user", "content": "Tell me about the weir."}], "stream": True}
    python_client.ask(stand.base_url, stand.key, request | {"max_tokens": 5})
    again, second = stand.entries(model, 2)
    assert again == first
    assert (second["outcome"], second["completion_tokens"]) == ("served", 5)
    seen = stand.seen(model)
    assert [one["completion_tokens"] for one in seen] == [50, 5]
    assert [one["response_id"] for one in seen] == [first["provider_response_id"], second["provider_response_id"]]


def test_electron_leaving_may_cancel_instead(stand: Stand, python_client: PythonClient) -> None:
    model = stand.plan("electron-cancel", endless("electron"))
    leave_after(stand, python_client, model, texts=30)
    seen = stand.seen_until(model, lambda one: one["duration_s"] is not None)
    entry = stand.entry(model)
    assert (seen["ended"], entry["usage_source"]) == ("client_left", "estimated")
    assert near(entry["completion_tokens"], seen["completion_tokens"])


async def test_electron_each_delta_goes_out_before_the_next_one_comes(stand: Stand) -> None:
    shape = fixture("electron", "usage_chunk")
    first, second, *_ = sse.events(shape.wire)
    for sent in ([first], [first, second]):
        steps = (*(Send(event.wire, 1) for event in sent), Stall())
        model = stand.plan("electron-cancel", Script(steps=steps))
        async with await connect(stand.url) as client:
            await client.send(chat_request(shape.request(model), key=stand.key))
            response = await client.read_head(SOON_S)
            await client.read_body(response, until=sent[-1].wire, timeout_s=SOON_S)
        assert response.body == b"".join(event.wire for event in sent)
        assert stand.entry(model)["outcome"] == "client_left"


def test_electron_time_to_first_token_is_recorded(stand: Stand, python_client: PythonClient) -> None:
    wait_ms = 120
    model = stand.plan("electron", Shape("electron", first_ms=wait_ms, pace_ms=2))
    request = {"model": model, "messages": [{"role": "user", "content": "Go on."}], "stream": True}
    python_client.ask(stand.base_url, stand.key, request)
    entry = stand.entry(model)
    assert wait_ms <= entry["first_token_ms"] < entry["duration_ms"]


def test_electron_says_its_role_once(stand: Stand, python_client: PythonClient) -> None:
    model = stand.plan("electron", Shape("electron"))
    stream = python_client.at(stand).chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Go on."}], stream=True
    )
    roles = [chunk.choices[0].delta.role for chunk in stream]
    assert roles == ["assistant", *[None] * (len(roles) - 1)]
