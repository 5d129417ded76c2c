"""Counters of a request → tokens of its prompt: a prior, and what a model's template adds to it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.metering.estimator.prompts import BELIEFS, Prompts, counters
from proxy.metering.usage import PromptEvidence

COUNTS = dict.fromkeys(PromptEvidence.__struct_fields__, st.integers(0, 10**7))
EVIDENCE = st.builds(PromptEvidence, **COUNTS)


@pytest.mark.parametrize(
    ("asked", "tokens"),
    [
        (PromptEvidence(), 3),
        (PromptEvidence(messages=1, chars_latin=44), 17),
        (PromptEvidence(messages=2, chars_wide=10, chars_other=22), 29),
        (PromptEvidence(messages=1, tool_chars=550, tools=2), 107),
        (PromptEvidence(messages=1, images=2), 1007),
    ],
)
def test_the_prior(asked: PromptEvidence, tokens: int) -> None:
    assert Prompts().tokens(asked) == tokens


@given(EVIDENCE)
def test_there_is_a_counter_for_each_belief(prompt: PromptEvidence) -> None:
    found = counters(prompt)
    assert len(found) == len(BELIEFS)
    assert min(found) >= 0
    assert Prompts().tokens(prompt) >= 1


def test_a_template_is_learned() -> None:
    """A model whose template explains tools at length, and whose tokenizer is not the prior's."""
    rng, model = random.Random(1), Prompts()

    def request() -> tuple[PromptEvidence, int]:
        messages, tools, words = rng.randint(1, 6), rng.choice([0, 0, 1, 3]), rng.randint(5, 400)
        prompt = PromptEvidence(
            messages=messages, chars_latin=6 * words, blanks=words - 1, tools=tools, tool_chars=180 * tools
        )
        return prompt, 5 + 6 * messages + round(1.6 * words) + (340 + 45 * tools if tools else 0)

    for _ in range(20):
        model.learn(*request())
    assert model.expected_error() < 0.3
    for prompt, tokens in (request() for _ in range(100)):
        assert model.tokens(prompt) == pytest.approx(tokens, rel=0.1, abs=3)


@given(EVIDENCE, st.integers(1, 10**8))
def test_one_outlier_moves_it_little(outlier: PromptEvidence, tokens: int) -> None:
    model, usual = Prompts(), PromptEvidence(messages=3, chars_latin=440, blanks=80)
    for _ in range(20):
        model.learn(usual, 130)
    model.learn(outlier, tokens)
    assert 0.7 < model.tokens(usual) / 130 < 1.4


@given(st.lists(st.tuples(EVIDENCE, st.integers(1, 10**8)), max_size=8))
def test_what_was_learned_survives_being_written_down(answers: list[tuple[PromptEvidence, int]]) -> None:
    model = Prompts()
    for prompt, tokens in answers:
        model.learn(prompt, tokens)
    again = Prompts.restored(model.row())
    assert again is not None
    assert again.row() == model.row()
    assert 0 <= again.expected_error() <= 2


@pytest.mark.parametrize(
    "row", [[], [1.0], [1.0, 0.1], [-1.0, 0.1, *Prompts().regression.row()], [1.0, 3.0, *Prompts().regression.row()]]
)
def test_what_cannot_be_one_is_left_out(row: list[float]) -> None:
    assert Prompts.restored(row) is None


def test_of_a_model_that_is_well_known_what_surprises_is_learned_and_some_of_the_rest() -> None:
    prompts, usual = Prompts(), PromptEvidence(messages=1, chars_latin=88)
    for _ in range(100):
        prompts.learn(usual, 30)
    moved = 0
    for _ in range(80):
        before = list(prompts.regression.weights)
        prompts.learn(usual, prompts.tokens(usual))
        moved += prompts.regression.weights != before
    assert moved <= 10
    before = list(prompts.regression.weights)
    prompts.learn(usual, 60)
    assert prompts.regression.weights != before
    for _ in range(40):
        prompts.learn(usual, 60)
    assert abs(prompts.tokens(usual) - 60) <= 3, "a model that has changed is learned anew"
