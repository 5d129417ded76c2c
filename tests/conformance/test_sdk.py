"""What the official SDKs do beside reading a stream: whole answers, errors, lists, helpers, leaving early.

Law: the SDK's own behaviour is the judge. What it raises, returns and closes must be what it does before a provider.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pydantic
import pytest

from proxy.demo.script import Shape
from proxy.demo.shapes import words
from tests.conformance.clients import NodeClient, PythonClient
from tests.conformance.leaving import PACE_MS, endless
from tests.conformance.stand import SAMPLE_MODELS, SOON_S, Stand
from tests.support.provider import error_script
from tests.support.sdks import openai
from tests.support.tokenweir import Tokenweir

pytestmark = pytest.mark.thorough

MODEL = "gpt-4o-mini"
MESSAGES: Any = [{"role": "user", "content": "Go on."}]
TALE = "".join(words(24))


@pytest.fixture
def sdk(stand: Stand, python_client: PythonClient) -> openai.OpenAI:
    return python_client.at(stand)


def test_whole_answer_and_its_entry(stand: Stand, sdk: openai.OpenAI) -> None:
    with stand.one_entry(MODEL) as entry:
        raw = sdk.chat.completions.with_raw_response.create(model=MODEL, messages=MESSAGES)
    answer = raw.parse()
    assert entry["exchange_id"] == raw.headers["x-tokenweir-exchange"]
    assert answer.choices[0].message.content == TALE
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (entry["prompt_tokens"], 24)
    assert (entry["outcome"], entry["streamed"], entry["events"]) == ("served", False, 0)
    assert entry["provider_response_id"] == answer.id
    assert entry["bytes"] == len(raw.content)


@pytest.mark.parametrize("path", ["", "/", "/v1/", "//v1", "/v1/v1"])
def test_base_urls_as_people_type_them(stand: Stand, sdk: openai.OpenAI, path: str) -> None:
    client = sdk.with_options(base_url=f"{stand.url}{path}")
    assert client.chat.completions.create(model=MODEL, messages=MESSAGES).choices[0].message.content == TALE


async def test_many_asynchronous_streams_at_once(stand: Stand) -> None:
    model = stand.plan("tera", Shape("tera", pace_ms=1))

    async def one(client: openai.AsyncOpenAI) -> str:
        stream = await client.chat.completions.create(model=model, messages=MESSAGES, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async with openai.AsyncOpenAI(base_url=stand.base_url, api_key=stand.key, max_retries=0) as client:
        assert await asyncio.gather(*(one(client) for _ in range(20))) == [TALE] * 20
    entries = await asyncio.to_thread(stand.entries, model, 20)
    assert {(entry["outcome"], entry["completion_tokens"]) for entry in entries} == {("served", 24)}
    assert {entry["provider_response_id"] for entry in entries} == {one["response_id"] for one in stand.seen(model)}


# -- errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["tw-wrong", "sk-of-somebody-else", Tokenweir.PROVIDER_KEY])
def test_a_bad_key_is_an_authentication_error(stand: Stand, python_client: PythonClient, key: str) -> None:
    with pytest.raises(openai.AuthenticationError) as refusal:
        python_client.at(stand, key).chat.completions.create(model=MODEL, messages=MESSAGES)
    assert (refusal.value.status_code, refusal.value.code) == (401, "invalid_api_key")
    assert key not in str(refusal.value)


def test_an_endpoint_without_a_meter_is_a_not_found_error(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as refusal:
        sdk.vector_stores.create(name="water")
    assert refusal.value.code == "unknown_url"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": True}, "n"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
        ({"messages": "hello"}, "messages"),
        ({"model": ""}, "model"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_field_is_a_bad_request_that_names_it(
    stand: Stand, sdk: openai.OpenAI, fields: dict[str, Any], param: str
) -> None:
    before = len(stand.seen(MODEL))
    with pytest.raises(openai.BadRequestError, match=f"{param}: must be") as refusal:
        sdk.chat.completions.create(**({"model": MODEL, "messages": MESSAGES, "stream": True} | fields))
    assert refusal.value.param == param
    assert len(stand.seen(MODEL)) == before


@pytest.mark.parametrize(
    ("status", "raised"),
    [
        (400, "BadRequestError"),
        (409, "ConflictError"),
        (422, "UnprocessableEntityError"),
        (429, "RateLimitError"),
        (500, "InternalServerError"),
        (401, "InternalServerError"),  # our credentials were refused, not the client's
        (403, "PermissionDeniedError"),
    ],
)
def test_a_providers_refusal_is_the_same_error_behind_the_proxy(
    stand: Stand, sdk: openai.OpenAI, status: int, raised: str
) -> None:
    model = stand.plan("tera", error_script(status, "the sluice is shut", [("Retry-After", "7")]))
    with pytest.raises(getattr(openai, raised)) as refusal:
        sdk.chat.completions.create(model=model, messages=MESSAGES, stream=True)
    ours = status == 401
    assert ("the sluice is shut" in str(refusal.value)) != ours
    assert refusal.value.response.headers.get("retry-after") == (None if ours else "7")
    entry = stand.entry(model)
    assert refusal.value.response.headers["x-tokenweir-exchange"] == entry["exchange_id"]
    assert entry["outcome"] == ("refused_upstream" if status < 500 else "upstream_failed")
    assert (entry["usage_source"], float(entry["charge_usd"])) == ("none", 0.0)


def test_the_sdks_own_retry_is_a_second_exchange(stand: Stand, sdk: openai.OpenAI) -> None:
    model = stand.plan("tera", error_script(503, "busy", [("Retry-After-Ms", "1")]))
    with pytest.raises(openai.InternalServerError):
        sdk.with_options(max_retries=1).chat.completions.create(model=model, messages=MESSAGES)
    assert len(stand.entries(model, 2)) == len(stand.seen(model)) == 2


# -- the rest of the SDK -----------------------------------------------------------------------------------------


def test_models_list(stand: Stand, python_client: PythonClient, sdk: openai.OpenAI) -> None:
    assert {model.id: model.owned_by for model in sdk.models.list()} == {
        name: system for name, (system, _) in SAMPLE_MODELS.items()
    }
    assert [model.id for model in python_client.at(stand, stand.narrow.secret).models.list()] == [MODEL]


async def test_leaving_early_asynchronously_is_booked(stand: Stand) -> None:
    model = stand.plan("tera", endless("tera"))
    async with openai.AsyncOpenAI(base_url=stand.base_url, api_key=stand.key, max_retries=0) as client:
        stream = await client.chat.completions.create(model=model, messages=MESSAGES, stream=True)
        async for _ in stream:
            break
        await stream.close()
    entry = await asyncio.to_thread(stand.entry, model)
    assert entry["outcome"] == "client_left"


def test_a_client_that_gives_up_waiting_is_one_that_left(stand: Stand, sdk: openai.OpenAI) -> None:
    model = stand.plan("tera", Shape("tera", first_ms=SOON_S * 1000))
    with pytest.raises(openai.APITimeoutError):
        sdk.with_options(timeout=0.3).chat.completions.create(model=model, messages=MESSAGES)
    entry = stand.entry(model)
    assert (entry["outcome"], float(entry["charge_usd"])) == ("client_left", 0.0)  # nobody had accepted yet
    assert stand.seen_until(model, lambda one: one["ended"] is not None)["ended"] == "client_left"


def test_stream_helper_accumulates_and_parses(stand: Stand, sdk: openai.OpenAI) -> None:
    with sdk.chat.completions.stream(model=MODEL, messages=MESSAGES) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content == TALE
    assert final.choices[0].finish_reason == "stop"


def test_parse_helper_reads_a_structured_answer(stand: Stand, sdk: openai.OpenAI) -> None:
    class Gate(pydantic.BaseModel):
        gate: str

    model = stand.plan("tera", Shape("tera", tokens=1000, text='{"gate":"north"}'))
    request: Any = {"model": model, "messages": MESSAGES, "response_format": Gate, "max_tokens": 7}
    with pytest.raises(openai.LengthFinishReasonError):  # the SDK's own reading of finish_reason `length`
        sdk.chat.completions.parse(**request)
    (seen,) = stand.seen(model)
    assert seen["body"]["response_format"]["json_schema"]["name"] == "Gate"
    assert stand.entry(model)["finish_reason"] == "length"


def test_tools_round_trip(stand: Stand, sdk: openai.OpenAI) -> None:
    model = stand.plan("tensorloop", Shape("tensorloop", writes="tools"))
    schema = {"type": "object", "properties": {"note": {"type": "string"}}}
    tools: Any = [{"type": "function", "function": {"name": "take_note", "parameters": schema}}]
    with sdk.chat.completions.stream(model=model, messages=MESSAGES, tools=tools) as stream:
        stream.until_done()
        message = stream.get_final_completion().choices[0].message
    (call,) = message.tool_calls or ()
    assert call.function.name == "take_note"
    assert json.loads(call.function.arguments).keys() == {"note"}
    answer: Any = {"role": "tool", "tool_call_id": call.id, "content": "noted"}
    history: Any = [*MESSAGES, message.to_dict(), answer]
    sdk.chat.completions.create(model=MODEL, messages=history, tools=tools)
    assert stand.seen(MODEL)[-1]["body"]["messages"] == history
    assert stand.seen(model)[0]["body"]["tools"] == tools
    assert stand.entry(model)["completion_tokens"] == 24


@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "whole"])
def test_two_choices_are_both_billed(stand: Stand, sdk: openai.OpenAI, streamed: bool) -> None:
    model = stand.plan("tera", Shape("tera"))
    texts = {0: "", 1: ""}
    answer: Any = sdk.chat.completions.create(model=model, messages=MESSAGES, n=2, stream=streamed)
    for part in answer if streamed else (answer,):
        for choice in part.choices:
            texts[choice.index] += (choice.delta if streamed else choice.message).content or ""
    assert texts == {0: TALE, 1: TALE}
    assert stand.entry(model)["completion_tokens"] == 48


# -- Node --------------------------------------------------------------------------------------------------------


def test_node_lists_models(stand: Stand, node: NodeClient) -> None:
    assert set(node.call(stand.base_url, stand.key, list_models=True)["names"]) == set(SAMPLE_MODELS)


@pytest.mark.parametrize(
    ("key", "fields", "raised"),
    [
        ("wrong", {}, {"class": "AuthenticationError", "status": 401, "code": "invalid_api_key", "param": None}),
        ("narrow", {"model": "electron"}, {"class": "PermissionDeniedError", "status": 403, "param": "model"}),
        ("own", {"model": "no-such-model"}, {"class": "NotFoundError", "status": 404, "code": "model_not_found"}),
        ("own", {"n": True}, {"class": "BadRequestError", "status": 400, "param": "n"}),
    ],
    ids=["401", "403", "404", "400"],
)
def test_node_raises_its_own_error_classes(
    stand: Stand, node: NodeClient, key: str, fields: dict[str, Any], raised: dict[str, Any]
) -> None:
    secret = {"wrong": "tw-wrong", "narrow": stand.narrow.secret, "own": stand.key}[key]
    request = {"model": MODEL, "messages": MESSAGES, "stream": True} | fields
    error = node.call(stand.base_url, secret, request=request)["error"]
    assert {name: error[name] for name in raised} == raised


def test_node_leaving_early_is_booked(stand: Stand, node: NodeClient) -> None:
    model = stand.plan("tera", endless("tera"))
    request = {"model": model, "messages": MESSAGES, "stream": True}
    heard = node.call(stand.base_url, stand.key, request=request, leave_after=5)
    assert heard["chunks"] == 5
    entry = stand.entry(model)
    assert (entry["outcome"], entry["details"]["policy"]) == ("client_left", "cancel")
    assert entry["duration_ms"] < 400 * PACE_MS
