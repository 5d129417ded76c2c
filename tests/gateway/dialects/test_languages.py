"""Every wire language beside chat, through the proxy: a stream, an answer, an error and a client that leaves, each as
its own clients and servers have it; its key where its SDK puts it, its refusals in its own shape, and its headers."""

from __future__ import annotations

import json
from functools import reduce
from typing import Any

import pytest

from proxy.demo.script import Script, Send, Stall, json_script
from proxy.keys.secrets import new_secret
from tests.gateway.deployment import SOON_S, Deployment, charge, nusd
from tests.gateway.dialects.languages import GEMINI, LANGUAGES, MESSAGES, RESPONSES, Language, ask
from tests.support.net import chat_request, connect

every_language = pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.name)
both = pytest.mark.parametrize("language", [MESSAGES, RESPONSES], ids=lambda language: language.name)
HEADERS = [
    *((one, one.key if one.key in ("api-key", "x-goog-api-key") else "Authorization") for one in LANGUAGES),
    *((one, header) for one in (MESSAGES, RESPONSES) for header in ("x-api-key", "x-goog-api-key", "api-key")),
]


@pytest.mark.parametrize(("language", "header"), HEADERS, ids=[f"{one.name} {header}" for one, header in HEADERS])
async def test_a_stream(deployment: Deployment, language: Language, header: str) -> None:
    model = deployment.plan("many", language.streamed(language.whole))
    headers = {} if header == "Authorization" else {header: deployment.key}
    response = await ask(deployment, language.at(model), language.request(model, stream=True), headers)
    assert (response.status, response.body, response.ended) == (200, b"".join(language.whole), "complete")
    assert response.header("content-type") == language.content_type
    entry = await deployment.entry(model)
    assert (entry["outcome"], entry["usage_source"]) == ("served", "reported")
    assert entry["endpoint"] == language.path.partition("?")[0]
    assert (entry["prompt_tokens"], entry["completion_tokens"], entry["events"]) == (30, 20, len(language.events))
    assert nusd(entry) == charge(entry) > 0
    (seen,) = deployment.seen(model)
    assert seen["path"] == language.upstream.replace("{model}", model.partition("/")[2])
    if language in (MESSAGES, RESPONSES, *GEMINI):
        assert seen["body"] == language.request(model.partition("/")[2], stream=True)
    kept = {name.lower(): value for name, value in seen["headers"]}
    assert kept[language.key].removeprefix("Bearer ") == deployment.tokenweir.PROVIDER_KEY
    assert deployment.key not in str(seen)


@every_language
async def test_an_answer(deployment: Deployment, language: Language) -> None:
    model = deployment.plan("many", json_script(language.answer))
    response = await ask(deployment, language.at(model, streamed=False), language.request(model, stream=False))
    assert (response.status, json.loads(response.body)) == (200, language.answer)
    entry = await deployment.entry(model)
    assert (entry["outcome"], entry["usage_source"], entry["streamed"]) == ("served", "reported", False)
    assert (entry["prompt_tokens"], entry["completion_tokens"]) == (30, 20)
    assert entry["provider_response_id"] == language.answer.get("id", language.answer.get("responseId"))


@every_language
async def test_an_error_of_the_provider_goes_down_as_it_is_and_ours_has_its_shape(
    deployment: Deployment, language: Language
) -> None:
    for status, outcome in ((429, "refused_upstream"), (529, "upstream_failed")):
        model = deployment.plan("many", json_script(language.error, status))
        response = await ask(deployment, language.at(model), language.request(model, stream=True))
        assert (response.status, json.loads(response.body)) == (status, language.error)
        entry = await deployment.entry(model)
        assert (entry["outcome"], entry["charge_usd"]) == (outcome, "0")
    change, words = language.wrong
    response = await ask(deployment, language.at("many/weir"), language.request("many/weir") | change)
    assert response.status == 400
    said = reduce(lambda found, name: found[name], language.refused, json.loads(response.body))
    assert words in said


@every_language
@pytest.mark.parametrize("events", ["some", "all"])
async def test_a_client_that_leaves(deployment: Deployment, language: Language, events: str) -> None:
    """It pays for what was generated; after the last event, it was served."""
    sent = language.events[: language.begun] if events == "some" else language.events
    model = deployment.plan("many", language.streamed(sent, Stall()))
    async with await connect(deployment.url) as client:
        document = language.request(model, stream=True)
        await client.send(chat_request(document, path=language.at(model), key=deployment.key))
        await client.read_body(await client.read_head(SOON_S), until=b"".join(sent), timeout_s=SOON_S)
    entry = await deployment.entry(model)
    left = ("client_left", "estimated") if events == "some" else ("served", "reported")
    assert (entry["outcome"], entry["usage_source"]) == left
    assert entry["completion_tokens"] > 1, "not the seed that a stream of messages begins with"
    assert language not in (MESSAGES, *GEMINI) or entry["prompt_tokens"] == 30
    assert events == "all" or language.running in (None, entry["completion_tokens"]), "thoughts that were not streamed"
    assert nusd(entry) == charge(entry)


