"""The dialect of Anthropic's messages: events and answers → evidence, usage, finish reason.

Invariants: generated output is counted (text, thinking, the input of client and server tools), tool results are not.
Usage is merged per key: the last value, never lower. The first `output_tokens` of a stream are only a placeholder: the
completion is unreported until a `message_delta` has it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
from msgspec import structs

from proxy.metering.counts import with_total
from proxy.metering.dialect import Dialect, KeyHeader
from proxy.metering.dialects.anthropic.request import facts
from proxy.metering.dialects.anthropic.usage import KNOWN, merged, usage_of
from proxy.metering.plain import CountTally
from proxy.metering.refusal import ErrorShape, Refusal
from proxy.metering.request import json_bytes
from proxy.metering.tally import Tally, identifier, says_error, word
from proxy.metering.unknown_fields import members
from proxy.metering.usage import service_of
from proxy.metering.wire.json_reader import reader
from proxy.metering.wire.unknown_text import Outputs, Place


class Block(msgspec.Struct, gc=False):
    """A content block: whole in an answer, its beginning in a stream."""

    type: str | None = None
    id: str | None = None
    name: str | None = None
    text: str | None = None
    thinking: str | None = None
    input: Any = None
    content: Any = None
    """a tool's result: a list, or an object with an error"""


class Delta(msgspec.Struct, gc=False):
    """A fragment of a block, or the end of a message."""

    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    content: Any = None
    """a compaction's text"""
    stop_reason: str | None = None


class Message(msgspec.Struct, gc=False):
    """An answer; at the start of a stream only the id and the usage of the input."""

    type: str | None = None
    id: str | None = None
    content: list[Block] | None = None
    stop_reason: str | None = None
    usage: dict[str, Any] | None = None
    error: Any = None


class _MessagesEvent(msgspec.Struct, gc=False):
    type: str | None = None
    index: int | None = None
    message: Message | None = None
    content_block: Block | None = None
    delta: Delta | None = None
    usage: dict[str, Any] | None = None
    error: Any = None


event_of = reader(_MessagesEvent)
message_of = reader(Message)


# Ends of the types of blocks that cost nothing but their tokens. Running code is free for an account's first hours of a
# month; searches are read from the usage. https://platform.claude.com/docs/en/about-claude/pricing
_FREE_BLOCKS = ("text", "thinking", "tool_use", "tool_result", "container_upload", "compaction")
_SEARCHED = "web_search_tool_result"
# Members of the first usage that a later one must report.
_PLACEHOLDERS = ("output_tokens", "output_tokens_details")
# Events whose usage is that of the whole answer.
_WITH_USAGE = ("message_delta", "message_stop")

PLACE = Place("delta content_block content", "text thinking partial_json content input stop_reason page_age")
"""places of output in an event or an answer"""


