"""The provider's own rules: what it answers, refuses and counts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.demo.answers import BUILT_IN, ScriptedReply, prompt_tokens, reply
from proxy.demo.script import Script, Send, Shape
from tests.support import sse
from tests.support.examples import each
from tests.support.net import ask


def answered(request: object, **plans: Script | Shape) -> ScriptedReply:
    return reply(request, {**BUILT_IN, **plans}, response_id="r9", created=1)


def body(answer: ScriptedReply) -> bytes:
    return b"".join(step.body for step in answer.script.steps if isinstance(step, Send))


def generated(answer: ScriptedReply) -> int:
    return sum(step.tokens for step in answer.script.steps if isinstance(step, Send))


@pytest.mark.parametrize("model", each(3, BUILT_IN))
@pytest.mark.parametrize("limit", [None, 1, 5, 24, 100])
def test_what_is_generated_is_what_is_reported(model: str, limit: int | None) -> None:
    request = ask(model, usage=True, max_tokens=limit)
    answer = answered(request)
    usage = sse.usage(body(answer))
    assert usage is not None
    assert usage["completion_tokens"] == generated(answer) == min(limit or 24, 24)
    assert usage["prompt_tokens"] == answer.prompt_tokens == prompt_tokens(request)
    cut = limit is not None and limit < 24
    assert sse.finish_reason(body(answer)) == ("length" if cut else "tool_calls" if model == "tools" else "stop")
    unstreamed = answered({**request, "stream": False})
    assert json.loads(body(unstreamed))["usage"] == usage


def test_reasoning_comes_first_and_is_counted() -> None:
    wire = body(answered(ask("reasoning", usage=True)))
    usage = sse.usage(wire)
    assert usage is not None
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 8}
    assert sse.text(wire, field="reasoning_content")


def test_n_multiplies_except_where_there_is_only_one_choice() -> None:
    assert generated(answered(ask("openai", n=3, max_tokens=4))) == 12
    assert generated(answered(ask("siliconstorm", n=3, max_tokens=4))) == 4


def test_a_longer_prompt_costs_more_and_tools_are_part_of_it() -> None:
    short, tooled = ask("tera"), ask("tera", tools=[{"type": "function", "function": {"name": "f"}}])
    longer = {**short, "messages": [*short["messages"], {"role": "user", "content": "one two three"}]}
    assert prompt_tokens(short) == 3 + 4 + 1 + 8
    assert prompt_tokens(longer) == prompt_tokens(short) + 4 + 1 + 3
    assert prompt_tokens(tooled) > prompt_tokens(short)


def test_half_of_a_long_prompt_is_cached_in_whole_blocks() -> None:
    request = ask("electron", usage=True)
    request["messages"][0]["content"] = "word " * 100
    answer = answered(request)
    assert answer.cached_tokens == 48
    usage = sse.usage(body(answer))
    assert usage is not None
    assert usage["prompt_tokens_details"] == {"cached_tokens": 48}


def test_a_shape_can_keep_its_usage_to_itself() -> None:
    assert sse.usage(body(answered(ask("mute", usage=True), mute=Shape("tera", reports_usage=False)))) is None


def test_pace_is_between_tokens_only() -> None:
    steps = answered(ask("slow"), slow=Shape("tera", tokens=5, pace_ms=3)).script.steps
    assert sum(not isinstance(step, Send) for step in steps) == 4


@pytest.mark.parametrize("plan", [Shape("tera", refuse_stream_options=400), Script((), refuse_stream_options=400)])
def test_stream_options_can_be_refused(plan: Script | Shape) -> None:
    assert answered(ask("old", usage=True), old=plan).script.status == 400
    assert answered(ask("old"), old=plan).script.status == 200


@pytest.mark.parametrize(
    ("request_body", "status"),
    [(None, 400), ([], 400), ({"model": "tera"}, 400), ({"model": "nobody", "messages": []}, 404)],
)
def test_what_a_provider_refuses(request_body: Any, status: int) -> None:
    answer = answered(request_body)
    assert answer.script.status == status
    assert json.loads(body(answer))["error"]["message"]
