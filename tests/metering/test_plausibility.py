"""Reported counts held against the answer and the prompt that they are about."""

from __future__ import annotations

from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from proxy.metering.dialect import Dialect
from proxy.metering.dialects import DIALECTS
from proxy.metering.dialects.anthropic.messages import ANTHROPIC_MESSAGES
from proxy.metering.dialects.bedrock.converse import BEDROCK_CONVERSE
from proxy.metering.dialects.bedrock.invoke import BEDROCK_INVOKE
from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.dialects.openai.plain import OPENAI_EMBEDDINGS
from proxy.metering.dialects.openai_media.transcriptions import OPENAI_TRANSCRIPTIONS
from proxy.metering.estimator.estimate import Estimator
from proxy.metering.metered import Metered
from proxy.metering.plausibility import Contradictions, contradictions, without
from proxy.metering.usage import Evidence, PromptEvidence, Usage
from tests.metering.corpus.corpus import FILES, NEEDS_CORPUS, records_in
from tests.metering.fixtures import read_answer
from tests.metering.said import answers

SIXTY = "water " * 60
PROMPT = PromptEvidence(messages=1, chars_latin=30_000, blanks=5_000)  # five thousand words
SHORT = PromptEvidence(messages=1, chars_latin=6)


def compared(
    answer: Metered,
    prompt: PromptEvidence,
    estimator: Estimator | None = None,
    *,
    name: str = "m",
    is_text: bool = True,
) -> Contradictions:
    bound = partial((estimator or Estimator()).broken_bound, f"p/{name}")
    return contradictions(answer, prompt, bound, is_text=is_text)


def chat(text: str, prompt: int, completion: int, **message: Any) -> Metered:
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    choice = {"index": 0, "message": {"content": text, **message}, "finish_reason": "stop"}
    return read_answer(OPENAI_CHAT, {"choices": [choice], "usage": usage})


ZERO = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
NO_COUNTS: list[tuple[Dialect, dict[str, Any]]] = [
    *((dialect, answer) for dialect, answer in answers(SIXTY, 0, 0) if dialect is not OPENAI_TRANSCRIPTIONS),
    (BEDROCK_CONVERSE,
     {"output": {"message": {"content": [{"text": SIXTY}]}}, "stopReason": "end_turn",
      "usage": {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0}}),
    (BEDROCK_INVOKE,
     {"generation": SIXTY, "prompt_token_count": 0, "generation_token_count": 0, "stop_reason": "stop"}),
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "answer"), NO_COUNTS, ids=lambda value: getattr(value, "name", None))
def test_no_tokens_for_sixty_words_is_refuted_in_every_dialect(dialect: Dialect, answer: dict[str, Any]) -> None:
    assert compared(read_answer(dialect, answer), SHORT) == {
        "refuted": {
            "prompt_tokens": {"reported": 0, "at_least": 1},
            "completion_tokens": {"reported": 0, "at_least": 3},
        }
    }


def test_no_tokens_for_a_prompt_of_embeddings_are_refuted() -> None:
    vector = read_answer(
        OPENAI_EMBEDDINGS, {"data": [{"embedding": [0.5]}], "usage": {"prompt_tokens": 0, "total_tokens": 0}}
    )
    assert list(compared(vector, SHORT, is_text=False)["refuted"]) == ["prompt_tokens"]


TOOL = {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "gate", "arguments": '{"by": 4}'}}]}


@pytest.mark.parametrize(
    ("answer", "prompt", "found"),
    [
        (chat("word " * 315, 20, 1), SHORT, {"refuted": {"completion_tokens": {"reported": 1, "at_least": 10}}}),
        (chat("Over.", 13, 5), PROMPT, {"refuted": {"prompt_tokens": {"reported": 13, "at_least": 196}}}),
        (chat("", 9, 0, **TOOL), SHORT, {"refuted": {"completion_tokens": {"reported": 0, "at_least": 1}}}),
        (chat("Over.", 9, 5000), SHORT, {"refuted": {"completion_tokens": {"reported": 5000, "at_most": 261}}}),
        (chat("word " * 315, 20, 50), SHORT, {"implausible": {"completion_tokens": {"reported": 50, "at_least": 71}}}),
        (chat("word " * 315, 20, 100), SHORT, {}),
        (chat("word " * 315, 20, 1550), SHORT, {}),
        (chat("ลำน้ำ" * 80, 20, 740), SHORT, {}),  # 1.85 tokens a character, as an older vocabulary has it
        (chat("", 9, 0), SHORT, {}),
        (chat(" " * 128, 9, 1), SHORT, {}),
        (chat("Over.", 9, 5), PromptEvidence(), {}),
    ],
)
def test_a_count_that_no_tokenizer_can_have_is_refuted(
    answer: Metered, prompt: PromptEvidence, found: Contradictions
) -> None:
    assert compared(answer, prompt) == found


