"""Silence of models that hide their reasoning: a rate is learned and pinned; it is always said, and billed if set."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from proxy.metering.estimator.estimate import Estimator
from proxy.metering.estimator.silence import SILENCE, Pace, with_silence
from proxy.metering.metered import Metered
from proxy.metering.usage import NOTHING, Evidence, Reading, Silence, Usage, UsageSource
from tests.metering.fixtures import reading_of

TEXT = Evidence(text_events=20, chars_latin=90)
HIDING = Usage(9, None, 220, 200, 229)


def taught(answers: int = 5, *, silent_s: float = 4.0, usage: Usage = HIDING, evidence: Evidence = TEXT) -> Estimator:
    estimator = Estimator()
    for _ in range(answers):
        estimator.learn("p/m", evidence=evidence, prompt=None, usage=usage, silent_s=silent_s)
    return estimator


def test_the_rate_is_learned_from_what_reported_streams_hid() -> None:
    assert taught().silence("p/m", None, billed=True) == Silence(50.0, 4000, billed=True)
    assert taught().silence("p/m", 300, billed=False) == Silence(50.0, 300, billed=False)
    mixed = taught(4, silent_s=2.0)
    for _ in range(4):
        mixed.learn("p/m", evidence=TEXT, prompt=None, usage=Usage(9, None, 420, 400), silent_s=10.0)
    assert mixed.silence("p/m", None, billed=True) == Silence(50.0, 6000, billed=True)


@pytest.mark.parametrize(
    "estimator",
    [
        Estimator(),
        taught(2),  # too few
        taught(usage=Usage(9, None, 20, 0, 29)),  # it hides nothing
        taught(evidence=Evidence(text_events=60, chars_latin=990, reasoning_chars=900)),  # it shows its reasoning
        taught(silent_s=0.01),  # the network's
        taught(evidence=Evidence()),
    ],
)
def test_without_such_answers_nothing_is_said(estimator: Estimator) -> None:
    assert estimator.silence("p/m", None, billed=True) is None
    assert taught().silence("q/m", None, billed=True) is None, "another provider has another pace"


def test_the_newest_answers_count() -> None:
    pace = Pace()
    for seconds in (10.0,) * 60 + (2.0,) * 400:
        pace.learn(100.0, seconds)
    found = pace.silence(None, billed=True)
    assert found is not None
    assert found.tokens_per_s == pytest.approx(50, rel=0.01)


@given(st.lists(st.tuples(st.floats(0, 1e7), st.floats(0, 1e5)), max_size=30))
def test_what_was_learned_survives_being_written_down(answers: list[tuple[float, float]]) -> None:
    pace = Pace()
    for hidden, seconds in answers:
        pace.learn(hidden, seconds)
    row = json.loads(json.dumps(pace.row()))
    assert Pace.restored(row) == pace


@pytest.mark.parametrize("row", [[], [1.0, 2.0], [-1.0, 0.0, 0.0], [99.0, 1.0, 99.0], [1.0, 1e9, 1.0], [3.0, 1.0, 0.0]])
def test_no_other_state_is_restored(row: Any) -> None:
    assert Pace.restored(row) is None
    exported = {"version": Estimator.VERSION, "paces": {"p/m": row}}
    assert "paces" not in Estimator.restore(exported).export()


def test_an_estimator_keeps_it() -> None:
    again = Estimator.restore(json.loads(json.dumps(taught().export())))
    assert again.silence("p/m", None, billed=True) == Silence(50.0, 4000, billed=True)


def left(evidence: Evidence | None = None, *, complete: bool = False, usage: Usage | None = None) -> Metered:
    return Metered(usage, None, evidence or Evidence(), None, None, complete, None, 1, (), {})


def read(metered: Metered, *, accepted: bool = True) -> Reading:
    return reading_of(metered, model_key="p/o3", accepted=accepted)


BILLED, SAID = Silence(50.0, 4000, billed=True), Silence(50.0, 4000, billed=False)


def test_an_answer_that_ended_before_its_first_word_is_billed_by_its_time_where_that_is_set() -> None:
    """Without it, such an answer is 0 tokens: a reasoning model left before its first word is free."""
    nothing = read(left())
    assert (nothing.usage.completion_tokens, nothing.hidden_tokens) == (0, 0)
    billed = with_silence(nothing, left(), BILLED, 12.0)
    assert billed.usage == Usage(7, None, 600, None, 607)
    assert (billed.hidden_tokens, billed.hidden_by_time, billed.estimator) == (600, 600, SILENCE)
    assert (billed.source, billed.expected_error) == (UsageSource.ESTIMATED, 0.9)
    said = with_silence(nothing, left(), SAID, 12.0)
    assert said == structs.replace(nothing, hidden_by_time=600)
    half = read(left(usage=Usage(9)))
    assert with_silence(half, left(), BILLED, 12.0).usage == Usage(9, None, 600, None, 609)


@pytest.mark.parametrize(("seconds", "tokens"), [(0.0, None), (-5.0, None), (0.005, None), (0.02, 1), (1e9, 4000)])
def test_it_is_bounded(seconds: float, tokens: int | None) -> None:
    assert with_silence(read(left()), left(), BILLED, seconds).hidden_by_time == tokens


@pytest.mark.parametrize(
    ("found", "metered"),
    [
        (read(left(TEXT)), left(TEXT)),  # there was a word
        (read(left(complete=True)), left(complete=True)),  # it had nothing to say
        (read(left(usage=Usage(9, None, 0, None, 9))), left()),  # it was reported
        (NOTHING, left()),  # it was not accepted
    ],
)
def test_other_ends_stay_as_they_are(found: Reading, metered: Metered) -> None:
    assert with_silence(found, metered, BILLED, 12.0) == found
    assert with_silence(found, metered, None, 12.0) == found
