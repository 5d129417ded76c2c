"""The deadlines of a session, as a table."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from proxy.gateway.upstream.provider import TimeLimits
from proxy.gateway.websocket.lifecycle import TABLE, Event, Phase
from proxy.gateway.websocket.timing import SILENT_S, Moments, Side, due, tick_s

LIMITS = TimeLimits(first_byte_s=10, idle_s=5, total_s=60, write_stall_s=7, drain_s=20)
AT = Moments(phase=Phase.OPEN, client=Side(100.0), provider=Side(100.0), said_at=100.0, answered_at=100.0)
WAITS: dict[str, Any] = {"asked_at": 100.0, "began_at": 100.0}
RUNS: dict[str, Any] = {"runs": True, "began_at": 100.0}


@pytest.mark.parametrize(
    ("changes", "after_s", "event"),
    [
        ({}, 59.9, None),
        ({}, 60.0, Event.IDLE),
        ({"phase": Phase.STOPPING}, 60.0, None),
        (WAITS, 9.9, None),
        (WAITS, 10.0, Event.NO_ANSWER),
        (WAITS | {"answered_at": 105.0}, 10.0, None),  # another request was answered meanwhile
        (WAITS | {"provider": None}, 10.0, Event.NO_ANSWER),
        (RUNS, 4.9, None),
        (RUNS, 5.0, Event.SILENT),
        (RUNS | {"client": Side(100.0, writing_since=100.0)}, 5.0, None),  # it is not read
        (RUNS | {"answered_at": 159.0}, 60.0, Event.TOO_LONG),
        ({"client": Side(100.0, writing_since=100.0)}, 7.0, Event.CLIENT_STALLED),
        ({"client": Side(100.0, writing_since=100.0)}, 6.9, None),
        ({"provider": Side(100.0, writing_since=100.0)}, 7.0, Event.PROVIDER_STALLED),
        ({"client": Side(100.0 - SILENT_S)}, 0.0, Event.CLIENT_CLOSED),
        ({"provider": Side(100.0 - SILENT_S)}, 0.0, Event.PROVIDER_LOST),
        ({"phase": Phase.LEAVING, "left_at": 100.0, "answered_at": 119.0} | RUNS, 20.0, Event.DRAINED_ENOUGH),
        ({"phase": Phase.LEAVING, "left_at": 100.0} | RUNS, 5.0, Event.SILENT),
        ({"phase": Phase.LEAVING, "left_at": 100.0, "client": Side(0.0)} | RUNS, 1.0, None),
    ],
)
def test_what_is_due(changes: dict[str, Any], after_s: float, event: Event | None) -> None:
    at = structs.replace(AT, **changes)
    assert due(100.0 + after_s, at, LIMITS) is event
    if event is not None:
        assert (at.phase, event) in TABLE or event is Event.CLIENT_CLOSED


@pytest.mark.parametrize(("idle_s", "tick"), [(5.0, 0.5), (120.0, 0.7), (0.02, 0.01)])
def test_it_is_looked_at_often_enough(idle_s: float, tick: float) -> None:
    assert tick_s(structs.replace(LIMITS, idle_s=idle_s)) == pytest.approx(tick)
