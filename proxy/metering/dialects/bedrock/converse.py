"""The dialects of Converse and ConverseStream: events and answers → evidence, usage, finish reason.

Invariants: a stream ends with `metadata`, the only event with usage. Charges for the provider's own tools and
guardrails are not part of the usage: they are named as unknown fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from proxy.metering.dialect import NAME, Dialect
from proxy.metering.dialects.bedrock.request import converse_facts, count_facts
from proxy.metering.dialects.bedrock.usage import CONVERSE_USAGE, converse_usage
from proxy.metering.dialects.bedrock.wire import Block, Converse, ToolUse, converse_of
from proxy.metering.plain import CountTally
from proxy.metering.refusal import ErrorShape, Refusal
from proxy.metering.request import json_bytes, with_model_if_named
from proxy.metering.tally import Tally, identifier, word
from proxy.metering.unknown_fields import members
from proxy.metering.usage import served_later, service_of
from proxy.metering.wire.event_stream import CONTENT_TYPE, ERROR
from proxy.metering.wire.framing import EVENT_STREAM
from proxy.metering.wire.unknown_text import Outputs, Place

REQUEST_ID, TIER, LATENCY = (
    "x-amzn-requestid",
    "x-amzn-bedrock-service-tier",
    "x-amzn-bedrock-performanceconfig-latency",
)
# Word filters and the customer's own patterns cost nothing. https://aws.amazon.com/bedrock/pricing/
_FREE = re.compile("wordPolicy|Free")
# The depth of a guardrail's metrics in its trace is 4.
_TRACE_DEPTH_MAX = 8
# Metrics of a trace, and the objects around them, that are read.
_TRACE_ENTRIES_MAX = 10_000

CONVERSE_KNOWN = (
    "output metrics stopReason additionalModelResponseFields performanceConfig serviceTier trace p role start delta "
    "contentBlockIndex"
)

OUTPUT = "text toolUse toolResult reasoningContent citationsContent image"
"""members of a block that are read, or are no output"""


class ConverseTally(Tally):
    """The counts of one answer."""

    __slots__ = ()

    known = members(CONVERSE_KNOWN, CONVERSE_USAGE)
    outputs = Outputs(Place("delta start output.message.content", OUTPUT))

    def read(self, event: bytes, name: bytes) -> object | None:
        if name == ERROR:
            self.fail("error_event")
            return event
        parsed = converse_of(event)
        if parsed is not None:
            self._read_event(name, parsed)
        return parsed

    def read_answer(self, body: bytes) -> bool:
        answer = converse_of(body)
        if answer is None:
            return False
        self._read_whole(answer)
        return True

    def read_headers(self, headers: Mapping[str, str]) -> None:
        """Read the id of the request, which the body lacks, and the terms of service."""
        self.response_id = identifier(headers.get(REQUEST_ID))
        self.served_as = service_of(headers.get(TIER), headers.get(LATENCY))

    def _read_whole(self, answer: Converse) -> None:
        self._read_outcome(answer)
        message = None if answer.output is None else answer.output.message
        if message is not None:
            for index, block in enumerate(message.content or ()):
                self._read_content(index, block)
            self.done = True

    def _read_event(self, name: bytes, event: Converse) -> None:
        self._read_outcome(event)
        for block in (event.start, event.delta):
            if block is not None:
                self._read_content(event.index or 0, block)
        if name == b"metadata":
            self.done = True

    def _read_outcome(self, answer: Converse) -> None:
        """Read usage, terms of service, finish reason, and units of guardrails."""
        if answer.usage:
            self._report(answer.usage, converse_usage(answer.usage, self.flags))
        if answer.tier is not None or answer.performance is not None:
            latency = None if answer.performance is None else answer.performance.latency
            later = service_of(None if answer.tier is None else answer.tier.type, latency)
            self.served_as = served_later(self.served_as, later)
        if answer.stop_reason:
            self.finish_reason = word(answer.stop_reason)
        if answer.trace is not None:  # of guardrails, whose units of text and images have prices of their own
            for name, units in _units(answer.trace, iter(range(_TRACE_ENTRIES_MAX))):
                self._keep_unknown(f"guardrail.{name}", units)

    def _read_content(self, index: int, block: Block) -> None:
        if block.tool_use is not None:
            self._read_tool_use(index, block.tool_use)
        if block.image is not None:
            self._keep_unknown("content.image")
        if (reasoning := block.reasoning) is not None:
            whole = None if reasoning.whole is None else reasoning.whole.text
            self._add_texts(None, reasoning.text or whole)
        self._add_texts(block.text)
        for part in (block.cited.content if block.cited is not None else None) or ():
            self._add_texts(part.text)

    def _read_tool_use(self, index: int, call: ToolUse) -> None:
        if call.type is not None:
            self._keep_unknown(f"content.{word(call.type)}")
        if call.name:
            self._begin_call((index, call.id or call.name))
            self._called.append(call.name)
        if isinstance(call.input, str):
            self._called.append(call.input)
        elif call.input:
            self.evidence.tool_chars += json_bytes(call.input)
        self.evidence.tool_events += 1


def _units(value: object, left: Iterator[int], within: str = "", depth: int = 0) -> Iterator[tuple[str, int]]:
    """The billed counts of the usage in each guardrail's metrics. `left`: has an element for each value to be read."""
    if depth > _TRACE_DEPTH_MAX or next(left, None) is None:
        return
    if isinstance(value, list):
        for one in value:
            yield from _units(one, left, within, depth + 1)
    elif isinstance(value, dict):
        for name, one in value.items():
            if within != "usage":
                yield from _units(one, left, name, depth + 1)
            elif type(one) is int and one > 0 and name.isascii() and name.isalpha() and not _FREE.search(name):
                yield word(name), one


