"""Generated usages of every dialect against a plain model of the rules: no count is lost or counted twice, and nothing
is silent.

A usage is a choice of the members that the provider's published type has, with other names that gateways and servers
give the same counts, each with any value. The model below restates the rules of docs/reference/flags.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from proxy.journal.progress import ProgressTable
from proxy.metering.dialect import Dialect
from proxy.metering.dialects.anthropic.messages import ANTHROPIC_MESSAGES
from proxy.metering.dialects.bedrock.converse import BEDROCK_CONVERSE_STREAM
from proxy.metering.dialects.bedrock.invoke import BEDROCK_INVOKE_STREAM
from proxy.metering.dialects.cohere.chat import COHERE_CHAT
from proxy.metering.dialects.cohere.embed import COHERE_EMBED
from proxy.metering.dialects.gemini.embed import GEMINI_EMBED
from proxy.metering.dialects.gemini.generate import GEMINI_STREAM
from proxy.metering.dialects.gemini_interactions.interactions import GEMINI_INTERACTIONS
from proxy.metering.dialects.mistral.ocr import MISTRAL_OCR
from proxy.metering.dialects.ollama.chat import OLLAMA_CHAT
from proxy.metering.dialects.ollama.embed import OLLAMA_EMBED
from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.dialects.openai.completions import OPENAI_COMPLETIONS
from proxy.metering.dialects.openai.plain import OPENAI_EMBEDDINGS, OPENAI_RERANK
from proxy.metering.dialects.openai_media.images import OPENAI_IMAGES
from proxy.metering.dialects.openai_media.speech import OPENAI_SPEECH
from proxy.metering.dialects.openai_media.transcriptions import OPENAI_TRANSCRIPTIONS
from proxy.metering.dialects.openai_realtime.session import OPENAI_REALTIME
from proxy.metering.dialects.openai_responses.responses import OPENAI_RESPONSES
from proxy.metering.metered import Metered
from proxy.metering.usage import TOKENS_MAX, UNITS_MAX, Usage
from tests.metering.dialects import bedrock
from tests.metering.fixtures import read_answer
from tests.metering.killed import read_and_recovered, table
from tests.support.examples import repeats

__all__ = ["table"]

pytestmark = pytest.mark.hypothesis

Stated = dict[str, Any]  # path of a member → its value
Counts = dict[str, int]  # count → number
TEXT = "Over the weir."


class Api(NamedTuple):
    """A provider's usage: its published type, and where an answer has it."""

    dialect: Dialect
    counts: Mapping[str, str]
    """count → the members that state it, with blanks between; a name that is no field of `Usage` is a part of a sum"""
    body: Callable[[Any], Any] | None
    """usage → a whole answer"""
    stream: Callable[[Sequence[Any]], list[bytes]] | None = None
    """usages → the events of a stream, which has a usage in an early event if there are two"""
    sums: Mapping[str, tuple[str, ...]] = {}
    """count → the parts that are added up: inputs that exclude the cache, outputs that exclude thoughts"""
    medium: str = ""
    """the completion's only medium"""
    generates: bool = True
    sums_total: bool = False
    """where none is stated"""
    unread: str = "usage."
    """where unknown members of the usage are named"""
    new: tuple[str, ...] = ("new_tokens", "new_tier", "details.new_tokens", "list", "nothing")
    """unknown members that it may have: no words where its own members are the usage, no lists that are skipped"""
    total_is_prompt: bool = False
    """where no prompt is stated"""
    running: tuple[str, ...] = ()
    """the counts of early events that stand, if not all do"""


# ---- The model ----


def number(value: object, most: int) -> int | None:
    """A whole number within bounds, exactly; all else is unusable."""
    if type(value) is float and value == int(value):
        value = int(value)
    return value if type(value) is int and 0 <= value <= most else None


