"""The bodies of InvokeModel of all families but Anthropic: their output and their counts.

Invariants: nothing raises; well-typed fields are kept. A family is recognised by the fields of its answers, not by the
model's name, which a profile can hide. https://docs.aws.amazon.com/bedrock/latest/userguide/model-parameters.html
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from proxy.metering.dialects.bedrock.usage import METRICS
from proxy.metering.dialects.bedrock.wire import Converse
from proxy.metering.usage import UNITS_MAX
from proxy.metering.wire.json_reader import argument_text, reader


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: Any = None


class _Call(msgspec.Struct, gc=False):
    """A tool call of Cohere's models, and of models that copy OpenAI."""

    index: int | None = None
    id: str | None = None
    function: _Function | None = None
    name: str | None = None
    parameters: Any = None


class _Message(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct, gc=False):
    """A choice of models that copy OpenAI, and of DeepSeek's, whose choices are texts."""

    text: str | None = None
    delta: _Message | None = None
    message: _Message | None = None
    finish_reason: str | None = None
    stop_reason: str | None = None


class _Text(msgspec.Struct, gc=False):
    """A result of Titan's, an output of Mistral's, a generation of Cohere's."""

    text: str | None = None
    titan_text: str | None = msgspec.field(default=None, name="outputText")
    tokens: int | None = msgspec.field(default=None, name="tokenCount")
    titan_reason: str | None = msgspec.field(default=None, name="completionReason")
    stop_reason: str | None = None
    finish_reason: str | None = None


class _Reason(msgspec.Struct, gc=False):
    reason: str | None = None


class _Completion(msgspec.Struct, gc=False):
    """A completion of AI21's first models."""

    content: _Text | None = msgspec.field(default=None, name="data")
    reason: _Reason | None = msgspec.field(default=None, name="finishReason")


class Invoked(msgspec.Struct, gc=False):
    """One event of a stream, or one whole answer."""

    id: Any = None
    type: str | None = None
    """type of Anthropic's events and answers"""
    usage: dict[str, Any] | None = None
    metrics: dict[str, Any] | None = msgspec.field(default=None, name=METRICS)
    """metrics in the last event of a stream"""
    error: Any = None
    # Nova: the events of Converse, each named by its member; answers are those of Converse.
    contentBlockStart: Converse | None = None  # noqa: N815  as on the wire, and so are the next ones
    contentBlockDelta: Converse | None = None  # noqa: N815
    messageStop: Converse | None = None  # noqa: N815
    metadata: Converse | None = None
    # Titan
    outputText: str | None = None  # noqa: N815
    inputTextTokenCount: int | None = None  # noqa: N815
    totalOutputTextTokenCount: int | None = None  # noqa: N815
    completionReason: str | None = None  # noqa: N815
    results: list[_Text] | None = None
    # Llama
    generation: str | None = None
    prompt_token_count: int | None = None
    generation_token_count: int | None = None
    # Mistral; Cohere; Claude 2; AI21; those that copy OpenAI
    outputs: list[_Text] | None = None
    text: str | None = None
    generations: list[_Text] | None = None
    tool_calls: list[_Call] | None = None
    completion: str | None = None
    completions: list[_Completion] | None = None
    choices: list[_Choice] | None = None
    stop_reason: str | None = None
    finish_reason: str | None = None
    # Members of answers without generated tokens.
    embedding: msgspec.Raw = msgspec.Raw()
    embeddings: msgspec.Raw = msgspec.Raw()
    images: list[msgspec.Raw] | None = None


invoked_of = reader(Invoked)


class Part(NamedTuple):
    """A part of an answer."""

    text: str | None = None
    reasoning: str | None = None
    call: tuple[int, str | None, str] | None = None
    """a tool call: index, name (None in a fragment), arguments"""


def parts_of(answer: Invoked) -> Iterator[Part]:
    """The generated parts of an answer, except those that are read as Converse."""
    for text in (answer.outputText, answer.generation, answer.text, answer.completion):
        if text:
            yield Part(text)
    for one in (*(answer.results or ()), *(answer.outputs or ()), *(answer.generations or ())):
        if text := one.text or one.titan_text:
            yield Part(text)
    for completion in answer.completions or ():
        if completion.content is not None:
            yield Part(completion.content.text)
    for choice in answer.choices or ():
        yield Part(choice.text)
        for message in (choice.delta, choice.message):
            if message is not None:
                yield Part(message.content, message.reasoning or message.reasoning_content)
                yield from _calls(message.tool_calls)
    yield from _calls(answer.tool_calls)


def _calls(calls: list[_Call] | None) -> Iterator[Part]:
    for at, call in enumerate(calls or ()):
        function = call.function
        name = call.name if function is None else function.name
        arguments = call.parameters if function is None else function.arguments
        yield Part(call=(at if call.index is None else call.index, name, argument_text(arguments)))


def finish_of(answer: Invoked) -> str | None:
    """The finish reason; None: the answer continues, or reports none."""
    reasons = [answer.stop_reason, answer.finish_reason, answer.completionReason]
    for one in (*(answer.results or ()), *(answer.outputs or ()), *(answer.generations or ())):
        reasons += [one.stop_reason, one.finish_reason, one.titan_reason]
    for choice in answer.choices or ():
        reasons += [choice.finish_reason, choice.stop_reason]
    reasons += [one.reason.reason for one in answer.completions or () if one.reason is not None]
    return next(filter(None, reasons), None)


_COUNTS = ("inputTextTokenCount", "totalOutputTextTokenCount", "prompt_token_count", "generation_token_count")


def counts_of(answer: Invoked) -> dict[str, Any]:
    """Counts that are members of the answer itself, by name; empty: none."""
    counts = {name: value for name in _COUNTS if (value := getattr(answer, name)) is not None}
    if generated := [one.tokens for one in answer.results or () if one.tokens is not None]:
        counts["tokenCount"] = sum(generated)
    if answer.images:
        counts["images"] = min(len(answer.images), UNITS_MAX)
    return counts


def is_vector(answer: Invoked) -> bool:
    """Whether nothing was generated. Vectors are not decoded."""
    return any(one and bytes(memoryview(one)[:1]) in (b"[", b"{") for one in (answer.embedding, answer.embeddings))
