"""Gemini through the proxy, as SSE and as one JSON array: a stream, an answer, errors, a client that leaves."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.demo.script import Script, Send, Stall, json_script
from tests.gateway.deployment import SOON_S, Deployment, charge, nusd
from tests.metering.dialects.gemini import ASKED, ERROR, STORY, sse, text
from tests.support.net import Response, chat_request, connect

ENDPOINT = "/v1beta/models/{model}:"
# How a stream is asked for, what its content type is, and the pieces it comes in: one for each event, and the end.
_DOCUMENTS = [json.dumps(event, indent=2).encode() for event in STORY]
WAYS = {
    "sse": ("?alt=sse", "text/event-stream", [sse(event) for event in STORY]),
    "array": (
        "",
        "application/json; charset=UTF-8",
        [b"[" + _DOCUMENTS[0], *(b",\r\n" + document for document in _DOCUMENTS[1:]), b"\n]"],
    ),
}
every_way = pytest.mark.parametrize("way", WAYS)


def script(way: str, pieces: list[bytes], *more: Any) -> Script:
    return Script(steps=(*map(Send, pieces), *more), headers=(("Content-Type", WAYS[way][1]),))


def path(model: str, way: str | None = None, version: str = "v1beta") -> str:
    method = "generateContent" if way is None else f"streamGenerateContent{WAYS[way][0]}"
    return f"/{version}/models/{model}:{method}"


async def ask(deployment: Deployment, where: str, document: Any = ASKED, key: str | None = None) -> Response:
    """One request; `key` "": none beside the path's."""
    headers = {} if key == "" else {"x-goog-api-key": key or deployment.key}
    async with await connect(deployment.url) as client:
        await client.send(chat_request(document, path=where, headers=headers))
        return await client.read(SOON_S)


@every_way
@pytest.mark.parametrize("version", ["v1beta", "v1"])
async def test_a_stream(deployment: Deployment, way: str, version: str) -> None:
    query, kind, pieces = WAYS[way]
    model = deployment.plan("many", script(way, pieces))
    response = await ask(deployment, path(model, way, version), ASKED | {"model": "models/other"})
    assert (response.status, response.body, response.ended) == (200, b"".join(pieces), "complete")
    assert response.header("content-type") == kind
    entry = await deployment.entry(model)
    assert (entry["outcome"], entry["usage_source"]) == ("served", "reported")
    assert (entry["endpoint"], entry["events"]) == (f"{ENDPOINT}streamGenerateContent", len(STORY))
    assert (entry["prompt_tokens"], entry["completion_tokens"], entry["reasoning_tokens"]) == (9, 45, 40)
    assert (entry["finish_reason"], entry["provider_response_id"]) == ("STOP", "resp-1")
    assert nusd(entry) == charge(entry) > 0
    (seen,) = deployment.seen(model)
    assert seen["path"] == f"/v1/models/{model.partition('/')[2]}:streamGenerateContent{query}"
    assert seen["body"] == ASKED
    sent = {name.lower(): value for name, value in seen["headers"]}
    assert sent["x-goog-api-key"] == deployment.tokenweir.PROVIDER_KEY
    assert "authorization" not in sent


async def test_an_answer_that_no_meter_reads_cannot_be_asked_for(deployment: Deployment) -> None:
    model = deployment.plan("many", script("array", WAYS["array"][2]))
    response = await ask(deployment, f"{path(model, 'array')}?alt=proto&fields=candidates&$alt=proto")
    assert response.body == b"".join(WAYS["array"][2])
    assert deployment.seen(model)[0]["path"].endswith(":streamGenerateContent")


async def test_an_answer(deployment: Deployment) -> None:
    answer = text("Much.", used=STORY[-1]["usageMetadata"], finish="STOP")
    model = deployment.plan("many", json_script(answer))
    response = await ask(deployment, path(model))
    assert (response.status, json.loads(response.body)) == (200, answer)
    entry = await deployment.entry(model)
    assert (entry["outcome"], entry["usage_source"], entry["completion_tokens"]) == ("served", "reported", 45)
    assert entry["endpoint"] == f"{ENDPOINT}generateContent"


