"""The life of a session as a table: phase and event give the next phase, how running exchanges end, what is told, and
how each side is closed.

Pure: no I/O, no clock. `session.py` turns what happens on its two connections into events, and does what the table
says; what decides between two lines (is an exchange running? does the policy drain?) is part of the event.

| phase | |
|---|---|
| OPEN | messages pass in both directions, and exchanges begin |
| STOPPING | the proxy stops: the exchanges that run go on, and none begins |
| LEAVING | the client is gone: the exchanges that run are read for the bill |
| ENDED | both sides are closed, and every exchange has its record |

Invariants:
* Every way to ENDED ends the exchanges that run, and closes both sides.
* A client that is there is told why, unless it closed the session itself, or the provider did and says so.
* A pair that is not in the table cannot happen; `step` raises for it, which ends the session as a bug of ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum, auto
from typing import NamedTuple

from proxy.gateway.exchange.lifecycle import End, ImpossibleEventError
from proxy.http.websocket import GOING_AWAY, INTERNAL, POLICY

NORMAL = 1000


class Phase(StrEnum):
    """How far a session is."""

    OPEN = auto()
    STOPPING = auto()
    LEAVING = auto()
    ENDED = auto()


class Event(StrEnum):
    """What can happen."""

    # The client.
    CLIENT_CLOSED = auto()
    """it has closed or is lost, and what runs is not read on"""
    CLIENT_LEFT = auto()
    """the same, and what runs is read for the bill"""
    CLIENT_BROKE = auto()
    """it broke the protocol or a limit"""
    CLIENT_STALLED = auto()
    """it has not taken what was written to it for too long"""
    # The provider.
    PROVIDER_CLOSED = auto()
    """by a close frame"""
    PROVIDER_LOST = auto()
    PROVIDER_BROKE = auto()
    PROVIDER_STALLED = auto()
    UNREACHABLE = auto()
    """it could not be connected to; whoever asked for it has been told"""
    # Time.
    NO_ANSWER = auto()
    """a request has not been answered for too long"""
    SILENT = auto()
    """an answer has stopped for too long"""
    TOO_LONG = auto()
    """an exchange takes too long"""
    DRAINED_ENOUGH = auto()
    """for a client that is gone, by time or by tokens"""
    IDLE = auto()
    """nothing runs, and nothing was said for too long"""
    # Exchanges and money.
    DONE = auto()
    """the last exchange that ran has ended"""
    REFUSED = auto()
    """what the provider has begun may not run, or the key is not accepted any more; the client has been told"""
    BUDGET_CUT = auto()
    # Everything else.
    STOP_BUSY = auto()
    """the proxy stops, and exchanges run"""
    STOP_IDLE = auto()
    """the proxy stops, and none runs"""
    STOP_NOW = auto()
    """the grace time is over"""
    BUG = auto()
    """an exception in our own code"""


class Close(NamedTuple):
    """How a side is closed."""

    code: int | None
    """None: as the event says, which repeats the other side's code or says what this side broke"""
    reason: str = ""


ABORT = Close(0)
"""at once, without a word"""
AS_SAID = Close(None)
_AWAY = Close(GOING_AWAY)


class Transition(NamedTuple):
    """A line of the table. What is closed is closed exactly if the phase is ENDED."""

    phase: Phase
    end: End | None = None
    """of the exchanges that run; none only if the session goes on"""
    tells: bool = False
    """an event says why"""
    client: Close | None = None
    provider: Close | None = None


OPEN, STOPPING, LEAVING, ENDED = Phase

