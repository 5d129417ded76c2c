"""The life of an exchange as a table: phase, client and event give the next phase and client, and what to do.

Pure: no I/O, no clock. `exchange.py` turns what happens on its two connections into events, and does what the table
says; what decides between two lines (has the meter seen the end? does the policy drain?) is part of the event.

| phase | the provider | the client |
|---|---|---|
| ASKING | is asked, perhaps one after another | nothing has been sent to it |
| ANSWERED | has accepted: it is to be paid. A short answer is collected, a stream is about to begin | the same |
| BODY | sends the body | has got the head of the response |
| CLOSING | is done with; the record is written | may still have to take the rest |
| ENDED | | nothing is left to do |

Invariants:
* The response has begun exactly if the phase is BODY, or was. So there is at most one head, and an error has a response
  of its own before BODY, and is an event within the body after it.
* Every way to CLOSING writes exactly one record, or hands the exchange over to who will, and nothing else does.
* Reading from the provider is paused exactly while the phase is BODY and the client BLOCKED.
* A pair that is not in the table cannot happen; `step` raises for it, which ends the exchange as a bug of ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum, auto
from typing import NamedTuple


class Phase(StrEnum):
    """How far an exchange is."""

    ASKING = auto()
    ANSWERED = auto()
    BODY = auto()
    CLOSING = auto()
    ENDED = auto()


class Client(StrEnum):
    """What the client does."""

    WAITING = auto()
    """for the response to begin"""
    READING = auto()
    BLOCKED = auto()
    """it does not take what was written to it; before BODY: what was written for an earlier request"""
    GONE = auto()


class Event(StrEnum):
    """What can happen."""

    # The provider.
    ACCEPTED = auto()
    """the head of an answer with a success status"""
    REFUSED = auto()
    """the last provider asked answered with another status"""
    UNREACHABLE = auto()
    """no provider answered"""
    START = auto()
    """the open exchange is durable, and the body is not collected: it may be passed on"""
    PIECE = auto()
    END = auto()
    """nothing of the answer is missing"""
    BREAK = auto()
    """the answer broke off"""
    # The client.
    LEFT_CANCEL = auto()
    """it disconnected, and the policy is not to read the rest"""
    LEFT_DRAIN = auto()
    """it disconnected, and the rest is read for the bill"""
    LEFT_SERVED = auto()
    """it disconnected after the last event"""
    FULL = auto()
    """its connection's buffer is full"""
    DRAINED = auto()
    """that buffer is empty again"""
    SENT = auto()
    """all that is to be sent was handed to its connection"""
    # Time.
    NO_ANSWER = auto()
    SILENT = auto()
    """no piece came for too long"""
    TOO_LONG = auto()
    """the whole exchange takes too long"""
    HEARTBEAT = auto()
    WRITE_STALL = auto()
    """it has been blocked for too long"""
    DRAINED_ENOUGH = auto()
    """for a client that is gone, by time or by tokens"""
    # Everything else.
    BUDGET_CUT = auto()
    SHUT_DOWN = auto()
    BUG = auto()
    """an exception in our own code"""


class Action(StrEnum):
    """What to do, in the order of a transition's actions."""

    BEGIN = auto()
    """write the head of the response"""
    PASS = auto()
    """meter the piece and write it"""
    METER = auto()
    """meter the piece; it is collected, or nobody gets it"""
    DELIVER = auto()
    """write the head and the whole collected body"""
    BEAT = auto()
    """write a heartbeat"""
    PAUSE = auto()
    RESUME = auto()
    """reading from the provider"""
    DETACH = auto()
    """write nothing more; what was delivered is final"""
    STOP = auto()
    """let go of the provider, whatever it is doing"""
    TELL = auto()
    """write an event that says why the stream ends"""
    RECORD = auto()
    """write the record"""
    RESPOND = auto()
    """write an error as the response"""
    FINISH = auto()
    """write the end of the body"""
    CUT = auto()
    """close the client's connection after what is written: the body has no proper end"""
    ABORT = auto()
    """close the client's connection at once"""


class End(StrEnum):
    """How an exchange ended; with the meter's result, this gives the outcome."""

    COMPLETE = auto()
    BROKEN = auto()
    REFUSED = auto()
    UNREACHABLE = auto()
    STALLED = auto()
    CLIENT_LEFT = auto()
    SHUT_DOWN = auto()
    BUDGET_CUT = auto()
    BUG = auto()


class Transition(NamedTuple):
    """A line of the table."""

    phase: Phase
    client: Client
    actions: tuple[Action, ...] = ()
    end: End | None = None
    """set exactly if the exchange gets its record here"""


