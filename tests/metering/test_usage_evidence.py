"""Usage is evidence: nothing that an answer reports or shows is lost, counted twice, or silent. By what was seen."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from msgspec import structs

from proxy.journal.progress import ProgressTable
from proxy.metering.dialect import Dialect
from proxy.metering.dialects.anthropic.messages import ANTHROPIC_MESSAGES
from proxy.metering.dialects.bedrock.converse import BEDROCK_CONVERSE
from proxy.metering.dialects.cohere.chat import COHERE_CHAT
from proxy.metering.dialects.gemini.generate import GEMINI_GENERATE, GEMINI_STREAM
from proxy.metering.dialects.gemini_interactions.interactions import GEMINI_INTERACTIONS
from proxy.metering.dialects.ollama.chat import OLLAMA_CHAT
from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.dialects.openai.completions import OPENAI_COMPLETIONS
from proxy.metering.dialects.openai_media.images import OPENAI_IMAGES
from proxy.metering.dialects.openai_responses.responses import OPENAI_RESPONSES
from proxy.metering.estimator.estimate import Estimator, is_estimated, reading
from proxy.metering.metered import Metered
from proxy.metering.usage import Evidence, ModelUsage, Reading, Seen, ServedAs, Usage, UsageSource
from proxy.metering.wire.mended import BYTES_MAX, mended
from tests.metering.fixtures import read_answer, read_events, sse
from tests.metering.killed import read_and_recovered, table

__all__ = ["table"]

SAID = {"choices": [{"index": 0, "message": {"content": "Over the weir."}, "finish_reason": "stop"}]}
CHAT_SAID = [
    {"choices": [{"index": 0, "delta": {"content": "Over the weir."}}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
]


def read(metered: Metered, **facts: Any) -> Reading:
    return reading(
        metered, estimator=Estimator(), model_key="p/m", prompt_tokens_estimate=9, completion_tokens_max=None,
        bytes_seen=900, accepted=True, **facts,
    )  # fmt: skip


TOTAL = {"prompt_tokens": 10_000, "completion_tokens": 50, "total_tokens": 10_050}
COUNTED = Usage(10_000, None, 50, None, 10_050)


def test_counts_in_other_places_are_named() -> None:
    for metered in (
        read_answer(OPENAI_CHAT, {"choices": [SAID["choices"][0] | {"usage": TOTAL}]}),
        read_events(OPENAI_CHAT, {"choices": [CHAT_SAID[0]["choices"][0] | {"usage": TOTAL}]}, CHAT_SAID[1]),
    ):
        assert metered.usage is None
        assert metered.unknown_usage_fields.paths == tuple(f"choices.usage.{name}" for name in sorted(TOTAL))
    named = read_events(OPENAI_CHAT, *CHAT_SAID, {"choices": [], "tokens": {"in": 7}}).unknown_usage_fields.paths
    assert named == ("tokens.in",)


@pytest.mark.parametrize("wrong", [-5, "5", True, 1.5, 10**9])
def test_an_invalid_count_is_unusable_alone(wrong: Any) -> None:
    metered = read_answer(OPENAI_CHAT, SAID | {"usage": TOTAL | {"prompt_tokens": wrong}})
    assert metered.usage == Usage(None, None, 50, None, 10_050)
    assert read(metered).usage.completion_tokens == 50


def anthropic(start: dict[str, Any], delta: dict[str, Any]) -> Metered:
    return read_events(
        ANTHROPIC_MESSAGES,
        {"type": "message_start", "message": {"id": "m", "usage": start | {"output_tokens": 1}}},
        {"type": "content_block_delta", "index": 0, "delta": {"text": "Over the weir."}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": delta | {"output_tokens": 878}},
        {"type": "message_stop"},
    )


NOTHING_CACHED = {"cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}


@pytest.mark.parametrize("start", [{}, NOTHING_CACHED, {"cache_read_input_tokens": None}])
@pytest.mark.parametrize(
    ("delta", "usage"),
    [
        ({"cache_read_input_tokens": 3604}, Usage(3604, 3604, 878, None, 4482)),
        ({"cache_read_input_tokens": 3604, "input_tokens": 0}, Usage(3604, 3604, 878, None, 4482)),
        ({"cache_read_input_tokens": 3604, "input_tokens": None}, Usage(3604, 3604, 878, None, 4482)),
        ({"cache_read_input_tokens": 3604, "input_tokens": 3602}, Usage(3604, 3604, 878, None, 4482)),
        ({"cache_read_input_tokens": 3000}, Usage(3602, 3000, 878, None, 4480)),
        ({"cache_creation_input_tokens": 3604}, Usage(3604, None, 878, None, 4482, 3604)),
        (
            {"cache_read_input_tokens": 3000, "cache_creation_input_tokens": 602},
            Usage(3602, 3000, 878, None, 4480, 602),
        ),
        ({"cache_read_input_tokens": 3604, "input_tokens": 40}, Usage(3644, 3604, 878, None, 4522)),
        ({}, Usage(3602, None, 878, None, 4480)),
    ],
    ids=str,
)
def test_a_cache_that_is_reported_after_the_input_is_a_part_of_it(
    start: dict[str, Any], delta: dict[str, Any], usage: Usage
) -> None:
    metered = anthropic({"input_tokens": 3602} | start, delta)
    assert metered.usage is not None
    known = (usage.prompt_tokens, usage.cached_tokens or 0, usage.completion_tokens, usage.total_tokens)
    found = metered.usage
    assert (found.prompt_tokens, found.cached_tokens or 0, found.completion_tokens, found.total_tokens) == known
    assert (found.cache_write_tokens or 0) == (usage.cache_write_tokens or 0)


def test_a_cache_beside_the_input_of_the_first_event_is_no_part_of_it() -> None:
    start = {"input_tokens": 100, "cache_read_input_tokens": 9900}
    for delta in ({}, {"cache_read_input_tokens": 9900}, start):
        metered = anthropic(start, delta)
        assert (metered.usage, metered.flags) == (Usage(10_000, 9900, 878, None, 10_878), ())


@pytest.mark.parametrize(
    ("delta", "hour", "flags"),
    [
        ({"cache_creation_input_tokens": 300}, 300, ()),
        (
            {"cache_creation": {"ephemeral_1h_input_tokens": 0, "ephemeral_5m_input_tokens": 200}},
            0,
            ("usage_decreased",),
        ),
        ({}, 200, ()),
    ],
)
def test_the_lifetime_of_what_is_written_to_the_cache(delta: dict[str, Any], hour: int, flags: tuple[str, ...]) -> None:
    start = {
        "input_tokens": 9,
        "cache_creation_input_tokens": 200,
        "cache_creation": {"ephemeral_1h_input_tokens": 200},
    }
    metered = anthropic(start, delta)
    assert metered.usage is not None
    assert (metered.usage.cache_write_1h_tokens, metered.flags) == (hour, flags)


def test_a_partly_unknown_lifetime_is_flagged() -> None:
    start = {"input_tokens": 9, "cache_creation_input_tokens": 200, "cache_creation": {"ephemeral_1h_input_tokens": 50}}
    assert anthropic(start, {"cache_creation_input_tokens": 300}).flags == ("usage_conflict",)


def searched(at: int) -> dict[str, Any]:
    item = {"type": "web_search_call", "id": f"ws_{at}", "status": "completed", "action": {"type": "search"}}
    return {"type": "response.output_item.done", "output_index": at, "item": item}


def found_block(at: int, content: Any) -> dict[str, Any]:
    block = {"type": "web_search_tool_result", "tool_use_id": "t", "content": content}
    return {"type": "content_block_start", "index": at, "content_block": block}


LAST = {"type": "response.completed", "response": {"status": "completed", "output": [], "usage": None}}
START = {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 9, "output_tokens": 1}}}
GROUNDED = {
    "candidates": [{"content": {"parts": [{"text": "a"}]}, "groundingMetadata": {"webSearchQueries": ["a", "b"]}}]
}
CITED = {"choices": [{"delta": {"content": "a", "annotations": [{"type": "url_citation"}]}}]}


@pytest.mark.parametrize(
    ("dialect", "events", "searches"),
    [
        (OPENAI_RESPONSES, [searched(0), searched(1)], 2),
        (OPENAI_RESPONSES, [searched(0), searched(1), LAST], 2),
        (
            ANTHROPIC_MESSAGES,
            [START, found_block(0, [{"url": "u"}]), found_block(1, []), found_block(2, {"error_code": "x"})],
            2,
        ),
        (GEMINI_STREAM, [GROUNDED], 2),
        (OPENAI_CHAT, [CITED, CITED], 1),
    ],
    ids=["responses", "no usage", "anthropic", "gemini", "chat"],
)
def test_a_search_that_was_seen_is_billed_whatever_becomes_of_the_usage(
    dialect: Dialect, events: list[Any], searches: int
) -> None:
    metered = read_events(dialect, *events)
    assert is_estimated(metered)
    found = read(metered)
    assert (found.usage.searches, found.source) == (searches, UsageSource.ESTIMATED)
    assert found.usage.prompt_tokens == 9


NO_TOOLS = {"web_search": {"num_requests": 0}, "image_gen": {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}}


def test_what_was_not_searched_stands_in_place_of_no_tokens() -> None:
    """OpenAI's first event says that there was no search: who left then paid nothing for the prompt."""
    begun = {"id": "r", "status": "in_progress", "output": [], "usage": None, "tool_usage": NO_TOOLS}
    ended = begun | {"status": "cancelled"}
    for metered in (
        read_events(OPENAI_RESPONSES, {"type": "response.created", "response": begun}),
        read_events(OPENAI_RESPONSES, {"type": "response.incomplete", "response": ended}),
        read_answer(OPENAI_RESPONSES, ended),
    ):
        found = read(metered)
        assert (found.source, found.usage.prompt_tokens) == (UsageSource.ESTIMATED, 9)


