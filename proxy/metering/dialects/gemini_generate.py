"""The dialects generateContent and streamGenerateContent: events and answers → evidence, usage, how it ended.

Law: every event says the counts so far. They are final with the event that says why the answer ended (finishReason,
blockReason), and until then a count of what was generated is None: of an answer that was cut the prompt is reported
and the rest estimated. Running counts may fall and are not folded; final ones are last, never lower. An answer that
goes on after its finishReason (code that the provider ran) was not finished. Requests: `gemini_request`; shapes:
`gemini_wire`; counts: `gemini_usage`.

A stream is SSE (`?alt=sse`) or one JSON array. In an array no heartbeat has a place; an error of our own is a last
element and closes it, where an element went before.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from proxy.metering.dialect import NAME, Dialect, KeyHeader
from proxy.metering.dialects.gemini_request import plain_facts, stream_facts, upstream_document
from proxy.metering.dialects.gemini_usage import oddities, running, usage_of
from proxy.metering.dialects.gemini_wire import Candidate, FunctionCall, Generated, Part, generated_of
from proxy.metering.dialects.openai_usage import later
from proxy.metering.framing import JSON_ARRAY, SSE
from proxy.metering.refusal import ErrorShape, Refusal
from proxy.metering.tally import Counting, identifier, word
from proxy.metering.usage import Usage

# Sixteen times Google's own limit. What a stream has beyond is read, only not tracked for each.
CANDIDATES_MAX = 128
# Early servers told the number of a reason, not its name.
_REASONS = ("FINISH_REASON_UNSPECIFIED", "STOP", "MAX_TOKENS", "SAFETY", "RECITATION", "OTHER")
# What one part of an event carried.
_TEXT, _CALL = 1, 2


class GeminiTally(Counting):
    """What the events of one exchange add up to."""

    __slots__ = ("_final", "_last_call", "_ran_code", "_reason", "_unfinished")

    def __init__(self, cumulative: bool | None = None) -> None:
        super().__init__()
        self._final: Usage | None = None  # of events at which the answer had ended
        self._unfinished: set[int] = set()  # candidates
        self._reason: str | None = None  # the last one, whether or not it was the end
        self._last_call = 0
        self._ran_code = False  # the provider did: a finishReason may not be the end

    def read(self, event: bytes, name: bytes) -> Generated | None:
        """One event of a stream."""
        generated = generated_of(event)
        if generated is None:
            return None
        if generated.error or name == b"error":
            self.fail("error_event")
        else:
            self._read_generated(generated)
            self._read_usage(generated.usage, final=self.finish_reason is not None)
        return generated

    def read_answer(self, body: bytes) -> bool:
        """One whole answer: its counts are final, whatever else it says."""
        generated = generated_of(body)
        if generated is None:
            return False
        if generated.error:
            self.fail("error_body")
        else:
            self._read_generated(generated)
            self._read_usage(generated.usage, final=True)
        self.done = generated.candidates is not None or generated.prompt_feedback is not None
        return True

    def _read_generated(self, generated: Generated) -> None:
        if self.response_id is None:
            self.response_id = identifier(generated.response_id)
        kinds = 0
        for candidate in generated.candidates or ():
            kinds |= self._read_candidate(candidate)
        self.evidence.text_events += kinds & _TEXT
        self.evidence.tool_events += kinds >> 1
        if generated.prompt_feedback is not None:
            self._finish(generated.prompt_feedback.block_reason)
        self.finish_reason = None if self._unfinished else self._reason
        self.done = self.finish_reason is not None and not self._ran_code

    def _read_candidate(self, candidate: Candidate) -> int:
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

    def _finish(self, reason: str | int | None) -> None:
        if type(reason) is int:
            reason = _REASONS[reason] if 0 <= reason < len(_REASONS) else "other"
        if isinstance(reason, str) and reason:
            self._reason = word(reason)

    def _read_part(self, index: int, part: Part) -> int:
        if part.code_execution_result is not None or part.tool_response is not None:
            self._ran_code = True  # what came of it is the prompt's
        call = part.function_call or part.tool_call
        if call is not None:
            return self._read_call(index, call)
        if part.inline_data is not None:
            self._texts.append("\0")  # no text, but not nothing; what an image costs only the usage can say
            return _TEXT
        text = part.text
        if part.executable_code is not None:
            self._ran_code = True
            text = part.executable_code.code
        if text:
            (self._reasonings if part.thought else self._texts).append(text)
        return _TEXT if text else 0

    def _read_call(self, index: int, call: FunctionCall) -> int:
        if call.name or call.partial_args is None:  # fragments that follow have no name
            self._last_call += 1
        self._begin((index, self._last_call))
        self.evidence.tool_chars += len(call.name or "") + _json_chars(call.args) + _json_chars(call.partial_args)
        return _CALL

    def _read_usage(self, raw: dict[str, Any] | None, *, final: bool) -> None:
        if not raw:
            return
        usage = usage_of(raw)
        if usage is None:
            self.flags.add("usage_invalid")
        elif usage != Usage():
            self.usage_raw = raw
            if not final:
                self.usage = running(usage)
                return
            self.flags.update(oddities(raw, usage))
            self.usage, fell = later(self._final, usage)
            self._final = self.usage
            if fell:
                self.flags.add("usage_decreased")


def _json_chars(value: object) -> int:
    """The characters of `value` as compact JSON; none of None."""
    if value is None:
        return 0
    try:
        return len(msgspec.json.encode(value).decode())
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        return len(json.dumps(value, ensure_ascii=False))


_STATUSES = {
    400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 402: "RESOURCE_EXHAUSTED", 403: "PERMISSION_DENIED",
    404: "NOT_FOUND", 405: "UNIMPLEMENTED", 408: "DEADLINE_EXCEEDED", 409: "ABORTED", 413: "INVALID_ARGUMENT",
    415: "INVALID_ARGUMENT", 429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 502: "UNAVAILABLE", 503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}  # fmt: skip


def _error(refusal: Refusal) -> dict[str, Any]:
    """A google.rpc.Status as Google's JSON has it; the field stands in the message too, where SDKs show it."""
    param = refusal.param
    message = refusal.message if param is None else f"{param}: {refusal.message}"
    details: list[dict[str, Any]] = []
    if refusal.code is not None:
        kind = "type.googleapis.com/google.rpc.ErrorInfo"
        details.append({"@type": kind, "reason": refusal.code.upper(), "domain": "tokenweir"})
    if param is not None:
        kind = "type.googleapis.com/google.rpc.BadRequest"
        details.append({"@type": kind, "fieldViolations": [{"field": param, "description": refusal.message}]})
    status = _STATUSES.get(refusal.status, "UNKNOWN")
    return {"error": {"code": refusal.status, "message": message, "status": status, "details": details}}


GEMINI_ERRORS = ErrorShape("/v1beta/", _error, _error)
# Other values of `alt` ask for answers that are no JSON.
_ALT = ("alt=sse", "alt=json")

GEMINI_GENERATE = Dialect(
    name="gemini.generate",
    paths=(f"/v1beta/models/{NAME}:generateContent", f"/v1/models/{NAME}:generateContent"),
    upstream_path=f"/models/{NAME}:generateContent",
    facts=plain_facts,
    upstream_document=upstream_document,
    tally=GeminiTally,
    errors=GEMINI_ERRORS,
    key_header=KeyHeader.X_GOOG_API_KEY,
)

GEMINI_STREAM = Dialect(
    name="gemini.stream",
    paths=(f"/v1beta/models/{NAME}:streamGenerateContent", f"/v1/models/{NAME}:streamGenerateContent"),
    upstream_path=f"/models/{NAME}:streamGenerateContent",
    facts=stream_facts,
    upstream_document=upstream_document,
    tally=GeminiTally,
    errors=GEMINI_ERRORS,
    framings=(SSE, JSON_ARRAY),
    key_header=KeyHeader.X_GOOG_API_KEY,
    query=_ALT,
)
