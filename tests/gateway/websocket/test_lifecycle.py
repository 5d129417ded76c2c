"""The life of a WebSocket session, as a table: every cell, and every walk through it."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.gateway.exchange.lifecycle import End, ImpossibleEventError
from proxy.gateway.websocket.lifecycle import ABORT, IMPOSSIBLE, TABLE, Event, Phase, SessionLifecycle

PRESENT = (Phase.OPEN, Phase.STOPPING)


def test_every_phase_but_the_last_has_a_way_on() -> None:
    assert {phase for phase, _ in TABLE} == {Phase.OPEN, Phase.STOPPING, Phase.LEAVING}
    assert {event for _, event in TABLE} == set(Event)


def test_every_pair_has_a_transition_or_a_reason_why_it_has_none() -> None:
    pairs = list(product(Phase, Event))
    assert [pair for pair in pairs if (pair in TABLE) == bool(IMPOSSIBLE.get(pair))] == []


@pytest.mark.parametrize(("phase", "event"), TABLE)
def test_a_session_that_ends_closes_both_sides_and_says_how_its_exchanges_end(phase: Phase, event: Event) -> None:
    found = TABLE[phase, event]
    ended = found.phase is Phase.ENDED
    assert (found.client is not None, found.provider is not None, found.end is not None) == (ended, ended, ended)
    if found.sends_error:
        assert phase in PRESENT
        assert found.client not in (None, ABORT)
    if phase is Phase.LEAVING and ended:
        assert found.end in (End.CLIENT_LEFT, End.BUG)


def test_a_client_is_told_unless_it_knows() -> None:
    knows = {
        Event.CLIENT_CLOSED, Event.CLIENT_BROKE, Event.CLIENT_STALLED, Event.CLIENT_LEFT, Event.PROVIDER_CLOSED,
        Event.UNREACHABLE, Event.REFUSED, Event.IDLE, Event.STOP_BUSY, Event.STOP_IDLE, Event.DONE,
    }  # fmt: skip
    for phase in PRESENT:
        assert {event for where, event in TABLE if where is phase and not TABLE[where, event].sends_error} <= knows


@given(st.lists(st.sampled_from(Event), max_size=12))
def test_any_walk_ends_at_most_once(events: list[Event]) -> None:
    life, ends = SessionLifecycle(), 0
    for event in events:
        before = life.phase
        try:
            transition = life.step(event)
        except ImpossibleEventError:
            assert (before, event) not in TABLE
            assert life.phase is before, "nothing is changed"
            continue
        ends += transition.phase is Phase.ENDED
        assert life.phase is transition.phase
        assert before is not Phase.ENDED
        assert not (before is Phase.LEAVING and life.phase in PRESENT), "who is gone does not come back"
        assert not (before is Phase.STOPPING and life.phase is Phase.OPEN)
    assert ends == (life.phase is Phase.ENDED)