def read(api: Api, stated: Stated, flags: set[str]) -> Counts:
    """The counts of one usage: of the members of one count the larger that the total allows."""
    numbers: dict[str, list[int]] = {}
    for count, members in api.counts.items():
        most = UNITS_MAX if count in ("searches", "file_searches", "pages") else TOKENS_MAX
        values = [stated[member] for member in members.split() if stated.get(member) is not None]
        if None in (found := [number(value, most) for value in values]):
            flags.add("usage_invalid")
        if values:
            numbers[count] = [one for one in found if one is not None]
    total = max(numbers.get("total_tokens", ()), default=0) or TOKENS_MAX
    for count, found in numbers.items():
        if len({*found}) > 1:
            flags.add("usage_conflict")
            numbers[count] = [max([one for one in found if one <= total] or found)]
    for whole, parts in api.sums.items():
        stated_parts = [numbers[part] for part in parts if part in numbers]
        numbers[whole] = [sum(part[0] for part in stated_parts)] if stated_parts and all(stated_parts) else []
    counts = {count: found[0] for count, found in numbers.items() if found and count in Usage.__struct_fields__}
    if api.total_is_prompt and "prompt_tokens" not in counts and "total_tokens" in counts:
        counts["prompt_tokens"] = counts["total_tokens"]
    if not api.generates and "prompt_tokens" in counts:
        counts.setdefault("completion_tokens", 0)
    if api.medium and "completion_tokens" in counts:
        counts.setdefault(api.medium, counts["completion_tokens"])
    return with_total(api, counts)


def with_total(api: Api, counts: Counts) -> Counts:
    """The total of a provider that states none is the sum."""
    if api.sums_total and "total_tokens" not in counts and {"prompt_tokens", "completion_tokens"} <= counts.keys():
        return counts | {"total_tokens": counts["prompt_tokens"] + counts["completion_tokens"]}
    return counts


def merged(earlier: Counts, later: Counts, flags: set[str]) -> Counts:
    """Two usages of one answer: no count falls."""
    if any(later[count] < earlier.get(count, 0) for count in later):
        flags.add("usage_decreased")
    counts = {count: max(earlier.get(count, 0), later.get(count, 0)) for count in earlier | later}
    if HOUR in later:  # written for five minutes after all
        counts[HOUR] = later[HOUR]
    return counts


HOUR = "cache_write_1h_tokens"
PARTS = (
    ("completion_tokens", {"reasoning_tokens": "reasoning"}, "reasoning"),
    ("prompt_tokens", {"audio_prompt_tokens": "audio", "image_prompt_tokens": "image"}, "media"),
    ("prompt_tokens", {"cached_tokens": "cached", "cache_write_tokens": "cache_write"}, "cache"),
    ("cache_write_tokens", {"cache_write_1h_tokens": "cache_write_1h"}, "cache_write_1h"),
    ("completion_tokens", {"audio_completion_tokens": "audio", "image_completion_tokens": "image"}, "media"),
    ("cached_tokens", {"cached_audio_tokens": "cached_audio", "cached_image_tokens": "cached_image"}, "cached_media"),
    ("audio_prompt_tokens", {"cached_audio_tokens": "cached_audio"}, "cached_audio"),
    ("image_prompt_tokens", {"cached_image_tokens": "cached_image"}, "cached_image"),
)


def beyond(counts: Counts) -> int:
    """What the total has beside prompt and completion."""
    known = all(count in counts for count in ("prompt_tokens", "completion_tokens", "total_tokens"))
    return counts["total_tokens"] - counts["prompt_tokens"] - counts["completion_tokens"] if known else 0


