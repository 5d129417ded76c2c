"""Counters of an answer → tokens: which of them is believed, what is hidden, what a cut answer is said to have."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.metering.estimator.completion import BELIEFS, Completions, Hidden, counters, hidden_of
from proxy.metering.usage import Evidence, Usage

COUNTS = {field.name: st.integers(0, 10**7) for field in dataclasses.fields(Evidence)}
EVIDENCE = st.builds(Evidence, **COUNTS)


def fresh(**counts: int) -> float:
    return Completions().visible(counters(Evidence(**counts)))


def test_events_of_one_token_are_counted_and_longer_ones_are_read() -> None:
    assert fresh(text_events=100, chars_latin=420) == 101
    assert fresh(text_events=100, chars_latin=100) == 101  # digits: a token each
    assert fresh(text_events=1, chars_latin=440) == pytest.approx(126)
    assert fresh(text_events=10, chars_latin=440) == pytest.approx(126)
    assert 101 < fresh(text_events=100, chars_latin=700) < 200  # in between: some of both
    assert fresh(text_events=100, chars_latin=12) == 13  # texts that repeat what was before
    assert fresh(chars_wide=100) == 101
    assert fresh(tool_events=12, tool_calls=1, tool_chars=34) == pytest.approx(22, abs=0.1)


@given(EVIDENCE)
def test_there_is_a_counter_for_each_belief(evidence: Evidence) -> None:
    found = counters(evidence)
    assert len(found) == len(BELIEFS)
    assert min(found) >= 0


@given(st.integers(1, 2000), st.floats(1, 20), st.sampled_from([0.25, 0.5, 0.75]))
def test_a_cut_answer_has_its_share(events: int, chars_per_event: float, share: float) -> None:
    whole = fresh(text_events=4 * events, chars_latin=round(4 * events * chars_per_event))
    part = fresh(text_events=round(4 * events * share), chars_latin=round(4 * events * share * chars_per_event))
    assert part == pytest.approx(whole * share, abs=2.5, rel=0.02)


@given(EVIDENCE, st.sampled_from(["chars_latin", "chars_wide", "chars_other", "tool_chars", "tool_calls"]))
def test_more_of_anything_is_never_less(evidence: Evidence, name: str) -> None:
    model = Completions()
    before = model.visible(counters(evidence))
    setattr(evidence, name, getattr(evidence, name) + 10)
    # More characters in as many events only ever raise what their events were said to hold.
    assert model.visible(counters(evidence)) >= before * (1 - 1e-9)


@pytest.mark.parametrize(
    ("usage", "hidden"),
    [
        (Usage(9, None, 100, 64, 109), 64),
        (Usage(9, None, 100, 5, 109), 0),  # too little to tell
        (Usage(9, None, 100, None, 109), 0),
        (Usage(9, None, 30, 64, 103), 0),  # beside completion, not in it
        (Usage(9, None, 100, 64, 173), 0),
        (Usage(9, None, 64, 64, 73), 63),
    ],
)
def test_hidden_reasoning_is_told_from_usage(usage: Usage, hidden: int) -> None:
    assert hidden_of(Evidence(text_events=10, chars_latin=40), usage) == hidden


def test_streamed_reasoning_is_not_hidden() -> None:
    seen = Evidence(text_events=64, chars_latin=280, reasoning_chars=280)
    assert hidden_of(seen, Usage(9, None, 100, 64, 109)) == 0
    assert hidden_of(seen, Usage(9, None, 400, 264, 409)) == pytest.approx(200.4, abs=0.1)


def test_a_shorter_answer_hides_no_less_than_most_of_the_usual() -> None:
    hidden = Hidden()
    for _ in range(10):
        hidden.learn(200, 100)
    assert hidden.tokens(100) == 200
    assert hidden.tokens(10) == 160
    assert hidden.tokens(200) == 400
    assert hidden.tokens(1e6) == 4000
    hidden.learn(1e7, 1)
    assert hidden.tokens(100) < 600
    assert Hidden().tokens(100) == 0


@given(st.lists(st.tuples(st.floats(0, 1e8), st.floats(1, 1e8)), max_size=300))
def test_sums_of_hidden_tokens_can_be_written_down(answers: list[tuple[float, float]]) -> None:
    hidden = Hidden()
    for one in answers:
        hidden.learn(*one)
    assert Hidden.restored(hidden.row()) == hidden
