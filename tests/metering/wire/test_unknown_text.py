"""Generated text in members that nobody reads counts, flagged; words about an answer, signatures and tools do not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.metering.dialect import Dialect
from proxy.metering.dialects.anthropic.messages import ANTHROPIC_MESSAGES
from proxy.metering.dialects.cohere.chat import COHERE_CHAT
from proxy.metering.dialects.gemini.generate import GEMINI_GENERATE, GEMINI_STREAM
from proxy.metering.dialects.gemini_interactions.interactions import GEMINI_INTERACTIONS
from proxy.metering.dialects.ollama.chat import OLLAMA_CHAT
from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.dialects.openai.completions import OPENAI_COMPLETIONS
from proxy.metering.dialects.openai_responses.responses import OPENAI_RESPONSES
from proxy.metering.metered import Metered
from tests.metering.fixtures import DONE, call, chunk, cut_at, fed, in_pieces, read_answer, say, sse, usage

BLOB = "EpUCCkYICBgCKkAxNjQ3ZTg5YjM0NWY2Nzg5MGFiY2RlZjAxMjM0NTY3ODlhYmNkZWYwMTIzNDU2Nzg5"


def streamed(dialect: Dialect, *events: Any) -> Metered:
    """The same at every cut."""
    lines = [json.dumps(event) if isinstance(event, dict) else event for event in events]
    framing = dialect.framings[0]
    wire = sse(*lines) if framing.content_type == "text/event-stream" else "".join(f"{one}\n" for one in lines).encode()
    results = [fed(dialect.stream_meter(framing), in_pieces(wire, size)) for size in (len(wire), 1, 7, 200)]
    assert all(one == results[0] for one in results)
    return results[0]


def chat(**delta: Any) -> dict[str, Any]:
    return chunk(delta)


def seen(found: Metered) -> tuple[int, int, int, bool]:
    evidence = found.evidence
    return evidence.text_events, evidence.chars, evidence.reasoning_chars, "unread_text" in found.flags


@pytest.mark.parametrize(
    ("delta", "chars", "reasoning"),
    [
        ({"thinking": "so be it"}, 8, 8),
        ({"reasoning_text": "so be it"}, 8, 8),
        ({"cot": "so be it"}, 8, 0),
        ({"anything": "word"}, 4, 0),
        ({"anything": "\n"}, 1, 0),
        ({"images": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{BLOB}"}}] * 2}, 2, 0),
        ({"image": BLOB}, 1, 0),
        ({"video": {"id": "v", "url": "x"}}, 1, 0),
        ({"thinking_blocks": [{"type": "thinking", "thinking": "so be it", "signature": BLOB}]}, 8, 8),
        ({"content": [{"type": "output", "said": "so be it"}]}, 8, 0),
        ({"content": [{"type": "text", "text": "so"}, {"type": "output", "said": " be it"}]}, 8, 0),
    ],
)
def test_what_a_delta_of_chat_has_beside_what_is_read(delta: dict[str, Any], chars: int, reasoning: int) -> None:
    found = streamed(OPENAI_CHAT, *[chunk(delta)] * 3, chunk(finish="stop"), DONE)
    assert seen(found) == (3, 3 * chars, 3 * reasoning, True)
    whole = read_answer(OPENAI_CHAT, {"choices": [{"index": 0, "message": {"role": "assistant", **delta}}]})
    assert seen(whole)[1:] == (chars, reasoning, True)


@pytest.mark.parametrize(
    "delta",
    [
        {"role": "assistant", "content": ""},
        {"id": "msg_1", "type": "message", "name": "somebody", "status": "in_progress", "phase": "thinking"},
        {"channel": "analysis", "index": 3, "token_id": 7, "finish_reason": "stop", "stop_reason": "eos"},
        {"signature": "so be it", "reasoning_signature": "so be it", "thought_signature": "x y"},
        {"encrypted_content": "so be it", "reasoning_opaque": "so be it", "reasoning_encrypted": "so be it"},
        {"obfuscation": "so be it", "padding": "so be it", "message_id": "so be it", "tool_call_id": "so be it"},
        {"anything": BLOB, "more": "https://weir.test/" + "a" * 60},
        {"context": {"citations": [{"content": "a document, and a long one", "title": "A title"}]}},
        {"search_results": [{"snippet": "a document, and a long one"}], "citations": ["a document"]},
        {"executed_tools": [{"output": "the output of a tool, and long"}]},
        {
            "extra_content": {"google": {"thought_signature": BLOB}},
            "provider_metadata": {"openai": {"text": "so be it"}},
        },
        {"anything": "", "thinking": None, "more": [], "images": []},
        {"anything": 7, "more": True, "numbers": [1, 2.5], "inner": {"deep": {"text": "so be it"}}},
    ],
)
def test_what_is_no_text(delta: dict[str, Any]) -> None:
    found = streamed(OPENAI_CHAT, chunk(delta), chunk(finish="stop"), DONE)
    assert seen(found) == (0, 0, 0, False)
    assert found.evidence.empty
    whole = read_answer(OPENAI_CHAT, {"choices": [{"index": 0, "message": delta}]})
    assert seen(whole) == (0, 0, 0, False)


def test_beside_text_that_is_read_it_counts_once_and_words_about_it_do_not() -> None:
    both = [chat(content=f"word{number} ", muse=f"a muse, {number}") for number in range(10)]
    found = streamed(OPENAI_CHAT, *both, chunk(finish="stop"), DONE)
    assert seen(found) == (10, 60 + 90, 0, True)
    same = [chat(reasoning_content=f"word {number}", thinking=f"word {number}") for number in range(10)]
    assert seen(streamed(OPENAI_CHAT, *same, DONE)) == (10, 60, 60, False)
    labelled = [chat(content=f"word{number} ", stage="fast", mood="v1.2") for number in range(10)]
    assert seen(streamed(OPENAI_CHAT, *labelled, DONE)) == (10, 60, 0, False)


def test_a_constant_text_beside_others_counts_in_every_event_at_every_cut() -> None:
    """Such events differ in one text only: they must not be matched by what is around it."""
    same = [chat(content=f" {number}", muse="a muse") for number in range(40)]
    found = streamed(OPENAI_CHAT, chat(content="first"), *same, DONE)
    assert seen(found)[1:] == (5 + sum(len(f" {number}") for number in range(40)) + 40 * 6, 0, True)


def test_an_answer_with_a_usage_is_not_looked_through() -> None:
    message = {"role": "assistant", "content": "It rains.", "muse": "a muse"}
    answer = {"choices": [{"index": 0, "message": message}]}
    assert seen(read_answer(OPENAI_CHAT, answer)) == (2, 15, 0, True)
    assert seen(read_answer(OPENAI_CHAT, answer | {"usage": usage()})) == (1, 9, 0, False)


def test_errors_are_no_text() -> None:
    error = {"error": {"message": "it broke", "code": 500}, "choices": [{"delta": {"anything": "it broke"}}]}
    found = streamed(OPENAI_CHAT, error)
    assert (found.evidence.empty, found.failed) == (True, "error_event")
    assert read_answer(OPENAI_CHAT, error).evidence.empty


def test_calls_are_read_as_ever() -> None:
    events = [
        chunk(call(0, '{"text":', name="say", id="c")),
        chunk(call(0, ' "so be it"}')),
        chunk(finish="tool_calls"),
    ]
    found = streamed(OPENAI_CHAT, *events, DONE)
    assert (found.evidence.tool_chars, found.evidence.text_events, found.flags) == (23, 0, ())


CASES: list[tuple[Dialect, Dialect, dict[str, Any], dict[str, Any]]] = [
    (
        OPENAI_COMPLETIONS, OPENAI_COMPLETIONS,
        {"choices": [{"index": 0, "reasoning_text": "so be it", "stop_reason": "a b"}]},
        {"choices": [{"index": 0, "reasoning_text": "so be it", "stop_reason": "a b"}]},
    ),
    (
        ANTHROPIC_MESSAGES, ANTHROPIC_MESSAGES,
        {"type": "content_block_delta", "index": 0, "delta": {"type": "musing_delta", "musing": "so be it"}},
        {"type": "message", "content": [{"type": "text", "musing": "so be it", "signature": BLOB}]},
    ),
    (
        GEMINI_STREAM, GEMINI_GENERATE,
        {"candidates": [{"content": {"parts": [{"musing": "so be it", "thoughtSignature": BLOB}]}}]},
        {"candidates": [{"content": {"parts": [{"musing": "so be it"}]}}]},
    ),
    (
        COHERE_CHAT, COHERE_CHAT,
        {"type": "content-delta", "index": 0, "delta": {"message": {"content": {"musing": "so be it"}}}},
        {"id": "c", "message": {"role": "assistant", "content": [{"type": "text", "musing": "so be it"}]}},
    ),
    (
        OLLAMA_CHAT, OLLAMA_CHAT,
        {"message": {"role": "assistant", "content": "", "musing": "so be it"}, "done": False},
        {"message": {"role": "assistant", "content": "", "musing": "so be it"}, "done": True},
    ),
    (
        OPENAI_RESPONSES, OPENAI_RESPONSES,
        {"type": "response.output_item.done", "item": {"type": "message", "reasoning_text": "so be it"}},
        {"status": "completed", "output": [{"type": "message", "thinking": "so be it", "output": "of a tool, it is"}]},
    ),
    (
        GEMINI_INTERACTIONS, GEMINI_INTERACTIONS,
        {"event_type": "step.delta", "delta": {"type": "musing", "answer_text": "so be it", "result": "of a tool"}},
        {"status": "completed", "steps": [{"type": "model_output", "answer_text": "so be it"}]},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "plain", "event", "answer"), CASES, ids=[case[0].name for case in CASES])
def test_it_is_so_in_every_dialect_of_chat(
    dialect: Dialect, plain: Dialect, event: dict[str, Any], answer: dict[str, Any]
) -> None:
    assert seen(streamed(dialect, event))[0:2] == (1, 8)
    assert "unread_text" in streamed(dialect, event).flags
    assert seen(read_answer(plain, answer))[0:2] == (1, 8)
    assert "unread_text" in read_answer(plain, answer).flags


NAMES = st.sampled_from(["content", "reasoning", "thinking", "muse", "stage", "images", "signature", "role", "refusal"])
VALUES = st.none() | st.text('ab \n":', max_size=6) | st.sampled_from(["so be it", BLOB]) | st.lists(st.just("x y"))
DELTAS = st.dictionaries(NAMES, VALUES, max_size=4)


@given(st.lists(DELTAS, max_size=12), st.lists(st.integers(0, 3000), max_size=12))
def test_every_cut_gives_the_same(deltas: list[dict[str, Any]], at: list[int]) -> None:
    wire = sse(*(chunk(delta) for delta in deltas), *say("a", " b"), DONE)
    whole = fed(OPENAI_CHAT.stream_meter(), [wire])
    assert fed(OPENAI_CHAT.stream_meter(), cut_at(wire, at), fold=True) == whole


@given(st.recursive(VALUES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3)))
def test_nothing_is_too_odd(value: Any) -> None:
    for holder in ("delta", "message"):
        streamed(OPENAI_CHAT, {"choices": [{holder: value}]})
        read_answer(OPENAI_CHAT, {"choices": [{holder: value}]})
        streamed(OPENAI_CHAT, {"choices": [{holder: {"thinking": value}}]})
