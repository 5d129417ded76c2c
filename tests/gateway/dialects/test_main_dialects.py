"""Every wire language beside chat, through the proxy: a stream, an answer, an error and a client that leaves; its key
where its SDK puts it, its refusals in its own shape, its headers both ways."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.demo.script import Script, Send, Stall, json_script
from proxy.keys.secrets import new_secret
from tests.gateway.deployment import SOON_S, Deployment, charge, nusd
from tests.gateway.dialects.main_dialects import MESSAGES, RESPONSES, Language, ask
from tests.support.net import chat_request, connect

LANGUAGES = [pytest.param(MESSAGES, id="messages"), pytest.param(RESPONSES, id="responses")]
every_language = pytest.mark.parametrize("language", LANGUAGES)


def streamed(events: list[bytes], *more: Any) -> Script:
    return Script(steps=(*map(Send, events), *more))


@every_language
@pytest.mark.parametrize("header", ["Authorization", "x-api-key", "x-goog-api-key", "api-key"])
async def test_a_stream(deployment: Deployment, language: Language, header: str) -> None:
    model = deployment.plan("many", streamed(language.events))
    key = f"Bearer {deployment.key}" if header == "Authorization" else deployment.key
    headers = {} if header == "Authorization" else {header: key}
    response = await ask(deployment, language.path, language.request(model, stream=True), headers)
    assert (response.status, response.body, response.ended) == (200, b"".join(language.events), "complete")
    entry = await deployment.entry(model)
    assert (entry["outcome"], entry["usage_source"], entry["endpoint"]) == ("served", "reported", language.path)
    assert (entry["prompt_tokens"], entry["completion_tokens"], entry["events"]) == (30, 20, len(language.events))
    assert nusd(entry) == charge(entry) > 0
    (seen,) = deployment.seen(model)
    assert seen["path"] == language.path
    assert seen["body"] == language.request(model.partition("/")[2], stream=True)
    kept = {name.lower(): value for name, value in seen["headers"]}
    where = "x-api-key" if language is MESSAGES else "authorization"
    assert deployment.tokenweir.PROVIDER_KEY in kept[where]
    assert deployment.key not in str(seen)


@every_language
async def test_an_answer(deployment: Deployment, language: Language) -> None:
    model = deployment.plan("many", json_script(language.answer))
    response = await ask(deployment, language.path, language.request(model))
    assert (response.status, json.loads(response.body)) == (200, language.answer)
    entry = await deployment.entry(model)
    assert (entry["outcome"], entry["usage_source"]) == ("served", "reported")
    assert (entry["prompt_tokens"], entry["completion_tokens"]) == (30, 20)
    assert entry["provider_response_id"] == language.answer["id"]


@every_language
@pytest.mark.parametrize(("status", "outcome"), [(429, "refused_upstream"), (529, "upstream_failed")])
async def test_an_error_of_the_provider_goes_down_as_it_is(
    deployment: Deployment, language: Language, status: int, outcome: str
) -> None:
    told = {"type": "error", "error": {"type": "overloaded_error", "message": "later"}}
    model = deployment.plan("many", json_script(told, status))
    response = await ask(deployment, language.path, language.request(model, stream=True))
    assert (response.status, json.loads(response.body)) == (status, told)
    entry = await deployment.entry(model)
    assert (entry["outcome"], entry["charge_usd"]) == (outcome, "0")


@every_language
async def test_a_client_that_leaves_pays_for_what_was_generated(deployment: Deployment, language: Language) -> None:
    begun = b"".join(language.events[: language.begun])
    model = deployment.plan("many", streamed(language.events[: language.begun], Stall()))
    async with await connect(deployment.url) as client:
        document = language.request(model, stream=True)
        await client.send(chat_request(document, path=language.path, key=deployment.key))
        await client.read_body(await client.read_head(SOON_S), until=begun, timeout_s=SOON_S)
    entry = await deployment.entry(model)
    assert (entry["outcome"], entry["usage_source"]) == ("client_left", "estimated")
    assert entry["completion_tokens"] > 1, "not the seed that a stream of messages begins with"
    assert language is RESPONSES or entry["prompt_tokens"] == 30
    assert nusd(entry) == charge(entry)


@every_language
async def test_a_client_that_leaves_after_the_last_event_was_served(deployment: Deployment, language: Language) -> None:
    model = deployment.plan("many", streamed(language.events, Stall()))
    async with await connect(deployment.url) as client:
        document = language.request(model, stream=True)
        await client.send(chat_request(document, path=language.path, key=deployment.key))
        await client.read_body(await client.read_head(SOON_S), until=b"".join(language.events), timeout_s=SOON_S)
    entry = await deployment.entry(model)
    assert (entry["outcome"], entry["usage_source"]) == ("served", "reported")


@every_language
async def test_a_stall_is_told_in_the_streams_own_language(deployment: Deployment, language: Language) -> None:
    begun = language.events[: language.begun]
    model = deployment.plan("many-briefly", streamed(begun, Stall()))
    response = await ask(deployment, language.path, language.request(model, stream=True))
    assert response.body.startswith(b"".join(begun))
    name, _, told = response.body[len(b"".join(begun)) :].partition(b"\ndata: ")
    assert (name, json.loads(told)["type"]) == (b"event: error", "error")
    entry = await deployment.entry(model)
    assert (entry["outcome"], entry["events"]) == ("upstream_stalled", len(begun) + 1)


async def test_counting_tokens_is_in_the_ledger_and_costs_nothing(deployment: Deployment) -> None:
    model = deployment.plan("many", json_script({"input_tokens": 14}))
    document = {"model": model, "messages": MESSAGES.asked["messages"]}
    response = await ask(deployment, "/v1/messages/count_tokens?beta=true&key=x", document)
    assert (response.status, json.loads(response.body)) == (200, {"input_tokens": 14})
    entry = await deployment.entry(model)
    assert (entry["outcome"], entry["charge_usd"], entry["cost_usd"]) == ("served", "0", "0")
    assert (entry["prompt_tokens"], entry["completion_tokens"]) == (0, 0)
    assert entry["details"]["usage"] == {"input_tokens": 14}
    (seen,) = deployment.seen(model)
    assert seen["path"] == "/v1/messages/count_tokens?beta=true"


async def test_its_headers_go_both_ways_and_no_others(deployment: Deployment) -> None:
    plan = Script(
        steps=(Send(json.dumps(MESSAGES.answer).encode()),),
        headers=(("Content-Type", "application/json"), ("request-id", "req_1"), ("anthropic-organization-id", "org")),
    )
    model = deployment.plan("many", plan)
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "a,b", "anthropic-other": "x"}
    response = await ask(deployment, MESSAGES.path, MESSAGES.request(model), headers)
    assert (response.header("request-id"), response.header("anthropic-organization-id")) == ("req_1", None)
    (seen,) = deployment.seen(model)
    kept = {name.lower(): value for name, value in seen["headers"]}
    assert (kept["anthropic-version"], kept["anthropic-beta"]) == ("2023-06-01", "a,b")
    assert "anthropic-other" not in kept


@pytest.mark.parametrize(
    ("policy", "change", "headers", "status", "kind", "words"),
    [
        ("cancel", {}, {}, 400, "invalid_request_error", "The model"),
        ("nobody", {}, {}, 404, "not_found_error", "The model"),
        ("many", {"max_tokens": "many"}, {}, 400, "invalid_request_error", "max_tokens: must be an integer"),
        ("many", {}, {"x-api-key": new_secret().reveal()}, 400, "invalid_request_error", "Two headers hold different"),
        ("many", {}, {"Authorization": "Bearer tw-wrong"}, 401, "authentication_error", "Incorrect API key"),
    ],
)
async def test_refusals_have_the_shape_of_messages(
    deployment: Deployment, policy: str, change: dict[str, Any], headers: dict[str, str], status: int, kind: str,
    words: str,
) -> None:  # fmt: skip
    document = MESSAGES.request(f"{policy}/weir") | change
    response = await ask(deployment, MESSAGES.path, document, headers)
    body = json.loads(response.body)
    assert (response.status, body["type"], body["error"]["type"]) == (status, "error", kind)
    assert body["error"]["message"].startswith(words)
    assert "tw-" not in body["error"]["message"]


async def test_a_path_of_its_own_that_leads_nowhere_is_refused_in_its_shape(deployment: Deployment) -> None:
    response = await ask(deployment, "/v1/messages/other", MESSAGES.request("many/weir"))
    assert (response.status, json.loads(response.body)["type"]) == (404, "error")


@every_language
async def test_a_repeat_is_one_only_at_the_same_path(deployment: Deployment, language: Language) -> None:
    model = deployment.plan("many", json_script(language.answer))
    document = MESSAGES.asked | RESPONSES.asked | {"model": model}
    headers = {"Idempotency-Key": f"one-{language.path}"}
    first = await ask(deployment, language.path, document, headers)
    again = await ask(deployment, language.path, document, headers)
    other = await ask(deployment, "/v1/chat/completions", document, headers)
    assert (first.status, again.status, other.status) == (200, 409, 422)
    await deployment.entry(model)
