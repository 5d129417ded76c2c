"""Google's official SDK (`google-genai`) before the proxy: a stream, an answer, tools, its errors, leaving early.

Law: the SDK's own behaviour is the judge, and the ledger holds the usage that the SDK showed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from proxy.demo.script import Script, Send, Stall, json_script
from tests.conformance.stand import Stand
from tests.metering.dialects.gemini import STORY, counts, said, sse, text

pytestmark = pytest.mark.thorough

ASKED = "How high is the water?"
TEXTS = ["The water", " rises."]
CALLED = {"functionCall": {"name": "open_gate", "args": {"by_cm": 40}}}


@pytest.fixture
def client(genai: Any, stand: Stand) -> Iterator[Callable[..., Any]]:
    """Makes the SDK with a key, the stand's if none is given."""
    made: list[Any] = []

    def make(key: str | None = None) -> Any:
        made.append(genai.Client(api_key=key or stand.key, vertexai=False, http_options={"base_url": stand.url}))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def sdk(client: Callable[..., Any]) -> Any:
    return client().models


def streamed(events: list[Any], *more: Any) -> Script:
    return Script(steps=(*(Send(sse(event)) for event in events), *more))


def shown(usage: Any) -> tuple[int, ...]:
    """What the SDK showed, in the ledger's order: Google's candidates leave the thoughts out."""
    thoughts = usage.thoughts_token_count or 0
    told = usage.candidates_token_count + thoughts
    return usage.prompt_token_count, usage.cached_content_token_count or 0, told, thoughts, usage.total_token_count


def booked(entry: dict[str, Any]) -> tuple[int, ...]:
    assert (entry["outcome"], entry["usage_source"]) == ("served", "reported")
    names = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "total_tokens")
    return tuple(entry[name] or 0 for name in names)


def test_a_stream(stand: Stand, sdk: Any) -> None:
    model = stand.plan("gemini", streamed(STORY))
    chunks = list(sdk.generate_content_stream(model=model, contents=ASKED))
    assert [chunk.text for chunk in chunks[1:]] == TEXTS
    assert booked(stand.entry(model)) == shown(chunks[-1].usage_metadata) == (9, 0, 45, 40, 54)
    (seen,) = stand.seen(model)
    assert seen["path"].endswith(":streamGenerateContent?alt=sse")
    assert stand.key not in str(seen)


@pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning")  # aiohttp's, of what the SDK does
async def test_an_asynchronous_stream(stand: Stand, client: Callable[..., Any]) -> None:
    model = stand.plan("gemini", streamed(STORY))
    async with client().aio as asynchronous:
        stream = await asynchronous.models.generate_content_stream(model=model, contents=ASKED)
        chunks = [chunk async for chunk in stream]
    assert [chunk.text for chunk in chunks[1:]] == TEXTS
    assert booked(stand.entry(model)) == shown(chunks[-1].usage_metadata)


def test_an_answer(stand: Stand, sdk: Any) -> None:
    model = stand.plan("gemini", json_script(text(*TEXTS, used=counts(9, 5, cachedContentTokenCount=4), finish="STOP")))
    answer = sdk.generate_content(model=model, contents=ASKED, config={"max_output_tokens": 99})
    assert answer.text == "".join(TEXTS)
    assert booked(stand.entry(model)) == shown(answer.usage_metadata) == (9, 4, 5, 0, 14)
    assert stand.seen(model)[0]["body"]["generationConfig"] == {"maxOutputTokens": 99}


def test_counting_tokens_is_answered_and_free(stand: Stand, sdk: Any) -> None:
    model = stand.plan("gemini", json_script({"totalTokens": 12}))
    assert sdk.count_tokens(model=model, contents=ASKED).total_tokens == 12
    entry = stand.entry(model)
    assert (entry["charge_usd"], entry["prompt_tokens"], entry["outcome"]) == ("0", 0, "served")
    assert entry["endpoint"] == "/v1beta/models/{model}:countTokens"


