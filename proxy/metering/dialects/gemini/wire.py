"""The shapes of generateContent on the wire: one event of a stream or one answer → `Generated`.

Invariants: nothing raises; well-typed fields are kept. Payloads of images and audio are not read.
"""

from __future__ import annotations

from typing import Any

import msgspec

from proxy.metering.wire.json_reader import reader


class FunctionCall(msgspec.Struct, gc=False):
    """A call of a client's or provider's tool, or a fragment of one."""

    name: str | None = None
    args: Any = None
    partial_args: Any = msgspec.field(default=None, name="partialArgs")


class Code(msgspec.Struct, gc=False):
    """Code that the model generated for the provider to run. Its result is not generated."""

    code: str | None = None


class Part(msgspec.Struct, gc=False):
    """A part of a candidate: one of these fields is set."""

    text: str | None = None
    thought: bool | None = None
    function_call: FunctionCall | None = msgspec.field(default=None, name="functionCall")
    tool_call: FunctionCall | None = msgspec.field(default=None, name="toolCall")
    executable_code: Code | None = msgspec.field(default=None, name="executableCode")
    code_execution_result: Any = msgspec.field(default=None, name="codeExecutionResult")
    tool_response: Any = msgspec.field(default=None, name="toolResponse")
    inline_data: Any = msgspec.field(default=None, name="inlineData")


class Content(msgspec.Struct, gc=False):
    """The content of a candidate."""

    parts: list[Part] | None = None


class Grounding(msgspec.Struct, gc=False):
    """The search queries of an answer."""

    queries: list[Any] | None = msgspec.field(default=None, name="webSearchQueries")


class Candidate(msgspec.Struct, gc=False):
    """One of the candidates."""

    index: int | None = None
    content: Content | None = None
    finish_reason: str | int | None = msgspec.field(default=None, name="finishReason")
    grounding: Grounding | None = msgspec.field(default=None, name="groundingMetadata")


class PromptFeedback(msgspec.Struct, gc=False):
    """The reason why there are no candidates."""

    block_reason: str | int | None = msgspec.field(default=None, name="blockReason")


class Generated(msgspec.Struct, gc=False):
    """The metered fields of one event of a stream, or of one whole answer."""

    candidates: list[Candidate] | None = None
    prompt_feedback: PromptFeedback | None = msgspec.field(default=None, name="promptFeedback")
    usage: dict[str, Any] | None = msgspec.field(default=None, name="usageMetadata")
    response_id: str | None = msgspec.field(default=None, name="responseId")
    model: str | None = msgspec.field(default=None, name="modelVersion")
    error: Any = None


generated_of = reader(Generated)
"""reads one JSON object; None if it is none"""
