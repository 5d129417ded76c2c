"""Estimates by a tokenizer's count: it stands where there is one, what is billed beside it is learned, and nothing is
believed beyond what was possible."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.metering.estimator.estimate import RUNNING_COUNT, TOKENIZED, VERSION, Estimator, reading
from proxy.metering.metered import Metered
from proxy.metering.usage import Evidence, Reading, Usage, UsageSource

TEXT = Evidence(text_events=100, chars_latin=420)


@dataclass
class Told:
    """A counter that knows it already."""

    tokens: int | None
    asked: int = 0

    def add(self, text: str) -> None:
        """It does."""

    def total(self) -> int | None:
        self.asked += 1
        return self.tokens

    def then(self, told: Callable[[int | None], None]) -> None:
        told(self.tokens)


def read(
    counter: Told,
    usage: Usage | None = None,
    *,
    evidence: Evidence = TEXT,
    estimator: Estimator | None = None,
    most: int | None = None,
    size: int = 9999,
    so_far: int | None = None,
    key: str = "p/m",
) -> Reading:
    metered = Metered(
        usage, None, evidence, None, None, False, None, 1, (), {}, completion_so_far=so_far, counter=counter
    )
    return reading(
        metered, estimator=estimator or Estimator(), model_key=key, prompt_tokens_estimate=7,
        completion_tokens_max=most, bytes_seen=size,
    )  # fmt: skip


def test_the_count_is_the_estimate() -> None:
    found = read(Told(300))
    assert (found.usage.completion_tokens, found.estimator, found.expected_error) == (300, TOKENIZED, 0.1)
    assert found.source is UsageSource.ESTIMATED


@pytest.mark.parametrize(
    ("counter", "tokens", "estimator"), [(Told(None), 101, VERSION), (Told(0), 101, VERSION), (Told(1), 1, TOKENIZED)]
)
def test_without_a_count_the_counters_speak(counter: Told, tokens: int, estimator: str) -> None:
    found = read(counter)
    assert (found.usage.completion_tokens, found.estimator) == (tokens, estimator)


def test_it_is_asked_only_where_it_is_needed() -> None:
    for usage, so_far in ((Usage(9, None, 3), None), (Usage(None, None, 3), None), (Usage(9), 80)):
        counter = Told(300)
        found = read(counter, usage, so_far=so_far)
        assert counter.asked == 0
        assert found.usage.completion_tokens == (so_far or 3)
        assert found.estimator == (RUNNING_COUNT if so_far else VERSION if usage.prompt_tokens is None else None)


@given(
    st.integers(0, 10**7), st.integers(0, 10**7), st.integers(0, 50), st.none() | st.integers(1, 10**6),
    st.integers(0, 10**8),
)  # fmt: skip
def test_it_is_never_above_what_was_possible(counted: int, chars: int, calls: int, most: int | None, size: int) -> None:
    evidence = Evidence(chars_latin=chars, tool_calls=calls, text_events=min(chars, 100))
    tokens = read(Told(counted), evidence=evidence, most=most, size=size).usage.completion_tokens or 0
    assert tokens <= max(size, 1)
    assert tokens <= (most or tokens)
    assert (tokens > 0) is not evidence.empty


def taught(rate: float, frame: int, key: str = "p/m") -> Estimator:
    """By a model that bills so many for each counted token, and a frame around each answer."""
    estimator = Estimator()
    for number in range(30):
        counted = 40 + 37 * (number % 11)
        evidence = Evidence(text_events=counted, chars_latin=4 * counted)
        usage = Usage(9, None, round(rate * counted) + frame)
        estimator.learn_counted(key, evidence=evidence, usage=usage, counted=counted)
    return estimator


@pytest.mark.parametrize(("rate", "frame"), [(1.0, 0), (1.0, 8), (1.3, 3), (0.8, 1)])
def test_what_is_billed_beside_the_text_is_learned_and_survives(rate: float, frame: int) -> None:
    estimator = Estimator.restore(json.loads(json.dumps(taught(rate, frame).export())))
    found = read(Told(200), estimator=estimator, evidence=Evidence(text_events=200, chars_latin=800))
    assert found.usage.completion_tokens == pytest.approx(rate * 200 + frame, abs=2.5)
    assert found.expected_error is not None
    assert found.expected_error < 0.1
    assert read(Told(200), estimator=estimator, key="p/other").usage.completion_tokens == 200


def test_what_cannot_have_been_learned_is_left_out() -> None:
    good = taught(1.0, 0).export()
    for row in ([], [0.0] * 3, ["x"], None, [float(one) for one in range(99)]):
        again = Estimator.restore(good | {"tokenized": {"p/m": row}})
        assert again.export()["tokenized"] == {}
    old = {name: rows for name, rows in good.items() if name != "tokenized"}
    assert Estimator.restore(old).export()["tokenized"] == {}


def test_hidden_reasoning_comes_on_top() -> None:
    estimator = Estimator()
    for _ in range(10):
        estimator.learn("p/o3", evidence=TEXT, prompt=None, usage=Usage(9, None, 500, 400))
        estimator.learn_counted("p/o3", evidence=TEXT, usage=Usage(9, None, 500, 400), counted=99)
    found = read(Told(99), estimator=estimator, key="p/o3")
    assert found.hidden_tokens == 400
    assert found.usage.completion_tokens == pytest.approx(500, abs=2)
    assert (found.estimator, found.expected_error) == (TOKENIZED, 0.4)