@pytest.mark.parametrize(("searches", "complete", "estimated"), [(0, True, True), (2, True, False), (2, False, True)])
def test_searches_alone_are_a_usage_only_of_an_answer_that_has_ended(
    searches: int, complete: bool, estimated: bool
) -> None:
    """Those of a search or a rerank; a stream that was left after its first search may have had any prompt."""
    answer = structs.replace(
        read_events(OPENAI_RESPONSES), usage=Usage(searches=searches), complete=complete, evidence=Evidence()
    )
    assert is_estimated(answer) == estimated


def test_the_searches_of_the_usage_replace_those_that_were_seen() -> None:
    response = {"status": "completed", "output": [], "usage": {"input_tokens": 9, "output_tokens": 9}}
    for number in (0, 1, 5):
        last = {
            "type": "response.completed",
            "response": response | {"tool_usage": {"web_search": {"num_requests": number}}},
        }
        usage = read_events(OPENAI_RESPONSES, searched(0), searched(1), last).usage
        assert usage is not None
        assert usage.searches == number


PICTURED = {"input_tokens": 10, "output_tokens": 6240, "total_tokens": 6250}


@pytest.mark.parametrize(
    ("extra", "path"),
    [
        ({"svg_usage": {"output_tokens": 700}}, "output.svg_usage.output_tokens"),
        ({"usage": {"total_tokens": 7}}, "output.usage.total_tokens"),
        ({"frames": 24}, "output.frames"),
    ],
)
def test_a_number_in_an_item_of_the_output_is_named(extra: dict[str, Any], path: str) -> None:
    response = {
        "status": "completed",
        "output": [{"type": "image_generation_call", "id": "ig"} | extra],
        "usage": PICTURED,
    }
    for metered in (
        read_answer(OPENAI_RESPONSES, response),
        read_events(OPENAI_RESPONSES, {"type": "response.completed", "response": response}),
    ):
        assert metered.unknown_usage_fields.paths == (path,)


DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("dialect", "answer"),
    [
        (OPENAI_CHAT, {"choices": []}),
        (OPENAI_CHAT, {"choices": [], "usage": None}),
        (OPENAI_CHAT, b""),
        (OPENAI_CHAT, b"null"),
        (OPENAI_COMPLETIONS, {"choices": []}),
        (OPENAI_RESPONSES, {"status": "completed", "output": []}),
        (ANTHROPIC_MESSAGES, {"content": []}),
        (GEMINI_GENERATE, {"candidates": []}),
        (OLLAMA_CHAT, {"done": True}),
        (COHERE_CHAT, {"message": {"content": []}}),
        (OPENAI_CHAT, [DONE]),
        (OPENAI_CHAT, [{"choices": []}, DONE]),
        (OPENAI_COMPLETIONS, [DONE]),
        (OPENAI_RESPONSES, [LAST]),
        (ANTHROPIC_MESSAGES, [{"type": "message_stop"}]),
        (GEMINI_STREAM, [DONE]),
    ],
    ids=lambda value: value.name if isinstance(value, Dialect) else str(value)[:30],
)
def test_an_answer_with_neither_output_nor_usage_is_none(dialect: Dialect, answer: Any) -> None:
    metered = read_events(dialect, *answer) if isinstance(answer, list) else read_answer(dialect, answer)
    assert (metered.complete, metered.usage_final, metered.generated) == (False, False, False)


