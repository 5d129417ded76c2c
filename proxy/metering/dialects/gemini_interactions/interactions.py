"""The dialect of Google's interactions: events and answers → evidence, usage, finish reason.

Invariants: generated output is counted (text, summaries of thoughts, calls); results of tools are not. The last event
has the usage and the outcome, and no output. Searches are those of `grounding_tool_count`, else the distinct queries of
the answer's search calls; up to Gemini 2 one per answer, as in generateContent. A provider's base URL ends as for
generateContent.

Usage: as in generateContent, tokens from the provider's tools are in the total and billed as prompt, and thoughts are
part of the completion. `raw_prompt_token` repeats both together with unbilled tokens.

Reading raises nothing; well-typed fields are kept. Payloads of images and audio are not read. Of a request, only fields
that admission needs are read. An agent replaces the model, and is routed by its name. The document is forwarded
unchanged except for that name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import structs

from proxy.metering.dialect import Dialect, KeyHeader
from proxy.metering.dialects.gemini.generate import GEMINI_ERRORS, billed_once
from proxy.metering.dialects.gemini.usage import running
from proxy.metering.refusal import ErrorShape, Refusal
from proxy.metering.request import (
    InvalidField,
    RequestFacts,
    flag,
    integer,
    model_of,
    object_in,
    prompt_evidence,
    service_asked,
)
from proxy.metering.tally import Tally, identifier, says_error, word
from proxy.metering.unknown_fields import each, members
from proxy.metering.usage import TOKENS_MAX, UNITS_MAX, PromptEvidence, service_in_tier
from proxy.metering.usage_reader import UsageReader
from proxy.metering.wire.framing import LONG_SSE
from proxy.metering.wire.json_reader import ENTRIES_MAX, argument_text, reader
from proxy.metering.wire.unknown_text import Outputs, Place

# Fields that the model reads as JSON: of the request, of a step.
_STRUCTURES = ("tools", "response_format")
_CALLED = ("arguments", "result")
_ATTACHED = frozenset({"audio", "video", "document", "file"})
_DEPTH_MAX = 8


def facts(document: dict[str, Any], named: str | None = None) -> RequestFacts:
    """Read a request. Raises InvalidField."""
    if flag(document, "background"):
        # Its answer would be fetched by a later request, which is not metered.
        raise InvalidField("background", "is not supported: an answer is metered only in its own request")
    config = object_in(document, "generation_config")
    limit = "generation_config.max_output_tokens"
    return RequestFacts(
        model=named or model_of(document, _model_field(document)),
        streamed=flag(document, "stream"),
        completion_tokens_max=integer(config, "max_output_tokens", limit, at_most=TOKENS_MAX),
        prompt=_prompt(document),
        served_as=service_asked(document),
        is_stored=document.get("store") is not False,
    )


def upstream_document(document: dict[str, Any], *, upstream_model: str, inject_usage: bool) -> dict[str, Any]:
    """A shallow copy with the upstream name of the model or the agent."""
    return {**document, _model_field(document): upstream_model}


def _model_field(document: Mapping[str, Any]) -> str:
    if "agent" not in document:
        return "model"
    if "model" in document:
        raise InvalidField("agent", "must not be combined with model")
    return "agent"


def _prompt(document: Mapping[str, Any]) -> PromptEvidence:
    texts: list[str] = []
    kinds: list[object] = []
    structures = [document[name] for name in _STRUCTURES if document.get(name)]
    asked = document.get("input")
    if asked is not None and not isinstance(asked, str | list | dict):
        raise InvalidField("input", "must be a string, an object or an array")
    for part in (document.get("system_instruction"), asked):
        _read(part, texts, kinds, structures)
    return prompt_evidence(
        texts,
        messages=(len(asked) if isinstance(asked, list) else 1) + bool(document.get("system_instruction")),
        structures=structures,
        images=kinds.count("image"),
        attachments=sum(kind in _ATTACHED for kind in kinds),
    )


def _read(part: object, texts: list[str], kinds: list[object], structures: list[object], depth: int = 0) -> None:
    """Add the texts of steps and their contents, the types of other contents, and calls as JSON."""
    if isinstance(part, str):
        texts.append(part)
    elif isinstance(part, list) and depth < _DEPTH_MAX:
        for one in part:
            _read(one, texts, kinds, structures, depth + 1)
    elif isinstance(part, dict):
        kinds.append(part.get("type"))
        structures += [part[name] for name in _CALLED if part.get(name)]
        for name in ("text", "content", "summary"):
            if depth < _DEPTH_MAX:
                _read(part.get(name), texts, kinds, structures, depth + 1)


class Content(msgspec.Struct, gc=False):
    """A part of the model's output."""

    type: str | None = None
    text: str | None = None