Cell = tuple[Phase, Client, Event]

ASKING, ANSWERED, BODY, CLOSING, ENDED = Phase
WAITING, READING, BLOCKED, GONE = Client
_NOT_BEGUN = (WAITING, BLOCKED)
_BEGUN = (READING, BLOCKED)
_PRESENT = (WAITING, READING, BLOCKED)

# Ends that come from outside the answer: how each ends, for a client that is still there.
_CUT_SHORT: Mapping[Event, End] = {
    Event.TOO_LONG: End.STALLED,
    Event.SHUT_DOWN: End.SHUT_DOWN,
    Event.BUG: End.BUG,
}

_TOLD = (Action.STOP, Action.TELL, Action.RECORD, Action.CUT)


def _closing(client: Client, end: End, *actions: Action) -> Transition:
    """`client`: as it is then."""
    return Transition(CLOSING, READING if client is WAITING else client, actions, end)


def _gone(phase: Phase, *actions: Action) -> Transition:
    return Transition(phase, GONE, actions)


def _left(*actions: Action) -> Transition:
    return Transition(CLOSING, GONE, (*actions, Action.STOP, Action.RECORD), End.CLIENT_LEFT)


def _before_the_body() -> Iterator[tuple[Cell, Transition]]:
    """ASKING and ANSWERED: an end gets a response of its own."""
    for phase in (ASKING, ANSWERED):
        timeout = Event.NO_ANSWER if phase is ASKING else Event.SILENT
        for event, end in {**_CUT_SHORT, timeout: End.STALLED}.items():
            for client in _NOT_BEGUN:
                yield (phase, client, event), _closing(client, end, Action.STOP, Action.RECORD, Action.RESPOND)
            yield (
                (phase, GONE, event),
                _left() if event is not Event.BUG else _closing(GONE, End.BUG, Action.STOP, Action.RECORD),
            )
        yield (phase, GONE, Event.DRAINED_ENOUGH), _left()
        yield (phase, WAITING, Event.FULL), Transition(phase, BLOCKED)
        yield (phase, BLOCKED, Event.DRAINED), Transition(phase, WAITING)
        yield (phase, BLOCKED, Event.WRITE_STALL), Transition(phase, BLOCKED, (Action.ABORT,))
        for client in _NOT_BEGUN:
            yield (phase, client, Event.LEFT_CANCEL), _left()
            yield (phase, client, Event.LEFT_DRAIN), _gone(phase)


def _asking() -> Iterator[tuple[Cell, Transition]]:
    for client in (*_NOT_BEGUN, GONE):
        yield (ASKING, client, Event.ACCEPTED), Transition(ANSWERED, client)
    for event, end in ((Event.REFUSED, End.REFUSED), (Event.UNREACHABLE, End.UNREACHABLE)):
        for client in _NOT_BEGUN:
            yield (ASKING, client, event), _closing(client, end, Action.STOP, Action.RECORD, Action.RESPOND)
    yield (ASKING, GONE, Event.REFUSED), _closing(GONE, End.REFUSED, Action.STOP, Action.RECORD)
    yield (ASKING, GONE, Event.UNREACHABLE), _left()


def _answered() -> Iterator[tuple[Cell, Transition]]:
    """The body is collected, or begins."""
    yield (ANSWERED, WAITING, Event.START), Transition(BODY, READING, (Action.BEGIN,))
    yield (ANSWERED, BLOCKED, Event.START), Transition(BODY, BLOCKED, (Action.BEGIN, Action.PAUSE))
    yield (ANSWERED, GONE, Event.START), _gone(BODY)
    for client in (*_NOT_BEGUN, GONE):
        yield (ANSWERED, client, Event.PIECE), Transition(ANSWERED, client, (Action.METER,))
    for client in _NOT_BEGUN:
        yield (ANSWERED, client, Event.END), _closing(client, End.COMPLETE, Action.DELIVER, Action.RECORD)
        broken = _closing(client, End.BROKEN, Action.STOP, Action.RECORD, Action.RESPOND)
        yield (ANSWERED, client, Event.BREAK), broken
    yield (ANSWERED, GONE, Event.END), _closing(GONE, End.CLIENT_LEFT, Action.RECORD)
    yield (ANSWERED, GONE, Event.BREAK), _left()


