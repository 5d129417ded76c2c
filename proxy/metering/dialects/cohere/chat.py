"""The dialect of Cohere's chat, version 2: events and answers → evidence, usage, finish reason.

Invariants: generated output is counted (text, thinking, tool plan, tool names and arguments); citations and their
sources are not. `message-end` is the last event, also of a failed answer. A provider's base URL ends with `/v2`.

Usage: `tokens` are those processed by the model; `billed_units` are those that Cohere charges. The difference, which
Cohere adds around prompt and answer, is unbilled. If `tokens` lacks a count, that of `billed_units` applies.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import structs

from proxy.metering.counts import with_total
from proxy.metering.dialect import Dialect
from proxy.metering.dialects.openai.request import prompt_of
from proxy.metering.refusal import ErrorShape, Refusal
from proxy.metering.request import RequestFacts, flag, integer, messages_of, model_of
from proxy.metering.tally import Tally, identifier, says_error, word
from proxy.metering.unknown_fields import each, members
from proxy.metering.usage import TOKENS_MAX, Usage
from proxy.metering.usage_reader import UsageReader
from proxy.metering.wire.json_reader import argument_text, reader
from proxy.metering.wire.unknown_text import Outputs, Place

# Finish reasons of failed answers.
_FAILURES = frozenset({"ERROR", "TIMEOUT"})


class Content(msgspec.Struct, gc=False):
    """One part of a message, or a fragment of it."""

    text: str | None = None
    thinking: str | None = None


class Function(msgspec.Struct, gc=False):
    """Name and arguments of a tool call, or fragments of them."""

    name: str | None = None
    arguments: Any = None


class Call(msgspec.Struct, gc=False):
    """One tool call, or a fragment of it."""

    function: Function | None = None


class Message(msgspec.Struct, gc=False):
    """A message, or its fragment in an event, which has single objects instead of lists."""

    content: Content | list[Content] | str | None = None
    tool_plan: str | None = None
    tool_calls: Call | list[Call] | None = None


class _Delta(msgspec.Struct, gc=False):
    message: Message | None = None
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    error: Any = None


class ChatEvent(msgspec.Struct, gc=False):
    """The metered fields of one event of a stream, or of one whole answer."""

    type: str | None = None
    id: str | None = None
    index: int | None = None
    delta: _Delta | None = None
    message: Message | str | None = None
    """message of an answer; a string in an error"""
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None


_parse = reader(ChatEvent)

_reported = UsageReader(
    prompt_tokens="tokens.input_tokens, billed_units.input_tokens",
    cached_tokens="cached_tokens",
    completion_tokens="tokens.output_tokens, billed_units.output_tokens",
    reasoning_tokens="tokens.reasoning_tokens",
)
_billed = UsageReader(prompt_tokens="billed_units.input_tokens", completion_tokens="billed_units.output_tokens")
# Image tokens are part of the input. https://docs.cohere.com/reference/chat
_KNOWN = "id type finish_reason message " + each("usage", f"{_reported.paths} tokens.image_tokens")


def _usage_of(raw: dict[str, Any], flags: set[str]) -> Usage:
    usage, billed = _reported(raw, flags), _billed(raw, flags)
    return with_total(
        structs.replace(
            usage,
            unbilled_prompt_tokens=_less(usage.prompt_tokens, billed.prompt_tokens),
            unbilled_completion_tokens=_less(usage.completion_tokens, billed.completion_tokens),
        )
    )


def _less(tokens: int | None, billed: int | None) -> int | None:
    return None if tokens is None or billed is None else max(0, tokens - billed)


class CohereTally(Tally):
    """The counts of one answer."""

    __slots__ = ()

    known = members("index", _KNOWN, each("delta", _KNOWN))
    outputs = Outputs(
        Place("delta.message.content message.content", "text thinking content"),
        Place("delta.message message", "content tool_plan tool_calls"),
    )

    def read(self, event: bytes, name: bytes) -> ChatEvent | None:
        parsed = _parse(event)
        if parsed is None:
            return None
        self.response_id = self.response_id or identifier(parsed.id)
        kind = parsed.type or name.decode("ascii", "replace")
        # Each part counts without the others.
        if name == b"error" or (isinstance(parsed.message, str) and parsed.message):
            self.fail("error_event")
        if parsed.delta is not None:
            self._read_usage(parsed.delta.usage, running=kind != "message-end")
            self._read_message(parsed.index or 0, parsed.delta.message)
            self._finish(parsed.delta.finish_reason, "error_event", failed=says_error(parsed.delta.error))
        self.done = self.done or kind == "message-end"
        return parsed

    def read_answer(self, body: bytes) -> bool:
        parsed = _parse(body)
        if parsed is None:
            return False
        self.response_id = identifier(parsed.id)
        if isinstance(parsed.message, str):
            if parsed.message:
                self.fail("error_body")
        else:
            self._read_message(0, parsed.message)
        self._finish(parsed.finish_reason, "error_body", failed=False)
        self._read_usage(parsed.usage)
        self.done = isinstance(parsed.message, Message)
        return True

    def _read_message(self, index: int, message: Message | None) -> None:
        if message is None:
            return
        content = message.content
        if isinstance(content, str):
            content = Content(text=content)
        parts = content if isinstance(content, list) else [content] if content is not None else []
        texts = [text for text in (message.tool_plan, *(part.text for part in parts)) if text]
        thoughts = [part.thinking for part in parts if part.thinking]
        self._texts += texts
        self._reasonings += thoughts
        self.evidence.text_events += bool(texts or thoughts)
        self._read_calls(index, message.tool_calls)

    def _read_calls(self, index: int, calls: Call | list[Call] | None) -> None:
        written = ""
        for place, call in enumerate(calls if isinstance(calls, list) else [calls] if calls is not None else [], index):
            self._begin_call((0, place))
            if call.function is not None:
                written += (call.function.name or "") + argument_text(call.function.arguments)
        if written:
            self._called.append(written)
            self.evidence.tool_events += 1

    def _finish(self, reason: str | None, failure: str, *, failed: bool) -> None:
        if reason:
            self.finish_reason = word(reason)
        if failed or reason in _FAILURES:
            self.fail(failure)

    def _read_usage(self, raw: dict[str, Any] | None, *, running: bool = False) -> None:
        if raw:
            self._report(raw, _usage_of(raw, self.flags), running=running)


def facts(document: dict[str, Any], named: str | None = None) -> RequestFacts:
    """Read a request. Raises InvalidField."""
    return RequestFacts(
        model=named or model_of(document),
        streamed=flag(document, "stream"),
        completion_tokens_max=integer(document, "max_tokens", at_least=0, at_most=TOKENS_MAX),
        prompt=prompt_of(messages_of(document), document, read_as_json=("documents",)),
    )


def _refused(refusal: Refusal) -> dict[str, Any]:
    return {"message": refusal.message}


def _error_event(refusal: Refusal) -> dict[str, Any]:
    return {"type": "message-end", "delta": {"finish_reason": "ERROR", "error": refusal.message}}


COHERE_CHAT = Dialect(
    name="cohere.chat",
    paths=("/v2/chat",),
    facts=facts,
    tally=CohereTally,
    errors=ErrorShape("/v2/", _refused, _error_event, "message-end"),
)
