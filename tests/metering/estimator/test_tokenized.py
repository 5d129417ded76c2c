"""Estimates by a tokenizer's count: it stands where there is one, what is billed beside it is learned, and nothing is
believed beyond what was possible."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.metering.estimator.estimate import RUNNING_COUNT, TOKENIZED, VERSION, Estimator
from proxy.metering.metered import Metered
from proxy.metering.profile import Counted, Profile
from proxy.metering.usage import Evidence, Reading, Usage, UsageSource
from tests.metering.fixtures import reading_of

TEXT = Evidence(text_events=100, chars_latin=420)


def own(tokens: int, chars: int = 10**8) -> Counted:
    """Counted by the model's own vocabulary."""
    return Counted(Profile(tokens, chars), Profile(), own=True)


def read(
    counted: Counted | None,
    usage: Usage | None = None,
    *,
    evidence: Evidence = TEXT,
    estimator: Estimator | None = None,
    most: int | None = None,
    size: int = 9999,
    so_far: int | None = None,
    key: str = "p/m",
) -> Reading:
    metered = Metered(usage, None, evidence, None, None, False, None, 1, (), {}, completion_so_far=so_far)
    given = {"model_key": key, "completion_tokens_max": most, "bytes_seen": size, "counted": counted}
    return reading_of(metered, estimator=estimator or Estimator(), **given)


def test_the_count_is_the_estimate() -> None:
    found = read(own(300))
    assert (found.usage.completion_tokens, found.estimator, found.expected_error) == (300, TOKENIZED, 0.1)
    assert found.source is UsageSource.ESTIMATED


@pytest.mark.parametrize(
    ("counted", "tokens", "estimator"), [(None, 101, VERSION), (own(0), 101, VERSION), (own(1), 1, TOKENIZED)]
)
def test_without_a_count_the_counters_speak(counted: Counted | None, tokens: int, estimator: str) -> None:
    found = read(counted)
    assert (found.usage.completion_tokens, found.estimator) == (tokens, estimator)


def test_of_a_text_of_which_a_part_was_held_the_rest_is_counted_alike() -> None:
    assert read(own(50, chars=210)).usage.completion_tokens == 100


def test_a_count_stands_only_where_it_is_needed() -> None:
    for usage, so_far in ((Usage(9, None, 3), None), (Usage(None, None, 3), None), (Usage(9), 80)):
        found = read(own(300), usage, so_far=so_far)
        assert found.usage.completion_tokens == (so_far or 3)
        assert found.estimator == (RUNNING_COUNT if so_far else VERSION if usage.prompt_tokens is None else None)


@given(
    st.integers(0, 10**7), st.integers(0, 10**7), st.integers(0, 50), st.none() | st.integers(1, 10**6),
    st.integers(0, 10**8),
)  # fmt: skip
def test_it_is_never_above_what_was_possible(counted: int, chars: int, calls: int, most: int | None, size: int) -> None:
    evidence = Evidence(chars_latin=chars, tool_calls=calls, text_events=min(chars, 100))
    found = read(own(counted), evidence=evidence, most=most, size=size)
    tokens = found.usage.completion_tokens or 0
    assert tokens <= max(size, 1)
    assert found.limit_exceeded or tokens <= (most or tokens)
    assert (tokens > 0) is not evidence.empty


def taught(rate: float, frame: int, key: str = "p/m") -> Estimator:
    """By a model that bills so many for each counted token, and a frame around each answer."""
    estimator = Estimator()
    for number in range(30):
        counted = 40 + 37 * (number % 11)
        evidence = Evidence(text_events=counted, chars_latin=4 * counted)
        usage = Usage(9, None, round(rate * counted) + frame)
        estimator.learn_counted(key, evidence=evidence, usage=usage, counted=own(counted))
    return estimator


@pytest.mark.parametrize(("rate", "frame"), [(1.0, 0), (1.0, 8), (1.3, 3), (0.8, 1)])
def test_what_is_billed_beside_the_text_is_learned_and_survives(rate: float, frame: int) -> None:
    estimator = Estimator.restore(json.loads(json.dumps(taught(rate, frame).export())))
    found = read(own(200), estimator=estimator, evidence=Evidence(text_events=200, chars_latin=800))
    assert found.usage.completion_tokens == pytest.approx(rate * 200 + frame, abs=2.5)
    assert found.expected_error is not None
    assert found.expected_error < 0.1
    assert read(own(200), estimator=estimator, key="p/other").usage.completion_tokens == 200


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
        estimator.learn_counted("p/o3", evidence=TEXT, usage=Usage(9, None, 500, 400), counted=own(99))
    found = read(own(99), estimator=estimator, key="p/o3")
    assert found.hidden_tokens == 400
    assert found.usage.completion_tokens == pytest.approx(500, abs=2)
    assert (found.estimator, found.expected_error) == (TOKENIZED, 0.4)