def fit(counts: Counts, seen_tokens: float, flags: set[str]) -> Counts:
    """Each part within its whole: added where the total shows it or it is far larger, else ignored."""
    counts = {**counts}
    for whole, names, together in PARTS:
        parts = {part: counts[part] for part in names if counts.get(part)}
        if whole not in counts or not parts:
            continue
        size, own = sum(parts.values()), counts[whole]
        shown = [[*parts], *([part] for part in parts)] if whole in ("prompt_tokens", "completion_tokens") else []
        beside = next((some for some in shown if beyond(counts) == sum(parts[part] for part in some)), [])
        if not beside and size > own:
            if together == "reasoning":
                if seen_tokens + 2 >= own / 2:
                    beside = [*parts]
                else:
                    flags.add("reasoning_exceeds_completion")
                    continue
            elif shown and size > 1.5 * own + 1000:
                beside = [*parts]
            else:
                wrong = [part for part in parts if parts[part] > own] or [*parts]
                name = names[wrong[0]] if len(wrong) == 1 else together
                flags.add(f"{name}_exceeds_{whole.removesuffix('_tokens')}")
                for part in wrong:
                    del counts[part]
        if beside:
            flags.update(f"{names[part]}_added" for part in beside)
            is_sum = {"prompt_tokens", "completion_tokens"} <= counts.keys() and beyond(counts) == 0
            counts[whole] += sum(parts[part] for part in beside)
            if is_sum:
                counts["total_tokens"] = counts["prompt_tokens"] + counts["completion_tokens"]
    if beyond(counts):
        flags.add("total_mismatch")
    return counts


def expected(api: Api, reports: Sequence[Stated], seen_tokens: float) -> tuple[Usage | None, set[str]]:
    """The usage of an answer with these reports, the last one at its end, and its flags."""
    flags: set[str] = set()
    counts: Counts = {}
    for at, stated in enumerate(claudes(reports, flags) if api.dialect is ANTHROPIC_MESSAGES else reports):
        usage = read(api, stated, flags)
        has_tokens = not {"prompt_tokens", "completion_tokens"}.isdisjoint(usage)
        if api.running and at < len(reports) - 1:
            usage = {count: usage[count] for count in api.running if count in usage}
        if api.dialect is OPENAI_IMAGES and (not has_tokens or "images" in counts):
            counts = usage if has_tokens else counts if counts and "images" not in counts else {"images": at + 1}
        elif api.dialect is GEMINI_STREAM:  # running counts may fall
            counts |= usage
        else:
            counts = merged(counts, usage, flags)
        if api.dialect is ANTHROPIC_MESSAGES and "completion_tokens" in counts:
            counts = with_total(api, {count: counts[count] for count in counts if count != "total_tokens"})
    if api.dialect is GEMINI_STREAM and "reasoning_tokens" not in counts and beyond(counts) > 0:
        counts["reasoning_tokens"] = beyond(counts)  # thoughts that only the total has
    return (Usage(**fit(counts, seen_tokens, flags)) if counts else None), flags


def claudes(reports: Sequence[Stated], flags: set[str]) -> list[Stated]:
    """Claude's usages, each with what the earlier one reported.

    The first output is a placeholder. A cache that is reported only after the input is a part of the input. Without
    lifetimes, all that is written is for an hour if all before was.
    """
    if len(reports) == 1:
        return [*reports]
    early, late = ({path: value for path, value in one.items() if value is not None} for one in reports)
    replaced = {path.partition(".")[0] for path in reports[1] if "." in path} | late.keys()
    replaced |= {"output_tokens", "output_tokens_details"}
    both = {path: value for path, value in early.items() if path.partition(".")[0] not in replaced} | late

    def of(stated: Stated, *members: str) -> int:
        return sum(number(stated.get(member), TOKENS_MAX) or 0 for member in members)

    began, cached, written = of(early, "input_tokens"), of(late, *CACHED), of(late, CACHED[1])
    if late.get(CACHED[0]) or late.get(CACHED[1]):
        if began and cached and not of(early, *CACHED) and late.get("input_tokens") in (None, began):
            both["input_tokens"] = max(began - cached, 0)
            flags.add("cache_within_input")
        hour = of(early, LIFETIME)
        if hour and LIFETIME not in reports[1] and written > of(early, CACHED[1]):
            if hour == of(early, CACHED[1]):
                both[LIFETIME] = written
            else:
                flags.add("usage_conflict")
    return [early, both]


