"""The smaller wire languages through the proxy: a stream, an answer, an error and a client that leaves, each as
its own clients and servers have it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import pytest

from proxy.demo.script import Script, Send, Stall, json_script
from tests.gateway.deployment import SOON_S, Deployment, charge, nusd
from tests.gateway.dialects.further_dialects import ASKED
from tests.gateway.dialects.main_dialects import ask
from tests.metering import fixtures
from tests.support.net import chat_request, connect

ANSWERED = {
    "id": "chatcmpl-8",
    "choices": [{"index": 0, "message": {"content": "Much."}, "finish_reason": "stop"}],
    "usage": fixtures.usage(30, 20, 50),
}
BILLED = {"billed_units": {"input_tokens": 5}, "tokens": {"input_tokens": 30, "output_tokens": 20}}
SPOKEN = {"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": "Much more than before."}}}}
ENDED = {"type": "message-end", "delta": {"finish_reason": "COMPLETE", "usage": BILLED}}


@dataclass(frozen=True)
class Language:
    """What one of them says. Prompt 30, completion 20; the first event holds all of the text, not the end."""

    name: str
    path: str
    """with the model, where it is named there"""
    upstream: str
    asked: dict[str, Any]
    events: list[bytes]
    answer: dict[str, Any]
    key: str = "authorization"
    content_type: str = "text/event-stream"
    plain: dict[str, Any] = field(default_factory=lambda: {"stream": False})
    """what asks for an answer that is no stream"""
    error: dict[str, Any] = field(default_factory=lambda: {"error": {"code": "429", "message": "later"}})
    refused: tuple[str, ...] = ("error", "message")
    """where the words of a refusal stand"""
    names: str = "model"
    """the field that names the model"""

    def at(self, model: str) -> str:
        return self.path.replace("{model}", model)

    def request(self, model: str, **more: Any) -> dict[str, Any]:
        """In a path, the whole name; in the body, what the scripted provider finds its script by."""
        named = model.partition("/")[2] if "{model}" in self.path else model
        return self.asked | {self.names: named} | more

    def streamed(self, events: list[bytes], *more: Any) -> Script:
        return Script(steps=(*map(Send, events), *more), headers=(("Content-Type", self.content_type),))


def chat(name: str, path: str, upstream: str, **more: Any) -> Language:
    """One whose answers are chat/completions'."""
    said = fixtures.sse(*fixtures.say("Much more than before."))
    last = fixtures.sse(fixtures.chunk(finish="stop", usage=fixtures.usage(30, 20, 50)), fixtures.DONE)
    return Language(name, path, upstream, more.pop("asked", ASKED), [said, last], ANSWERED, **more)


def ollama(endpoint: str, asked: dict[str, Any], **said: Any) -> Language:
    ended = {"done": True, "done_reason": "stop", "prompt_eval_count": 30, "eval_count": 20}
    return Language(
        f"ollama.{endpoint}", f"/api/{endpoint}", f"/v1/{endpoint}", asked,
        [json.dumps(line).encode() + b"\n" for line in (said | {"done": False}, ended)], said | ended,
        content_type="application/x-ndjson", error={"error": "later"}, refused=("error",),
    )  # fmt: skip


LANGUAGES = [
    chat(
        "azure.chat", "/openai/deployments/{model}/chat/completions?api-version=2024-10-21&x=1",
        "/v1/deployments/{model}/chat/completions?api-version=2024-10-21", key="api-key",
    ),
    chat("azure.chat_v1", "/openai/v1/chat/completions", "/v1/v1/chat/completions", key="api-key"),
    chat(
        "mistral.fim", "/v1/fim/completions", "/v1/fim/completions", refused=("message",),
        asked={"prompt": "the water is ", "suffix": "."}, error={"object": "error", "message": "later"},
    ),
    chat(
        "mistral.agents", "/v1/agents/completions", "/v1/agents/completions", refused=("message",), names="agent_id",
        error={"object": "error", "message": "later"},
    ),
    Language(
        "cohere.chat", "/v2/chat", "/v1/chat", ASKED,
        [b"event: content-delta\ndata: %b\n\n" % json.dumps(SPOKEN).encode(),
         b"event: message-end\ndata: %b\n\n" % json.dumps(ENDED).encode()],
        {"id": "r-1", "message": {"content": [{"type": "text", "text": "Much."}]}, "finish_reason": "COMPLETE",
         "usage": BILLED},
        error={"message": "later"}, refused=("message",),
    ),
    ollama("chat", ASKED, message={"content": "Much more than before."}),
    ollama("generate", {"prompt": "the water is "}, response="Much more than before."),
]  # fmt: skip
every_language = pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.name)


