"""The dialects of InvokeModel, whole and streamed: the model's own bodies → evidence, usage, finish reason.

Invariants: Anthropic's events and answers are read as its messages, Nova's as Converse, those of other families by
their fields. Counts in the body take precedence over the metrics of the last event, and these over counts in headers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from proxy.metering.counts import with_total
from proxy.metering.dialects.anthropic.messages import PLACE as MESSAGES_PLACE
from proxy.metering.dialects.anthropic.messages import MessagesTally
from proxy.metering.dialects.anthropic.usage import KNOWN as ANTHROPIC_KNOWN
from proxy.metering.dialects.bedrock.converse import (
    BEDROCK_CONVERSE,
    BEDROCK_CONVERSE_STREAM,
    CONVERSE_KNOWN,
    OUTPUT,
    ConverseTally,
    bedrock_path,
)
from proxy.metering.dialects.bedrock.families import Invoked, counts_of, finish_of, invoked_of, is_vector, parts_of
from proxy.metering.dialects.bedrock.request import invoke_facts
from proxy.metering.dialects.bedrock.usage import CONVERSE_USAGE, FLAT_USAGE, METRICS_USAGE, flat_usage, usage_of
from proxy.metering.dialects.bedrock.wire import converse_of
from proxy.metering.dialects.openai.chat import PLACES as CHAT_PLACES
from proxy.metering.dialects.openai.usage import KNOWN as OPENAI_KNOWN
from proxy.metering.plain import nothing_generated
from proxy.metering.tally import identifier, says_error, word
from proxy.metering.unknown_fields import each, members
from proxy.metering.usage import Usage
from proxy.metering.wire.event_stream import ERROR
from proxy.metering.wire.framing import CHUNK_STREAM
from proxy.metering.wire.unknown_text import Outputs, Place

# Headers with counts → their names in the metrics of a stream.
_COUNTS = {
    "x-amzn-bedrock-input-token-count": "inputTokenCount",
    "x-amzn-bedrock-output-token-count": "outputTokenCount",
    "x-amzn-bedrock-cache-read-input-token-count": "cacheReadInputTokenCount",
    "x-amzn-bedrock-cache-write-input-token-count": "cacheWriteInputTokenCount",
}
# More digits than any count has.
_DIGITS_MAX = 12
# Claude 2's events have a type, too, and are no messages.
_COMPLETION = "completion"
_KNOWN = f"""
{ANTHROPIC_KNOWN} {OPENAI_KNOWN} {CONVERSE_KNOWN} {CONVERSE_USAGE} {METRICS_USAGE} {FLAT_USAGE}
messageStart contentBlockStart contentBlockDelta contentBlockStop messageStop outputText index results generation
outputs text generations generation_id completion completions log_id prompt is_finished event_type tool_calls
finish_reason completionReason embedding embeddings embeddingsByType texts response_type images seeds
finish_reasons chat_history citations documents response meta p artifacts result
{each("metadata", CONVERSE_USAGE)} metadata.metrics metadata.trace metadata.serviceTier metadata.performanceConfig
"""


class InvokeTally(MessagesTally, ConverseTally):
    """The counts of one answer."""

    __slots__ = ("_counts", "_headers", "_results", "_vector")

    known = members(_KNOWN)
    outputs = Outputs(
        MESSAGES_PLACE,
        Place("contentBlockDelta.delta contentBlockStart.start output.message.content", OUTPUT),
        *CHAT_PLACES,
        Place("results outputs generations completions.data", "text outputText tokens token_likelihoods", mixed=True),
    )

    def __init__(self, cumulative: bool | None = None) -> None:
        super().__init__(cumulative)
        self._counts: dict[str, Any] = {}  # counts of the events so far: in Llama's, only the first has the prompt
        self._headers: dict[str, Any] = {}  # the counts in headers
        self._results = False  # there are some: texts, or ranks
        self._vector = False  # nothing is generated

    def read_headers(self, headers: Mapping[str, str]) -> None:
        """Read the id, the terms of service, and the counts for bodies without counts."""
        ConverseTally.read_headers(self, headers)
        texts = {name: headers[header] for header, name in _COUNTS.items() if header in headers}
        self._headers = {
            name: int(text)
            for name, text in texts.items()
            if text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX
        }

    def read(self, event: bytes, name: bytes) -> object | None:
        if name == ERROR:
            self.fail("error_event")
            return event
        answer = invoked_of(event)
        if answer is None:
            return None
        if answer.type is not None and answer.type != _COMPLETION:
            MessagesTally.read(self, event, b"")
        elif says_error(answer.error):
            self.fail("error_event")
        else:
            self._read_nova(answer)
            self._read_other(answer, running=True)
        if answer.metrics is not None:  # the last event
            if not (self._is_counted and self.usage_final):
                self._report(answer.metrics, flat_usage(answer.metrics, self.flags))
            self.done = True
        return answer

    def read_answer(self, body: bytes) -> bool:
        answer = invoked_of(body)
        if answer is None:
            return False
        response_id = self.response_id
        if answer.type is not None and answer.type != _COMPLETION:
            MessagesTally.read_answer(self, body)
        elif says_error(answer.error):
            self.fail("error_body")
        else:
            if b'"output"' in body and (nova := converse_of(body)) is not None:
                nova.usage = None  # it is read below
                self._read_whole(nova)
            self._read_other(answer, running=False)
            self.done = True
        self.response_id = response_id or self.response_id
        return True

    def settle(self) -> None:
        """Take the counts of the headers if the body had none, at the end of the answer. Idempotent."""
        if self._headers and not self._is_counted:
            self._report(self._headers, self._whole(flat_usage(self._headers, self.flags)))
        super().settle()

    @property
    def has_output(self) -> bool:
        """Whether there was output: text, ranks, or a vector."""
        return self._vector or self._results or super().has_output

    @property
    def _is_counted(self) -> bool:
        usage = self.usage
        return usage is not None and (usage.completion_tokens is not None or usage.images is not None)

    def _whole(self, usage: Usage) -> Usage:
        return with_total(nothing_generated(usage)) if self._vector else usage

    def _read_nova(self, answer: Invoked) -> None:
        for name, event in (
            (b"contentBlockStart", answer.contentBlockStart),
            (b"contentBlockDelta", answer.contentBlockDelta),
            (b"messageStop", answer.messageStop),
            (b"metadata", answer.metadata),
        ):
            if event is not None:
                self._read_event(name, event)

    def _read_other(self, answer: Invoked, *, running: bool) -> None:
        """`running`: the counts are running ones until the answer has a finish reason."""
        self._vector = self._vector or is_vector(answer)
        self._results = self._results or bool(answer.results)
        finish = finish_of(answer)
        if finish is not None:
            self.finish_reason = word(finish)
        self._read_counts(answer, running=running and finish is None)
        if isinstance(answer.id, str) and self.response_id is None:
            self.response_id = identifier(answer.id)
        for part in parts_of(answer):
            self._add_texts(part.text, part.reasoning)
            if part.call is not None:
                index, called, arguments = part.call
                if called:
                    self._begin_call((index, called))
                self._called += (called or "", arguments)
                self.evidence.tool_events += 1

    def _read_counts(self, answer: Invoked, *, running: bool) -> None:
        raw = answer.usage
        if raw and ("input_tokens" in raw or "output_tokens" in raw):
            self._read_usage(raw, final=not running)
        elif raw:
            self._report(raw, usage_of(raw, self.flags), running=running)
        elif counts := counts_of(answer):
            self._counts = counts = self._counts | counts
            self._report(counts, self._whole(flat_usage(counts, self.flags)), running=running)


BEDROCK_INVOKE = replace(
    BEDROCK_CONVERSE,
    name="bedrock.invoke",
    **bedrock_path("invoke"),
    facts=invoke_facts,
    tally=InvokeTally,
    framings=(CHUNK_STREAM,),
    headers_read=(*BEDROCK_CONVERSE.headers_read, *_COUNTS),
)

BEDROCK_INVOKE_STREAM = replace(
    BEDROCK_INVOKE,
    name="bedrock.invoke_stream",
    **bedrock_path("invoke-with-response-stream"),
    facts=partial(invoke_facts, streamed=True),
    accepts=BEDROCK_CONVERSE_STREAM.accepts,
    headers_up=("x-amzn-bedrock-accept",),
)