CACHED = ("cache_read_input_tokens", "cache_creation_input_tokens")
LIFETIME = "cache_creation.ephemeral_1h_input_tokens"


def nested(stated: Stated) -> dict[str, Any]:
    """The members of these paths as an object. `a[k=X].b` is in the entry of the list `a` whose `k` is X."""
    raw: dict[str, Any] = {}
    for path, value in stated.items():
        *holders, name = path.split(".")
        inside = raw
        for holder in holders:
            holder, _, entry = holder.partition("[")
            if entry:
                key, _, word = entry.rstrip("]").partition("=")
                entries = inside.setdefault(holder, [])
                inside = next((one for one in entries if one[key] == word), {})
                if not inside:
                    inside[key] = word
                    entries.append(inside)
            else:
                inside = inside.setdefault(holder, {})
        inside[name] = value
    return raw


# ---- The providers ----


def sse(*events: Any) -> list[bytes]:
    return [b"data: %b\n\n" % (one if isinstance(one, bytes) else json.dumps(one).encode()) for one in events]


def with_usage(early: Mapping[str, Any], usages: Sequence[Any], name: str = "usage") -> Any:
    """An early event with a usage, if there are two."""
    return [{**early, name: usages[0]}] if len(usages) > 1 else []


def chat_stream(usages: Sequence[Any]) -> list[bytes]:
    said = {"choices": [{"index": 0, "delta": {"content": TEXT}}]}
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    return sse(*with_usage(said, usages), said, end, {"choices": [], "usage": usages[-1]}, b"[DONE]")


def text_stream(usages: Sequence[Any]) -> list[bytes]:
    said = {"choices": [{"index": 0, "text": TEXT}]}
    end = {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}], "usage": usages[-1]}
    return sse(*with_usage(said, usages), said, end, b"[DONE]")


def responses_stream(usages: Sequence[Any]) -> list[bytes]:
    early = [{"type": "response.in_progress", "response": one} for one in with_usage({}, usages)]
    said = {"type": "response.output_text.delta", "output_index": 0, "delta": TEXT}
    last = {"type": "response.completed", "response": {"status": "completed", "usage": usages[-1]}}
    return sse(*early, said, last)


def anthropic_stream(usages: Sequence[Any]) -> list[bytes]:
    start = [{"type": "message_start", "message": one} for one in with_usage({"id": "m"}, usages)]
    said = {"type": "content_block_delta", "index": 0, "delta": {"text": TEXT}}
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usages[-1]}
    return sse(*start, said, end, {"type": "message_stop"})


def gemini_stream(usages: Sequence[Any]) -> list[bytes]:
    said = {"candidates": [{"content": {"parts": [{"text": TEXT}]}}]}
    end = {"candidates": [{"content": {"parts": []}, "finishReason": "STOP"}], "usageMetadata": usages[-1]}
    return sse(*with_usage(said, usages, "usageMetadata"), said, end)


def interactions_stream(usages: Sequence[Any]) -> list[bytes]:
    early = [{"event_type": "interaction.created", "interaction": one} for one in with_usage({}, usages)]
    said = {"event_type": "step.delta", "index": 0, "delta": {"type": "text", "text": TEXT}}
    last = {"event_type": "interaction.completed", "interaction": {"status": "completed", "usage": usages[-1]}}
    return sse(*early, said, last)


def bedrock_stream(usages: Sequence[Any]) -> list[bytes]:
    early = [bedrock.event("metadata", {"usage": usages[0]})] if len(usages) > 1 else []
    end = bedrock.event("messageStop", {"stopReason": "end_turn"})
    return [*early, bedrock.delta(TEXT), end, bedrock.event("metadata", {"usage": usages[-1]})]


