"""The life of a session as a table: phase and event give the next phase, the end of running exchanges, whether the
client gets an error event, and how each side is closed.

Pure: no I/O, no clock. `session.py` turns each happening on its two connections into an event, and carries out the
actions of the table. A fact that decides between two transitions (is an exchange running? does the policy drain?) is
part of the event.

| phase | |
|---|---|
| OPEN | messages pass in both directions, and exchanges begin |
| STOPPING | the proxy stops: running exchanges continue, and none begins |
| LEAVING | the client is gone: running exchanges are read for the bill |
| ENDED | both sides are closed, and every exchange has its record |

Invariants:
* Every way to ENDED ends the running exchanges, and closes both sides.
* A client that is there gets the reason, unless it closed the session itself, or the provider's close frame gives it.
* A pair without a transition cannot happen; `step` raises for it, which ends the session as a bug of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    """An event in the life of a session."""

    # The client.
    CLIENT_CLOSED = auto()
    """the client has closed or is lost, and running exchanges are not read to their ends"""
    CLIENT_LEFT = auto()
    """the client has closed or is lost, and running exchanges are read for the bill"""
    CLIENT_BROKE = auto()
    """the client broke the protocol or a limit"""
    CLIENT_STALLED = auto()
    """the client has not read for too long"""
    # The provider.
    PROVIDER_CLOSED = auto()
    """the provider sent a close frame"""
    PROVIDER_LOST = auto()
    """the provider's connection is lost"""
    PROVIDER_BROKE = auto()
    """the provider broke the protocol or a limit"""
    PROVIDER_STALLED = auto()
    """the provider has not read for too long"""
    UNREACHABLE = auto()
    """no provider could be connected to; the client got the error"""
    # Time.
    NO_ANSWER = auto()
    """a request has not been answered for too long"""
    SILENT = auto()
    """an answer has stopped for too long"""
    TOO_LONG = auto()
    """an exchange takes too long"""
    DRAINED_ENOUGH = auto()
    """the limit of a drain, in seconds or tokens"""
    IDLE = auto()
    """no exchange runs, and no message came for too long"""
    # SessionExchanges and money.
    DONE = auto()
    """the last running exchange has ended"""
    REFUSED = auto()
    """the provider started a response that the key may not use, or the key was revoked; the client got the error"""
    BUDGET_CUT = auto()
    """the cost of an exchange exceeds the budget"""
    # Everything else.
    STOP_BUSY = auto()
    """the proxy stops, and exchanges run"""
    STOP_IDLE = auto()
    """the proxy stops, and no exchange runs"""
    STOP_NOW = auto()
    """the grace time is over"""
    BUG = auto()
    """an exception in our own code"""


class Close(NamedTuple):
    """How a side is closed."""

    code: int | None
    """None: by the event, which repeats the other side's code or names what this side broke"""
    reason: str = ""


ABORT = Close(0)
"""close at once, without a close frame"""
BY_EVENT = Close(None)
_AWAY = Close(GOING_AWAY)


class Transition(NamedTuple):
    """A cell of the table. Both sides are closed exactly if the phase is ENDED."""

    phase: Phase
    end: End | None = None
    """how running exchanges end; None: the session continues"""
    sends_error: bool = False
    """the client gets an error event"""
    client: Close | None = None
    provider: Close | None = None


OPEN, STOPPING, LEAVING, ENDED = Phase

# -- transitions


def _error(end: End, code: int, reason: str, provider: Close = _AWAY) -> Transition:
    """The client gets an error event."""
    return Transition(ENDED, end, True, Close(code, reason), provider)


def _close(end: End, client: Close, provider: Close = _AWAY) -> Transition:
    """The client gets no error event."""
    return Transition(ENDED, end, False, client, provider)


