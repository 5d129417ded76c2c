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
from proxy.gateway.exchange.deadlines import ARMED, NEVER, SETTINGS, Deadlines, Moments, decide
from proxy.gateway.exchange.lifecycle import TABLE, Client, Event, Phase
from proxy.gateway.upstream.provider import TimeLimits

LIMITS = TimeLimits(first_byte_s=20, idle_s=10, total_s=100, write_stall_s=5, drain_s=30, heartbeat_s=0)
BEGUN = Moments(Phase.BODY, Client.READING, began_at=1000, asked_at=1000, last_piece_at=1002)
times = st.floats(min_value=0, max_value=200, allow_nan=False)
limits = st.builds(
    TimeLimits, first_byte_s=times, idle_s=times, total_s=times, write_stall_s=times, drain_s=times, heartbeat_s=times
)
moments = st.builds(
    lambda where, **at: Moments(*where, **at), st.sampled_from(sorted(ARMED)), began_at=times, asked_at=times,
    last_piece_at=times, blocked_at=times, left_at=times, last_beat_at=times,
)  # fmt: skip


def test_what_can_expire_is_what_the_table_of_the_exchange_knows() -> None:
    known = {cell for cell in TABLE if cell[2] in SETTINGS}
    assert {(phase, client, event) for (phase, client), events in ARMED.items() for event in events} == known


@pytest.mark.parametrize(
    ("changed", "due", "at"),
    [
        ({"phase": Phase.ASKING, "client": Client.WAITING}, Event.NO_ANSWER, 1020),
        ({"phase": Phase.ASKING, "client": Client.WAITING, "asked_at": 1015}, Event.NO_ANSWER, 1035),
        ({"phase": Phase.ASKING, "client": Client.BLOCKED, "blocked_at": 1001}, Event.WRITE_STALL, 1006),
        ({"phase": Phase.ANSWERED, "client": Client.WAITING}, Event.SILENT, 1012),
        ({}, Event.SILENT, 1012),
        ({"last_piece_at": 1050}, Event.SILENT, 1060),
        ({"last_piece_at": 1095}, Event.TOO_LONG, 1100),
        ({"client": Client.BLOCKED, "blocked_at": 1003}, Event.WRITE_STALL, 1008),
        ({"client": Client.BLOCKED, "blocked_at": 1003, "last_piece_at": 990}, Event.WRITE_STALL, 1008),
        ({"client": Client.GONE, "left_at": 1003, "last_piece_at": 1032}, Event.DRAINED_ENOUGH, 1033),
        ({"client": Client.GONE, "left_at": 1003}, Event.SILENT, 1012),
        ({"phase": Phase.ASKING, "client": Client.GONE, "left_at": 980}, Event.DRAINED_ENOUGH, 1010),
        ({"phase": Phase.CLOSING, "client": Client.BLOCKED, "blocked_at": 1200}, Event.WRITE_STALL, 1205),
    ],
)
def test_each_limit_is_due_at_its_moment_and_not_before(changed: dict[str, Any], due: Event, at: float) -> None:
    found = replace(BEGUN, **changed)
    assert decide(at - 0.001, found, LIMITS) == (None, at)
    assert decide(at, found, LIMITS) == (due, at)
    assert decide(at + 50, found, LIMITS) == (due, at)


def test_nothing_expires_for_a_client_that_takes_the_rest() -> None:
    found = replace(BEGUN, phase=Phase.CLOSING)
    assert decide(5000, found, LIMITS) == (None, NEVER)


def test_heartbeats_come_after_silence_and_then_regularly() -> None:
    beating = replace(LIMITS, heartbeat_s=3)
    assert decide(1005, BEGUN, beating) == (Event.HEARTBEAT, 1005)
    assert decide(1005, replace(BEGUN, last_beat_at=1005), beating) == (None, 1008)
    assert decide(1004, replace(BEGUN, last_piece_at=1003), beating) == (None, 1006)


@pytest.mark.parametrize(
    "changed",
    [
        {"client": Client.BLOCKED, "blocked_at": 1002},
        {"client": Client.GONE, "left_at": 1002},
        {"phase": Phase.ANSWERED, "client": Client.WAITING},
    ],
)
def test_nobody_gets_a_heartbeat_who_cannot_read_it(changed: dict[str, Any]) -> None:
    found = replace(BEGUN, **changed)
    assert decide(1004, found, replace(LIMITS, heartbeat_s=1)) == decide(1004, found, LIMITS)


@given(moments, limits, times)
def test_what_is_due_is_past_and_what_is_not_is_to_come(found: Moments, limits: TimeLimits, now: float) -> None:
    due, at = decide(now, found, limits)
    assert (due is None) == (at > now)
    assert found.phase is Phase.CLOSING or at <= found.began_at + limits.total_s


@given(moments, limits, times, times)
def test_what_is_due_stays_due(found: Moments, limits: TimeLimits, now: float, later: float) -> None:
    assume(later >= now)
    due, at = decide(now, found, limits)
    if due is not None:
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


class TimedLoop:
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
def clock(monkeypatch: pytest.MonkeyPatch) -> TimedLoop:
    clock = TimedLoop()
    monkeypatch.setattr(watch_module, "monotonic", lambda: clock.now)
    return clock