def learned(tokens_per_char: float) -> Estimator:
    """Of a model whose reports have so many tokens for a character."""
    estimator = Estimator()
    for chars in range(400, 4400, 100):
        evidence = Evidence(text_events=chars // 50, chars_latin=chars, blanks=chars // 5)
        estimator.learn("p/m", evidence=evidence, prompt=None, usage=Usage(9, None, round(chars * tokens_per_char)))
    return estimator


@pytest.mark.parametrize("per_char", [0.1, 0.2, 0.4])
def test_a_learned_model_has_narrower_bounds_for_its_own_text(per_char: float) -> None:
    text, honest = "word " * 315, round(1575 * per_char)
    estimator = learned(per_char)
    for factor in (0.3, 0.5, 1, 2):
        assert compared(chat(text, 20, round(factor * honest)), SHORT, estimator) == {}
    for factor, bound in ((0.2, "at_least"), (5, "at_most")):
        reported = round(factor * honest)
        if 1 / 128 < reported / 1575 < 1:  # else refuted
            found = compared(chat(text, 20, reported), SHORT, estimator)["implausible"]["completion_tokens"]
            assert (found["reported"], list(found)) == (reported, ["reported", bound])


def test_an_unknown_script_is_plausible_to_a_learned_model() -> None:
    for text, tokens in (("ลำน้ำ" * 80, 740), ("ลำน้ำ" * 80, 60), ("нова вода " * 60, 590), ("水門水門" * 90, 860)):
        assert compared(chat(text, 20, tokens), SHORT, learned(0.22)) == {}


def test_a_model_that_may_hide_reasoning_has_no_upper_bound() -> None:
    answer = chat("word " * 60, 20, 550)
    assert compared(answer, SHORT, learned(0.22))["implausible"]
    assert compared(answer, SHORT, name="o3") == {}


@given(
    st.builds(Evidence, *[st.integers(0, 10**6)] * 3, *[st.integers(0, 10**6)] * 5, *[st.integers(0, 10**6)] * 8),
    st.integers(-5, 10**7),
)
def test_a_broken_bound_is_really_broken(evidence: Evidence, tokens: int) -> None:
    for estimator in (Estimator(), learned(0.3)):
        for bound, value in estimator.broken_bound("p/m", evidence, tokens).items():
            assert value > tokens if bound == "at_least" else value < tokens


def test_hidden_reasoning_that_is_reported_refutes_nothing() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 5000, "completion_tokens_details": {"reasoning_tokens": 4990}}
    answer = {"choices": [{"message": {"content": "Over."}, "finish_reason": "stop"}], "usage": usage}
    assert compared(read_answer(OPENAI_CHAT, answer), SHORT) == {}


def test_unbilled_refusals_and_failures_are_not_compared() -> None:
    refusal = {"content": [], "stop_reason": "refusal", "usage": {"input_tokens": 0, "output_tokens": 0}}
    failed = {"choices": [{"message": {"content": ""}, "err_msg": "busy"}], "usage": ZERO, "err_msg": "busy"}
    for answer in (read_answer(ANTHROPIC_MESSAGES, refusal), read_answer(OPENAI_CHAT, failed)):
        assert compared(answer, PROMPT) == {}


def test_a_refuted_count_alone_is_taken_out() -> None:
    answer = chat(SIXTY, 9, 0)
    assert without(answer, compared(answer, SHORT)["refuted"]).usage == Usage(prompt_tokens=9)


def test_a_cost_that_is_stated_for_a_refuted_count_does_not_stay() -> None:
    answer = replace(chat(SIXTY, 9, 0), stated_usd=Decimal("1.8"))
    assert without(answer, compared(answer, SHORT)["refuted"]).stated_usd is None


@NEEDS_CORPUS
@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.real)])
def test_recorded_answers_are_refuted_once_in_two_hundred_and_implausible_once_in_five_hundred_at_most(
    step: int,
) -> None:
    """Refuted are fixtures with zeros in them, a guardrail's own text, and two hosts that do not report reasoning. Each
    answer is compared before its model was learned, and after the answers before it."""
    dialects = {dialect.name: dialect for dialect in DIALECTS if not dialect.free}
    files = FILES if step == 1 else FILES[:1]
    seen, refuted, implausible, estimator = 0, 0, 0, Estimator()
    for record in [record for file in files for record in records_in(file, *dialects)[::step]]:
        dialect = dialects[record["dialect"]]
        meter = dialect.stream_meter(dialect.framings[0]) if record["streamed"] else dialect.plain_meter()
        meter.feed(record["body"].encode())
        answer, name = meter.close(), f"{record['provider_host']}/{(record['request_json'] or {}).get('model')}"
        for one in (None, estimator):
            found = compared(answer, PromptEvidence(), one, name=name)
            seen, refuted = seen + 1, refuted + ("refuted" in found)
            implausible += "implausible" in found
        if answer.usage and record["streamed"] and not answer.failed and "refuted" not in found:
            estimator.learn(f"p/{name}", evidence=answer.evidence, prompt=None, usage=answer.usage)
    assert seen > 250
    assert refuted <= seen / 50
    assert implausible <= seen / 500