@every_language
async def test_a_stream(deployment: Deployment, language: Language) -> None:
    model = deployment.plan("many", language.streamed(language.events))
    headers = {"api-key": deployment.key} if language.key == "api-key" else None
    document = language.request(model, stream=True)
    response = await ask(deployment, language.at(model), document, headers)
    assert (response.status, response.body, response.ended) == (200, b"".join(language.events), "complete")
    entry = await deployment.entry(model)
    assert (entry["outcome"], entry["usage_source"]) == ("served", "reported")
    assert entry["endpoint"] == language.path.partition("?")[0]
    assert (entry["prompt_tokens"], entry["completion_tokens"]) == (30, 20)
    assert entry["events"] == b"".join(language.events).replace(b"\n\n", b"\n").count(b"\n") - _names(language)
    assert nusd(entry) == charge(entry) > 0
    (seen,) = deployment.seen(model)
    assert seen["path"] == language.upstream.replace("{model}", model.partition("/")[2])
    kept = {name.lower(): value for name, value in seen["headers"]}
    assert kept[language.key].removeprefix("Bearer ") == deployment.tokenweir.PROVIDER_KEY
    assert deployment.key not in str(seen)


def _names(language: Language) -> int:
    """Lines that are no event but the name of one."""
    return sum(event.count(b"event: ") for event in language.events)


@every_language
async def test_an_answer(deployment: Deployment, language: Language) -> None:
    model = deployment.plan("many", json_script(language.answer))
    response = await ask(deployment, language.at(model), language.request(model, **language.plain))
    assert (response.status, json.loads(response.body)) == (200, language.answer)
    entry = await deployment.entry(model)
    assert (entry["outcome"], entry["usage_source"], entry["streamed"]) == ("served", "reported", False)
    assert (entry["prompt_tokens"], entry["completion_tokens"]) == (30, 20)


@every_language
async def test_an_error_of_the_provider_goes_down_as_it_is_and_ours_has_its_shape(
    deployment: Deployment, language: Language
) -> None:
    model = deployment.plan("many", json_script(language.error, 429))
    response = await ask(deployment, language.at(model), language.request(model, stream=True))
    assert (response.status, json.loads(response.body)) == (429, language.error)
    entry = await deployment.entry(model)
    assert (entry["outcome"], entry["charge_usd"]) == ("refused_upstream", "0")
    document = language.request("cancel/weir", stream="yes")
    response = await ask(deployment, language.at("cancel/weir"), document)
    assert response.status == 400
    said = reduce(lambda found, name: found[name], language.refused, json.loads(response.body))
    assert "must be a boolean" in said


@every_language
async def test_a_client_that_leaves_pays_for_what_was_generated(deployment: Deployment, language: Language) -> None:
    model = deployment.plan("many", language.streamed(language.events[:1], Stall()))
    async with await connect(deployment.url) as client:
        document = language.request(model, stream=True)
        await client.send(chat_request(document, path=language.at(model), key=deployment.key))
        await client.read_body(await client.read_head(SOON_S), until=language.events[0], timeout_s=SOON_S)
    entry = await deployment.entry(model)
    assert (entry["outcome"], entry["usage_source"]) == ("client_left", "estimated")
    assert entry["completion_tokens"] > 1
    assert nusd(entry) == charge(entry)


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