def test_embeddings(stand: Stand, sdk: Any) -> None:
    used = {"promptTokenCount": 300, "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 300}]}
    vectors = [{"values": [0.5] * 700}] * 2
    model = stand.plan("gemini", json_script({"embeddings": vectors, "usageMetadata": used}))
    made = sdk.embed_content(model=model, contents=["a", "b"])
    assert [one.values for one in made.embeddings] == [[0.5] * 700] * 2
    entry = stand.entry(model)
    assert booked(entry) == (300, 0, 0, 0, 300)
    (seen,) = stand.seen(model)
    assert seen["path"].endswith(":batchEmbedContents")
    assert {one["model"] for one in seen["body"]["requests"]} == {f"models/{model.partition('/')[2]}"}


INTERACTION = {"id": "v1_x", "status": "completed", "object": "interaction", "service_tier": "standard"}
INTERACTION_USED = {
    "total_input_tokens": 9, "total_output_tokens": 5, "total_thought_tokens": 40, "total_tool_use_tokens": 3,
    "total_cached_tokens": 0, "total_tokens": 57,
}  # fmt: skip


def test_an_interaction(stand: Stand, client: Callable[..., Any]) -> None:
    steps = [{"type": "model_output", "content": [{"type": "text", "text": "It rises."}]}]
    model = stand.plan("gemini", json_script(INTERACTION | {"steps": steps, "usage": INTERACTION_USED}))
    made = client().interactions.create(model=model, input=ASKED)
    assert made.output_text == "It rises."
    assert made.usage.total_tokens == 57
    assert booked(stand.entry(model)) == (12, 0, 45, 40, 57)
    assert stand.seen(model)[0]["path"].endswith("/interactions")


def test_a_streamed_interaction(stand: Stand, client: Callable[..., Any]) -> None:
    told: list[dict[str, Any]] = [
        {"event_type": "interaction.created", "interaction": {"id": "v1_x", "status": "in_progress"}},
        {"event_type": "step.start", "index": 0, "step": {"type": "model_output"}},
        {"event_type": "step.delta", "index": 0, "delta": {"type": "text", "text": "It rises."}},
        {"event_type": "step.stop", "index": 0},
        {"event_type": "interaction.completed", "interaction": INTERACTION | {"usage": INTERACTION_USED}},
    ]
    model = stand.plan("gemini", streamed(told))
    events = list(client().interactions.create(model=model, input=ASKED, stream=True))
    assert [one.event_type for one in events] == [one["event_type"] for one in told]
    assert events[-1].interaction.usage.total_tokens == 57
    assert booked(stand.entry(model)) == (12, 0, 45, 40, 57)


def test_a_refused_interaction_says_why(stand: Stand, client: Callable[..., Any]) -> None:
    with pytest.raises(Exception, match="background: is not supported"):
        client().interactions.create(model="gemini/weir", input=ASKED, background=True)


def test_tools_round_trip(stand: Stand, sdk: Any) -> None:
    model = stand.plan("gemini", streamed([said(CALLED, used=counts(9, 12), finish="STOP")]))
    gate = {"name": "open_gate", "parameters": {"type": "OBJECT", "properties": {"by_cm": {"type": "INTEGER"}}}}
    config = {"tools": [{"function_declarations": [gate]}]}
    (chunk,) = sdk.generate_content_stream(model=model, contents=ASKED, config=config)
    (call,) = chunk.function_calls
    assert (call.name, call.args) == ("open_gate", {"by_cm": 40})
    assert booked(stand.entry(model)) == shown(chunk.usage_metadata)
    gave_back = {"function_response": {"name": "open_gate", "response": {"result": "open"}}}
    history = [
        {"role": "user", "parts": [{"text": ASKED}]},
        {"role": "model", "parts": [{"function_call": {"name": call.name, "args": call.args}}]},
        {"role": "user", "parts": [gave_back]},
    ]
    after = stand.plan("gemini", streamed(STORY))
    list(sdk.generate_content_stream(model=after, contents=history, config=config))
    sent = stand.seen(after)[0]["body"]["contents"]
    assert [one["role"] for one in sent] == ["user", "model", "user"]
    assert sent[2]["parts"][0]["functionResponse"]["response"] == {"result": "open"}


def test_leaving_early_is_booked(stand: Stand, client: Callable[..., Any]) -> None:
    model = stand.plan("gemini", streamed(STORY[:2], Stall()))
    stream = client().models.generate_content_stream(model=model, contents=ASKED)
    assert [next(stream).text for _ in range(2)][1] == TEXTS[0]
    stream.close()
    entry = stand.entry(model)
    assert (entry["outcome"], entry["usage_source"], entry["prompt_tokens"]) == ("client_left", "estimated", 9)
    assert 40 < entry["completion_tokens"] < 45
    assert stand.seen_until(model, lambda one: one["ended"] is not None)["ended"] == "client_left"


@pytest.mark.parametrize(
    ("key", "model", "config", "code", "status", "says"),
    [
        ("tw-wrong", "gemini/weir", {}, 401, "UNAUTHENTICATED", "API key"),
        ("narrow", "gemini/weir", {}, 403, "PERMISSION_DENIED", "may not use the model"),
        ("own", "no-such-model", {}, 404, "NOT_FOUND", "The model"),
        ("own", "gemini/weir", {"candidate_count": -1}, 400, "INVALID_ARGUMENT", "generationConfig.candidateCount: "),
    ],
    ids=["401", "403", "404", "400"],
)
def test_our_refusals_are_its_own_errors(
    genai: Any, stand: Stand, client: Callable[..., Any], key: str, model: str,
    config: dict[str, Any], code: int, status: str, says: str,
) -> None:  # fmt: skip
    secret = {"narrow": stand.narrow.secret, "own": stand.key}.get(key, key)
    with pytest.raises(genai.errors.ClientError) as refusal:
        list(client(secret).models.generate_content_stream(model=model, contents=ASKED, config=config))
    assert (refusal.value.code, refusal.value.status) == (code, status)
    assert says in refusal.value.message
    assert secret not in str(refusal.value)


@pytest.mark.parametrize(
    ("code", "raised", "outcome"),
    [
        (400, "ClientError", "refused_upstream"),
        (429, "ClientError", "refused_upstream"),
        (503, "ServerError", "upstream_failed"),
        (401, "ServerError", "refused_upstream"),  # our credentials were refused, not the client's
    ],
)
def test_a_providers_refusal_is_the_same_error_behind_the_proxy(
    genai: Any, stand: Stand, sdk: Any, code: int, raised: str, outcome: str
) -> None:
    told = {"error": {"code": code, "message": "the sluice is shut", "status": "UNAVAILABLE"}}
    model = stand.plan("gemini", json_script(told, code))
    with pytest.raises(getattr(genai.errors, raised)) as refusal:
        sdk.generate_content(model=model, contents=ASKED)
    assert ("the sluice is shut" in str(refusal.value)) == (code != 401)
    entry = stand.entry(model)
    assert (entry["outcome"], float(entry["charge_usd"])) == (outcome, 0)