@pytest.mark.parametrize("number", [b"0x5", b"+5", b"05", b"1_000", b"5."])
def test_an_answer_whose_usage_cannot_be_read_was_served(number: bytes) -> None:
    text = json.dumps(SAID)[:-1].encode()
    metered = read_answer(OPENAI_CHAT, text + b',"usage":{"prompt_tokens":9,"completion_tokens":%b}}' % number)
    assert (metered.complete, metered.usage, metered.flags) == (True, Usage(9), ("unparsable_body",))
    assert metered.evidence.chars_latin == len("Over the weir.")
    assert read(metered).source is UsageSource.ESTIMATED


def test_a_right_usage_beside_thousands_of_nested_arrays_is_read() -> None:
    text = json.dumps(SAID | {"usage": TOTAL})[:-1].encode()
    metered = read_answer(OPENAI_CHAT, text + b',"odd":' + b"[" * 3000 + b"]" * 3000 + b"}")
    assert (metered.complete, metered.usage) == (True, COUNTED)
    assert {*metered.flags} <= {"unparsable_body"}  # Python 3.13 reads as many levels


@pytest.mark.parametrize("part", [b"[", b'"\\"', b'"\\', b"x", b'{"a":', b"0x"])
def test_mending_is_bounded(part: bytes) -> None:
    """Also for strings without an end: no text is scanned for each of its quotes."""
    text = b'{"a":' + part * (BYTES_MAX // len(part))
    began = time.process_time()
    mended(text[:BYTES_MAX])
    assert time.process_time() - began < 1
    assert mended(text + b" " * BYTES_MAX) is None


def test_a_search_in_an_event_that_only_a_lenient_reader_reads_is_counted() -> None:
    block = json.dumps(found_block(0, [{"url": "u"}])).encode()[:-1] + b',"odd":NaN}'
    assert read_events(ANTHROPIC_MESSAGES, START, b"data: %b\n\n" % block).usage is not None
    wrong = json.dumps(found_block(1, {"error_code": "x"})).encode()[:-1] + b',"odd":NaN}'
    usage = read_events(ANTHROPIC_MESSAGES, START, b"data: %b\n\n" % block, b"data: %b\n\n" % wrong).usage
    assert usage is not None
    assert usage.searches == 1


def item(at: int, kind: str, **more: Any) -> dict[str, Any]:
    done = {"type": kind, "id": f"i_{at}", "status": "completed"} | more
    return {"type": "response.output_item.done", "output_index": at, "item": done}


PARTIAL_IMAGE = {"type": "response.image_generation_call.partial_image", "output_index": 0, "partial_image_b64": "aGk="}
PICTURE = item(0, "image_generation_call", result="aGk=")
RAN = item(1, "code_interpreter_call", container_id="c_1", code="1+1")
TIER = {"type": "response.in_progress", "response": {"service_tier": "priority", "tools": [{"type": "mcp"}]}}
NAMED = {"type": "response.created", "response": {"tools": [{"type": "image_generation", "model": "gpt-image-1.5"}]}}


@pytest.mark.parametrize(
    ("dialect", "events", "seen"),
    [
        (OPENAI_RESPONSES, [PARTIAL_IMAGE], Seen()),
        (OPENAI_RESPONSES, [PARTIAL_IMAGE, PICTURE, PICTURE], Seen(images=1)),
        (OPENAI_RESPONSES, [NAMED, PICTURE, item(1, "image_generation_call"), LAST], Seen(images=2)),
        (OPENAI_RESPONSES, [item(0, "image_generation_call", status="failed")], Seen()),
        (OPENAI_RESPONSES, [RAN, item(2, "code_interpreter_call", container_id="c_1")], Seen(unknown_items=1)),
        (OPENAI_RESPONSES, [RAN | {"type": "response.output_item.added"}], Seen(unknown_items=1)),
        (OPENAI_RESPONSES, [RAN, item(2, "code_interpreter_call", container_id="c_2")], Seen(unknown_items=2)),
        (OPENAI_RESPONSES, [TIER, PICTURE, RAN], Seen(ServedAs("priority"), 1, 1)),
        (OPENAI_RESPONSES, [TIER, {"type": "response.queued", "response": {"service_tier": "auto"}}, PICTURE],
         Seen(ServedAs("priority"), 1)),
        (OPENAI_CHAT, [CHAT_SAID[0] | {"service_tier": "flex"}, CHAT_SAID[0] | {"service_tier": "auto"}],
         Seen(ServedAs("flex"))),
        (OPENAI_CHAT, [CHAT_SAID[0] | {"service_tier": "of-our-own"}], Seen(ServedAs("of-our-own"))),
        (GEMINI_STREAM, [{"candidates": [], "usageMetadata": {"promptTokenCount": 7, "serviceTier": "PRIORITY"}}],
         Seen(ServedAs("priority"))),
        (ANTHROPIC_MESSAGES,
         [{"type": "message_start",
           "message": {"usage": {"input_tokens": 9, "service_tier": "batch", "speed": "fast", "inference_geo": "us"}}},
          {"type": "content_block_start", "index": 1, "content_block": {"type": "code_execution_result", "text": "2"}}],
         Seen(ServedAs("batch", "fast", "us"), 0, 1)),
    ],
)  # fmt: skip
def test_what_was_seen_stands_without_the_last_event_and_after_a_kill(
    dialect: Dialect, events: list[Any], seen: Seen, table: ProgressTable
) -> None:
    left, recovered = read_and_recovered(dialect, map(sse, events), table)
    assert (left.served_as, left.seen.images) == (seen.served_as, seen.images)
    assert sum(left.unknown_usage_fields.values.values()) == seen.unknown_items  # type: ignore[arg-type]
    tier = seen.served_as.service_tier
    stands = structs.replace(seen.served_as, service_tier="other") if tier == "of-our-own" else seen.served_as
    assert (recovered.served_as, recovered.seen.images, recovered.flags) == (stands, seen.images, left.flags)
    assert sum(recovered.unknown_usage_fields.values.values()) == seen.unknown_items  # type: ignore[arg-type]
    assert [other.model for other in left.other_models] == (
        [] if not seen.images else ["gpt-image-1.5" if NAMED in events else "gpt-image-1"]
    )


def test_reported_tokens_of_an_image_take_the_place_of_the_image() -> None:
    used = {"type": "response.completed", "response": {"status": "completed", "tool_usage": {"image_gen": PICTURED}}}
    metered = read_events(OPENAI_RESPONSES, NAMED, PICTURE, used, PICTURE)
    assert metered.other_models == (
        ModelUsage("gpt-image-1.5", Usage(10, None, 6240, None, 6250, image_completion_tokens=6240)),
    )


def test_a_flag_outlives_a_kill(table: ProgressTable) -> None:
    usage = {"choices": [], "usage": TOTAL | {"prompt_tokens_details": {"cached_tokens": -5}}}
    _, recovered = read_and_recovered(OPENAI_CHAT, map(sse, [*CHAT_SAID, usage]), table)
    assert recovered.flags == ("usage_invalid",)


CLAUDE_START = {"type": "message_start", "message": {"usage": {"input_tokens": 9, "output_tokens": 1}}}
CLAUDE_SAID = {"type": "content_block_delta", "index": 0, "delta": {"text": "Over the weir."}}
CLAUDE_END = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}
PICTURE_DONE = {"type": "image_generation.completed", "b64_json": "aGk="}
GEMINI_END = {"candidates": [{"content": {"parts": []}, "finishReason": "STOP"}]}


