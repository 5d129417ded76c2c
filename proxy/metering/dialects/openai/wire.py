"""The shapes of chat/completions on the wire: one event or one answer → `Chunk`."""

from __future__ import annotations

from typing import Any

import msgspec

from proxy.metering.wire.json_reader import ENTRIES_MAX, argument_text, compact, reader


class Function(msgspec.Struct, gc=False):
    """Name and arguments of a tool call, or fragments of them."""

    name: str | None = None
    arguments: Any = None
    """JSON as text; an object if the server has parsed it"""


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
    """A piece of reasoning in the format of routers; encrypted pieces have no text."""

    text: str | None = None
    summary: str | None = None


class Audio(msgspec.Struct, gc=False):
    """Audio output: only the transcript is counted."""

    transcript: str | None = None


class Part(msgspec.Struct, gc=False):
    """A delta or a message: all that a model can generate."""

    content: str | list[Any] | dict[str, Any] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[ReasoningDetail] | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: Function | None = None
    audio: Audio | None = None
    annotations: list[Any] | None = None
    """annotations, such as citations of web pages"""


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
    """Groq's place of the usage."""

    usage: dict[str, Any] | None = None


class Chunk(msgspec.Struct, gc=False):
    """The metered fields of one event of a stream, or of one whole answer."""

    id: str | None = None
    model: str | None = None
    choices: list[Choice] | None = None
    usage: dict[str, Any] | None = None
    x_groq: XGroq | None = None
    error: Any = None
    err_msg: str | None = None
    full_text: Any = None
    service_tier: str | None = None
    cost: Any = None
    """the cost that Venice charges"""


chunk_of = reader(Chunk)
"""reads one JSON object; None if it is none"""


def called(function: Function) -> str:
    """The generated text of a call."""
    return (function.name or "") + argument_text(function.arguments)


def flatten(part: Part) -> None:
    """Turn the content of `part` into a text: some send a list of parts, others (structured output) an object."""
    content = part.content
    if isinstance(content, list):
        part.content = "".join(one if isinstance(one, str) else _str_of(one, "text") for one in content)
        part.reasoning_content = part.reasoning_content or "".join(_thinking(one) for one in content)
    elif isinstance(content, dict):
        part.content = compact(content)


def _thinking(part: object) -> str:
    thinking = part.get("thinking") if isinstance(part, dict) else None
    if isinstance(thinking, list):
        return "".join(_str_of(inner, "text") for inner in thinking[:ENTRIES_MAX])
    return thinking if isinstance(thinking, str) else ""


def _str_of(value: object, key: str) -> str:
    text = value.get(key) if isinstance(value, dict) else None
    return text if isinstance(text, str) else ""
