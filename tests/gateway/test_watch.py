"""What is due when: decided purely, asked again by one timer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from proxy.gateway.exchange import deadlines as watch_module
from proxy.gateway.exchange.deadlines import Deadlines, Expired, Moments, decide
from proxy.gateway.time_limits import TimeLimits

LIMITS = TimeLimits(first_byte_s=20, idle_s=10, total_s=100, write_stall_s=5, drain_s=30, heartbeat_s=0)
BEGUN = Moments(started_at=1000, last_piece_at=1002)
times = st.floats(min_value=0, max_value=200, allow_nan=False)
optional = st.none() | times
limits = st.builds(
    TimeLimits, first_byte_s=times, idle_s=times, total_s=times, write_stall_s=times, drain_s=times, heartbeat_s=times
)
moments = st.builds(
    Moments, started_at=times, last_piece_at=optional, paused_at=optional, left_at=optional, last_beat_at=times
)


@pytest.mark.parametrize(
    ("changed", "due", "at"),
    [
        ({"last_piece_at": None}, Expired.NO_ANSWER, 1020),
        ({}, Expired.IDLE, 1012),
        ({"last_piece_at": 1050}, Expired.IDLE, 1060),
        ({"last_piece_at": 1095}, Expired.OUT_OF_TIME, 1100),
        ({"paused_at": 1003}, Expired.WRITE_STALL, 1008),
        ({"paused_at": 1003, "last_piece_at": 990}, Expired.WRITE_STALL, 1008),
        ({"left_at": 1003, "last_piece_at": 1032}, Expired.DRAINED_ENOUGH, 1033),
        ({"left_at": 1003}, Expired.IDLE, 1012),
        ({"left_at": 980, "last_piece_at": None}, Expired.DRAINED_ENOUGH, 1010),
    ],
)
def test_each_limit_is_due_at_its_moment_and_not_before(changed: dict[str, Any], due: Expired, at: float) -> None:
    found = replace(BEGUN, **changed)
    assert decide(at - 0.001, found, LIMITS) == (Expired.NOTHING, at)
    assert decide(at, found, LIMITS) == (due, at)
    assert decide(at + 50, found, LIMITS) == (due, at)


def test_heartbeats_come_after_silence_and_then_regularly() -> None:
    beating = replace(LIMITS, heartbeat_s=3)
    assert decide(1005, BEGUN, beating) == (Expired.HEARTBEAT, 1005)
    assert decide(1005, replace(BEGUN, last_beat_at=1005), beating) == (Expired.NOTHING, 1008)
    assert decide(1004, replace(BEGUN, last_piece_at=1003), beating) == (Expired.NOTHING, 1006)


@pytest.mark.parametrize("changed", [{"paused_at": 1002}, {"left_at": 1002}, {"last_piece_at": None}])
def test_nobody_gets_a_heartbeat_who_cannot_read_it(changed: dict[str, Any]) -> None:
    found = replace(BEGUN, **changed)
    assert decide(1004, found, replace(LIMITS, heartbeat_s=1)) == decide(1004, found, LIMITS)


@given(moments, limits, times)
def test_what_is_due_is_past_and_what_is_not_is_to_come(found: Moments, limits: TimeLimits, now: float) -> None:
    due, at = decide(now, found, limits)
    assert (due is Expired.NOTHING) == (at > now)
    assert at <= found.started_at + limits.total_s


@given(moments, limits, times, times)
def test_what_is_due_stays_due(found: Moments, limits: TimeLimits, now: float, later: float) -> None:
    assume(later >= now)
    due, at = decide(now, found, limits)
    if due is not Expired.NOTHING:
        assert decide(later, found, limits) == (due, at)


@dataclass
class Timer:
    """What `call_later` gives."""

    at: float
    call: Callable[[], None]
    timers: list[Timer]

    def cancel(self) -> None:
        if self in self.timers:
            self.timers.remove(self)


class Clock:
    """A loop and a clock that move together, by hand."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.timers: list[Timer] = []

    def call_later(self, delay: float, call: Callable[[], None]) -> Timer:
        assert delay >= 0.001
        self.timers.append(Timer(self.now + delay, call, self.timers))
        return self.timers[-1]

    def run_until(self, at: float) -> int:
        """How many timers fired."""
        fired = 0
        while due := [timer for timer in self.timers if timer.at <= at]:
            timer = min(due, key=lambda timer: timer.at)
            timer.cancel()
            self.now = max(self.now, timer.at)
            timer.call()
            fired += 1
        self.now = at
        return fired


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(watch_module, "monotonic", lambda: clock.now)
    return clock