STOP = Transition(STOPPING)
LEAVE = Transition(LEAVING)
STAY = Transition(LEAVING)
LEFT = _close(End.CLIENT_LEFT, BY_EVENT)
LEFT_BY_BUG = _close(End.BUG, BY_EVENT)
CLOSED = _close(End.CLIENT_LEFT, BY_EVENT, BY_EVENT)
STALLED = _close(End.CLIENT_LEFT, ABORT)
PROVIDER_CLOSED = _close(End.BROKEN, BY_EVENT, BY_EVENT)
UNREACHABLE = _close(End.BROKEN, Close(INTERNAL, "The provider could not be reached."), ABORT)
REFUSED = _close(End.BUDGET_CUT, Close(POLICY, "This key may not continue."))
IDLE = _close(End.SHUT_DOWN, Close(NORMAL, "The session was idle for too long."), Close(NORMAL))
# No exchange runs; one may be in admission.
STOPPED = _close(End.SHUT_DOWN, Close(GOING_AWAY, "The proxy is shutting down."))
LOST = _error(End.BROKEN, INTERNAL, "The provider has disconnected.", ABORT)
BROKE = _error(End.BROKEN, INTERNAL, "The provider sent an invalid message.", BY_EVENT)
NOT_READ = _error(End.STALLED, INTERNAL, "The provider stopped reading.", ABORT)
NO_ANSWER = _error(End.STALLED, INTERNAL, "The provider did not answer in time.")
TOO_LONG = _error(End.STALLED, INTERNAL, "The answer took too long.")
BUDGET_CUT = _error(End.BUDGET_CUT, POLICY, "The budget is used up.")
STOPPED_NOW = _error(End.SHUT_DOWN, GOING_AWAY, "The proxy is shutting down.")
FAILED = _error(End.BUG, INTERNAL, "The proxy failed.")

# -- why a pair is impossible

IS_GONE = "a client that is gone neither sends nor reads, nor leaves again"
IS_HERE = "only a client that is gone is drained for"
CONNECTED = "only a session with a provider is read for the bill"
NOT_COUNTED = "while a session is open, the end of its last exchange is no event"
RUNS = "an exchange runs, or its end ends the session"

_ROWS: tuple[tuple[Event, Transition | str, Transition | str, Transition | str], ...] = (
    # event                   OPEN             STOPPING         LEAVING
    (Event.CLIENT_CLOSED,    CLOSED,          CLOSED,          IS_GONE),
    (Event.CLIENT_LEFT,      LEAVE,           LEAVE,           IS_GONE),
    (Event.CLIENT_BROKE,     LEFT,            LEFT,            IS_GONE),
    (Event.CLIENT_STALLED,   STALLED,         STALLED,         IS_GONE),
    (Event.PROVIDER_CLOSED,  PROVIDER_CLOSED, PROVIDER_CLOSED, LEFT),
    (Event.PROVIDER_LOST,    LOST,            LOST,            LEFT),
    (Event.PROVIDER_BROKE,   BROKE,           BROKE,           LEFT),
    (Event.PROVIDER_STALLED, NOT_READ,        NOT_READ,        LEFT),
    (Event.UNREACHABLE,      UNREACHABLE,     UNREACHABLE,     CONNECTED),
    (Event.NO_ANSWER,        NO_ANSWER,       NO_ANSWER,       LEFT),
    (Event.SILENT,           NO_ANSWER,       NO_ANSWER,       LEFT),
    (Event.TOO_LONG,         TOO_LONG,        TOO_LONG,        LEFT),
    (Event.DRAINED_ENOUGH,   IS_HERE,         IS_HERE,         LEFT),
    (Event.IDLE,             IDLE,            RUNS,            RUNS),
    (Event.DONE,             NOT_COUNTED,     STOPPED,         LEFT),
    (Event.REFUSED,          REFUSED,         REFUSED,         LEFT),
    (Event.BUDGET_CUT,       BUDGET_CUT,      BUDGET_CUT,      LEFT),
    (Event.STOP_BUSY,        STOP,            STOP,            STAY),
    (Event.STOP_IDLE,        STOPPED,         STOPPED,         LEFT),
    (Event.STOP_NOW,         STOPPED_NOW,     STOPPED_NOW,     LEFT),
    (Event.BUG,              FAILED,          FAILED,          LEFT_BY_BUG),
)  # fmt: skip
_CELLS = {
    (phase, event): cell
    for event, *cells in _ROWS
    for phase, cell in zip((OPEN, STOPPING, LEAVING), cells, strict=True)
}
TABLE: Mapping[tuple[Phase, Event], Transition] = {
    pair: cell for pair, cell in _CELLS.items() if not isinstance(cell, str)
}
IMPOSSIBLE: Mapping[tuple[Phase, Event], str] = {
    **{pair: reason for pair, reason in _CELLS.items() if isinstance(reason, str)},
    **{(ENDED, event): "`session.py` takes no event once both sides are closed" for event in Event},
}
"""phase and event → why they cannot happen"""


class SessionLifecycle:
    """The phase of one session."""

    __slots__ = ("phase",)

    def __init__(self) -> None:
        self.phase = Phase.OPEN

    def step(self, event: Event) -> Transition:
        """Take the event. Returns what to do. Raises ImpossibleEventError, changing nothing."""
        transition = TABLE.get((self.phase, event))
        if transition is None:
            raise ImpossibleEventError(f"{event} in {self.phase}: {IMPOSSIBLE[self.phase, event]}")
        self.phase = transition.phase
        return transition
