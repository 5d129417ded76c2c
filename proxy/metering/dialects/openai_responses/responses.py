"""The dialects of OpenAI's responses, of compacting and counting them: events and answers → evidence, usage, finish
reason.

Invariants: generated output is counted once: from its deltas, or from the finished item without deltas; tool results
are not counted. The last event has the usage, and its type is the outcome; it repeats the whole answer.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from proxy.metering.counts import of_medium
from proxy.metering.dialect import Dialect
from proxy.metering.dialects.openai_responses.request import compact_facts, facts
from proxy.metering.dialects.openai_responses.socket import ResponsesWire
from proxy.metering.dialects.openai_responses.wire import (
    LAST,
    Item,
    Response,
    ResponsesEvent,
    Text,
    event_of,
    response_of,
)
from proxy.metering.plain import CountTally
from proxy.metering.refusal import OPENAI_ERRORS, ErrorShape, Refusal
from proxy.metering.socket import Socket
from proxy.metering.tally import Tally, identifier, says_error, word
from proxy.metering.unknown_fields import each, members
from proxy.metering.usage import NO_USAGE, OTHER_WORD, UNITS_MAX, ModelUsage, Usage, service_in_tier
from proxy.metering.usage_reader import UsageReader, openai_usage_of
from proxy.metering.wire.json_reader import argument_text
from proxy.metering.wire.unknown_text import Outputs, Place

# Deltas that are not generated text: audio and tool output.
_NOT_GENERATED = ("response.audio.delta", "response.shell_call_output_content.delta")
_RUNNING = ("queued", "in_progress")
_NO_IMAGE = ("failed", "in_progress")
_ENDED = ("completed", "incomplete", "failed", "cancelled")


# Read from `tool_usage`: the number that OpenAI charges for.
tools_of = UsageReader(searches="web_search.num_requests")
# Source of the image tool, whose usage is in `tool_usage.image_gen`:
# https://developers.openai.com/api/docs/guides/tools-image-generation
_IMAGES_MODEL = "gpt-image-1"
"""model of the image tool if the request names none; from the source above"""
_IMAGES = "image_gen"
# Items that cost nothing but their tokens, or are read. https://developers.openai.com/api/docs/pricing
_ITEMS = frozenset((
    "message", "reasoning", "function_call", "custom_tool_call", "web_search_call", "computer_call", "local_shell_call",
    "apply_patch_call", "tool_search_call", "mcp_call", "mcp_list_tools", "mcp_approval_request",
    "compaction", "image_generation_call", "file_search_call",
))  # fmt: skip
# Counts that are not billed, and stated costs: of xAI, OpenRouter, Pydantic.
_NOT_BILLED = "context_details cost cost_details cost_in_usd_ticks pydantic_ai_gateway"
_TOOL_TEXT = "input_tokens_details.text_tokens output_tokens_details.text_tokens"
_ITEM = """
type id status role phase name arguments input call_id namespace content summary encrypted_content code container_id
outputs output queries results action actions pending_safety_checks error server_label approval_request_id tools
execution operation result background size quality output_format output_compression revised_prompt created_by logprobs
max_output_length
"""
# The output is read by its items; the members besides usage repeat the request, or are times.
_KNOWN = f"""
id object model status service_tier user safety_identifier truncation tool_choice previous_response_id
prompt_cache_key prompt_cache_retention prompt_cache_options billing created_at completed_at temperature top_p
top_logprobs max_output_tokens max_tool_calls presence_penalty frequency_penalty parallel_tool_calls store background
incomplete_details tools metadata text reasoning instructions content_filters moderation error copilot_usage
{each("output", _ITEM)} {each("usage", f"{openai_usage_of.paths} {_NOT_BILLED}")} tool_usage.web_search
{each(f"tool_usage.{_IMAGES}", f"{openai_usage_of.paths} {_TOOL_TEXT}")}
"""
# Members that are read of items, of their parts, and of the answer's reasoning.
_WRITTEN = "content text refusal transcript summary reasoning"


class ResponsesTally(Tally):
    """The counts of one answer."""

    __slots__ = (
        "_file_searches", "_images", "_images_model", "_searches", "_unknown_at", "_with_deltas", "answer_ended",
        "images_seen", "in_background",
    )  # fmt: skip

    known = members("type sequence_number", _KNOWN, each("response", _KNOWN))
    outputs = Outputs(
        Place("delta item item.content output output.content", _WRITTEN, mixed=True),
    )

    def __init__(self, cumulative: bool | None = None) -> None:
        super().__init__(cumulative)
        self.answer_ended = False
        self.in_background: bool | None = None
        self._with_deltas: set[int] = set()  # items with deltas
        self._unknown_at: set[int] = set()  # items of unknown kinds, and hashes of the ids of containers
        self._images: set[int] = set()  # finished images
        self._images_model = _IMAGES_MODEL
        self.images_seen = 0
        self._file_searches: set[int] = set()
        self._searches: set[int] = set()  # items that are one search each

    @property
    def has_output(self) -> bool:
        """Whether there was output, or a reason for none; that an answer is completed is no reason."""
        return not self.evidence.empty or self.finish_reason not in (None, "completed")

    def read(self, event: bytes, name: bytes) -> ResponsesEvent | None:
        parsed = event_of(event)
        if parsed is None:
            return None
        kind = parsed.type or name.decode("ascii", "replace")
        # Each part counts without the others.
        if kind == "error" or name == b"error" or says_error(parsed.error):
            self.fail("error_event")
        else:
            if isinstance(parsed.delta, str):
                self._read_delta(kind, parsed.output_index or 0, parsed.delta)
            if parsed.item is not None:
                self._read_item(parsed.output_index or 0, parsed.item, whole=kind == "response.output_item.done")
        if parsed.response is not None:
            self._read_response(parsed.response, last=kind in LAST)
            self.answer_ended = self.answer_ended or kind in LAST
        return parsed

    def read_answer(self, body: bytes) -> bool:
        response = response_of(body)
        if response is None:
            return False
        if says_error(response.error):
            self.fail("error_body")
        self._read_response(response, last=response.output is not None and response.status not in _RUNNING)
        running = response.status in _RUNNING
        if running:
            self.in_background = True
        # Without a status, it has ended if there is output; with one that no version knew, if there is a usage.
        proof = response.output if response.status is None else response.usage
        self.answer_ended = response.status in _ENDED or (not running and bool(proof))
        return True

    def _read_response(self, response: Response, *, last: bool) -> None:
        self.response_id = self.response_id or identifier(response.id)
        if response.background is not None:
            self.in_background = response.background
        if response.service_tier is not None:
            self.served_as = service_in_tier(response.service_tier, self.served_as)
        for index, item in enumerate(response.output or ()) if last else ():
            self._read_item(index, item, whole=True)
        self._read_usage(response.usage, last=last)
        for tool in response.tools or ():
            if tool.type == "image_generation" and tool.model:
                self._images_model = identifier(tool.model) or OTHER_WORD
        if response.tool_usage is not None:
            searches = tools_of(response.tool_usage, self.flags).searches
            if searches or (last and searches is not None):  # before the end, 0 says nothing
                self._seen("searches", searches)
            self._read_images(response.tool_usage.get(_IMAGES))
        if not last:
            return
        self.done = True
        if says_error(response.error) or response.status == "failed":
            self.fail("error_event")
        details = response.incomplete_details
        reason = (details.reason if details is not None else None) or response.status
        self.finish_reason = word(reason) if reason else self.finish_reason

    def _read_delta(self, kind: str, index: int, delta: str) -> None:
        if not delta or not kind.endswith(".delta") or kind in _NOT_GENERATED:
            return
        self._with_deltas.add(index)
        if "_call" in kind:
            self.evidence.tool_events += 1
            self._called.append(delta)
        else:
            (self._reasonings if "reasoning" in kind else self._texts).append(delta)
            self.evidence.text_events += 1

    def _read_item(self, index: int, item: Item, *, whole: bool) -> None:
        """Read the start of an item, or the `whole` item, which counts unless it had deltas."""
        kind = item.type or ""
        calls = kind.endswith("_call") or kind == "mcp_approval_request"
        if calls:
            self._read_call(index, item)
        if kind not in _ITEMS and not kind.endswith("_output") and (whole or item.container_id):
            at = hash(item.container_id) if item.container_id else index
            if at not in self._unknown_at:
                self._unknown_at.add(at)
                self._keep_unknown(f"output.{word(kind)}")
        if whole and kind == "image_generation_call" and item.status not in _NO_IMAGE:
            self._count_image(index)
        if whole and kind == "web_search_call" and _searched(item.action):
            self._searches.add(index)
            self._seen("searches", len(self._searches))
        if whole and kind == "file_search_call":
            self._file_searches.add(index)
            self._seen("file_searches", len(self._file_searches))
        if not whole or index in self._with_deltas:
            return
        self._with_deltas.add(index)
        called = argument_text(item.arguments) + (item.input or "") + (item.code or "")
        if calls and called:
            self.evidence.tool_events += 1
            self._called.append(called)
        written = _written(item.content) if kind in ("message", "reasoning") else ""
        if kind == "reasoning":
            written += _written(item.summary)
        if written:
            (self._reasonings if kind == "reasoning" else self._texts).append(written)
            self.evidence.text_events += 1

    def _read_call(self, index: int, item: Item) -> None:
        calls = self.evidence.tool_calls
        self._begin_call((index, "call"))
        if item.name and self.evidence.tool_calls > calls:
            self._called.append(item.name)

    def _read_usage(self, raw: dict[str, Any] | None, *, last: bool) -> None:
        if raw:
            self._report(raw, openai_usage_of(raw, self.flags), running=not last)

    def _count_image(self, index: int) -> None:
        """Count a finished image of the tool. Its tokens, once they are reported, take its place."""
        self._images.add(index)
        self.images_seen = min(len(self._images), UNITS_MAX)
        if not self.other_models or self.other_models[0].usage.images:
            self.other_models = (ModelUsage(self._images_model, Usage(images=self.images_seen)),)

    def _read_images(self, raw: Any) -> None:
        """The tokens of the tool that makes images."""
        usage = openai_usage_of(raw, self.flags) if isinstance(raw, dict) else NO_USAGE
        usage = of_medium(usage, "image_completion_tokens")
        if usage.prompt_tokens or usage.completion_tokens:
            self.other_models = (ModelUsage(self._images_model, usage),)


class UnknownTally(ResponsesTally):
    """The counts of one event of an unknown type: its output, and its usage wherever that is."""

    __slots__ = ()

    def __init__(self, cumulative: bool | None = None) -> None:
        super().__init__(cumulative)
        self.flags.add("unknown_event")

    def read(self, event: bytes, name: bytes) -> ResponsesEvent | None:
        whole = response_of(event)
        if whole is not None:
            self._read_usage(whole.usage, last=True)
        parsed = super().read(event, name)
        self.done = True
        return parsed


class CompactTally(ResponsesTally):
    """A compacted conversation: the messages of its output repeat the request."""

    __slots__ = ()

    known = members(_KNOWN, "image")

    def _read_item(self, index: int, item: Item, *, whole: bool) -> None:
        if item.type != "message":
            super()._read_item(index, item, whole=whole)


def _searched(action: Any) -> bool:
    """Whether a call of the search tool is billed as a search; older answers have no action."""
    return not isinstance(action, dict) or action.get("type", "search") == "search"


def _written(parts: list[Text] | None) -> str:
    return "".join((part.text or "") + (part.refusal or "") + (part.transcript or "") for part in parts or ())


def _error_event(refusal: Refusal) -> dict[str, Any]:
    return {"type": "error", "code": refusal.code, "message": refusal.message, "param": refusal.param}


OPENAI_RESPONSES = Dialect(
    name="openai.responses",
    paths=("/v1/responses",),
    facts=facts,
    tally=ResponsesTally,
    ends=(b'"response":', b"[DONE]"),
    errors=ErrorShape("/v1/responses", OPENAI_ERRORS.body, _error_event, "error"),
    cost_path=("response", "usage"),
    stores=True,
    names_files=True,
    socket=Socket(partial(ResponsesWire, ResponsesTally, UnknownTally)),
)

OPENAI_COMPACT = replace(
    OPENAI_RESPONSES,
    name="openai.compact",
    paths=("/v1/responses/compact",),
    facts=compact_facts,
    tally=CompactTally,
    stores=False,
    socket=None,
)

OPENAI_INPUT_TOKENS = replace(
    OPENAI_COMPACT,
    name="openai.input_tokens",
    paths=("/v1/responses/input_tokens",),
    operation="count_tokens",
    tally=CountTally,
    free=True,
)
