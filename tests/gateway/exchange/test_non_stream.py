"""Answers that are one JSON document: passed on byte for byte, metered, and ended once, whatever breaks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from proxy.demo.script import Cut, Script, Send, Stall, Wait
from proxy.demo.shapes import LANGUAGES, GeneratedAnswer, json_bytes, whole, words
from tests.gateway.deployment import SOON_S, WRITE_STALL_S, Deployment, charge, nusd
from tests.gateway.streams import TEXT, cut_off, inside_utf8, wire_of, without_run
from tests.gateway.streams import told as events_told
from tests.support.net import RawClient

JSON = (("Content-Type", "application/json"),)
# Beyond what is read whole before it is passed on.
LARGE_TOKENS = 60_000


def told(tokens: int = 12, *, usage: bool = True) -> bytes:
    body = whole(LANGUAGES["openai"], GeneratedAnswer("chatcmpl-w2", 1_790_000_000, "weir-1", 21, words(tokens, TEXT)))
    return body if usage else body.partition(b',"usage":')[0] + b"}"


def script(body: bytes, **more: Any) -> Script:
    return Script(steps=(Send(body),), **{"headers": JSON, "framing": "length", **more})


@pytest.mark.parametrize("tokens", [12, LARGE_TOKENS])
async def test_every_framing_gives_the_same_bytes_and_the_same_entry(deployment: Deployment, tokens: int) -> None:
    body = told(tokens)
    cuts = [Cut(whole=True), Cut(seed=5, size=len(body) // 9), Cut(at=inside_utf8(body)[:200])]
    plans = [
        script(body, framing=framing, wire=wire, chunking=wire, wire_pause_ms=0)
        for framing in ("length", "chunked", "close")
        for wire in cuts
    ]
    models = [deployment.plan("cancel", plan) for plan in plans]
    responses = await asyncio.gather(*(deployment.post(model, stream=False) for model in models))
    for response, model in zip(responses, models, strict=True):
        assert (response.status, response.body, response.ended) == (200, body, "complete")
        assert response.header("content-type") == "application/json"
        assert response.header("x-tokenweir-exchange") == (await deployment.entry(model))["exchange_id"]
    entries = [await deployment.entry(model) for model in models]
    assert all(without_run(entry) == without_run(entries[0]) for entry in entries)
    entry = entries[0]
    assert (entry["outcome"], entry["usage_source"], entry["streamed"]) == ("served", "reported", False)
    assert (entry["prompt_tokens"], entry["completion_tokens"]) == (21, tokens)
    assert (entry["events"], entry["bytes"], entry["finish_reason"]) == (0, len(body), "stop")
    assert nusd(entry) == charge(entry)


async def test_nothing_is_injected_into_a_request_that_is_not_streamed(deployment: Deployment) -> None:
    model = deployment.plan("always", script(told()))
    await deployment.post(model, stream=False)
    assert "stream_options" not in deployment.seen(model)[0]["body"]


async def test_without_usage_it_is_estimated(deployment: Deployment) -> None:
    _, entry = await deployment.exchange("cancel", script(told(200, usage=False)), stream=False)
    assert (entry["outcome"], entry["usage_source"]) == ("served", "estimated")
    assert 60 <= entry["completion_tokens"] <= 600
    assert nusd(entry) == charge(entry) > 0


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_a_stream_that_calls_itself_json_is_billed_and_has_no_usage_that_was_not_requested(
    deployment: Deployment, framing: str, asked: bool
) -> None:
    told = events_told("openai", 6)
    response, entry = await deployment.exchange("always", script(b"".join(told), framing=framing), usage=asked)
    expected = b"".join(event for event in told if asked or b'"usage":{' not in event)
    assert (len(expected) < len(b"".join(told))) is not asked
    assert (response.body, response.ended) == (expected, "complete")
    assert (entry["outcome"], entry["usage_source"], entry["completion_tokens"]) == ("served", "reported", 6)
    assert entry["details"]["flags"] == ["stream_as_json"]
    assert nusd(entry) == charge(entry) > 0


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_answer_of_the_other_kind_is_passed_on_and_metered(deployment: Deployment, streamed: bool) -> None:
    """JSON for a stream, a stream for JSON: providers do both."""
    events = b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\ndata: {"choices":[],"usage":{"prompt_tokens":3,'
    events += b'"completion_tokens":2,"total_tokens":5}}\n\ndata: [DONE]\n\n'
    plan = script(told()) if streamed else Script(steps=(Send(events),))
    response, entry = await deployment.exchange("cancel", plan, stream=streamed)
    assert response.body == (told() if streamed else events)
    assert (entry["outcome"], entry["usage_source"]) == ("served", "reported")
    assert (entry["prompt_tokens"], entry["completion_tokens"]) == ((21, 12) if streamed else (3, 2))


@pytest.mark.parametrize(
    ("framing", "tokens"),
    [
        ("length", 12),
        ("chunked", 12),
        ("chunked", LARGE_TOKENS),
        pytest.param("length", LARGE_TOKENS, marks=pytest.mark.slow),
    ],
)
async def test_truncated_at_many_offsets(deployment: Deployment, framing: str, tokens: int) -> None:
    """The client sees a failure or a cut, never a clean end; a broken answer without usage is not billed as whole."""
    body = told(tokens)
    wire = wire_of(script(body, framing=framing))
    offsets = [*range(1, len(wire) - 5, max(1, len(wire) // 12)), len(wire) - 6]
    models = [deployment.plan("cancel", cut_off(wire, at)) for at in offsets]
    responses = await asyncio.gather(*(deployment.post(model, stream=False) for model in models))
    for response, model in zip(responses, models, strict=True):
        entry = await deployment.entry(model)
        assert entry["outcome"] == "upstream_failed"
        if response.status == 200:
            assert response.ended in ("cut", "reset")
            assert body.startswith(response.body)
        else:
            assert (response.status, response.ended) == (502, "complete")
            assert nusd(entry) == 0


async def test_an_error_body_in_a_200_is_no_output(deployment: Deployment) -> None:
    body = json_bytes({"error": {"message": "out of memory " * 40, "type": "server_error"}})
    response, entry = await deployment.exchange("cancel", script(body), stream=False)
    assert (response.status, response.body) == (200, body)
    assert (entry["outcome"], entry["details"]["failed"]) == ("upstream_failed", "error_body")
    assert nusd(entry) == 0


@pytest.mark.parametrize("body", [b"<html>sorry</html>", b"", b"{", b"null", b"[1]", b'{"choices":'])
async def test_a_body_that_is_no_answer_is_passed_on_and_costs_nothing(deployment: Deployment, body: bytes) -> None:
    response, entry = await deployment.exchange("cancel", script(body), stream=False)
    assert (response.status, response.body, response.ended) == (200, body, "complete")
    assert entry["outcome"] == "upstream_failed"
    assert (nusd(entry), entry["completion_tokens"]) == (0, None)


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_silence_within_a_body_ends_it(deployment: Deployment, framing: str) -> None:
    body = told()
    plan = Script(
        steps=(Send(body[:100]), Stall()),
        headers=JSON,
        framing=framing,  # type: ignore[arg-type]
        declared_length=len(body) if framing == "length" else None,
    )
    model = deployment.plan("impatient", plan)
    response = await deployment.post(model, stream=False)
    assert (response.status, response.ended) in [(504, "complete"), (200, "cut"), (200, "reset")]
    entry = await deployment.entry(model)
    assert (entry["outcome"], nusd(entry)) == ("upstream_stalled", 0)
    assert (await deployment.seen_until(model, "duration_s"))["ended"] == "client_left"


async def test_silence_within_an_error_body_ends_it(deployment: Deployment) -> None:
    plan = Script(steps=(Send(b'{"error":'), Stall()), status=500, headers=JSON, framing="length", declared_length=99)
    response, entry = await deployment.exchange("impatient", plan, stream=False)
    assert (response.status, response.ended) in [(502, "complete"), (504, "complete")]
    assert entry["outcome"] in ("upstream_failed", "upstream_stalled")
    assert nusd(entry) == 0


@pytest.mark.waits
async def test_leaving_within_a_body_is_never_free(deployment: Deployment) -> None:
    body = told(LARGE_TOKENS)
    half = len(body) // 2
    waits = {"many-briefly": (Stall(),), "drain": (Wait(400), Send(body[half:]))}
    for policy, rest in waits.items():
        plan = Script(steps=(Send(body[:half]), *rest), headers=JSON)
        model = deployment.plan(policy, plan)
        client = await deployment.begin(model, stream=False)
        await client.read_body(await client.read_head(SOON_S), size=half - 9, timeout_s=SOON_S)
        client.close()
        entry = await deployment.entry(model)
        assert entry["outcome"] == "client_left"
        assert entry["usage_source"] == ("reported" if policy == "drain" else "estimated")
        assert nusd(entry) == charge(entry) > 0
        assert half - 9 <= entry["bytes"] <= half


@pytest.mark.parametrize("policy", ["cancel", "drain"])
async def test_leaving_while_the_provider_still_thinks(deployment: Deployment, policy: str) -> None:
    model = deployment.plan(policy, script(told(), delay_ms=300))
    client = await deployment.begin(model, stream=False)
    await deployment.seen_until(model, "started_at")
    client.reset()
    entry = await deployment.entry(model)
    drained = policy == "drain"
    assert (entry["outcome"], entry["bytes"]) == ("client_left", 0)
    assert entry["usage_source"] == ("reported" if drained else "none")
    assert nusd(entry) == (charge(entry) if drained else 0)


async def test_a_client_that_does_not_read_a_large_body_is_ended(deployment: Deployment) -> None:
    body = told(12)[:-1] + b',"padding":"' + b"x" * (14 << 20) + b'"}'
    model = deployment.plan("cancel", Script(steps=(Send(body),), headers=JSON))
    async with await deployment.begin(model, stream=False, receive_buffer_bytes=4096) as client:
        await client.read_head(SOON_S)
        entry = await deployment.entry(model)
    assert (entry["outcome"], entry["details"]["limit"]) == ("client_left", "write_stall_s")
    assert entry["bytes"] < len(body) / 2
    assert entry["duration_ms"] >= 1000 * WRITE_STALL_S


async def test_the_whole_exchange_has_a_limit(deployment: Deployment) -> None:
    body = told(LARGE_TOKENS)
    steps = [Send(body[:1000]), *(step for n in range(30) for step in (Wait(100), Send(body[1000 + n : 1001 + n])))]
    response, entry = await deployment.exchange("short", Script(steps=tuple(steps), headers=JSON), stream=False)
    assert (response.status, response.ended) in [(504, "complete"), (200, "cut"), (200, "reset")]
    assert body.startswith(response.body) or response.status == 504
    assert (entry["outcome"], entry["details"]["limit"]) == ("upstream_stalled", "total_s")


async def test_keep_alive_after_every_kind_of_answer(deployment: Deployment) -> None:
    models = [
        deployment.plan("cancel", script(told())),
        deployment.plan("cancel", script(told(LARGE_TOKENS), framing="chunked")),
        deployment.plan("cancel", script(b'{"error":{"message":"no"}}', status=422)),
        deployment.plan("cancel", script(b"no", status=503)),
    ]
    client = await RawClient.connect("127.0.0.1", deployment.tokenweir.port)
    async with client:
        for model in models * 2:
            await client.send(deployment.request(model, stream=False))
            assert (await client.read(SOON_S)).ended == "complete"