@every_way
async def test_an_error_of_the_provider_goes_down_as_it_is(deployment: Deployment, way: str) -> None:
    told = ERROR if way == "sse" else [ERROR]
    refused = deployment.plan("many", json_script(told, 429))
    response = await ask(deployment, path(refused, way))
    assert (response.status, json.loads(response.body)) == (429, told)
    entry = await deployment.entry(refused)
    assert (entry["outcome"], entry["charge_usd"]) == ("refused_upstream", "0")
    pieces = [*WAYS[way][2][:2], sse(ERROR) if way == "sse" else b",\r\n" + json.dumps(ERROR).encode() + b"\n]"]
    broken = deployment.plan("many", script(way, pieces))
    response = await ask(deployment, path(broken, way))
    assert (response.status, response.body) == (200, b"".join(pieces))
    entry = await deployment.entry(broken)
    assert (entry["outcome"], entry["details"]["failed"]) == ("upstream_failed", "error_event")


@every_way
async def test_a_client_that_leaves_pays_what_the_provider_had_counted_by_then(
    deployment: Deployment, way: str
) -> None:
    begun = WAYS[way][2][:2]
    model = deployment.plan("many", script(way, begun, Stall()))
    async with await connect(deployment.url) as client:
        await client.send(chat_request(ASKED, path=path(model, way), key=deployment.key))
        await client.read_body(await client.read_head(SOON_S), until=b"".join(begun), timeout_s=SOON_S)
    entry = await deployment.entry(model)
    assert (entry["outcome"], entry["usage_source"], entry["events"]) == ("client_left", "estimated", 2)
    # 40 tokens of thoughts that were never streamed are in it, and nothing that may have come after.
    assert (entry["prompt_tokens"], entry["completion_tokens"], entry["total_tokens"]) == (9, 42, 51)
    assert entry["details"]["usage"] == STORY[1]["usageMetadata"]
    assert entry["details"]["evidence"]["text_events"] == 2
    assert nusd(entry) == charge(entry)


@every_way
async def test_a_client_that_leaves_after_the_last_event_was_served(deployment: Deployment, way: str) -> None:
    pieces = WAYS[way][2][: len(STORY)]
    model = deployment.plan("many", script(way, pieces, Stall()))
    async with await connect(deployment.url) as client:
        await client.send(chat_request(ASKED, path=path(model, way), key=deployment.key))
        await client.read_body(await client.read_head(SOON_S), until=b"".join(pieces), timeout_s=SOON_S)
    entry = await deployment.entry(model)
    assert (entry["outcome"], entry["usage_source"], entry["completion_tokens"]) == ("served", "reported", 45)


@every_way
@pytest.mark.parametrize("begun", [0, 2])
async def test_a_stall_is_told_where_an_event_has_a_place(deployment: Deployment, way: str, begun: int) -> None:
    pieces = WAYS[way][2][:begun] or [b"[" if way == "array" else b": wait\n\n"]
    model = deployment.plan("many-briefly", script(way, pieces, Stall()))
    response = await ask(deployment, path(model, way))
    assert response.body.startswith(b"".join(pieces))
    told = response.body[len(b"".join(pieces)) :]
    if way == "array" and not begun:
        assert told == b""
    else:
        last = json.loads(response.body)[-1] if way == "array" else json.loads(told.removeprefix(b"data: "))
        assert (last["error"]["code"], last["error"]["status"]) == (504, "DEADLINE_EXCEEDED")
    assert (await deployment.entry(model))["outcome"] == "upstream_stalled"


@pytest.mark.parametrize(
    ("where", "change", "key", "status", "word", "message"),
    [
        (path("cancel/weir"), {}, None, 400, "INVALID_ARGUMENT", "The model"),
        (path("nobody/weir", "sse"), {}, None, 404, "NOT_FOUND", "The model"),
        (path("many/weir", "array", "v1"), {}, "tw-wrong", 401, "UNAUTHENTICATED", "Incorrect API key"),
        (path("many/weir") + "?key=tw-wrong", {}, "", 401, "UNAUTHENTICATED", "An API key in the URL"),
        (
            path("many/weir", "array"), {"generationConfig": {"maxOutputTokens": "5"}}, None, 400, "INVALID_ARGUMENT",
            "generationConfig.maxOutputTokens: must be an integer",
        ),
        ("/v1beta/models/many/weir:computeTokens", {}, None, 404, "NOT_FOUND", "Unknown request URL"),
        ("/v1beta/models/many/weir:asyncBatchEmbedContent", {}, None, 404, "NOT_FOUND", "Unknown request URL"),
    ],
)  # fmt: skip
async def test_refusals_have_googles_shape(
    deployment: Deployment, where: str, change: dict[str, Any], key: str | None, status: int, word: str, message: str
) -> None:
    response = await ask(deployment, where, ASKED | change, key)
    error = json.loads(response.body)["error"]
    assert (response.status, error["code"], error["status"]) == (status, status, word)
    assert error["message"].startswith(message)
    assert "tw-" not in response.body.decode()