class Step(msgspec.Struct, gc=False):
    """One step of an answer, or the start of one: a thought, output, a call or the result of one."""

    type: str | None = None
    name: str | None = None
    arguments: Any = None
    content: list[Content] | None = None
    summary: list[Content] | None = None


class Delta(msgspec.Struct, gc=False):
    """A fragment of a step."""

    type: str | None = None
    text: str | None = None
    content: Content | None = None
    arguments: Any = None


class Interaction(msgspec.Struct, gc=False):
    """A whole answer, or its fields in an event."""

    id: str | None = None
    model: str | None = None
    status: str | None = None
    service_tier: str | None = None
    steps: list[Step] | None = None
    usage: dict[str, Any] | None = None
    error: Any = None


class Metadata(msgspec.Struct, gc=False):
    """Metadata that any event may have."""

    usage: dict[str, Any] | None = msgspec.field(default=None, name="total_usage")


class _InteractionEvent(msgspec.Struct, gc=False):
    type: str | None = msgspec.field(default=None, name="event_type")
    index: int | None = None
    step: Step | None = None
    delta: Delta | None = None
    interaction: Interaction | None = None
    usage: dict[str, Any] | None = None
    metadata: Metadata | None = None
    error: Any = None


event_of = reader(_InteractionEvent)
interaction_of = reader(Interaction)


_LAST = "interaction.completed"
# Statuses of background answers, which have not ended.
_RUNNING = ("queued", "in_progress")
# Output that is no text: a placeholder is counted for it, since only the usage has its cost.
_MEDIA = frozenset({"image", "audio", "video", "document"})
_SEARCH = "google_search_call"

_AUDIO, _IMAGE = "[modality=audio].tokens", "[modality=image].tokens"
usage_of = UsageReader(
    prompt_tokens="total_input_tokens + total_tool_use_tokens",
    cached_tokens="total_cached_tokens",
    completion_tokens="total_output_tokens + total_thought_tokens",
    reasoning_tokens="total_thought_tokens",
    total_tokens="total_tokens",
    audio_prompt_tokens=f"input_tokens_by_modality{_AUDIO}",
    audio_completion_tokens=f"output_tokens_by_modality{_AUDIO}",
    image_prompt_tokens=f"input_tokens_by_modality{_IMAGE}",
    image_completion_tokens=f"output_tokens_by_modality{_IMAGE}",
    searches="grounding_tool_count[type=google_search].count",
)
# Parts by modality. Videos and documents cost what text does; cached audio has a price of its own, which is not read.
_SEEN = "text image video document"
_USAGE = f"""
{usage_of.paths} {each("cached_tokens_by_modality", _SEEN)}
{each("input_tokens_by_modality", f"{_SEEN} audio")} {each("output_tokens_by_modality", f"{_SEEN} audio")}
tool_use_tokens_by_modality initial_input_tokens raw_prompt_token
grounding_tool_count.count grounding_tool_count.type=google_search
"""
_KNOWN = f"""
id model agent object status created updated role service_tier input steps outputs output_text output_image output_audio
output_video error errors tools generation_config agent_config response_format system_instruction continuation_token
previous_interaction_id environment environment_id labels safety_settings store background stream
{each("usage", _USAGE)}
"""


