"""The dialects of generateContent and streamGenerateContent: events and answers → evidence, usage, finish reason.

Invariants:
- Every event has running counts. They are final with a finishReason or blockReason; until then the completion is None
  and the running count is kept in `completion_so_far`. For a truncated answer it is the estimate, with hidden thoughts.
- Running counts may fall and are not merged. Of final counts the last applies, never lower.
- An answer that continues after its finishReason (code that the provider ran) was not finished.
- Searches are the distinct queries of groundingMetadata; up to Gemini 2 one per answer with any, as Google bills them.
- A stream is SSE (`?alt=sse`) or one JSON array. An array has no heartbeats. An own error event is its last element and
  closes it; it needs an element before it.
- Reading raises nothing; well-typed fields are kept. Payloads of images and audio are not read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from msgspec import structs

from proxy.metering.counts import with_thoughts
from proxy.metering.dialect import NAME, Dialect, KeyHeader
from proxy.metering.dialects.gemini.request import facts, upstream_document
from proxy.metering.dialects.gemini.usage import USAGE, running, served_as_in, usage_of
from proxy.metering.refusal import ErrorShape, Refusal
from proxy.metering.tally import Tally, identifier, says_error, word
from proxy.metering.unknown_fields import members
from proxy.metering.usage import NO_USAGE, NOT_SAID, UNITS_MAX, Usage
from proxy.metering.wire.framing import JSON_ARRAY, LONG_SSE
from proxy.metering.wire.json_reader import compact, reader
from proxy.metering.wire.unknown_text import Outputs, Place


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


class _Content(msgspec.Struct, gc=False):
    parts: list[Part] | None = None


class _Grounding(msgspec.Struct, gc=False):
    queries: list[Any] | None = msgspec.field(default=None, name="webSearchQueries")


class _Candidate(msgspec.Struct, gc=False):
    index: int | None = None
    content: _Content | None = None
    finish_reason: str | int | None = msgspec.field(default=None, name="finishReason")
    grounding: _Grounding | None = msgspec.field(default=None, name="groundingMetadata")


class PromptFeedback(msgspec.Struct, gc=False):
    """The reason why there are no candidates."""

    block_reason: str | int | None = msgspec.field(default=None, name="blockReason")


class Generated(msgspec.Struct, gc=False):
    """The metered fields of one event of a stream, or of one whole answer."""

    candidates: list[_Candidate] | None = None
    prompt_feedback: PromptFeedback | None = msgspec.field(default=None, name="promptFeedback")
    usage: dict[str, Any] | None = msgspec.field(default=None, name="usageMetadata")
    response_id: str | None = msgspec.field(default=None, name="responseId")
    model: str | None = msgspec.field(default=None, name="modelVersion")
    error: Any = None


generated_of = reader(Generated)
"""reads one JSON object; None if it is none"""


# Sixteen times Google's own limit. Further candidates of a stream are read but not tracked individually.
CANDIDATES_MAX = 128
# Early servers sent the number of a reason, not its name.
_REASONS = ("FINISH_REASON_UNSPECIFIED", "STOP", "MAX_TOKENS", "SAFETY", "RECITATION", "OTHER")
# Flags: the contents of one part of an event.
_TEXT, _CALL = 1, 2
# The prompt and its parts.
_PROMPT = (
    "prompt_tokens", "cached_tokens", "audio_prompt_tokens", "image_prompt_tokens", "cached_audio_tokens",
    "cached_image_tokens",
)  # fmt: skip


def billed_once(model: str) -> bool:
    """Whether all searches of an answer of this model are billed as one, however many queries it has."""
    return model.rpartition("/")[2].startswith(("gemini-1", "gemini-2"))


class GeminiTally(Tally):
    """The counts of one answer."""

    __slots__ = ("_final", "_last_call", "_queries", "_ran_code", "_reason", "_unfinished")

    known = members("candidates error modelVersion responseId createTime", USAGE)
    outputs = Outputs(
        Place(
            "candidates.content.parts",
            """
            text thought functionCall toolCall executableCode codeExecutionResult toolResponse functionResponse
            inlineData fileData thoughtSignature videoMetadata mediaResolution content
            """,
        )
    )

    def __init__(self, cumulative: bool | None = None) -> None:
        super().__init__(cumulative)
        self._final: Usage | None = None  # merged from final events
        self._unfinished: set[int] = set()  # candidates
        self._reason: str | None = None  # the last one, final or not
        self._last_call = 0
        self._ran_code = False  # by the provider: the answer may continue after a finishReason
        self._queries: set[int] = set()  # hashes: queries are user text, which is not kept

    def read(self, event: bytes, name: bytes) -> Generated | None:
        generated = generated_of(event)
        if generated is None:
            return None
        if name == b"error" or says_error(generated.error):
            self.fail("error_event")
        else:
            self._read_generated(generated)
        self._read_usage(generated.usage, final=self.finish_reason is not None)
        return generated

    def read_answer(self, body: bytes) -> bool:
        """Read a whole answer; its counts are final."""
        generated = generated_of(body)
        if generated is None:
            return False
        if says_error(generated.error):
            self.fail("error_body")
        else:
            self._read_generated(generated)
        self._read_usage(generated.usage, final=True)
        self.done = generated.candidates is not None or generated.prompt_feedback is not None
        return True

    @property
    def usage_final(self) -> bool:
        """Usage is running until a finish reason, also in an event without output."""
        return self.usage is not None and (self.done or self.finish_reason is not None)

    def _read_generated(self, generated: Generated) -> None:
        if self.response_id is None:
            self.response_id = identifier(generated.response_id)
        kinds = 0
        for candidate in generated.candidates or ():
            kinds |= self._read_candidate(candidate)
            if candidate.grounding is not None:
                self._read_queries(candidate.grounding.queries or (), generated.model or "")
        self.evidence.text_events += kinds & _TEXT
        self.evidence.tool_events += kinds >> 1
        if generated.prompt_feedback is not None:
            self._finish(generated.prompt_feedback.block_reason)
        self.finish_reason = None if self._unfinished else self._reason
        self.done = self.finish_reason is not None and not self._ran_code

    def _read_candidate(self, candidate: _Candidate) -> int:
        index = candidate.index or 0
        parts = (candidate.content.parts if candidate.content is not None else None) or ()
        if candidate.finish_reason:
            self._unfinished.discard(index)
            self._finish(candidate.finish_reason)
        elif parts and len(self._unfinished) < CANDIDATES_MAX:
            self._unfinished.add(index)
        kinds = 0
        for part in parts:
            kinds |= self._read_part(index, part)
        return kinds

    def _read_queries(self, queries: Iterable[object], model: str) -> None:
        for query in queries:
            if isinstance(query, str) and query and len(self._queries) < UNITS_MAX:
                self._queries.add(hash(query))
        if self._queries:
            self._seen("searches", 1 if billed_once(model) else len(self._queries))

    def _finish(self, reason: str | int | None) -> None:
        if type(reason) is int:
            reason = _REASONS[reason] if 0 <= reason < len(_REASONS) else "other"
        if isinstance(reason, str) and reason:
            self._reason = word(reason)

    def _read_part(self, index: int, part: Part) -> int:
        if part.code_execution_result is not None or part.tool_response is not None:
            self._ran_code = True  # its result counts as prompt
        call = part.function_call or part.tool_call
        if call is not None:
            return self._read_call(index, call)
        if part.inline_data is not None:
            self._texts.append("\0")  # a placeholder for generated output; only the usage has the cost of an image
            return _TEXT
        text = part.text
        if part.executable_code is not None:
            self._ran_code = True
            text = part.executable_code.code
        if text:
            (self._reasonings if part.thought else self._texts).append(text)
        return _TEXT if text else 0

    def _read_call(self, index: int, call: FunctionCall) -> int:
        if call.name or call.partial_args is None:  # further fragments have no name
            self._last_call += 1
        self._begin_call((index, self._last_call))
        self._called += (call.name or "", compact(call.args), compact(call.partial_args))
        return _CALL

    def _read_usage(self, raw: dict[str, Any] | None, *, final: bool) -> None:
        if not raw:
            return
        if self.served_as is NOT_SAID:
            self.served_as = served_as_in(raw)
        usage = usage_of(raw, self.flags)
        if usage == NO_USAGE:
            return
        if final:
            usage = with_thoughts(usage)
            if self.usage is not None and self._final is None:
                missing = [name for name in _PROMPT if getattr(usage, name) is None]  # only earlier events have it
                usage = structs.replace(usage, **{name: getattr(self.usage, name) for name in missing})
            self.completion_so_far, self.usage = None, self._final
            self._report(raw, usage, ("tool_prompt",) if raw.get("toolUsePromptTokenCount") else ())
            self._final = self.usage
        else:
            self.completion_so_far, self.usage, self.usage_raw = usage.completion_tokens, running(usage), raw
            self._take_units()


_STATUSES = {
    400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 402: "RESOURCE_EXHAUSTED", 403: "PERMISSION_DENIED",
    404: "NOT_FOUND", 405: "UNIMPLEMENTED", 408: "DEADLINE_EXCEEDED", 409: "ABORTED", 413: "INVALID_ARGUMENT",
    414: "INVALID_ARGUMENT", 415: "INVALID_ARGUMENT", 429: "RESOURCE_EXHAUSTED", 431: "INVALID_ARGUMENT",
    500: "INTERNAL", 502: "UNAVAILABLE", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
}  # fmt: skip


def _error(refusal: Refusal) -> dict[str, Any]:
    """A google.rpc.Status as JSON; the message also contains the field, since SDKs show only the message."""
    param = refusal.param
    details: list[dict[str, Any]] = []
    if refusal.code is not None:
        kind = "type.googleapis.com/google.rpc.ErrorInfo"
        details.append({"@type": kind, "reason": refusal.code.upper(), "domain": "tokenweir"})
    if param is not None:
        kind = "type.googleapis.com/google.rpc.BadRequest"
        details.append({"@type": kind, "fieldViolations": [{"field": param, "description": refusal.message}]})
    status = _STATUSES.get(refusal.status, "UNKNOWN")
    return {"error": {"code": refusal.status, "message": refusal.message, "status": status, "details": details}}


GEMINI_ERRORS = ErrorShape("/v1beta/", _error, _error)


def paths_of(method: str) -> tuple[str, ...]:
    """The paths of a method of a model."""
    return tuple(f"/{version}/models/{NAME}:{method}" for version in ("v1beta", "v1"))


GEMINI_GENERATE = Dialect(
    name="gemini.generate",
    paths=paths_of("generateContent"),
    usage_member="usageMetadata",
    operation="generate_content",
    facts=facts,
    upstream_document=upstream_document,
    tally=GeminiTally,
    errors=GEMINI_ERRORS,
    ends=(b"finishReason", b"blockReason", b"[DONE]"),
    framings=(LONG_SSE,),
    key_header=KeyHeader.X_GOOG_API_KEY,
)

GEMINI_STREAM = replace(
    GEMINI_GENERATE,
    name="gemini.stream",
    paths=paths_of("streamGenerateContent"),
    facts=partial(facts, streamed=True),
    framings=(LONG_SSE, JSON_ARRAY),
    query=("alt=sse", "alt=json"),  # other values of `alt` request answers that are not JSON
)
