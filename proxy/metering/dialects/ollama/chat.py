"""The dialects of Ollama's chat and generate: lines of JSON and answers → evidence, usage, finish reason.

Invariants: answers are streams unless the request declines. The last line is the one that is `done`, with the usage, or
one with an `error`. A provider's base URL ends with `/api`.

Usage: prompt = `prompt_eval_count`, which is absent if the whole prompt was cached and is then estimated; completion =
`eval_count`, including thinking; total = prompt + completion. The raw usage also has the durations, in nanoseconds.

Of a request, only fields that admission needs are read. The document is forwarded unchanged except for the model's
name. A request without a prompt, which would only load or unload a model, is rejected: loading is up to the operator.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
from msgspec import structs

from proxy.metering.counts import with_total
from proxy.metering.dialect import Dialect
from proxy.metering.dialects.openai.request import prompt_of
from proxy.metering.refusal import ErrorShape, Refusal
from proxy.metering.request import InvalidField, RequestFacts, flag, messages_of, model_of, object_in, prompt_evidence
from proxy.metering.tally import Tally, says_error, word
from proxy.metering.unknown_fields import members
from proxy.metering.usage import TOKENS_MAX, PromptEvidence
from proxy.metering.usage_reader import UsageReader
from proxy.metering.wire.framing import NDJSON
from proxy.metering.wire.json_reader import compact, reader
from proxy.metering.wire.unknown_text import Outputs, Place

# Further fields of generate that the model reads; `context` of an earlier answer is a list of tokens.
_GENERATE_AS_JSON = ("context", "format")
_TEXTS = ("system", "prompt", "suffix")


def chat_facts(document: dict[str, Any], named: str | None = None) -> RequestFacts:
    """Read a request of chat. Raises InvalidField."""
    messages = messages_of(document)
    prompt = prompt_of(messages, document, read_as_json=("format",))
    return _facts(document, named, structs.replace(prompt, images=sum(_images(message) for message in messages)))


def generate_facts(document: dict[str, Any], named: str | None = None) -> RequestFacts:
    """Read a request of generate. Raises InvalidField."""
    for name in _TEXTS:
        if document.get(name) is not None and not isinstance(document[name], str):
            raise InvalidField(name, "must be a string")
    if not document.get("prompt"):
        raise InvalidField("prompt", "must be a non-empty string")
    texts = [text for name in _TEXTS if (text := document.get(name))]
    prompt = prompt_evidence(
        texts,
        messages=2 if document.get("system") else 1,
        structures=[value for name in _GENERATE_AS_JSON if (value := document.get(name))],
        images=_images(document),
    )
    return _facts(document, named, prompt)


def _facts(document: dict[str, Any], named: str | None, prompt: PromptEvidence) -> RequestFacts:
    return RequestFacts(
        model=named or model_of(document),
        streamed=document.get("stream") is None or flag(document, "stream"),
        completion_tokens_max=_limit(document),
        prompt=prompt,
    )


def _limit(document: dict[str, Any]) -> int | None:
    """The limit of the answer; in Ollama, 0 and less mean no limit."""
    limit = object_in(document, "options").get("num_predict")
    if limit is None:
        return None
    if type(limit) is not int or limit > TOKENS_MAX:
        raise InvalidField("options.num_predict", f"must be an integer up to {TOKENS_MAX}")
    return limit if limit > 0 else None


def _images(holder: dict[str, Any]) -> int:
    images = holder.get("images")
    return len(images) if isinstance(images, list) else 0


_USAGE_FIELDS = (
    "prompt_eval_count", "prompt_eval_cached_count", "eval_count",
    "total_duration", "load_duration", "prompt_eval_duration", "eval_duration",
)  # fmt: skip


class Function(msgspec.Struct, gc=False):
    """A tool's name, and its arguments as an object."""

    name: str | None = None
    arguments: Any = None


class Call(msgspec.Struct, gc=False):
    """One tool call: never a fragment."""

    function: Function | None = None


class Message(msgspec.Struct, gc=False):
    """The fragment of a message in a line."""

    content: str | None = None
    thinking: str | None = None
    tool_calls: list[Call] | None = None


class Line(msgspec.Struct, gc=False):
    """The metered fields of one line of a stream, or of one whole answer, of either dialect."""

    message: Message | None = None
    response: str | None = None
    thinking: str | None = None
    tool_calls: list[Call] | None = None
    done: bool | None = None
    done_reason: str | None = None
    error: Any = None
    prompt_eval_count: Any = None
    prompt_eval_cached_count: Any = None
    eval_count: Any = None
    total_duration: Any = None
    load_duration: Any = None
    prompt_eval_duration: Any = None
    eval_duration: Any = None


_line = reader(Line)
_reported = UsageReader(
    prompt_tokens="prompt_eval_count", cached_tokens="prompt_eval_cached_count", completion_tokens="eval_count"
)


class OllamaTally(Tally):
    """The counts of one answer."""

    __slots__ = ()

    outputs = Outputs(Place("message", "content thinking tool_calls images"))
    known = members("model created_at done done_reason message response context", *_USAGE_FIELDS)

    def read(self, event: bytes, name: bytes) -> Line | None:
        line = _line(event)
        if line is not None:
            self._read_line(line, "error_event")
        return line

    def read_answer(self, body: bytes) -> bool:
        """Read a whole answer, which has the form of a single line."""
        line = _line(body)
        if line is not None:
            self._read_line(line, "error_body")
        return line is not None

    def _read_line(self, line: Line, failure: str) -> None:
        if line.done or (line.done is None and line.eval_count is not None):
            self._read_usage(line)
        if says_error(line.error):
            self.fail(failure)
            return
        message = line.message
        if message is not None:
            self._add_texts(message.content, message.thinking)
            self._read_calls(message.tool_calls)
        self._add_texts(line.response, line.thinking)
        self._read_calls(line.tool_calls)
        if line.done:
            self.done = True
            if line.done_reason:
                self.finish_reason = word(line.done_reason)

    def _read_calls(self, calls: list[Call] | None) -> None:
        for call in calls or ():
            self._begin_call((0, len(self._calls)))
            if call.function is not None:
                self._called += (call.function.name or "", compact(call.function.arguments))
        self.evidence.tool_events += bool(calls)

    def _read_usage(self, line: Line) -> None:
        raw = {name: value for name in _USAGE_FIELDS if (value := getattr(line, name)) is not None}
        self._report(raw, with_total(_reported(raw, self.flags)), running=not line.done)


def _refused(refusal: Refusal) -> dict[str, Any]:
    return {"error": refusal.message}


OLLAMA_CHAT = Dialect(
    name="ollama.chat",
    paths=("/api/chat",),
    facts=chat_facts,
    tally=OllamaTally,
    errors=ErrorShape("/api/", _refused, _refused),
    usage_member="",
    # ollama.com labels its streams as plain JSON.
    ends=(b'"done":true', b'"done_reason"', b'"error"'),
    framings=(NDJSON, replace(NDJSON, content_type="application/json")),
)

OLLAMA_GENERATE = replace(
    OLLAMA_CHAT,
    name="ollama.generate",
    paths=("/api/generate",),
    operation="text_completion",
    facts=generate_facts,
)
