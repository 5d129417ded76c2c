"""Electron: a path prefix, a cache with a price of its own, and a voice that starts on the first delta.

Law: each test is one line of what Electron's own pages say about its wire.
"""

from __future__ import annotations

import pytest

from proxy.demo.script import Shape
from proxy.demo.shapes import words
from tests.conformance.clients import PythonClient
from tests.conformance.leaving import endless, leave_after
from tests.conformance.stand import Stand
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


def test_electron_time_to_first_token_is_recorded(stand: Stand, python_client: PythonClient) -> None:
    wait_ms = 120
    model = stand.plan("electron", Shape("electron", first_ms=wait_ms, pace_ms=2))
    request = {"model": model, "messages": [{"role": "user", "content": "Go on."}], "stream": True}
    python_client.ask(stand.base_url, stand.key, request)
    entry = stand.entry(model)
    assert wait_ms <= entry["first_token_ms"] < entry["duration_ms"]
