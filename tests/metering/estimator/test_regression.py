"""The regression: learns what is constant, is moved little by what is not, and stays what it was written down as."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.metering.estimator.regression import Noise, RecursiveLeastSquares, Weight

BELIEFS = (Weight(2.0, 2.0, least=0.0, most=50.0), Weight(1.0, 0.3, least=0.25, most=4.0), Weight(0.0, 0.5, -1.0, 1.0))
COUNTERS = st.tuples(st.just(1.0), st.floats(0, 1e7), st.floats(0, 1e7))
ANSWERS = st.lists(st.tuples(COUNTERS, st.integers(1, 10**8)), max_size=30)


def taught(answers: list[tuple[tuple[float, ...], int]]) -> RecursiveLeastSquares:
    ridge = RecursiveLeastSquares(BELIEFS)
    for counters, tokens in answers:
        ridge.learn(counters, tokens)
    return ridge


def test_begins_with_its_prior() -> None:
    assert RecursiveLeastSquares(BELIEFS).tokens((1.0, 10.0, 5.0)) == 12.0


@given(ANSWERS)
def test_weights_stay_within_their_bounds(answers: list[tuple[tuple[float, ...], int]]) -> None:
    for weight, one in zip(taught(answers).weights, BELIEFS, strict=True):
        assert one.least <= weight <= one.most


@given(ANSWERS, COUNTERS)
def test_is_the_same_after_being_written_down(
    answers: list[tuple[tuple[float, ...], int]], asked: tuple[float, ...]
) -> None:
    ridge = taught(answers)
    again = RecursiveLeastSquares.restored(BELIEFS, json.loads(json.dumps(ridge.row())))
    assert again is not None
    assert again.row() == ridge.row()
    for one in (ridge, again):
        one.learn(asked, 100)
    assert again.row() == ridge.row()


def test_tells_two_counters_apart() -> None:
    ridge = RecursiveLeastSquares(BELIEFS)
    for n in range(60):
        a, b = float(20 + n % 7 * 10), float(n % 5 * 10)
        ridge.learn((1.0, a, b), 5 + 1.5 * a + 0.5 * b)
    assert ridge.weights[1:] == pytest.approx([1.5, 0.5], abs=0.05)
    assert ridge.tokens((1.0, 300.0, 0.0)) == pytest.approx(455, rel=0.03)


def test_forgets_towards_being_unsure_and_never_beyond() -> None:
    ridge = RecursiveLeastSquares(BELIEFS)
    for _ in range(20_000):
        ridge.learn((1.0, 100.0, 0.0), 102)
    assert RecursiveLeastSquares.restored(BELIEFS, ridge.row()) is not None
    for _ in range(300):
        ridge.learn((1.0, 100.0, 0.0), 200)
    assert ridge.tokens((1.0, 100.0, 0.0)) == pytest.approx(200, rel=0.05)


@pytest.mark.parametrize(
    "row",
    [
        [],
        [1.0] * 8,
        [2.0, 9.0, 0.0, *[1.0] * 6],
        [2.0, 1.0, 0.0, 1, 5, 0, 0.05, 0, 0.1],
        [2.0, 1.0, 0.0, 0.0, 0, 0, 0.05, 0, 0.1],
        [2.0, 1.0, 0.0, 99.0, 0, 0, 0.05, 0, 0.1],
    ],
)
def test_what_cannot_be_a_row_is_none(row: list[float]) -> None:
    assert RecursiveLeastSquares.restored(BELIEFS, row) is None


def test_a_surprise_is_explained_by_weights_that_are_not_known_yet() -> None:
    """Where a regression says so; where it does not, most of a surprise is noise."""
    beliefs = (Weight(1.0, 0.2, least=0.0, most=5.0),)
    open_minded = RecursiveLeastSquares(beliefs, Noise(0.03, doubt=2.0))
    strict = RecursiveLeastSquares(beliefs, Noise(0.03))
    for one in (open_minded, strict):
        one.learn([500.0], 850.0)  # 3.5 deviations off
    assert open_minded.tokens([500.0]) == pytest.approx(850, rel=0.02)
    assert strict.tokens([500.0]) < 770
    for one in (open_minded, strict):
        for _ in range(30):
            one.learn([500.0], 850.0)
        known = one.tokens([500.0])
        one.learn([500.0], 2500.0)
        assert one.tokens([500.0]) == pytest.approx(known, rel=0.05), "what is known stays"


def test_of_short_answers_less_is_certain() -> None:
    noise = Noise(0.005, of_token=0.6)
    shares = [math.sqrt(noise.variance(tokens)) / tokens for tokens in (50, 500, 5000)]
    assert shares == pytest.approx([0.087, 0.028, 0.010], abs=0.001)
