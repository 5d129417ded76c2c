"""Which exchange an event of the provider is of: by hand, and whatever comes in which order."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from proxy.gateway.websocket.turns import ENDED_MAX, Step, Turns
from proxy.metering.socket import NO_EXCHANGE, EventPhase, ExchangeKind, ProviderEvent
from tests.support.examples import examples, repeats


def event(phase: EventPhase, key: str = "r:1", answer_id: str | None = "1", **more: Any) -> ProviderEvent:
    return ProviderEvent(phase, key, answer_id=answer_id, **more)


begins, goes_on, ends = (partial(event, one) for one in (EventPhase.BEGINS, EventPhase.CONTINUES, EventPhase.ENDS))


@pytest.fixture
def turns() -> Turns[str]:
    return Turns()


def test_an_answer_is_that_of_the_oldest_request(turns: Turns[str]) -> None:
    turns.asked("", "a", "first")
    turns.asked("", "b", "second")
    assert turns.step(begins()) == Step("first")
    assert turns.step(begins("r:2", "2")) == Step("second")
    assert turns.step(goes_on("r:2", "2")) == Step("second")
    assert turns.step(ends("r:2", "2")) == Step("second", ends=True)
    assert turns.step(ends()) == Step("first", ends=True)
    assert list(turns.all()) == []


def test_an_answer_that_nobody_asked_for_is_opened(turns: Turns[str]) -> None:
    assert turns.step(begins()) == Step(opens=True)
    turns.opened(begins(), "by itself")
    assert turns.step(goes_on()) == Step("by itself")
    assert turns.step(ends()) == Step("by itself", ends=True)


@pytest.mark.parametrize(
    "heard",
    [
        goes_on(),
        ends(),
        ends("u:x", None, kind=ExchangeKind.UNKNOWN),
        goes_on("t:1", "i:0", kind=ExchangeKind.TRANSCRIPT),
    ],
)
def test_nothing_passes_that_is_of_no_exchange(heard: ProviderEvent, turns: Turns[str]) -> None:
    assert turns.step(heard) == Step(opens=True, ends=heard.phase is EventPhase.ENDS)
    turns.opened(heard, "opened")
    assert list(turns.all()) == ([] if heard.phase is EventPhase.ENDS else ["opened"])


def test_what_bears_nothing_is_of_nobody(turns: Turns[str]) -> None:
    turns.asked("", None, "waits")
    for heard in (goes_on(is_billable=False), ends(is_billable=False), NO_EXCHANGE):
        assert turns.step(heard) == Step()
    assert list(turns.all()) == ["waits"]


def test_what_has_ended_stays_ended(turns: Turns[str]) -> None:
    turns.asked("", None, "first")
    turns.step(begins())
    turns.step(ends())
    turns.asked("", None, "second")
    for heard in (ends(), goes_on()):
        assert turns.step(heard) == Step(), "a repetition takes nobody's place"
    assert turns.step(begins("r:2", "2")) == Step("second")


def test_a_provider_with_one_id_for_all_answers_is_metered(turns: Turns[str]) -> None:
    for turn in ("first", "second"):
        turns.asked("", None, turn)
        assert turns.step(begins()) == Step(turn)
        assert turns.step(goes_on()) == Step(turn)
        assert turns.step(ends()) == Step(turn, ends=True)
        assert turns.step(ends()) == Step()
    assert turns.step(begins()) == Step(opens=True)


def test_in_a_lane_an_answer_ends_the_one_before_it(turns: Turns[str]) -> None:
    turns.asked("", None, "first")
    turns.step(begins("", "1"))
    assert turns.step(begins("", "1")) == Step("first"), "the same one"
    turns.asked("", None, "second")
    assert turns.step(begins("", "2")) == Step("second", over=("first",))
    assert turns.step(begins("", "3")) == Step(opens=True, over=("second",))


def test_lanes_are_answered_beside_each_other(turns: Turns[str]) -> None:
    turns.asked("", None, "here")
    turns.asked("left", None, "there")
    assert turns.step(begins("left", "2", stream_id="left")) == Step("there")
    assert turns.step(begins("", "1")) == Step("here")
    assert turns.step(ends("left", "2", stream_id="left")) == Step("there", ends=True)
    assert list(turns.all()) == ["here"]


def test_a_transcription_is_nobody_s_answer(turns: Turns[str]) -> None:
    turns.asked("", None, "waits")
    assert turns.step(goes_on("t:1", "i:0", kind=ExchangeKind.TRANSCRIPT)) == Step(opens=True)
    assert list(turns.all()) == ["waits"]


@pytest.mark.parametrize(
    ("asked", "failed_event_id", "refused"),
    [
        ([("a", "first"), ("b", "second")], "b", "second"),
        ([("a", "first"), ("b", "second")], None, None),
        ([("a", "first"), (None, "second")], None, "second"),
        ([(None, "first"), (None, "second")], None, "first"),
        ([(None, "first")], "of another message", None),
        ([], None, None),
    ],
)
def test_an_error_refuses_the_request_that_it_is_about(
    asked: list[tuple[str | None, str]], failed_event_id: str | None, refused: str | None, turns: Turns[str]
) -> None:
    for event_id, name in asked:
        turns.asked("", event_id, name)
    step = turns.step(ProviderEvent(EventPhase.FAILS, failed_event_id=failed_event_id))
    assert step == (Step() if refused is None else Step(refused, ends=True, refused=True))
    assert list(turns.all()) == [name for _, name in asked if name != refused]


def test_an_answer_that_fails_goes_on_to_its_own_end(turns: Turns[str]) -> None:
    turns.asked("", None, "first")
    turns.step(begins("", "1"))
    assert turns.step(ProviderEvent(EventPhase.FAILS)) == Step("first")
    assert turns.step(ends("", "1")) == Step("first", ends=True)
    turns.asked("", None, "second")
    turns.step(begins("", "2"))
    turns.step(ProviderEvent(EventPhase.FAILS))
    assert turns.failed_in("left") == []
    assert turns.failed_in("") == ["second"], "the client asks again: no end will come"
    assert turns.failed_in("") == []


KEYS = st.sampled_from(["", "left", "r:1", "r:2", "t:1", "u:x"])
IDS = st.none() | st.sampled_from(["1", "2", "3", "4"])
LANES = st.sampled_from(["", "left"])
EVENTS = st.builds(
    ProviderEvent,
    st.sampled_from(EventPhase),
    KEYS,
    st.sampled_from(ExchangeKind),
    LANES,
    IDS,
    st.booleans(),
    st.none() | st.just("mine"),
)


class AnySession(RuleBasedStateMachine):
    """Requests and events in any order: none is lost, and none is handed out as ended twice."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: Turns[int] = Turns()
        self.numbers = itertools.count()
        self.open: set[int] = set()
        self.ended: set[int] = set()

    def _over(self, *turns: int) -> None:
        for turn in turns:
            assert turn in self.open, "it is known, and has not ended"
            self.open.remove(turn)
            self.ended.add(turn)

    @rule(stream_id=LANES, event_id=st.none() | st.just("mine"))
    def ask(self, stream_id: str, event_id: str | None) -> None:
        self._over(*self.turns.failed_in(stream_id))
        turn = next(self.numbers)
        self.open.add(turn)
        self.turns.asked(stream_id, event_id, turn)

    @rule(heard=EVENTS)
    def hear(self, heard: ProviderEvent) -> None:
        step = self.turns.step(heard)
        self._over(*step.over)
        if step.opens:
            assert step.turn is None
            assert heard.phase not in (EventPhase.NONE, EventPhase.FAILS)
            turn = next(self.numbers)
            self.open.add(turn)
            self.turns.opened(heard, turn)
            if step.ends:
                self._over(turn)
            return
        if step.turn is None:
            known = heard.answer_id is not None and heard.answer_id in self.turns._ended
            assert known or not heard.is_billable or heard.phase in (EventPhase.NONE, EventPhase.FAILS), (
                "nothing passes unmetered"
            )
            return
        assert step.turn in self.open
        assert not step.refused or step.ends
        if step.ends:
            self._over(step.turn)

    @invariant()
    def each_is_where_it_belongs(self) -> None:
        assert sorted(self.turns.all()) == sorted(self.open)
        assert self.turns.waiting + self.turns.running == len(self.open)
        assert len(self.turns._ended) <= ENDED_MAX

    def teardown(self) -> None:
        self._over(*self.turns.clear())
        assert not self.open


TestAnySession = AnySession.TestCase
TestAnySession.settings = settings(max_examples=examples(60), stateful_step_count=repeats(40, gate=20))


@given(st.lists(EVENTS, max_size=30))
def test_without_a_request_nothing_is_refused(events: list[ProviderEvent]) -> None:
    turns: Turns[str] = Turns()
    for heard in events:
        step = turns.step(heard)
        assert not step.refused
        if step.opens:
            turns.opened(heard, "new")