def bedrock_path(operation: str) -> dict[str, Any]:
    """The paths of an operation."""
    path = f"/model/{NAME}/{operation}"
    return {"paths": (path,), "appended": path}


# The error types of the service by HTTP status; any other 4xx is an invalid request.
# https://docs.aws.amazon.com/bedrock/latest/APIReference/CommonErrors.html and its operations
_TYPES = {
    401: "UnrecognizedClientException", 402: "ServiceQuotaExceededException", 403: "AccessDeniedException",
    404: "ResourceNotFoundException", 408: "ModelTimeoutException", 429: "ThrottlingException",
    500: "InternalServerException", 502: "ModelErrorException", 503: "ServiceUnavailableException",
    504: "ModelTimeoutException",
}  # fmt: skip
# Exceptions of both streams; SDKs show no message of any other.
_STREAM_TYPES = {
    402: "throttlingException", 429: "throttlingException", 500: "internalServerException",
    503: "serviceUnavailableException",
}  # fmt: skip


def _body(refusal: Refusal) -> dict[str, Any]:
    return {"message": refusal.message}


def _headers(refusal: Refusal) -> tuple[tuple[str, str], ...]:
    return (("x-amzn-ErrorType", _TYPES.get(refusal.status, "ValidationException")),)


BEDROCK_ERRORS = ErrorShape(
    "/model/", _body, _body, "modelStreamErrorException", headers=_headers, event_names=_STREAM_TYPES
)

BEDROCK_CONVERSE = Dialect(
    name="bedrock.converse",
    **bedrock_path("converse"),
    facts=converse_facts,
    upstream_document=with_model_if_named,
    tally=ConverseTally,
    errors=BEDROCK_ERRORS,
    framings=(EVENT_STREAM,),
    name_safe="",
    accepts="application/json",
    headers_down=(
        "x-amzn-errortype", "x-amzn-bedrock-content-type", "x-amzn-bedrock-invocation-latency",
        "x-amzn-bedrock-input-token-count", "x-amzn-bedrock-output-token-count",
        "x-amzn-bedrock-cache-read-input-token-count", "x-amzn-bedrock-cache-write-input-token-count",
        REQUEST_ID, TIER, LATENCY,
    ),
    headers_read=(REQUEST_ID, TIER, LATENCY),
    # Of signatures: https://docs.aws.amazon.com/bedrock/latest/userguide/troubleshooting-api-error-codes.html. Of API
    # keys: as reported in public.
    credential_refusals=(
        b"UnrecognizedClient", b"InvalidClientTokenId", b"InvalidSignature", b"SignatureDoesNotMatch",
        b"IncompleteSignature", b"MissingAuthenticationToken", b"ExpiredToken", b"security token", b"API Key",
    ),
)  # fmt: skip

BEDROCK_CONVERSE_STREAM = replace(
    BEDROCK_CONVERSE,
    name="bedrock.converse_stream",
    **bedrock_path("converse-stream"),
    facts=partial(converse_facts, streamed=True),
    accepts=f"{CONTENT_TYPE}, application/json",
)


class BedrockCountTally(CountTally):
    """An answer of CountTokens."""

    __slots__ = ()

    known = members("inputTokens")


BEDROCK_COUNT_TOKENS = replace(
    BEDROCK_CONVERSE,
    name="bedrock.count_tokens",
    **bedrock_path("count-tokens"),
    operation="count_tokens",
    facts=count_facts,
    tally=BedrockCountTally,
    headers_read=(),
    free=True,
)
