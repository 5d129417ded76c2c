"""A provider's health: the breaker against a model that remembers everything, and what `Retry-After` can say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.foundation.times import retry_after_s
from proxy.gateway.upstream.health import FAILURES_MAX, OPEN_S, REST_S_MAX, BreakerState, Health

STEPS = st.lists(
    st.tuples(
        st.floats(0, 2 * OPEN_S),
        st.one_of(st.sampled_from(["asked", "answered", "failed"]), st.floats(0, 2 * REST_S_MAX)),
    ),
    max_size=60,
)


class Remembering:
    """The same, from the whole history."""

    def __init__(self) -> None:
        self.events: list[tuple[float, str | float]] = []

    def state(self, now: float) -> BreakerState:
        """Open from the last of k failures without an answer between, or from the last trial, on; for OPEN_S."""
        run: list[float] = []
        tried_at = 0.0
        for at, event in self.events:
            if event == "answered":
                run = []
            elif event == "failed":
                run.append(at)
            if len(run) >= FAILURES_MAX and event in ("failed", "asked"):
                tried_at = at
        if len(run) < FAILURES_MAX:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < tried_at + OPEN_S else BreakerState.HALF_OPEN

    def rests_until(self) -> float:
        """The latest end of any rest."""
        return max((at + min(one, REST_S_MAX) for at, one in self.events if isinstance(one, float)), default=0.0)


@given(STEPS)
def test_the_breaker_is_what_its_history_says(steps: list[tuple[float, str | float]]) -> None:
    health, model, now = Health(), Remembering(), 1000.0
    for wait_s, event in steps:
        now += wait_s
        model.events.append((now, event))
        match event:
            case "asked":
                health.asked(now)
            case "answered":
                health.answered()
            case "failed":
                health.failed(now)
            case float():
                health.rests(now, event)
        assert health.state(now) is model.state(now)
        assert (health.away_s(now) > 0) == (model.state(now) is BreakerState.OPEN or now < model.rests_until())
        later = now + health.away_s(now)
        assert health.away_s(later) == pytest.approx(0, abs=1e-6), "it says when it can be asked"


def test_only_one_tries_while_it_is_half_open() -> None:
    health = Health()
    for _ in range(FAILURES_MAX):
        assert health.state(100) is BreakerState.CLOSED
        health.failed(100)
    assert (health.state(100), health.away_s(100)) == (BreakerState.OPEN, OPEN_S)
    trial_at = 100 + OPEN_S
    assert (health.state(trial_at), health.away_s(trial_at)) == (BreakerState.HALF_OPEN, 0)
    health.asked(trial_at)
    assert health.away_s(trial_at + OPEN_S / 2) == OPEN_S / 2, "others wait for the trial"
    assert health.away_s(trial_at + OPEN_S) == 0, "a trial that nobody heard of again holds nobody for ever"
    health.answered()
    assert (health.state(trial_at), health.away_s(trial_at)) == (BreakerState.CLOSED, 0)


@pytest.mark.parametrize(
    ("value", "means"),
    [
        ("0", 0), ("7", 7), (" 120 ", 120), ("999999999999999", 999_999_999),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 7), ("Sun, 06 Nov 1994 08:49:07 GMT", 0),
        ("Sun, 06 Nov 99999999999999999999 08:49:37 GMT", None), ("Sun, 06 Nov 1994 08:49:37 +999999999999", None),
        ("Sun, 06 Nov 1994 09:49:37 +0100", 7), ("Sun, 06 Nov 1994 08:49:37 -0000", 7),
        ("1.5", 1.5), ("0.5", 0.5), ("", None), ("-1", None), ("1.", 1),
        ("soon", None), ("٣", None), ("Sun, 99 Nov 1994 08:49:37 GMT", None),
    ],
)  # fmt: skip
def test_what_retry_after_says(value: str, means: float | None) -> None:
    assert retry_after_s(value, 784_111_770.0) == means


@given(st.text(max_size=40), st.floats(0, 4e9))
def test_whatever_a_provider_says_there(value: str, now: float) -> None:
    found = retry_after_s(value, now)
    assert found is None or found >= 0