# The client is there: what ends the session, for which reason, and how the provider's side is closed.
_TOLD: Mapping[Event, tuple[End, Close, Close]] = {
    Event.PROVIDER_LOST: (End.BROKEN, Close(INTERNAL, "The provider has disconnected."), ABORT),
    Event.PROVIDER_BROKE: (End.BROKEN, Close(INTERNAL, "The provider sent what cannot be passed on."), AS_SAID),
    Event.PROVIDER_STALLED: (End.STALLED, Close(INTERNAL, "The provider does not read."), ABORT),
    Event.NO_ANSWER: (End.STALLED, Close(INTERNAL, "The provider did not answer in time."), _AWAY),
    Event.SILENT: (End.STALLED, Close(INTERNAL, "The provider did not answer in time."), _AWAY),
    Event.TOO_LONG: (End.STALLED, Close(INTERNAL, "The answer took too long."), _AWAY),
    Event.BUDGET_CUT: (End.BUDGET_CUT, Close(POLICY, "The budget is used up."), _AWAY),
    Event.STOP_NOW: (End.SHUT_DOWN, Close(GOING_AWAY, "The proxy is shutting down."), _AWAY),
    Event.BUG: (End.BUG, Close(INTERNAL, "The proxy failed."), _AWAY),
}
# The same, without an event that says so: the client knows, or is told by the close frame.
_UNTOLD: Mapping[Event, tuple[End, Close, Close]] = {
    Event.CLIENT_CLOSED: (End.CLIENT_LEFT, AS_SAID, AS_SAID),
    Event.CLIENT_BROKE: (End.CLIENT_LEFT, AS_SAID, _AWAY),
    Event.CLIENT_STALLED: (End.CLIENT_LEFT, ABORT, _AWAY),
    Event.PROVIDER_CLOSED: (End.BROKEN, AS_SAID, AS_SAID),
    Event.UNREACHABLE: (End.BROKEN, Close(INTERNAL, "The provider could not be reached."), ABORT),
    Event.REFUSED: (End.BUDGET_CUT, Close(POLICY, "This key may not go on."), _AWAY),
}
# For a client that is gone: whatever ends it, it had left.
_WHILE_LEAVING = (
    Event.PROVIDER_CLOSED, Event.PROVIDER_LOST, Event.PROVIDER_BROKE, Event.PROVIDER_STALLED, Event.NO_ANSWER,
    Event.SILENT, Event.TOO_LONG, Event.DRAINED_ENOUGH, Event.REFUSED, Event.BUDGET_CUT, Event.STOP_NOW,
    Event.STOP_IDLE, Event.DONE,
)  # fmt: skip


def _present() -> Iterator[tuple[tuple[Phase, Event], Transition]]:
    for phase in (OPEN, STOPPING):
        for tells, lines in ((True, _TOLD), (False, _UNTOLD)):
            for event, (end, client, provider) in lines.items():
                yield (phase, event), Transition(ENDED, end, tells, client, provider)
        yield (phase, Event.CLIENT_LEFT), Transition(LEAVING)
        yield (phase, Event.STOP_BUSY), Transition(STOPPING)
    idle = Close(NORMAL, "Nothing was said for a long time.")
    # None runs; one may be on its way through admission.
    stopped = Transition(ENDED, End.SHUT_DOWN, False, Close(GOING_AWAY, "The proxy is shutting down."), _AWAY)
    yield (OPEN, Event.IDLE), Transition(ENDED, End.SHUT_DOWN, False, idle, Close(NORMAL))
    yield (OPEN, Event.STOP_IDLE), stopped
    yield (STOPPING, Event.STOP_IDLE), stopped
    yield (STOPPING, Event.DONE), stopped


def _leaving() -> Iterator[tuple[tuple[Phase, Event], Transition]]:
    for event in _WHILE_LEAVING:
        yield (LEAVING, event), Transition(ENDED, End.CLIENT_LEFT, False, AS_SAID, _AWAY)
    yield (LEAVING, Event.BUG), Transition(ENDED, End.BUG, False, AS_SAID, _AWAY)
    yield (LEAVING, Event.STOP_BUSY), Transition(LEAVING)


TABLE: Mapping[tuple[Phase, Event], Transition] = dict([*_present(), *_leaving()])


class Lifecycle:
    """Where one session is."""

    __slots__ = ("phase",)

    def __init__(self) -> None:
        self.phase = Phase.OPEN

    def step(self, event: Event) -> Transition:
        """Take the event. Returns what to do. Raises ImpossibleEventError, changing nothing."""
        transition = TABLE.get((self.phase, event))
        if transition is None:
            raise ImpossibleEventError(f"{event} in {self.phase}")
        self.phase = transition.phase
        return transition