def watched(clock: TimedLoop, limits: TimeLimits) -> tuple[Deadlines, dict[str, Moments], list[tuple[float, Event]]]:
    now = {"moments": replace(BEGUN, last_piece_at=1000)}
    found: list[tuple[float, Event]] = []

    def note(due: Event) -> None:
        found.append((clock.now, due))
        if due is Event.HEARTBEAT:
            now["moments"] = replace(now["moments"], last_beat_at=clock.now)
        else:
            watch.stop()

    watch = Deadlines(clock, limits, lambda: now["moments"], note)  # type: ignore[arg-type]
    return watch, now, found


def test_one_timer_follows_a_stream_without_being_moved(clock: TimedLoop) -> None:
    watch, now, found = watched(clock, LIMITS)
    watch.rearm()
    fired = 0
    for second in range(1001, 1051):
        fired += clock.run_until(second)
        assert len(clock.timers) == 1
        now["moments"] = replace(now["moments"], last_piece_at=second)
    assert found == []
    assert fired <= 11  # once in every shortest limit, not once for every piece
    clock.run_until(1080)
    assert found == [(1060, Event.SILENT)]
    assert clock.timers == []


def test_heartbeats_go_on_until_the_end(clock: TimedLoop) -> None:
    watch, _, found = watched(clock, replace(LIMITS, heartbeat_s=3))
    watch.rearm()
    clock.run_until(1030)
    assert found == [
        (1003, Event.HEARTBEAT),
        (1006, Event.HEARTBEAT),
        (1009, Event.HEARTBEAT),
        (1010, Event.SILENT),
    ]


def test_silence_is_shorter_once_the_stream_has_said_that_it_is_done(clock: TimedLoop) -> None:
    watch, _, found = watched(clock, LIMITS)
    watch.rearm()
    clock.run_until(1001)
    watch.set_idle(idle_s=4)
    watch.set_idle(idle_s=7)  # never longer again
    clock.run_until(1030)
    assert found == [(1004, Event.SILENT)]


@pytest.mark.parametrize(
    ("other", "due"),
    [
        ({"first_byte_s": 30}, (1042, Event.NO_ANSWER)),
        ({"first_byte_s": 80, "total_s": 500}, (1092, Event.NO_ANSWER)),
        ({"first_byte_s": 90, "total_s": 500}, (1100, Event.TOO_LONG)),
        ({"first_byte_s": 90, "total_s": 50}, (1050, Event.TOO_LONG)),
        ({"total_s": 5}, (1012, Event.TOO_LONG)),
    ],
)
def test_another_provider_has_its_own_time_to_begin_and_what_is_left_of_the_whole(
    clock: TimedLoop, other: dict[str, Any], due: tuple[float, Event]
) -> None:
    watch, now, found = watched(clock, LIMITS)
    now["moments"] = asked = replace(BEGUN, phase=Phase.ASKING, client=Client.WAITING)
    watch.rearm()
    clock.run_until(1012)
    now["moments"] = replace(asked, asked_at=1012)
    watch.use_limits(replace(LIMITS, **other))
    clock.run_until(1000.5 + due[0] - 1000)
    ((at, event),) = found
    assert (round(at, 2), event) == due


def test_a_stopped_watch_finds_nothing(clock: TimedLoop) -> None:
    watch, _, found = watched(clock, LIMITS)
    watch.rearm()
    watch.stop()
    watch.stop()
    clock.run_until(2000)
    assert (found, clock.timers) == ([], [])


def test_a_pause_counts_from_its_own_beginning(clock: TimedLoop) -> None:
    watch, now, found = watched(clock, LIMITS)
    watch.rearm()
    clock.run_until(1008)
    now["moments"] = replace(now["moments"], client=Client.BLOCKED, blocked_at=1008)
    watch.rearm()
    clock.run_until(1040)
    assert found == [(1013, Event.WRITE_STALL)]


@pytest.mark.parametrize("at", [1000.5, 1004.9, 1005.1, 1049.9])
def test_what_begins_while_the_timer_runs_is_found_in_time_without_moving_it(clock: TimedLoop, at: float) -> None:
    watch, now, found = watched(clock, replace(LIMITS, idle_s=60))
    watch.rearm()
    clock.run_until(at)
    now["moments"] = replace(now["moments"], client=Client.BLOCKED, blocked_at=at)
    clock.run_until(at + 60)
    assert found == [(pytest.approx(at + LIMITS.write_stall_s), Event.WRITE_STALL)]


def test_who_is_blocked_after_the_end_is_still_found(clock: TimedLoop) -> None:
    now = {"moments": BEGUN}
    found: list[Event] = []

    def note(due: Event) -> None:
        found.append(due)
        if due is Event.SILENT:
            now["moments"] = replace(BEGUN, phase=Phase.CLOSING, client=Client.BLOCKED, blocked_at=clock.now)
        else:
            watch.stop()

    watch = Deadlines(clock, LIMITS, lambda: now["moments"], note)  # type: ignore[arg-type]
    watch.rearm()
    clock.run_until(1100)
    assert found == [Event.SILENT, Event.WRITE_STALL]
