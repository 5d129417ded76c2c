"""TensorLoop: short chunks, fragments of calls, no resume, and an abort that does not stop the bill.

Law: each test is one line of what TensorLoop's own pages say about its wire.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from proxy.demo.script import Cut, Script, Send, Shape, Stall
from proxy.demo.shapes import words
from tests.conformance.clients import NodeClient, PythonClient
from tests.conformance.leaving import endless, leave_after, near
from tests.conformance.shapes import fixture
from tests.conformance.stand import DRAIN_TOKENS_FEW, SOON_S, Minted, Stand
from tests.support import sse
from tests.support.net import chat_request, connect, post_chat
from tests.support.provider import broken_after, error_script, hangs_up
from tests.support.sdks import openai

MODEL = "gpt-4o-mini"
TALE = "".join(words(24))


@pytest.mark.parametrize(
    ("script", "model"),
    [("sample_openai.mjs", MODEL), ("sample_reader.mjs", MODEL), ("sample_openai.mjs", "Qwen/Qwen2.5-7B-Instruct")],
)
def test_tensorloop_and_tera_node_samples(stand: Stand, node: NodeClient, script: str, model: str) -> None:
    with stand.one_entry(model) as entry:
        done = node.run(script, BASE_URL=stand.base_url, API_KEY=stand.key, MODEL=model)
    assert (done.stdout, done.returncode) == (TALE, 0), done.stderr
    assert (entry["outcome"], entry["usage_source"], entry["completion_tokens"]) == ("served", "reported", 24)


def test_tensorloop_tool_fragments_are_output_where_usage_never_came(stand: Stand, python_client: PythonClient) -> None:
    shape = fixture("tensorloop", "tool_call_fragments")
    until_usage = [event.wire for event in sse.events(shape.wire) if not sse.is_usage_event(event)][:-1]
    model = stand.plan("tensorloop", broken_after(until_usage, "fin"))
    heard = python_client.ask(stand.base_url, stand.key, shape.request(model))
    assert heard.arguments == shape.truth["tool_arguments"]
    entry = stand.entry(model)
    assert entry["usage_source"] == "estimated"
    assert near(entry["completion_tokens"], shape.truth["usage"]["completion_tokens"])


def test_tensorloop_json_is_whole_wherever_tcp_cuts_it(stand: Stand, python_client: PythonClient) -> None:
    shape = Shape("tensorloop", text="Ebb — 水 — flow. ", chunking=Cut(seed=3), wire=Cut(size=1))
    model = stand.plan("tensorloop", shape)
    request = {"model": model, "messages": [{"role": "user", "content": "Go on."}], "stream": True}
    heard = python_client.ask(stand.base_url, stand.key, request)
    assert heard.text(cumulative=False) == "".join(words(24, "Ebb — 水 — flow. "))


def test_tensorloop_drain_is_bounded_in_time(stand: Stand, python_client: PythonClient) -> None:
    model = stand.plan("tensorloop-short", endless("tensorloop"))
    leave_after(stand, python_client, model, texts=10)
    entry = stand.entry(model)
    assert (entry["outcome"], entry["usage_source"]) == ("client_left", "estimated")
    assert entry["details"]["drain_ended_by"] == "seconds"
    assert entry["completion_tokens"] > 10 / 2  # the drained part too


def test_tensorloop_drain_is_bounded_in_tokens(stand: Stand, python_client: PythonClient) -> None:
    model = stand.plan("tensorloop-few", endless("tensorloop"))
    leave_after(stand, python_client, model, texts=1)
    entry = stand.entry(model)
    assert entry["details"]["drain_ended_by"] == "tokens"
    assert DRAIN_TOKENS_FEW <= entry["completion_tokens"] < 400 / 2


def test_tensorloop_a_dropped_stream_is_billed_as_delivered_and_a_retry_is_a_second_call(
    stand: Stand, python_client: PythonClient
) -> None:
    dropped, whole = fixture("tensorloop", "dropped"), fixture("tensorloop", "usage_chunk")
    model = stand.plan("tensorloop", dropped.script())
    first = python_client.ask(stand.base_url, stand.key, dropped.request(model))
    assert first.broken
    stand.provider.script(model.partition("/")[2], whole.script())
    second = python_client.ask(stand.base_url, stand.key, whole.request(model))
    assert not second.broken
    assert first.response_id != second.response_id
    lost, served = stand.entries(model, 2)
    assert (lost["outcome"], lost["details"]["billed"], lost["details"]["delivered_only"]) == (
        "upstream_failed",
        "output",
        True,
    )
    assert (served["outcome"], served["details"]["billed"]) == ("served", "prompt+output")
    assert len(stand.seen(model)) == 2  # nothing was retried behind the client's back


async def test_tensorloop_nothing_is_held_until_the_end(stand: Stand) -> None:
    shape = fixture("tensorloop", "usage_chunk")
    role, first, *_ = sse.events(shape.wire)
    model = stand.plan("tensorloop-short", Script(steps=(Send(role.wire), Send(first.wire, 1), Stall())))
    async with await connect(stand.url) as client:
        headers = {"Accept-Encoding": "gzip, br, zstd"}
        await client.send(chat_request(shape.request(model), key=stand.key, headers=headers))
        response = await client.read_head(SOON_S)
        await client.read_body(response, until=first.wire, timeout_s=SOON_S)
        assert response.body == role.wire + first.wire  # while the provider has not gone on
    assert response.header("X-Accel-Buffering") == "no"
    assert response.header("Cache-Control") == "no-cache, no-transform"
    assert response.header("Content-Encoding") is None
    assert (response.header("Content-Type") or "").startswith("text/event-stream")
    assert stand.entry(model)["details"]["drain_ended_by"] == "seconds"


def test_tensorloop_keys_have_an_alias_and_a_list_of_models(
    stand: Stand, python_client: PythonClient, narrow: Minted
) -> None:
    messages: Any = [{"role": "user", "content": "Go on."}]
    client = python_client.at(stand, narrow.secret)
    with stand.one_entry(MODEL) as entry:
        assert client.chat.completions.create(model=MODEL, messages=messages).choices[0].message.content == TALE
    assert (entry["key_alias"], entry["key_id"]) == ("narrow", narrow.key_id)
    with pytest.raises(openai.PermissionDeniedError, match="may not use the model 'electron'"):
        client.chat.completions.create(model="electron", messages=messages)
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.chat.completions.create(model="gpt-none", messages=messages)
    assert [model.id for model in client.models.list()] == [MODEL]


def _within(deadline_s: float, works: Callable[[], bool]) -> bool:
    """Whether `works` in time, tried again as long as the key is not known yet."""
    until = time.monotonic() + deadline_s
    while True:
        try:
            return works()
        except openai.AuthenticationError:
            if time.monotonic() > until:
                return False
            time.sleep(0.05)


def test_tensorloop_a_key_is_shown_once_and_expires(stand: Stand, python_client: PythonClient) -> None:
    command = stand.tokenweir.command("keys", "create", "--alias", "shown once", "--model", MODEL)
    made = json.loads(command.stdout)
    lasts = datetime.fromisoformat(made["expires_at"]) - datetime.now(UTC)
    assert timedelta(days=89) < lasts <= timedelta(days=90)  # unless said otherwise
    client = python_client.at(stand, made["key"])
    assert _within(SOON_S, lambda: [model.id for model in client.models.list()] == [MODEL])
    outputs = stand.tokenweir.outputs()
    assert made["key_id"].encode() in outputs
    assert made["key"].encode() not in outputs


async def test_tensorloop_upstream_failures_are_502_and_503_in_its_shape(stand: Stand) -> None:
    request = fixture("tensorloop", "usage_chunk").request
    for plan, status in ((hangs_up(), 502), (error_script(502, "bad gateway"), 502), (error_script(503, "busy"), 503)):
        model = stand.plan("tensorloop", plan)
        response = await post_chat(stand.url, request(model), key=stand.key)
        assert response.status == status
        assert json.loads(response.body)["error"].keys() == {"message", "type", "param", "code"}
        entry = stand.entry(model)
        assert (entry["outcome"], Decimal(entry["charge_usd"])) == ("upstream_failed", 0)
