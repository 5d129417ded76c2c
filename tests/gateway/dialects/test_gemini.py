"""What Gemini alone has, as SSE and as one JSON array: errors within a stream, a stall, refusals, its queries."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.demo.script import Stall
from tests.gateway.deployment import Deployment
from tests.gateway.dialects.languages import GEMINI, Language, ask
from tests.metering.dialects.gemini import ASKED, ERROR, sse

SSE, ARRAY = GEMINI
PLAIN = SSE.at("many/weir", streamed=False)
every_way = pytest.mark.parametrize("language", GEMINI, ids=["sse", "array"])


async def test_an_answer_that_no_meter_reads_cannot_be_asked_for(deployment: Deployment) -> None:
    model = deployment.plan("many", ARRAY.streamed(ARRAY.whole))
    path = ARRAY.at(model).replace("v1beta", "v1")
    response = await ask(
        deployment, f"{path}?alt=proto&fields=candidates&$alt=proto", ASKED | {"model": "models/other"}
    )
    assert response.body == b"".join(ARRAY.whole)
    (seen,) = deployment.seen(model)
    assert (seen["path"].endswith(":streamGenerateContent"), seen["body"]) == (True, ASKED)
    entry = await deployment.entry(model)
    assert (entry["endpoint"], entry["reasoning_tokens"], entry["finish_reason"]) == (ARRAY.path, 12, "STOP")


@every_way
async def test_an_error_within_a_stream_goes_down_as_it_is(deployment: Deployment, language: Language) -> None:
    last = sse(ERROR) if language is SSE else b",\r\n" + json.dumps(ERROR).encode() + b"\n]"
    pieces = [*language.events[:2], last]
    broken = deployment.plan("many", language.streamed(pieces))
    response = await ask(deployment, language.at(broken), ASKED)
    assert (response.status, response.body) == (200, b"".join(pieces))
    entry = await deployment.entry(broken)
    assert (entry["outcome"], entry["details"]["failed"]) == ("upstream_failed", "error_event")


@every_way
@pytest.mark.parametrize("begun", [0, 2])
async def test_a_stall_is_told_where_an_event_has_a_place(
    deployment: Deployment, language: Language, begun: int
) -> None:
    pieces = language.events[:begun] or [b"[" if language is ARRAY else b": wait\n\n"]
    model = deployment.plan("many-briefly", language.streamed(pieces, Stall()))
    response = await ask(deployment, language.at(model), ASKED)
    assert response.body.startswith(b"".join(pieces))
    told = response.body[len(b"".join(pieces)) :]
    if language is ARRAY and not begun:
        assert told == b""
    else:
        last = json.loads(response.body)[-1] if language is ARRAY else json.loads(told.removeprefix(b"data: "))
        assert (last["error"]["code"], last["error"]["status"]) == (504, "DEADLINE_EXCEEDED")
    assert (await deployment.entry(model))["outcome"] == "upstream_stalled"


@pytest.mark.parametrize(
    ("where", "change", "key", "status", "word", "message"),
    [
        (SSE.at("cancel/weir", streamed=False), {}, None, 400, "INVALID_ARGUMENT", "The model"),
        (SSE.at("nobody/weir"), {}, None, 404, "NOT_FOUND", "The model"),
        (ARRAY.at("many/weir").replace("v1beta", "v1"), {}, "tw-wrong", 401, "UNAUTHENTICATED", "Incorrect API key"),
        (PLAIN + "?key=tw-wrong", {}, "", 401, "UNAUTHENTICATED", "An API key in the URL"),
        (ARRAY.at("many/weir"), ARRAY.wrong[0], None, 400, "INVALID_ARGUMENT", "generationConfig.maxOutputTokens: "),
        ("/v1beta/models/many/weir:computeTokens", {}, None, 404, "NOT_FOUND", "Unknown request URL"),
        ("/v1beta/models/many/weir:asyncBatchEmbedContent", {}, None, 404, "NOT_FOUND", "Unknown request URL"),
    ],
)
async def test_refusals_have_googles_shape(
    deployment: Deployment, where: str, change: dict[str, Any], key: str | None, status: int, word: str, message: str
) -> None:
    headers = None if key is None else {"Authorization": f"Bearer {key}"}
    response = await ask(deployment, where, ASKED | change, headers)
    error = json.loads(response.body)["error"]
    assert (response.status, error["code"], error["status"]) == (status, status, word)
    assert error["message"].startswith(message)
    assert "tw-" not in response.body.decode()
