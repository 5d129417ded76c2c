"""Reported counts held against the answer and the prompt that they are about."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.metering.dialect import Dialect
from proxy.metering.dialects import DIALECTS
from proxy.metering.dialects.anthropic.messages import ANTHROPIC_MESSAGES
from proxy.metering.dialects.bedrock.converse import BEDROCK_CONVERSE
from proxy.metering.dialects.bedrock.invoke import BEDROCK_INVOKE
from proxy.metering.dialects.cohere.chat import COHERE_CHAT
from proxy.metering.dialects.gemini.generate import GEMINI_GENERATE
from proxy.metering.dialects.ollama.chat import OLLAMA_CHAT
from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.dialects.openai.completions import OPENAI_COMPLETIONS
from proxy.metering.dialects.openai.plain import OPENAI_EMBEDDINGS
from proxy.metering.dialects.openai_responses.responses import OPENAI_RESPONSES
from proxy.metering.metered import Metered
from proxy.metering.plausibility import Contradictions, contradictions, without
from proxy.metering.usage import PromptEvidence, Usage
from tests.metering.corpus.corpus import CORPUS, records_in

SIXTY = "water " * 60
PROMPT = PromptEvidence(messages=1, chars_latin=30_000, blanks=5_000)  # five thousand words
SHORT = PromptEvidence(messages=1, chars_latin=6)


def metered(dialect: Dialect, answer: Any) -> Metered:
    meter = dialect.plain_meter()
    meter.feed(json.dumps(answer).encode())
    return meter.close()


def chat(text: str, prompt: int, completion: int, **message: Any) -> Metered:
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    choice = {"index": 0, "message": {"content": text, **message}, "finish_reason": "stop"}
    return metered(OPENAI_CHAT, {"choices": [choice], "usage": usage})


ZERO = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
SHAPES: dict[str, tuple[Dialect, dict[str, Any]]] = {
    "chat": (OPENAI_CHAT, {"choices": [{"message": {"content": SIXTY}, "finish_reason": "stop"}], "usage": ZERO}),
    "completions": (OPENAI_COMPLETIONS, {"choices": [{"text": SIXTY, "finish_reason": "stop"}], "usage": ZERO}),
    "responses": (
        OPENAI_RESPONSES,
        {
            "status": "completed",
            "output": [{"type": "message", "content": [{"type": "output_text", "text": SIXTY}]}],
            "usage": {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0},
        },
    ),
    "anthropic": (
        ANTHROPIC_MESSAGES,
        {
            "content": [{"type": "text", "text": SIXTY}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 0, "output_tokens": 0},
        },
    ),
    "converse": (
        BEDROCK_CONVERSE,
        {
            "output": {"message": {"content": [{"text": SIXTY}]}},
            "stopReason": "end_turn",
            "usage": {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0},
        },
    ),
    "invoke": (
        BEDROCK_INVOKE,
        {"generation": SIXTY, "prompt_token_count": 0, "generation_token_count": 0, "stop_reason": "stop"},
    ),
    "ollama": (
        OLLAMA_CHAT,
        {"message": {"content": SIXTY}, "done": True, "done_reason": "stop", "prompt_eval_count": 0, "eval_count": 0},
    ),
    "cohere": (
        COHERE_CHAT,
        {
            "message": {"content": [{"type": "text", "text": SIXTY}]},
            "finish_reason": "COMPLETE",
            "usage": {"tokens": {"input_tokens": 0, "output_tokens": 0}},
        },
    ),
    "gemini": (
        GEMINI_GENERATE,
        {
            "candidates": [{"content": {"parts": [{"text": SIXTY}]}, "finishReason": "STOP"}],
            "usageMetadata": {"promptTokenCount": 0, "candidatesTokenCount": 0, "totalTokenCount": 0},
        },
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_no_tokens_for_sixty_words_is_refuted_in_every_dialect(shape: str) -> None:
    assert contradictions(metered(*SHAPES[shape]), SHORT) == {
        "refuted": {
            "prompt_tokens": {"reported": 0, "at_least": 1},
            "completion_tokens": {"reported": 0, "at_least": 3},
        }
    }


def test_no_tokens_for_a_prompt_of_embeddings_are_refuted() -> None:
    vector = metered(
        OPENAI_EMBEDDINGS, {"data": [{"embedding": [0.5]}], "usage": {"prompt_tokens": 0, "total_tokens": 0}}
    )
    assert list(contradictions(vector, SHORT, is_text=False)["refuted"]) == ["prompt_tokens"]


TOOL = {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "gate", "arguments": '{"by": 4}'}}]}


@pytest.mark.parametrize(
    ("answer", "prompt", "found"),
    [
        (chat("word " * 315, 20, 1), SHORT, {"refuted": {"completion_tokens": {"reported": 1, "at_least": 10}}}),
        (chat("Over.", 13, 5), PROMPT, {"refuted": {"prompt_tokens": {"reported": 13, "at_least": 196}}}),
        (chat("", 9, 0, **TOOL), SHORT, {"refuted": {"completion_tokens": {"reported": 0, "at_least": 1}}}),
        (chat("Over.", 9, 5000), SHORT, {"refuted": {"completion_tokens": {"reported": 5000, "at_most": 261}}}),
        (chat("word " * 315, 20, 50), SHORT, {"implausible": {"completion_tokens": {"reported": 50, "at_least": 65}}}),
        (
            chat("word " * 315, 20, 1600),
            SHORT,
            {"implausible": {"completion_tokens": {"reported": 1600, "at_most": 1575}}},
        ),
        (chat("word " * 315, 20, 315), SHORT, {}),
        (chat("ลำน้ำ" * 80, 20, 740), SHORT, {}),  # 1.85 tokens a character, as an older vocabulary has it
        (chat("", 9, 0), SHORT, {}),
        (chat(" " * 128, 9, 1), SHORT, {}),
        (chat("Over.", 9, 5), PromptEvidence(), {}),
    ],
)
def test_a_count_that_no_tokenizer_can_have_is_refuted(
    answer: Metered, prompt: PromptEvidence, found: Contradictions
) -> None:
    assert contradictions(answer, prompt) == found


def test_hidden_reasoning_that_is_reported_refutes_nothing() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 5000, "completion_tokens_details": {"reasoning_tokens": 4990}}
    answer = {"choices": [{"message": {"content": "Over."}, "finish_reason": "stop"}], "usage": usage}
    assert contradictions(metered(OPENAI_CHAT, answer), SHORT) == {}


def test_unbilled_refusals_and_failures_are_not_compared() -> None:
    refusal = {"content": [], "stop_reason": "refusal", "usage": {"input_tokens": 0, "output_tokens": 0}}
    failed = {"choices": [{"message": {"content": ""}, "err_msg": "busy"}], "usage": ZERO, "err_msg": "busy"}
    for answer in (metered(ANTHROPIC_MESSAGES, refusal), metered(OPENAI_CHAT, failed)):
        assert contradictions(answer, PROMPT) == {}


def test_a_refuted_count_alone_is_taken_out() -> None:
    answer = chat(SIXTY, 9, 0)
    assert without(answer, contradictions(answer, SHORT)["refuted"]).usage == Usage(prompt_tokens=9)


@pytest.mark.skipif(not CORPUS.exists(), reason="the recorded corpus ../shared/corpus is not here")
def test_recorded_answers_are_refuted_once_in_two_hundred_at_most() -> None:
    """Those are fixtures with zeros in them, a guardrail's own text, and two hosts that do not report reasoning."""
    dialects = {dialect.name: dialect for dialect in DIALECTS if not dialect.free}
    seen, refuted, implausible = 0, 0, 0
    for record in records_in("open.jsonl", *dialects)[::4]:
        dialect = dialects[record["dialect"]]
        meter = dialect.stream_meter(dialect.framings[0]) if record["streamed"] else dialect.plain_meter()
        meter.feed(record["body"].encode())
        found = contradictions(meter.close(), PromptEvidence())
        seen, refuted, implausible = seen + 1, refuted + ("refuted" in found), implausible + ("implausible" in found)
    assert seen > 150
    assert refuted <= 2
    assert implausible == 0
