"""Anthropic's official SDK before the proxy: a stream, an answer, tools, its error classes, leaving early.

Law: the SDK's own behaviour is the judge, and the ledger holds the usage that the SDK showed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from proxy.demo.script import Script, Send, Stall, json_script
from tests.conformance.stand import Stand

pytestmark = pytest.mark.thorough

USED = {"input_tokens": 11, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 3, "output_tokens": 1}
TEXTS = ("The ", "water ", "rises.")
CALL = {"type": "tool_use", "id": "toolu_1", "name": "open_gate", "input": {}}
TOOLS: Any = [{"name": "open_gate", "input_schema": {"type": "object", "properties": {"by_cm": {"type": "integer"}}}}]
ASKED: Any = {"max_tokens": 99, "messages": [{"role": "user", "content": "How high is the water?"}]}


@pytest.fixture(scope="module")
def client(anthropic: Any) -> Iterator[Any]:
    """The SDK, not yet told where to ask."""
    with anthropic.Anthropic(api_key="set for each", base_url="http://127.0.0.1:9", max_retries=0) as made:
        yield made


@pytest.fixture
def sdk(client: Any, stand: Stand) -> Any:
    return client.with_options(base_url=stand.url, api_key=stand.key)


def message(content: list[dict[str, Any]], reason: str | None, used: dict[str, int]) -> dict[str, Any]:
    """A whole message, or (without a reason to stop) the beginning of one."""
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "weir-1", "content": content,
        "stop_reason": reason, "stop_sequence": None, "usage": used,
    }  # fmt: skip


def events(block: dict[str, Any], deltas: list[dict[str, Any]], reason: str) -> list[bytes]:
    """A stream of one block."""
    told = [
        {"type": "message_start", "message": message([], None, USED)},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "ping"},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": None},
            "usage": {"output_tokens": 17},
        },
        {"type": "message_stop"},
    ]
    return [f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode() for one in told]


TALE = events({"type": "text", "text": ""}, [{"type": "text_delta", "text": text} for text in TEXTS], "end_turn")


def streamed(pieces: list[bytes], *more: Any) -> Script:
    return Script(steps=(*map(Send, pieces), *more))


def shown(usage: Any) -> dict[str, int]:
    """What the SDK showed, by the ledger's names: Anthropic's input leaves out what the cache gave or took."""
    cached, written = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
    prompt = usage.input_tokens + cached + written
    return {
        "prompt_tokens": prompt, "cached_tokens": cached, "cache_write_tokens": written,
        "completion_tokens": usage.output_tokens,
    }  # fmt: skip


def booked(entry: dict[str, Any]) -> dict[str, int]:
    assert (entry["outcome"], entry["usage_source"]) == ("served", "reported")
    told = entry | entry["details"]["units"]
    return {name: told[name] for name in ("prompt_tokens", "cached_tokens", "cache_write_tokens", "completion_tokens")}


def test_a_stream(stand: Stand, sdk: Any) -> None:
    model = stand.plan("anthropic", streamed(TALE))
    with sdk.messages.stream(model=model, **ASKED) as stream:
        assert tuple(stream.text_stream) == TEXTS
        final = stream.get_final_message()
    assert (final.stop_reason, final.usage.output_tokens) == ("end_turn", 17)
    assert booked(stand.entry(model)) == shown(final.usage)
    assert stand.key not in str(stand.seen(model))


async def test_an_asynchronous_stream(stand: Stand, anthropic: Any) -> None:
    model = stand.plan("anthropic", streamed(TALE))
    async with anthropic.AsyncAnthropic(api_key=stand.key, base_url=stand.url, max_retries=0) as client:
        stream = await client.messages.create(model=model, stream=True, **ASKED)
        kinds = [event.type async for event in stream]
    assert (kinds[0], kinds[-1], kinds.count("content_block_delta")) == ("message_start", "message_stop", len(TEXTS))
    assert stand.entry(model)["completion_tokens"] == 17


def test_an_answer_and_its_count(stand: Stand, sdk: Any) -> None:
    told = message([{"type": "text", "text": "".join(TEXTS)}], "end_turn", USED | {"output_tokens": 17})
    model = stand.plan("anthropic", json_script(told))
    answer = sdk.messages.create(model=model, **ASKED)
    assert answer.content[0].text == "".join(TEXTS)
    assert booked(stand.entry(model)) == shown(answer.usage)
    counted = stand.plan("anthropic", json_script({"input_tokens": 19}))
    assert sdk.messages.count_tokens(model=counted, messages=ASKED["messages"]).input_tokens == 19
    assert float(stand.entry(counted)["charge_usd"]) == 0


def test_tools_round_trip(stand: Stand, sdk: Any) -> None:
    pieces = [{"type": "input_json_delta", "partial_json": part} for part in ("", '{"by_', 'cm": 40}')]
    model = stand.plan("anthropic", streamed(events(CALL, pieces, "tool_use")))
    with sdk.messages.stream(model=model, tools=TOOLS, **ASKED) as stream:
        final = stream.get_final_message()
    (call,) = final.content
    assert (call.name, call.input, final.stop_reason) == ("open_gate", {"by_cm": 40}, "tool_use")
    assert booked(stand.entry(model)) == shown(final.usage)
    gave_back = {"type": "tool_result", "tool_use_id": call.id, "content": "open"}
    history = [*ASKED["messages"], {"role": "assistant", "content": [{**CALL, "input": call.input}]}]
    history.append({"role": "user", "content": [gave_back]})
    after = stand.plan("anthropic", streamed(TALE))
    list(sdk.messages.create(model=after, tools=TOOLS, stream=True, max_tokens=99, messages=history))
    assert stand.seen(after)[0]["body"]["messages"] == history
    assert stand.seen(model)[0]["body"]["tools"] == TOOLS


def test_leaving_early_is_booked(stand: Stand, sdk: Any) -> None:
    model = stand.plan("anthropic", streamed(TALE[:4], Stall()))
    with sdk.messages.stream(model=model, **ASKED) as stream:
        assert next(iter(stream.text_stream)) == TEXTS[0]
    entry = stand.entry(model)
    assert (entry["outcome"], entry["usage_source"], entry["prompt_tokens"]) == ("client_left", "estimated", 19)
    assert 1 <= entry["completion_tokens"] < 17
    assert stand.seen_until(model, lambda one: one["ended"] is not None)["ended"] == "client_left"


@pytest.mark.parametrize(
    ("key", "fields", "raised", "says"),
    [
        ("tw-wrong", {}, "AuthenticationError", "API key"),
        ("narrow", {"model": "electron"}, "PermissionDeniedError", "model"),
        ("own", {"model": "no-such-model"}, "NotFoundError", "model"),
        ("own", {"max_tokens": "5"}, "BadRequestError", "max_tokens: "),
        ("own", {"messages": "hello"}, "BadRequestError", "messages: "),
    ],
    ids=["401", "403", "404", "400", "400-messages"],
)
def test_our_refusals_are_its_own_errors(
    anthropic: Any, stand: Stand, sdk: Any, key: str, fields: dict[str, Any], raised: str, says: str
) -> None:
    secret = {"narrow": stand.narrow.secret, "own": stand.key}.get(key, key)
    asked = ASKED | {"model": "anthropic/weir", "stream": True} | fields
    with pytest.raises(getattr(anthropic, raised)) as refusal:
        sdk.with_options(api_key=secret).messages.create(**asked)
    error = refusal.value.body["error"]
    assert says in error["message"]
    assert secret not in str(refusal.value)


@pytest.mark.parametrize(
    ("status", "raised", "outcome"),
    [
        (400, "BadRequestError", "refused_upstream"),
        (429, "RateLimitError", "refused_upstream"),
        (529, "OverloadedError", "upstream_failed"),
        (401, "InternalServerError", "refused_upstream"),  # our credentials were refused, not the client's
    ],
)
def test_a_providers_refusal_is_the_same_error_behind_the_proxy(
    anthropic: Any, stand: Stand, sdk: Any, status: int, raised: str, outcome: str
) -> None:
    told = {"type": "error", "error": {"type": "api_error", "message": "the sluice is shut"}}
    model = stand.plan("anthropic", json_script(told, status))
    with pytest.raises(getattr(anthropic, raised)) as refusal:
        sdk.messages.create(model=model, **ASKED)
    assert ("the sluice is shut" in str(refusal.value)) == (status != 401)
    entry = stand.entry(model)
    assert (entry["outcome"], float(entry["charge_usd"])) == (outcome, 0)


def test_an_error_in_midstream_is_raised_and_booked(anthropic: Any, stand: Stand, sdk: Any) -> None:
    told = {"type": "error", "error": {"type": "overloaded_error", "message": "the sluice is shut"}}
    broken = [*TALE[:4], f"event: error\ndata: {json.dumps(told)}\n\n".encode()]
    model = stand.plan("anthropic", streamed(broken))
    heard = []
    with (
        pytest.raises(anthropic.APIStatusError, match="the sluice is shut"),
        sdk.messages.stream(model=model, **ASKED) as stream,
    ):
        heard.extend(stream.text_stream)
    entry = stand.entry(model)
    assert (entry["outcome"], entry["details"]["failed"]) == ("upstream_failed", "error_event")


@pytest.mark.parametrize("ours", ["x-api-key", "Authorization"])
def test_a_key_of_anthropics_beside_ours_is_ignored(anthropic: Any, stand: Stand, ours: str) -> None:
    """Claude Code does so with both of its variables set."""
    model = stand.plan("anthropic", json_script(message([{"type": "text", "text": "High."}], "end_turn", USED)))
    key, bearer = (stand.key, "sk-ant-theirs") if ours == "x-api-key" else ("sk-ant-theirs", stand.key)
    headers = {"X-Api-Key": key, "Authorization": f"Bearer {bearer}"}
    with anthropic.Anthropic(base_url=stand.url, max_retries=0, api_key=key, default_headers=headers) as both:
        assert both.messages.create(model=model, **ASKED).content[0].text == "High."
    assert stand.entry(model)["outcome"] == "served"