class InteractionTally(Tally):
    """The counts of one answer."""

    __slots__ = ("_model", "_queries")

    known = members(
        "event_type event_id index step delta step_usage metadata interaction_id", _KNOWN, each("interaction", _KNOWN)
    )
    outputs = Outputs(Place("delta step steps", "text content arguments summary result", mixed=True))

    def __init__(self, cumulative: bool | None = None) -> None:
        super().__init__(cumulative)
        self._model = ""
        self._queries: set[int] = set()  # hashes: queries are user text, which is not kept

    def read(self, event: bytes, name: bytes) -> _InteractionEvent | None:
        parsed = event_of(event)
        if parsed is None:
            return None
        kind = parsed.type or name.decode("ascii", "replace")
        # Each part counts without the others.
        if kind == "error" or name == b"error" or says_error(parsed.error):
            self.fail("error_event")
        if parsed.step is not None:
            self._read_step(parsed.index or 0, parsed.step)
        if parsed.delta is not None:
            self._read_delta(parsed.delta)
        self._read_running(parsed.usage or (parsed.metadata.usage if parsed.metadata is not None else None))
        if parsed.interaction is not None:
            self._read_interaction(parsed.interaction, "error_event", last=kind == _LAST)
        return parsed

    def read_answer(self, body: bytes) -> bool:
        interaction = interaction_of(body)
        if interaction is None:
            return False
        for index, step in enumerate(interaction.steps or ()):
            self._read_step(index, step)
        ended = interaction.status is not None and interaction.status not in _RUNNING
        self._read_interaction(interaction, "error_body", last=ended)
        return True

    def settle(self) -> None:
        super().settle()
        if billed_once(self._model) and self.usage is not None and self.usage.searches:
            self.usage = structs.replace(self.usage, searches=1)

    def _read_interaction(self, interaction: Interaction, failure: str, *, last: bool) -> None:
        self.response_id = self.response_id or identifier(interaction.id)
        self._model = interaction.model or self._model
        if interaction.service_tier is not None:
            self.served_as = service_in_tier(interaction.service_tier, self.served_as)
        if says_error(interaction.error) or interaction.status == "failed":
            self.fail(failure)
        if not last:
            self._read_running(interaction.usage)
            return
        self.done = True
        self.finish_reason = word(interaction.status) if interaction.status else self.finish_reason
        if interaction.usage:
            used = interaction.usage
            self.completion_so_far = None
            self._report(
                used, usage_of(used, self.flags), ("tool_prompt",) if used.get("total_tool_use_tokens") else ()
            )

    def _read_running(self, raw: dict[str, Any] | None) -> None:
        """Report running counts: the completion is not final."""
        if raw:
            usage = usage_of(raw, self.flags)
            self.completion_so_far, self.usage_raw = usage.completion_tokens, raw
            self.usage = running(usage)
            self._take_units()

    def _read_step(self, index: int, step: Step) -> None:
        """Read the start of a step, or in an answer the whole step."""
        kind = step.type or ""
        if kind.endswith("_call"):
            self._begin_call((index, "call"))
            # In the start of a streamed step, the arguments are an empty object.
            self._called += (step.name or "", argument_text(step.arguments or None))
            self.evidence.tool_events += 1
            self._read_queries(kind, step.arguments)
        elif kind in ("model_output", "thought"):
            thought = kind == "thought"
            for content in (*(step.content or ()), *(step.summary or ())):
                self._read_content(content, thought=thought)

    def _read_delta(self, delta: Delta) -> None:
        kind = delta.type or ""
        if kind == "thought_summary":
            self._add_texts(None, delta.content.text if delta.content is not None else None)
        elif kind in _MEDIA:
            self._add_texts("\0")
        elif kind == "arguments_delta" or kind.endswith("_call"):
            self._called.append(argument_text(delta.arguments))
            self.evidence.tool_events += 1
            self._read_queries(kind, delta.arguments)
        elif kind == "text":
            self._add_texts(delta.text)

    def _read_content(self, content: Content, *, thought: bool) -> None:
        text = "\0" if content.type in _MEDIA else content.text
        self._add_texts(None if thought else text, text if thought else None)

    def _read_queries(self, kind: str, arguments: object) -> None:
        queries = arguments.get("queries") if kind == _SEARCH and isinstance(arguments, dict) else None
        for query in queries[:ENTRIES_MAX] if isinstance(queries, list) else ():
            if isinstance(query, str) and query and len(self._queries) < UNITS_MAX:
                self._queries.add(hash(query))
        if self._queries:
            self._seen("searches", 1 if billed_once(self._model) else len(self._queries))


def _error_event(refusal: Refusal) -> dict[str, Any]:
    return {"event_type": "error", "error": {"code": refusal.code, "message": refusal.message}}


GEMINI_INTERACTIONS = Dialect(
    name="gemini.interactions",
    paths=("/v1beta/interactions", "/v1/interactions"),
    operation="generate_content",
    facts=facts,
    upstream_document=upstream_document,
    tally=InteractionTally,
    errors=ErrorShape("/v1beta/interactions", GEMINI_ERRORS.body, _error_event, "error"),
    ends=(_LAST.encode(), b"[DONE]"),
    framings=(LONG_SSE,),
    key_header=KeyHeader.X_GOOG_API_KEY,
    query=("alt=sse", "alt=json"),
)