def ollama_stream(usages: Sequence[Any]) -> list[bytes]:
    lines = [{"message": {"content": TEXT}, "done": False}, {"message": {}, "done": True, **usages[-1]}]
    return [json.dumps(line).encode() + b"\n" for line in lines]


def cohere_stream(usages: Sequence[Any]) -> list[bytes]:
    early = [{"type": "content-start", "delta": one} for one in with_usage({}, usages)]
    said = {"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": TEXT}}}}
    last = {"type": "message-end", "delta": {"finish_reason": "COMPLETE", "usage": usages[-1]}}
    return sse(*early, said, last)


def realtime_stream(usages: Sequence[Any]) -> list[bytes]:
    said = {"type": "response.output_text.delta", "output_index": 0, "delta": TEXT}
    return sse(said, {"type": "response.done", "response": {"status": "completed", "usage": usages[-1]}})


def invoke_stream(usages: Sequence[Any]) -> list[bytes]:
    last = {"generation": "", "stop_reason": "stop", "amazon-bedrock-invocationMetrics": usages[-1]}
    return [bedrock.chunk({"generation": TEXT, "stop_reason": None}), bedrock.chunk(last)]


def media_stream(kind: str) -> Callable[[Sequence[Any]], list[bytes]]:
    return lambda usages: sse(*({"type": kind, "usage": usage} for usage in usages))


