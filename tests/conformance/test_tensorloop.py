"""TensorLoop: short chunks, fragments of calls, no resume, and an abort that does not stop the bill.

Law: each test is one line of what TensorLoop's own pages say about its wire.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from proxy.demo.shapes import words
from tests.conformance.clients import NodeClient, PythonClient
from tests.conformance.leaving import near
from tests.conformance.shapes import fixture
from tests.conformance.stand import SOON_S, Minted, Stand
from tests.support import sse
from tests.support.provider import broken_after
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