def watched(clock: Clock, limits: TimeLimits) -> tuple[Deadlines, dict[str, Moments], list[tuple[float, Expired]]]:
    now = {"moments": Moments(1000, 1000)}
    found: list[tuple[float, Expired]] = []

    def note(due: Expired) -> None:
        found.append((clock.now, due))
        if due is Expired.HEARTBEAT:
            now["moments"] = replace(now["moments"], last_beat_at=clock.now)

    return Deadlines(clock, limits, lambda: now["moments"], note), now, found  # type: ignore[arg-type]


def test_one_timer_follows_a_stream_without_being_moved(clock: Clock) -> None:
    watch, now, found = watched(clock, LIMITS)
    watch.rearm()
    fired = 0
    for second in range(1001, 1051):
        fired += clock.run_until(second)
        assert len(clock.timers) == 1
        now["moments"] = replace(now["moments"], last_piece_at=second)
    assert found == []
    assert fired <= 6  # once in every idle time, not once for every piece
    clock.run_until(1080)
    assert found == [(1060, Expired.IDLE)]
    assert clock.timers == []


def test_heartbeats_go_on_until_the_end(clock: Clock) -> None:
    watch, _, found = watched(clock, replace(LIMITS, heartbeat_s=3))
    watch.rearm()
    clock.run_until(1030)
    assert found == [
        (1003, Expired.HEARTBEAT),
        (1006, Expired.HEARTBEAT),
        (1009, Expired.HEARTBEAT),
        (1010, Expired.IDLE),
    ]


def test_silence_is_shorter_once_the_stream_has_said_that_it_is_done(clock: Clock) -> None:
    watch, _, found = watched(clock, LIMITS)
    watch.rearm()
    clock.run_until(1001)
    watch.set_idle(idle_s=4)
    watch.set_idle(idle_s=7)  # never longer again
    clock.run_until(1030)
    assert found == [(1004, Expired.IDLE)]


@pytest.mark.parametrize(
    ("other", "due"),
    [
        ({"first_byte_s": 30}, (1042, Expired.NO_ANSWER)),
        ({"first_byte_s": 80, "total_s": 500}, (1092, Expired.NO_ANSWER)),
        ({"first_byte_s": 90, "total_s": 500}, (1100, Expired.OUT_OF_TIME)),
        ({"first_byte_s": 90, "total_s": 50}, (1050, Expired.OUT_OF_TIME)),
        ({"total_s": 5}, (1012, Expired.OUT_OF_TIME)),
    ],
)
def test_another_provider_has_its_own_time_to_begin_and_what_is_left_of_the_whole(
    clock: Clock, other: dict[str, Any], due: tuple[float, Expired]
) -> None:
    watch, now, found = watched(clock, LIMITS)
    now["moments"] = Moments(1000, None)
    watch.rearm()
    clock.run_until(1012)
    watch.use_limits(replace(LIMITS, **other), started_at=1000)
    clock.run_until(2000)
    assert found == [due]


def test_a_stopped_watch_finds_nothing(clock: Clock) -> None:
    watch, _, found = watched(clock, LIMITS)
    watch.rearm()
    watch.stop()
    watch.stop()
    clock.run_until(2000)
    assert (found, clock.timers) == ([], [])


def test_a_pause_counts_from_its_own_beginning(clock: Clock) -> None:
    watch, now, found = watched(clock, LIMITS)
    watch.rearm()
    clock.run_until(1008)
    now["moments"] = replace(now["moments"], paused_at=1008)
    watch.rearm()
    clock.run_until(1040)
    assert found == [(1013, Expired.WRITE_STALL)]