INCLUSIVE = {
    "prompt_tokens": "prompt_tokens input_tokens inputTokens promptTokens",
    "completion_tokens": "completion_tokens output_tokens outputTokens completionTokens",
    "total_tokens": "total_tokens totalTokens",
    "cached_tokens": "prompt_tokens_details.cached_tokens input_tokens_details.cached_tokens cache_read_input_tokens "
    "prompt_cache_hit_tokens cached_tokens",
    "cache_write_tokens": "prompt_tokens_details.cache_write_tokens cache_creation_input_tokens",
    "cache_write_1h_tokens": "cache_creation.ephemeral_1h_input_tokens",
    "audio_prompt_tokens": "prompt_tokens_details.audio_tokens input_token_details.audio_tokens",
    "image_prompt_tokens": "prompt_tokens_details.image_tokens input_tokens_details.image_tokens",
    "cached_audio_tokens": "input_token_details.cached_tokens_details.audio_tokens",
    "reasoning_tokens": "completion_tokens_details.reasoning_tokens output_tokens_details.reasoning_tokens",
    "audio_completion_tokens": "completion_tokens_details.audio_tokens",
    "image_completion_tokens": "completion_tokens_details.image_tokens output_tokens_details.image_tokens",
    "searches": "server_tool_use.web_search_requests num_search_queries",
}
CLAUDE = {
    "input": "input_tokens", "cached_tokens": "cache_read_input_tokens",
    "cache_write_tokens": "cache_creation_input_tokens",
    "cache_write_1h_tokens": "cache_creation.ephemeral_1h_input_tokens", "completion_tokens": "output_tokens",
    "reasoning_tokens": "output_tokens_details.thinking_tokens", "searches": "server_tool_use.web_search_requests",
}  # fmt: skip
OF_CLAUDES_START = ("prompt_tokens", "cached_tokens", "cache_write_tokens", "cache_write_1h_tokens", "searches")
GEMINI = {
    "input": "promptTokenCount", "tools": "toolUsePromptTokenCount", "cached_tokens": "cachedContentTokenCount",
    "answer": "candidatesTokenCount", "reasoning_tokens": "thoughtsTokenCount", "total_tokens": "totalTokenCount",
    "audio_prompt_tokens": "promptTokensDetails[modality=AUDIO].tokenCount",
    "image_prompt_tokens": "promptTokensDetails[modality=IMAGE].tokenCount",
    "audio_completion_tokens": "candidatesTokensDetails[modality=AUDIO].tokenCount",
    "image_completion_tokens": "candidatesTokensDetails[modality=IMAGE].tokenCount",
    "cached_audio_tokens": "cacheTokensDetails[modality=AUDIO].tokenCount",
    "cached_image_tokens": "cacheTokensDetails[modality=IMAGE].tokenCount",
}  # fmt: skip
GEMINI_SUMS = {"prompt_tokens": ("input", "tools"), "completion_tokens": ("answer", "reasoning_tokens")}
PROMPT_PARTS = (
    "cached_tokens", "audio_prompt_tokens", "image_prompt_tokens", "cached_audio_tokens", "cached_image_tokens",
)  # fmt: skip
INTERACTIONS = {
    "input": "total_input_tokens", "tools": "total_tool_use_tokens", "cached_tokens": "total_cached_tokens",
    "answer": "total_output_tokens", "reasoning_tokens": "total_thought_tokens", "total_tokens": "total_tokens",
    "audio_prompt_tokens": "input_tokens_by_modality[modality=audio].tokens",
    "image_prompt_tokens": "input_tokens_by_modality[modality=image].tokens",
    "audio_completion_tokens": "output_tokens_by_modality[modality=audio].tokens",
    "image_completion_tokens": "output_tokens_by_modality[modality=image].tokens",
    "searches": "grounding_tool_count[type=google_search].count",
}  # fmt: skip
EXCLUSIVE = {"prompt_tokens": ("input", "cached_tokens", "cache_write_tokens")}
CONVERSE = {
    "input": "inputTokens", "cached_tokens": "cacheReadInputTokens cacheReadInputTokenCount",
    "cache_write_tokens": "cacheWriteInputTokens cacheWriteInputTokenCount",
    "cache_write_1h_tokens": "cacheDetails[ttl=1h].inputTokens", "completion_tokens": "outputTokens",
    "total_tokens": "totalTokens",
}  # fmt: skip
METRICS = {
    "input": "inputTokenCount", "cached_tokens": "cacheReadInputTokenCount",
    "cache_write_tokens": "cacheWriteInputTokenCount", "completion_tokens": "outputTokenCount",
}  # fmt: skip
OLLAMA = {
    "prompt_tokens": "prompt_eval_count", "cached_tokens": "prompt_eval_cached_count",
    "completion_tokens": "eval_count",
}  # fmt: skip
MESSAGE = {"message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}
DETAILS = ("cached_tokens", "audio_prompt_tokens", "image_prompt_tokens")
TOKENS = ("prompt_tokens", "completion_tokens", "total_tokens")
OF_MEDIA = {count: INCLUSIVE[count] for count in (*TOKENS, "image_prompt_tokens", "image_completion_tokens")}
APIS = (
    Api(OPENAI_CHAT, INCLUSIVE, lambda usage: {"choices": [MESSAGE], "usage": usage}, chat_stream),
    Api(OPENAI_COMPLETIONS, INCLUSIVE, lambda usage: {"choices": [{"text": TEXT}], "usage": usage}, text_stream),
    Api(
        OPENAI_RESPONSES, INCLUSIVE,
        lambda usage: {
            "status": "completed", "output": [{"type": "message", "content": [{"text": TEXT}]}], "usage": usage,
        },
        responses_stream,
    ),
    Api(
        ANTHROPIC_MESSAGES, CLAUDE,
        lambda usage: {"content": [{"type": "text", "text": TEXT}], "stop_reason": "end_turn", "usage": usage},
        anthropic_stream, EXCLUSIVE, sums_total=True, running=OF_CLAUDES_START,
    ),
    Api(
        GEMINI_STREAM, GEMINI,
        lambda usage: {
            "candidates": [{"content": {"parts": [{"text": TEXT}]}, "finishReason": "STOP"}], "usageMetadata": usage,
        },
        gemini_stream, GEMINI_SUMS, unread="usageMetadata.",
        running=("prompt_tokens", *PROMPT_PARTS),
    ),
    Api(
        GEMINI_INTERACTIONS, INTERACTIONS,
        lambda usage: {
            "status": "completed", "steps": [{"type": "model_output", "content": [{"text": TEXT}]}], "usage": usage,
        },
        interactions_stream, GEMINI_SUMS, running=("prompt_tokens", "searches", *PROMPT_PARTS),
    ),
    Api(
        BEDROCK_CONVERSE_STREAM, CONVERSE,
        lambda usage: {"output": {"message": {"content": [{"text": TEXT}]}}, "stopReason": "end", "usage": usage},
        bedrock_stream, EXCLUSIVE, sums_total=True,
    ),
    Api(OPENAI_REALTIME, INCLUSIVE, None, realtime_stream),
    Api(
        BEDROCK_INVOKE_STREAM, METRICS, None, invoke_stream, EXCLUSIVE, sums_total=True,
        unread="amazon-bedrock-invocationMetrics.", new=("nothing",),
    ),
    Api(
        COHERE_CHAT,
        {
            "prompt_tokens": "tokens.input_tokens", "completion_tokens": "tokens.output_tokens",
            "cached_tokens": "cached_tokens", "reasoning_tokens": "tokens.reasoning_tokens",
        },
        lambda usage: {"message": {"content": [{"text": TEXT}]}, "finish_reason": "COMPLETE", "usage": usage},
        cohere_stream, sums_total=True,
    ),
    Api(
        OLLAMA_CHAT, OLLAMA, lambda usage: {"message": {"content": TEXT}, "done": True, **usage}, ollama_stream,
        sums_total=True, unread="", new=("new_tokens", "details.new_tokens", "list"),
    ),
    Api(
        OLLAMA_EMBED, {"prompt_tokens": "prompt_eval_count"}, lambda usage: {"embeddings": [[1]], **usage},
        generates=False, sums_total=True, unread="", new=("new_tokens", "details.new_tokens"),
    ),
    Api(
        OPENAI_EMBEDDINGS, {count: INCLUSIVE[count] for count in (*TOKENS, "image_prompt_tokens")},
        lambda usage: {"data": [{"embedding": [1]}], "usage": usage}, generates=False,
        total_is_prompt=True,
    ),
    Api(
        OPENAI_RERANK, {"searches": "billed_units.search_units"}, lambda usage: {"results": [], "meta": usage},
        generates=False, unread="meta.",
    ),
    Api(
        COHERE_EMBED, {"input": "billed_units.input_tokens", "image_prompt_tokens": "billed_units.image_tokens"},
        lambda usage: {"embeddings": [], "meta": usage}, sums={"prompt_tokens": ("input", "image_prompt_tokens")},
        generates=False, sums_total=True, unread="meta.",
    ),
    Api(
        GEMINI_EMBED, {"prompt_tokens": "promptTokenCount"}, lambda usage: {"embedding": {}, "usageMetadata": usage},
        generates=False, sums_total=True, unread="usageMetadata.",
    ),
    Api(MISTRAL_OCR, {"pages": "pages_processed"}, lambda usage: {"usage_info": usage}, unread="usage_info."),
    Api(
        OPENAI_IMAGES, OF_MEDIA, lambda usage: {"data": [{"url": "u"}], "usage": usage},
        media_stream("image_generation.completed"), medium="image_completion_tokens",
    ),
    Api(
        OPENAI_TRANSCRIPTIONS, {count: INCLUSIVE[count] for count in (*TOKENS, "audio_prompt_tokens")},
        lambda usage: {"text": TEXT, "usage": usage}, media_stream("transcript.text.done"),
    ),
    Api(
        OPENAI_SPEECH, {count: INCLUSIVE[count] for count in TOKENS}, None, media_stream("speech.audio.done"),
        medium="audio_completion_tokens",
    ),
)  # fmt: skip


# ---- The test ----

NUMBERS = st.sampled_from([0, 1, 2, 3, 5, 8, 40, 48, 1_000, 1_040, 2_600, 9_900])
VALUES = NUMBERS | st.sampled_from([None, None, 8.0, -5, "7", True, 1.5, 10**9, [], {}])
FIFTH = st.integers(0, 4)
# Streams with a usage in the last event alone.
ONE_REPORT = (ollama_stream, realtime_stream, invoke_stream)
# Flags that say nothing of a count.
BESIDE = {"tool_prompt", "audio_unknown"}
NEW = {"new_tokens": 17, "new_tier": "gold", "details.new_tokens": 5, "list": [{"new": 3}], "nothing": 0}
PATHS = {
    "new_tokens": "new_tokens", "new_tier": "new_tier=gold", "details.new_tokens": "details.new_tokens",
    "list": "list.new",
}  # fmt: skip


def members_of(api: Api) -> st.SearchStrategy[list[str]]:
    """Some members, more often the first one of each count."""
    members = [member for paths in api.counts.values() for member in paths.split()]
    firsts = [paths.split()[0] for paths in api.counts.values()]
    return st.lists(st.sampled_from(firsts) | st.sampled_from(members), unique=True, max_size=8)


# Strategies are made once: to make them for each example takes as long as to read its answer.
MEMBERS = {api.dialect.name: members_of(api) for api in APIS}


@st.composite
def usages(draw: st.DrawFn, api: Api) -> Stated:
    """Any members with any values; often with a total that says what belongs to what."""
    chosen = draw(MEMBERS[api.dialect.name])
    stated: Stated = {member: draw(NUMBERS if draw(FIFTH) else VALUES) for member in chosen}
    total = api.counts.get("total_tokens", "").split()[:1]
    if total and draw(st.booleans()):
        numbers = [value for value in stated.values() if type(value) is int and 0 <= value < 10_000]
        stated[total[0]] = sum(draw(st.lists(st.sampled_from(numbers), unique=True)) if numbers else [])
    return stated


def check(api: Api, metered: Metered, reports: Sequence[Stated], new: Iterable[str]) -> None:
    usage, flags = expected(api, reports, metered.evidence.tokens_seen)
    assert counts_of(metered.usage) == counts_of(usage), f"{counts_of(metered.usage)} != {counts_of(usage)}"
    assert {*metered.flags} - BESIDE == flags, f"{metered.flags} != {flags}"
    named = {f"{api.unread}{PATHS[name]}" for name in new if name in PATHS}
    assert {*metered.unknown_usage_fields.paths} == named, f"{metered.unknown_usage_fields.paths} != {named}"


def counts_of(usage: Usage | None) -> Counts:
    counts = {} if usage is None else structs.asdict(usage)
    return {name: count for name, count in counts.items() if count is not None}


def compare(api: Api, reports: Sequence[Stated], new: Iterable[str], table: ProgressTable) -> None:
    """Compare what is read of these reports, streamed and not, and after a kill, with the model."""
    raws = [nested(report) for report in reports]
    raws[-1] |= nested({name: NEW[name] for name in new})
    if api.body is not None:
        check(api, read_answer(api.dialect, api.body(raws[-1])), reports[-1:], new)
    if api.stream is not None:
        metered, recovered = read_and_recovered(api.dialect, api.stream(raws), table)
        check(api, metered, reports[-1:] if api.stream in ONE_REPORT else reports, new)
        assert (recovered.usage, {*recovered.flags}) == (metered.usage, {*metered.flags}), f"{recovered} != {metered}"


@pytest.mark.parametrize("name", [api.dialect.name for api in APIS])
@settings(max_examples=repeats(200, gate=12), deadline=None)
@given(data=st.data())
def test_generated_usages_are_read_as_the_rules_say(name: str, data: st.DataObject, table: ProgressTable) -> None:
    api = next(api for api in APIS if api.dialect.name == name)
    reports = data.draw(st.lists(usages(api), min_size=1, max_size=2), label="reports")
    compare(api, reports, data.draw(st.sets(st.sampled_from(api.new), max_size=2), label="unknown members"), table)
