"""Evasion of billing: no client reads for free, and no text of an answer is taken for usage."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.demo.script import Shape
from proxy.demo.shapes import sse
from tests.security.guarded import Guarded
from tests.security.raw_provider import completion, raw_provider, whole
from tests.support import sse as reading
from tests.support.net import Response, ask, chat_request, post_chat
from tests.support.provider import sse_script

DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}


def _delta(index: int = 0, **delta: Any) -> bytes:
    choice = {"index": index, "delta": delta, "finish_reason": None}
    return sse({"id": "c1", "object": "chat.completion.chunk", "choices": [choice]})


async def _entry(guarded: Guarded, response: Response) -> dict[str, Any]:
    exchange = response.header("x-tokenweir-exchange")
    assert exchange is not None
    entries = guarded.tokenweir.until(lambda all_of_them: any(e["exchange_id"] == exchange for e in all_of_them))
    (entry,) = (entry for entry in entries if entry["exchange_id"] == exchange)
    return entry


async def _streamed(guarded: Guarded, name: str, events: list[bytes], **more: Any) -> dict[str, Any]:
    model = guarded.provider.script(name, sse_script(events))
    response = await guarded.ask(model, **more)
    assert (response.status, response.ended) == (200, "complete")
    return await _entry(guarded, response)


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
async def test_usage_is_asked_for_whatever_the_client_says(options: Any, guarded: Guarded) -> None:
    response = await guarded.ask("tera", stream_options=options and options | {"include_obfuscation": False})
    (seen,) = guarded.provider.log()
    assert seen["body"]["stream_options"]["include_usage"] is True
    assert ("include_obfuscation" in seen["body"]["stream_options"]) is bool(options)
    assert not any(map(reading.is_usage_event, reading.events(response.body)))
    assert (await _entry(guarded, response))["completion_tokens"] == seen["completion_tokens"]


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("n", 10**9, "n"),
        ("max_tokens", 1e308, "max_tokens"),
        ("max_tokens", 10**40, "max_tokens"),
        ("model", "tera\n", "model"),
        ("model", "\x1b[2Jtera", "model"),
        ("model", "\ud800", "model"),
        ("messages", ["hello"], "messages[0]"),
    ],
)
async def test_a_field_of_the_wrong_type_or_size_is_named(field: str, value: Any, param: str, guarded: Guarded) -> None:
    response = await post_chat(guarded.url, ask("tera") | {field: value}, key=guarded.key)
    error = json.loads(response.body)["error"]
    assert (response.status, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert guarded.provider.log() == []


async def test_a_huge_limit_is_no_bill(guarded: Guarded) -> None:
    response = await guarded.ask("tera", max_tokens=1_000_000, n=2)
    entry = await _entry(guarded, response)
    (seen,) = guarded.provider.log()
    assert entry["completion_tokens"] == seen["completion_tokens"] < 1000


async def test_what_goes_up_is_what_was_checked(guarded: Guarded) -> None:
    """The provider gets the parsed object, not the bytes: escapes resolved, numbers exact, a lone surrogate kept."""
    big = "9" * 400
    body = (
        b'{ "\\u006dodel" : "raw" ,"messages":[{"role":"user","content":"\\ud83d\\ude00 \\ud800"}],'
        b'"stream": false, "seed": %b, "x": [1.5, -0.25, 1e5] }' % big.encode()
    )
    async with raw_provider(guarded.raw_port, lambda _: [whole(completion("yes"))]) as raw:
        response = await post_chat(guarded.url, body, key=guarded.key)
    assert response.status == 200
    sent = raw.requests[0].partition(b"\r\n\r\n")[2]
    assert sent != body
    assert b'"model":"raw"' in sent
    assert big.encode() in sent
    assert json.loads(sent) == json.loads(body)


@pytest.mark.parametrize(
    "line",
    [
        f"{method} {path}"
        for method, path in (
            ("POST", "/v1/images/edits/x"),
            ("POST", "/v1/audio/voices"),
            ("GET", "/v1/responses/resp_1/usage"),
            ("POST", "/v1/responses/resp_1/compact"),
            ("POST", "/v1/videos"),
            ("POST", "/v1/audio/speech/x"),
            ("POST", "/v1/uploads"),
            ("POST", "/v1/vector_stores"),
            ("POST", "/v1/containers"),
            ("GET", "/v1/files/file-1/content/x"),
            ("POST", "/v1/batches/batch_1/results"),
            ("GET", "/v1/batches/batch_1/results"),
            ("POST", "/v1/realtime/client_secrets"),
            ("POST", "/v1/realtime/sessions"),
            ("POST", "/v1/realtime/transcription_sessions"),
            ("POST", "/v1/realtime/calls"),
            ("GET", "/v1/realtime/translations"),
            ("GET", "/v1/live/sessions"),
            ("GET", "/v1/moderations/x"),
            ("GET", "/v1/chat/completions/abc"),
            ("POST", "/prefix/v1/chat/completions"),
            ("POST", "/completions/chat"),
            ("GET", "/admin"),
            ("GET", "/debug/pprof"),
        )
    ],
)
async def test_what_nobody_meters_is_not_there(line: str, guarded: Guarded) -> None:
    method, path = line.split()
    body = json.dumps(ask("tera")).encode() if method == "POST" else b""
    wire = chat_request(body, path=path, key=guarded.key).replace(b"POST", method.encode(), 1)
    response = await guarded.send(wire)
    assert (response.status, json.loads(response.body)["error"]["code"]) == (404, "unknown_url")
    assert guarded.provider.log() == []


@pytest.mark.parametrize(
    "nested", [{"delta": {"content": "x", "usage": {"completion_tokens": 9 * 10**5}}}, {"usage": USAGE}]
)
async def test_usage_counts_only_at_the_top(nested: dict[str, Any], guarded: Guarded) -> None:
    chunk = sse({"id": "c1", "choices": [{"index": 0, "delta": {"content": "x"}, **nested}]})
    entry = await _streamed(guarded, "nested", [chunk, DONE])
    assert entry["usage_source"] == "estimated"
    assert entry["completion_tokens"] < 50


async def test_every_exchange_here_ended_once(guarded: Guarded) -> None:
    """Conservation over everything this deployment has served so far, whatever other tests did with it."""
    model = guarded.provider.script("last", Shape("tera", tokens=3))
    await _entry(guarded, await guarded.ask(model))
    entries = guarded.tokenweir.read_ledger()
    assert len({entry["exchange_id"] for entry in entries}) == len(entries)