def _body() -> Iterator[tuple[Cell, Transition]]:
    """The response has begun: an end is told within it, or shown by the lack of a proper end."""
    for client in _BEGUN:
        yield (BODY, client, Event.PIECE), Transition(BODY, client, (Action.PASS,))
        yield (BODY, client, Event.END), _closing(client, End.COMPLETE, Action.RECORD, Action.FINISH)
        yield (BODY, client, Event.BREAK), _closing(client, End.BROKEN, Action.STOP, Action.RECORD, Action.CUT)
        for event, end in {**_CUT_SHORT, Event.BUDGET_CUT: End.BUDGET_CUT}.items():
            yield (BODY, client, event), _closing(client, end, *_TOLD)
        yield (BODY, client, Event.LEFT_CANCEL), _left(Action.DETACH)
        served = (Action.DETACH, Action.STOP, Action.RECORD)
        yield (BODY, client, Event.LEFT_SERVED), Transition(CLOSING, GONE, served, End.COMPLETE)
    yield (BODY, READING, Event.SILENT), _closing(READING, End.STALLED, *_TOLD)
    yield (BODY, READING, Event.LEFT_DRAIN), _gone(BODY, Action.DETACH)
    yield (BODY, BLOCKED, Event.LEFT_DRAIN), _gone(BODY, Action.DETACH, Action.RESUME)
    yield (BODY, READING, Event.FULL), Transition(BODY, BLOCKED, (Action.PAUSE,))
    yield (BODY, BLOCKED, Event.DRAINED), Transition(BODY, READING, (Action.RESUME,))
    yield (BODY, READING, Event.HEARTBEAT), Transition(BODY, READING, (Action.BEAT,))
    yield (BODY, BLOCKED, Event.WRITE_STALL), Transition(BODY, BLOCKED, (Action.ABORT,))
    yield (BODY, GONE, Event.PIECE), _gone(BODY, Action.METER)
    yield (BODY, GONE, Event.END), _closing(GONE, End.CLIENT_LEFT, Action.RECORD)
    for event in (
        Event.BREAK, Event.SILENT, Event.TOO_LONG, Event.DRAINED_ENOUGH, Event.BUDGET_CUT, Event.SHUT_DOWN,
    ):  # fmt: skip
        yield (BODY, GONE, event), _left()
    yield (BODY, GONE, Event.BUG), _closing(GONE, End.BUG, Action.STOP, Action.RECORD)


def _the_rest() -> Iterator[tuple[Cell, Transition]]:
    """CLOSING: the record is written, and only the client counts."""
    yield (CLOSING, READING, Event.SENT), Transition(ENDED, READING)
    yield (CLOSING, BLOCKED, Event.SENT), Transition(CLOSING, BLOCKED)
    yield (CLOSING, GONE, Event.SENT), _gone(ENDED)
    yield (CLOSING, READING, Event.FULL), Transition(CLOSING, BLOCKED)
    yield (CLOSING, BLOCKED, Event.DRAINED), Transition(ENDED, READING)
    yield (CLOSING, BLOCKED, Event.WRITE_STALL), Transition(CLOSING, BLOCKED, (Action.ABORT,))
    yield (CLOSING, BLOCKED, Event.LEFT_CANCEL), _gone(ENDED)  # there is nothing more to drain
    yield (CLOSING, BLOCKED, Event.SHUT_DOWN), Transition(ENDED, BLOCKED, (Action.ABORT,))
    for client in _BEGUN:
        yield (CLOSING, client, Event.BUG), Transition(ENDED, client, (Action.ABORT,))
    yield (CLOSING, GONE, Event.BUG), _gone(ENDED)


def _table(parts: Iterable[Iterable[tuple[Cell, Transition]]]) -> Mapping[Cell, Transition]:
    made: dict[Cell, Transition] = {}
    for part in parts:
        for cell, transition in part:
            assert cell not in made, f"two lines for {cell}"
            made[cell] = transition
    return made


TABLE = _table((_before_the_body(), _asking(), _answered(), _body(), _the_rest()))


class ImpossibleEventError(AssertionError):
    """An event that cannot happen in this phase, with this client: a bug of ours."""


class Lifecycle:
    """Where one exchange is."""

    __slots__ = ("client", "end", "phase")

    def __init__(self) -> None:
        self.phase = Phase.ASKING
        self.client = Client.WAITING
        self.end: End | None = None
        """set together with CLOSING"""

    def step(self, event: Event) -> tuple[Action, ...]:
        """Take the event. Returns what to do. Raises ImpossibleEventError, changing nothing."""
        transition = TABLE.get((self.phase, self.client, event))
        if transition is None:
            raise ImpossibleEventError(f"{event} in {self.phase}, client {self.client}")
        self.phase, self.client = transition.phase, transition.client
        if transition.end is not None:
            self.end = transition.end
        return transition.actions
