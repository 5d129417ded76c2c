"""The shapes of chat/completions on the wire: one event or one answer → `Chunk`.

Law: nothing a provider sends raises. The ordinary shape is decoded straight into typed values; whatever does not
fit is decoded again, tolerantly, and what is well-typed in it is kept.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from proxy.metering.wire.json_reader import document_of


class Function(msgspec.Struct, gc=False):
    """Name and arguments of a tool call, or fragments of them."""

    name: str | None = None
    arguments: str | None = None


class CustomTool(msgspec.Struct, gc=False):
    """A tool call whose input is free text."""

    name: str | None = None
    input: str | None = None


class ToolCall(msgspec.Struct, gc=False):
    """One tool call, or a fragment of it."""

    index: int | None = None
    id: str | None = None
    function: Function | None = None
    custom: CustomTool | None = None


class ReasoningDetail(msgspec.Struct, gc=False):
    """A piece of reasoning in the spelling of routers; encrypted pieces have no text."""

    text: str | None = None
    summary: str | None = None


class Audio(msgspec.Struct, gc=False):
    """Audio output: what it says counts, its samples do not."""

    transcript: str | None = None


class Part(msgspec.Struct, gc=False):
    """A delta or a message: whatever a model can generate."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[ReasoningDetail] | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: Function | None = None
    audio: Audio | None = None


class Choice(msgspec.Struct, gc=False):
    """One of n answers."""

    index: int | None = None
    delta: Part | None = None
    message: Part | None = None
    text: str | None = None
    finish_reason: str | None = None
    err_msg: str | None = None
    error: Any = None


class XGroq(msgspec.Struct, gc=False):
    """Where Groq puts usage."""

    usage: dict[str, Any] | None = None


class Chunk(msgspec.Struct, gc=False):
    """One event of a stream, or one whole answer; only what is metered."""

    id: str | None = None
    choices: list[Choice] | None = None
    usage: dict[str, Any] | None = None
    x_groq: XGroq | None = None
    error: Any = None
    err_msg: str | None = None
    full_text: Any = None
    service_tier: str | None = None


_ORDINARY = msgspec.json.Decoder(Chunk)


def chunk_of(text: bytes) -> Chunk | None:
    """The chunk in one JSON object, or None if `text` is not one."""
    try:
        return _ORDINARY.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        document = document_of(text)
        return _chunk(document) if isinstance(document, dict) else None


def _chunk(document: dict[str, Any]) -> Chunk:
    x_groq = _object(document.get("x_groq"))
    return Chunk(
        id=_str(document.get("id")),
        choices=[_choice(choice) for choice in _objects(document.get("choices"))],
        usage=_object(document.get("usage")),
        x_groq=XGroq(usage=_object(x_groq.get("usage"))) if x_groq else None,
        error=document.get("error"),
        err_msg=_str(document.get("err_msg")),
        full_text=document.get("full_text"),
        service_tier=_str(document.get("service_tier")),
    )


def _choice(choice: dict[str, Any]) -> Choice:
    delta, message = _object(choice.get("delta")), _object(choice.get("message"))
    return Choice(
        index=_index(choice.get("index")),
        delta=None if delta is None else _part(delta),
        message=None if message is None else _part(message),
        text=_str(choice.get("text")),
        finish_reason=_str(choice.get("finish_reason")),
        err_msg=_str(choice.get("err_msg")),
        error=choice.get("error"),
    )


def _part(part: dict[str, Any]) -> Part:
    content, thinking = _content(part.get("content"))
    call, audio = _object(part.get("function_call")), _object(part.get("audio"))
    return Part(
        content=content,
        reasoning_content=_str(part.get("reasoning_content")) or thinking,
        reasoning=_str(part.get("reasoning")),
        reasoning_details=[
            ReasoningDetail(text=_str(d.get("text")), summary=_str(d.get("summary")))
            for d in _objects(part.get("reasoning_details"))
        ],
        refusal=_str(part.get("refusal")),
        tool_calls=[_tool_call(call) for call in _objects(part.get("tool_calls"))],
        function_call=None if call is None else _function(call),
        audio=None if audio is None else Audio(transcript=_str(audio.get("transcript"))),
    )


def _tool_call(call: dict[str, Any]) -> ToolCall:
    function, custom = _object(call.get("function")), _object(call.get("custom"))
    return ToolCall(
        index=_index(call.get("index")),
        id=_str(call.get("id")),
        function=None if function is None else _function(function),
        custom=None if custom is None else CustomTool(_str(custom.get("name")), _str(custom.get("input"))),
    )


def _function(function: dict[str, Any]) -> Function:
    arguments = function.get("arguments")
    return Function(_str(function.get("name")), _str(arguments) if isinstance(arguments, str) else _compact(arguments))


def _content(content: object) -> tuple[str | None, str | None]:
    """Text and reasoning of a content: a string, a list of parts, or (structured output) an object."""
    if isinstance(content, str):
        return content, None
    if isinstance(content, list):
        text = "".join(part if isinstance(part, str) else _str_of(part, "text") for part in content)
        return text, "".join(_thinking(part) for part in content)
    return _compact(content), None


def _thinking(part: object) -> str:
    thinking = part.get("thinking") if isinstance(part, dict) else None
    if isinstance(thinking, list):
        return "".join(_str_of(inner, "text") for inner in thinking)
    return thinking if isinstance(thinking, str) else ""


def _str_of(value: object, key: str) -> str:
    text = value.get(key) if isinstance(value, dict) else None
    return text if isinstance(text, str) else ""


def _compact(value: object) -> str | None:
    if not isinstance(value, dict):
        return None
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _str(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _index(value: object) -> int | None:
    return value if type(value) is int else None


def _object(value: object) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def _objects(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