@pytest.mark.parametrize(
    ("dialect", "events", "usage", "named"),
    [
        # the first output of a message is a placeholder
        (ANTHROPIC_MESSAGES, [CLAUDE_START, CLAUDE_SAID, CLAUDE_END | {"usage": {"input_tokens": 9}}], Usage(9), ()),
        # a sum of which a part is no number is unknown
        (ANTHROPIC_MESSAGES,
         [CLAUDE_END | {"usage": {"input_tokens": 9, "cache_read_input_tokens": "8", "output_tokens": 5}}],
         Usage(completion_tokens=5), ()),
        (OPENAI_CHAT, [{"choices": [], "usage": TOTAL}, {"choices": [], "usage": {"new_tokens": 7}}],
         COUNTED, ("usage.new_tokens",)),
        (OPENAI_CHAT, [{"choices": [], "usage": {"prompt_tokens": 1, "cached_tokens": 9900, "total_tokens": 9}}],
         Usage(9901, 9900, None, None, 9), ()),
        (OPENAI_IMAGES, [PICTURE_DONE, PICTURE_DONE | {"usage": PICTURED}, PICTURE_DONE],
         Usage(10, None, 6240, None, 6250, image_completion_tokens=6240), ()),
        (GEMINI_STREAM,
         [GROUNDED | {"usageMetadata": {
             "promptTokenCount": 9, "promptTokensDetails": [{"modality": "IMAGE", "tokenCount": 5}]}},
          GEMINI_END | {"usageMetadata": {"candidatesTokenCount": 4}}],
         Usage(9, None, 4, searches=2, image_prompt_tokens=5), ()),
        (GEMINI_INTERACTIONS,
         [{"event_type": "interaction.completed",
           "interaction": {"status": "completed", "usage": {"total_input_tokens": 3, "new": 7}}}],
         Usage(3), ("usage.new",)),
    ],
    ids=["placeholder", "sum", "unknown later", "total", "images", "early", "path"],
)  # fmt: skip
def test_faults_that_generated_usages_have_shown(
    dialect: Dialect, events: list[Any], usage: Usage, named: tuple[str, ...]
) -> None:
    metered = read_events(dialect, *events)
    assert (metered.usage, metered.unknown_usage_fields.paths) == (usage, named)


def test_a_speed_does_not_hide_the_tier_of_the_headers() -> None:
    meter = BEDROCK_CONVERSE.plain_meter({"x-amzn-bedrock-service-tier": "priority"})
    meter.feed(json.dumps({"output": {}, "performanceConfig": {"latency": "optimized"}}).encode())
    assert meter.close().served_as == ServedAs("priority", "optimized")


def test_a_message_before_the_usage_has_no_unread_numbers() -> None:
    """It was kept while no usage was known, for its name ends as `usage` does."""
    item = {"type": "response.output_item.added", "output_index": 3, "item": {"type": "message", "content": []}}
    usage = {"input_tokens": 5, "output_tokens": 7, "total_tokens": 12, "new_count": 4}
    response = {"status": "completed", "instructions": "x" * 5_000, "usage": usage}  # longer than what is kept as odd
    found = read_events(OPENAI_RESPONSES, item, {"type": "response.completed", "response": response})
    assert found.unknown_usage_fields.paths == ("usage.new_count",)