@both
async def test_a_stall_is_told_in_the_streams_own_language(deployment: Deployment, language: Language) -> None:
    begun = language.events[: language.begun]
    model = deployment.plan("many-briefly", language.streamed(begun, Stall()))
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


@both
async def test_a_repeat_is_one_only_at_the_same_path(deployment: Deployment, language: Language) -> None:
    model = deployment.plan("many", json_script(language.answer))
    document = MESSAGES.asked | RESPONSES.asked | {"model": model}
    headers = {"Idempotency-Key": f"one-{language.path}"}
    first = await ask(deployment, language.path, document, headers)
    again = await ask(deployment, language.path, document, headers)
    other = await ask(deployment, "/v1/chat/completions", document, headers)
    assert (first.status, again.status, other.status) == (200, 409, 422)
    await deployment.entry(model)


async def test_a_stall_is_told_in_a_line_and_nobody_had_to_ask_for_a_stream(deployment: Deployment) -> None:
    language = LANGUAGES[-1]
    model = deployment.plan("many-briefly", language.streamed(language.events[:1], Stall()))
    response = await ask(deployment, language.path, language.request(model))
    begun, told = response.body.splitlines()
    assert (begun + b"\n", list(json.loads(told))) == (language.events[0], ["error"])
    entry = await deployment.entry(model)
    assert (entry["outcome"], entry["streamed"], entry["events"]) == ("upstream_stalled", True, 2)


VECTOR = [0.5] * 700
EMBEDDED = {"id": "e-1", "embeddings": {"float": [VECTOR]}, "meta": {"billed_units": {"input_tokens": 300}}}


@pytest.mark.parametrize(
    ("path", "upstream", "asked", "answer", "source"),
    [
        ("/v2/embed", "/v1/embed", {"texts": ["weir"]}, EMBEDDED, "reported"),
        ("/api/embed", "/v1/embed", {"input": "weir"}, {"embeddings": [VECTOR], "prompt_eval_count": 300}, "reported"),
        ("/api/embeddings", "/v1/embeddings", {"prompt": "weir"}, {"embedding": VECTOR}, "estimated"),
    ],
)
async def test_vectors_cost_their_prompt(
    deployment: Deployment, path: str, upstream: str, asked: dict[str, Any], answer: dict[str, Any], source: str
) -> None:
    model = deployment.plan("many", json_script(answer))
    response = await ask(deployment, path, asked | {"model": model})
    assert (response.status, json.loads(response.body)) == (200, answer)
    entry = await deployment.entry(model)
    assert (entry["endpoint"], entry["outcome"], entry["usage_source"]) == (path, "served", source)
    assert entry["completion_tokens"] == 0
    assert entry["prompt_tokens"] == 300 if source == "reported" else 0 < entry["prompt_tokens"] < 10
    assert nusd(entry) == charge(entry) > 0
    assert deployment.seen(model)[0]["path"] == upstream
    refused = await ask(deployment, path, {"model": model})
    assert refused.status == 400
    assert next(iter(asked)) in str(json.loads(refused.body))


async def test_ocr_is_billed_by_the_page(deployment: Deployment) -> None:
    page = {"index": 0, "markdown": "# Weir", "images": []}
    answer = {"pages": [page] * 3, "model": "mistral-ocr", "usage_info": {"pages_processed": 3, "doc_size_bytes": 9}}
    model = deployment.plan("units", json_script(answer))
    document = {"type": "document_url", "document_url": "http://x.test/a.pdf"}
    response = await ask(deployment, "/v1/ocr", {"model": model, "document": document})
    assert (response.status, json.loads(response.body)) == (200, answer)
    entry = await deployment.entry(model)
    assert (entry["endpoint"], entry["usage_source"]) == ("/v1/ocr", "reported")
    assert (entry["details"]["units"], entry["charge_usd"]) == ({"pages": 3}, "0.012")
    refused = await ask(deployment, "/v1/ocr", {"model": model})
    assert (refused.status, json.loads(refused.body)["param"]) == (400, "document")
