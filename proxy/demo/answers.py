"""A request → the script of its answer, and the token counts that the provider reports. Pure.

The provider's counting rules are defined here; tests reconcile the ledger with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from proxy.demo.script import Script, Send, Shape, Wait, json_script
from proxy.demo.shapes import (
    LANGUAGES,
    TALE,
    THOUGHTS,
    GeneratedAnswer,
    Json,
    Language,
    Tool,
    arguments,
    error_object,
    json_bytes,
    stream,
    tokens_of,
    whole,
    words,
)

# Tokens that a chat template adds to each message, and once to start the answer.
MESSAGE_TOKENS = 4
PRIMING_TOKENS = 3
# Prefix caches work in blocks of this many tokens.
CACHE_BLOCK_TOKENS = 16
# OpenAI's limit; it keeps a mistaken test from becoming slow.
CHOICES_MAX = 128

BUILT_IN: Mapping[str, Shape] = MappingProxyType(
    {
        "tera": Shape("tera"),
        "tensorloop": Shape("tensorloop"),
        "siliconstorm": Shape("siliconstorm"),
        "siliconstorm-fulltext": Shape("siliconstorm-fulltext"),
        "electron": Shape("electron"),
        "openai": Shape("openai"),
        "gpt-4o-mini": Shape("openai"),
        "reasoning": Shape("tera", writes="reasoning"),
        "tools": Shape("tensorloop", writes="tools"),
    }
)


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """A script, with the provider's count of the prompt (0 if the request is refused)."""

    script: Script
    response_id: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0


def reply(request: object, plans: Mapping[str, Script | Shape], *, response_id: str, created: int) -> ScriptedReply:
    """The answer to a chat request by its model's plan; an error where a real provider returns one."""
    if not isinstance(request, dict) or not isinstance(request.get("messages"), list):
        return ScriptedReply(json_script(error_object("the body must be an object with a list of messages"), 400))
    plan = plans.get(str(request.get("model")))
    if plan is None:
        return ScriptedReply(json_script(error_object(f"no such model: {request.get('model')}"), 404))
    if plan.refuse_stream_options and "stream_options" in request:
        message = "Unrecognized request argument supplied: stream_options"
        return ScriptedReply(json_script(error_object(message, param="stream_options"), plan.refuse_stream_options))
    if isinstance(plan, Script):
        return ScriptedReply(plan, None, prompt_tokens(request))
    language = LANGUAGES[plan.language]
    answer = _answer(plan, language, request, response_id=response_id, created=created)
    script = _streamed(plan, language, answer, request) if request.get("stream") is True else None
    return ScriptedReply(
        script or _unstreamed(plan, language, answer), response_id, answer.prompt_tokens, answer.cached_tokens
    )


def prompt_tokens(request: Mapping[str, Any]) -> int:
    """The provider's count: every string of every message, the tools, and the template's tokens."""
    messages = sum(MESSAGE_TOKENS + _tokens_in(message) for message in request.get("messages", ()))
    tools = request.get("tools")
    return PRIMING_TOKENS + messages + (len(tokens_of(json_bytes({"tools": tools}).decode())) if tools else 0)


def _tokens_in(value: object) -> int:
    match value:
        case str():
            return len(tokens_of(value))
        case dict():
            return sum(_tokens_in(inner) for inner in value.values())
        case list():
            return sum(_tokens_in(inner) for inner in value)
        case _:
            return 0


def _answer(shape: Shape, language: Language, request: Json, *, response_id: str, created: int) -> GeneratedAnswer:
    limit = _positive(request.get("max_completion_tokens")) or _positive(request.get("max_tokens"))
    count = min(shape.tokens, limit or shape.tokens)
    prompt = prompt_tokens(request)
    answer = GeneratedAnswer(
        response_id=response_id,
        created=created,
        model=str(request["model"]),
        prompt_tokens=prompt,
        finish_reason="length" if count < shape.tokens else "stop",
        # A stateless stand-in for a cache: half of the prompt, in whole blocks, is cached.
        cached_tokens=prompt // (2 * CACHE_BLOCK_TOKENS) * CACHE_BLOCK_TOKENS if language.cached else 0,
        choices=min(_positive(request.get("n")) or 1, CHOICES_MAX) if language.many_choices else 1,
    )
    return _with_content(answer, shape, count)


def _with_content(answer: GeneratedAnswer, shape: Shape, count: int) -> GeneratedAnswer:
    """`answer` with `count` tokens of the shape's content."""
    text = shape.text or TALE
    match shape.writes:
        case "text":
            return replace(answer, content=words(count, text))
        case "reasoning":
            thoughts = words(max(1, shape.tokens // 3), THOUGHTS)[:count]
            return replace(answer, reasoning=thoughts, content=words(count - len(thoughts), text))
        case "tools":
            fragments = arguments(max(2, shape.tokens - 1))[: count - 1]
            reason = answer.finish_reason if answer.finish_reason == "length" else "tool_calls"
            return replace(answer, tool=Tool("call_1", "take_note", fragments), finish_reason=reason)


def _positive(value: object) -> int | None:
    return value if type(value) is int and value > 0 else None


def _streamed(shape: Shape, language: Language, answer: GeneratedAnswer, request: Json) -> Script:
    options = request.get("stream_options")
    usage_asked = isinstance(options, dict) and options.get("include_usage") is True and shape.reports_usage
    steps: list[Send | Wait] = []
    generated = 0
    for event in stream(language, answer, usage_asked=usage_asked):
        if event.tokens and generated and shape.pace_ms:
            steps.append(Wait(shape.pace_ms))
        steps.append(Send(event.wire, event.tokens))
        generated += event.tokens
    return Script(
        steps=tuple(steps),
        chunking=shape.chunking,
        wire=shape.wire,
        delay_ms=shape.first_ms,
        on_leave="stop" if language.stops_on_leave else "generate",
    )


def _unstreamed(shape: Shape, language: Language, answer: GeneratedAnswer) -> Script:
    return Script(
        steps=(Send(whole(language, answer), answer.completion_tokens),),
        headers=(("Content-Type", "application/json"),),
        framing="length",
        wire=shape.wire,
        delay_ms=shape.first_ms + shape.pace_ms * answer.completion_tokens,
        on_leave="stop" if language.stops_on_leave else "generate",
    )
