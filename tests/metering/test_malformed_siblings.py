"""Each well-formed part of an event or answer counts, whatever its siblings are. Empty error members are no failure."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.metering.dialect import Dialect
from proxy.metering.dialects.anthropic.messages import ANTHROPIC_COUNT_TOKENS, ANTHROPIC_MESSAGES
from proxy.metering.dialects.cohere.chat import COHERE_CHAT
from proxy.metering.dialects.gemini.generate import GEMINI_GENERATE, GEMINI_STREAM
from proxy.metering.dialects.ollama.chat import OLLAMA_CHAT
from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.dialects.openai.plain import OPENAI_EMBEDDINGS, OPENAI_RERANK
from proxy.metering.dialects.openai_media.images import OPENAI_IMAGES
from proxy.metering.dialects.openai_responses.responses import OPENAI_RESPONSES
from tests.metering.fixtures import CHAT_USAGE, COHERE_USAGE, GEMINI_USAGE, INPUT_USAGE, read_answer, read_events
from tests.metering.said import LASTS, said

GONE = object()
ODD = (GONE, None, 7, -1.5, True, "odd", [], [None, 3, "x"], {}, {"a": [1]})


def variants(value: Any, needed: set[str], path: str = "") -> list[Any]:
    """`value` with each member that is not needed replaced by every odd value."""
    found = []
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in list(members):
        place = f"{path}[]" if isinstance(value, list) else f"{path}.{key}".lstrip(".")
        inner = [] if "sage" in place.rpartition(".")[2] else variants(member, needed, place)
        odd = [one for one in ODD if key != "type" or one != "odd"]  # another type is another event
        options = [*inner, *(() if place in needed else odd)]
        for option in options:
            changed = dict(value) if isinstance(value, dict) else list(value)
            if option is GONE:
                del changed[key]
            else:
                changed[key] = option
            found.append(changed)
    return found


@pytest.mark.parametrize(("dialect", "last", "where", "more"), LASTS, ids=lambda value: getattr(value, "name", None))
def test_odd_siblings_lose_no_usage(dialect: Dialect, last: dict[str, Any], where: str, more: set[str]) -> None:
    holders = where.split(".")
    needed = more | {".".join(holders[:size]) for size in range(1, len(holders) + 1)}
    name = last.get("type", "")  # as the event's name too: with it an odd `type` loses nothing
    for event in [last, *variants(last, needed)]:
        result = read_events(dialect, event, name=name)
        assert result.usage is not None, event
        assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (9, 777), event


def test_usage_of_a_message_delta_without_a_delta_counts() -> None:
    """B10c."""
    start = {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 9, "output_tokens": 1}}}
    said = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Weir"}}
    result = read_events(ANTHROPIC_MESSAGES, start, said, {"type": "message_delta", "usage": {"output_tokens": 777}})
    assert result.usage is not None
    assert (result.usage.completion_tokens, result.usage_final, result.complete) == (777, True, False)


EMPTY_ERRORS: list[Any] = [
    None, {}, "", False, 0, [], {"code": 0}, {"code": 0, "message": ""}, {"code": None, "type": "", "param": "x"},
]  # fmt: skip
ERRORS: list[Any] = [
    "overloaded", {"code": 500}, {"code": "busy"}, {"message": "no"}, {"type": "api_error"}, {"status": "INTERNAL"},
]  # fmt: skip

# Errors of Cohere are elsewhere.
SAID = [one for one in said("Weir") if one[0] is not COHERE_CHAT]


@pytest.mark.parametrize(("dialect", "event", "answer"), SAID, ids=lambda value: getattr(value, "name", None))
def test_an_empty_error_member_is_no_failure(dialect: Dialect, event: dict[str, Any], answer: dict[str, Any]) -> None:
    """B10d: 50 delivered texts are billed."""
    for error in EMPTY_ERRORS:
        result = read_events(dialect, *[event | {"error": error}] * 50)
        assert (result.failed, result.evidence.chars_latin) == (None, 200), error
        whole = read_answer(dialect, answer | {"error": error})
        assert (whole.failed, whole.complete, whole.evidence.chars_latin) == (None, True, 4), error


@pytest.mark.parametrize(("dialect", "event", "answer"), SAID, ids=lambda value: getattr(value, "name", None))
def test_an_error_is_a_failure(dialect: Dialect, event: dict[str, Any], answer: dict[str, Any]) -> None:
    for error in ERRORS:
        assert read_events(dialect, event, event | {"error": error}).failed == "error_event", error
        assert read_answer(dialect, answer | {"error": error}).failed == "error_body", error
        assert read_answer(dialect, {"error": error}).failed == "error_body", error


@pytest.mark.parametrize("error", EMPTY_ERRORS, ids=json.dumps)
def test_an_empty_error_member_of_other_answers_is_no_failure(error: Any) -> None:
    for dialect, answer in (
        (OPENAI_EMBEDDINGS, {"usage": {"prompt_tokens": 9}, "data": []}),
        (OPENAI_RERANK, {"meta": {"billed_units": {"search_units": 1}}, "results": []}),
        (OPENAI_IMAGES, {"usage": INPUT_USAGE, "data": [{}]}),
        (ANTHROPIC_COUNT_TOKENS, {"input_tokens": 9}),
        (GEMINI_GENERATE, {"candidates": [], "usageMetadata": GEMINI_USAGE}),
    ):
        result = read_answer(dialect, answer | {"error": error})
        assert (result.failed, result.complete, result.usage_final) == (None, True, result.usage is not None)
    said = {"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": "Weir"}}, "error": error}}
    assert read_events(COHERE_CHAT, said, said).failed is None
    assert read_events(COHERE_CHAT, said | {"message": ""}).failed is None
    choice = {"choices": [{"delta": {"content": "Weir"}, "error": error}]}
    result = read_events(OPENAI_CHAT, choice, choice)
    assert (result.failed, result.evidence.chars_latin) == (None, 8)
    response = {"type": "response.completed", "response": {"status": "completed", "error": error}}
    assert read_events(OPENAI_RESPONSES, response).failed is None


def test_usage_beside_an_error_counts() -> None:
    for dialect, event in (
        (OPENAI_CHAT, {"error": {"message": "no"}, "usage": CHAT_USAGE}),
        (ANTHROPIC_MESSAGES, {"type": "message_delta", "error": {"message": "no"}, "usage": INPUT_USAGE}),
        (COHERE_CHAT, {"type": "message-end", "message": "no", "delta": {"usage": COHERE_USAGE}}),
        (OLLAMA_CHAT, {"error": "no", "done": True, "prompt_eval_count": 9, "eval_count": 777}),
    ):
        result = read_events(dialect, event)
        assert result.usage is not None
        assert (result.failed, result.usage.completion_tokens) == ("error_event", 777)


def chunk(text: str | None, completion: int | None = None, **more: Any) -> dict[str, Any]:
    usage = {} if completion is None else {"usage": {**CHAT_USAGE, "completion_tokens": completion}}
    return {"choices": [] if text is None else [{"index": 0, "delta": {"content": text}, **more}], **usage}


@pytest.mark.parametrize(
    ("events", "final"),
    [
        ([chunk("a", 1), chunk("b", 2), chunk("c", 3)], False),
        ([chunk("", 0), chunk("a", 1)], False),
        ([chunk("", 0)], False),
        ([chunk("a"), chunk("b"), chunk(None, 2)], True),
        ([chunk("a", 1), chunk("b", 2), chunk(None, 2)], True),
        ([chunk(None, 0), chunk("a"), chunk("b")], False),
        ([chunk("a", 1), chunk("b", 2, finish_reason="stop")], True),
        ([chunk("a", 1), b"data: [DONE]\n\n"], True),
        ([chunk("a"), chunk("b")], False),
    ],
)
def test_running_usage_is_not_final(events: list[dict[str, Any] | bytes], final: bool) -> None:
    """B10e: a stream that ends within its running usage is no whole answer."""
    result = read_events(OPENAI_CHAT, *events)
    assert result.usage_final is final
    assert result.complete is (events[-1] == b"data: [DONE]\n\n" or "finish_reason" in str(events[-1]))


def test_running_usage_of_other_dialects_is_not_final() -> None:
    start = {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 9, "output_tokens": 1}}}
    assert not read_events(ANTHROPIC_MESSAGES, start).usage_final
    running = {"candidates": [{"content": {"parts": [{"text": "x"}]}}], "usageMetadata": GEMINI_USAGE}
    assert not read_events(GEMINI_STREAM, running, {"usageMetadata": GEMINI_USAGE}).usage_final
    said = {"type": "content-delta", "delta": {"message": {"content": {"text": "x"}}, "usage": COHERE_USAGE}}
    assert not read_events(COHERE_CHAT, said).usage_final
    created = {"type": "response.in_progress", "response": {"usage": INPUT_USAGE}}
    assert not read_events(OPENAI_RESPONSES, created).usage_final
    assert not read_events(OLLAMA_CHAT, {"message": {"content": "x"}, "eval_count": 7}).usage_final
