"""Tera: the samples of its own pages, and reasoning whose usage never came.

Law: what its pages say about timers and about leaving is proven by the tests of the exchange, for every provider.
"""

from __future__ import annotations

import json

import pytest

from proxy.demo.shapes import words
from tests.conformance.clients import CurlClient, PythonClient
from tests.conformance.shapes import fixture
from tests.conformance.stand import Stand
from tests.support import sse
from tests.support.sdks import openai

MODEL = "Qwen/Qwen2.5-7B-Instruct"
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


def test_tera_reasoning_is_counted_where_usage_never_came(stand: Stand, python_client: PythonClient) -> None:
    shape = fixture("tera", "reasoning_only_length")
    model = stand.plan("tera", shape.script())
    python_client.ask(stand.base_url, stand.key, shape.request(model))
    entry = stand.entry(model)
    assert entry["usage_source"] == "estimated"
    assert entry["completion_tokens"] == 4  # more were seen than `max_tokens` allows
    assert entry["details"]["evidence"]["reasoning_chars"] == len(shape.truth["reasoning"])