class MessagesTally(Tally):
    """The counts of one answer."""

    __slots__ = ("_merged", "_searches")

    known = members(KNOWN)
    outputs = Outputs(PLACE)

    def __init__(self, cumulative: bool | None = None) -> None:
        super().__init__(cumulative)
        self._merged: dict[str, Any] = {}
        self._searches: set[int] = set()  # blocks with the result of a search

    def read(self, event: bytes, name: bytes) -> object | None:
        parsed = event_of(event)
        if parsed is None:
            return None
        kind = parsed.type or name.decode("ascii", "replace")
        # Each part counts without the others.
        if kind in _WITH_USAGE:
            self._read_usage(parsed.usage, final=True)
        if kind == "error" or name == b"error" or says_error(parsed.error):
            self.fail("error_event")
            return parsed
        if parsed.delta is not None:
            self._read_delta(parsed.delta)
        if parsed.content_block is not None:
            self._read_block(parsed.index or 0, parsed.content_block)
        if parsed.message is not None:
            self.response_id = self.response_id or identifier(parsed.message.id)
            self._read_usage(parsed.message.usage, final=False)
        if kind == "message_stop":
            self.done = True
        return parsed

    def read_answer(self, body: bytes) -> bool:
        message = message_of(body)
        if message is None:
            return False
        if says_error(message.error) or message.type == "error":
            self.fail("error_body")
        self.response_id = identifier(message.id)
        for index, block in enumerate(message.content or ()):
            self._read_block(index, block)
            if block.input and block.name:
                self.evidence.tool_chars += json_bytes(block.input)
        self._finish(message.stop_reason)
        self._read_usage(message.usage, final=True)
        self.done = message.content is not None
        return True

    def _read_block(self, index: int, block: Block) -> None:
        """Read the start of a block, or in an answer the whole block. A tool result has neither name nor text."""
        if block.type is not None and not block.type.endswith(_FREE_BLOCKS):
            self._keep_unknown(f"content.{word(block.type)}")
        if block.type == _SEARCHED and isinstance(block.content, list):
            self._searches.add(index)
            self._seen("searches", len(self._searches))
        if block.name:
            self._begin_call((index, block.id or block.name))
            self.evidence.tool_events += 1
            self._called.append(block.name)
        self._add_texts(block.text, block.thinking)

    def _read_delta(self, delta: Delta) -> None:
        if delta.partial_json:
            self.evidence.tool_events += 1
            self._called.append(delta.partial_json)
        self._add_texts(delta.text or (delta.content if isinstance(delta.content, str) else None), delta.thinking)
        self._finish(delta.stop_reason)

    def _finish(self, reason: str | None) -> None:
        if reason:
            self.finish_reason = word(reason)

    def _read_usage(self, raw: dict[str, Any] | None, *, final: bool) -> None:
        if not raw:
            return
        both = self._merged = self.usage_raw = merged(self._merged, raw, self.flags)
        usage, self.served_model, self.other_models, longest = usage_of(both, self.flags)
        tier, speed, geography = map(both.get, ("service_tier", "speed", "inference_geo"))
        self.served_as = service_of(tier, speed, geography, longest)
        if not final:
            usage = structs.replace(usage, completion_tokens=None, reasoning_tokens=None, total_tokens=None)
            self._merged = {name: value for name, value in both.items() if name not in _PLACEHOLDERS}
        self._report(both, usage, running=not final)
        if self.usage is not None:
            self.usage = with_total(self.usage)

    def settle(self) -> None:
        """A refusal without any output is not billed, though it reports tokens.
        https://platform.claude.com/docs/en/release-notes/overview: others say that it depends on the category."""
        super().settle()
        if self.finish_reason != "refusal" or self.usage is None:
            return
        # Without output of the model that refused: another model may have generated some before it.
        prompt, completion = self.usage.prompt_tokens, self.usage.completion_tokens
        if self.evidence.empty or completion == 0:
            self.flags.add("refused_unbilled")
            self.usage = structs.replace(
                self.usage, unbilled_prompt_tokens=prompt, unbilled_completion_tokens=completion
            )


# Anthropic's error types by HTTP status; any other 4xx is an invalid request.
_TYPES = {
    401: "authentication_error", 402: "billing_error", 403: "permission_error", 404: "not_found_error",
    408: "timeout_error", 413: "request_too_large", 429: "rate_limit_error", 500: "api_error", 502: "api_error",
    503: "overloaded_error", 504: "timeout_error", 529: "overloaded_error",
}  # fmt: skip


def _refused(refusal: Refusal) -> dict[str, Any]:
    kind = _TYPES.get(refusal.status, "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": refusal.message}}


ANTHROPIC_ERRORS = ErrorShape("/v1/messages", _refused, _refused, "error")

ANTHROPIC_MESSAGES = Dialect(
    name="anthropic.messages",
    paths=("/v1/messages",),
    facts=facts,
    tally=MessagesTally,
    errors=ANTHROPIC_ERRORS,
    ends=(b"message_stop", b"[DONE]"),
    key_header=KeyHeader.X_API_KEY,
    headers_up=("anthropic-version", "anthropic-beta"),
    headers_down=("request-id",),
    query=("beta",),
    cost_path=("usage",),
    names_files=True,
)

ANTHROPIC_COUNT_TOKENS = replace(
    ANTHROPIC_MESSAGES,
    name="anthropic.count_tokens",
    paths=("/v1/messages/count_tokens",),
    operation="count_tokens",
    tally=CountTally,
    cost_path=(),
    free=True,
)
