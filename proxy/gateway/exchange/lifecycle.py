"""The life of an exchange as a table: phase, client and event give the next phase and client, and the actions to do.

Pure: no I/O, no clock. `exchange.py` turns each happening on its two connections into an event, and carries out the
actions. A fact that decides between two transitions (has the meter seen the end? does the policy drain?) is part of the
event.

| phase | the provider | the client |
|---|---|---|
| ASKING | gets the request; after a failure the next provider gets it | has got nothing |
| ANSWERED | has accepted: its answer must be paid, and is collected or about to be relayed | has got nothing |
| BODY | sends the body | has got the head of the response |
| CLOSING | is released; the record is written | may still have to take the rest |
| ENDED | is released | has got everything, or is gone |

Invariants:
* The response begins on the way to BODY or CLOSING, and only there. So there is at most one head: before BODY an error
  is a response, in BODY it is an event within the body.
* Every way to CLOSING writes exactly one record, or hands the exchange over to the background, and nothing else does.
* Reading from the provider is paused exactly while the phase is BODY and the client BLOCKED.
* A cell without a transition cannot happen; `step` raises for it, which ends the exchange as a bug of ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum, auto
from itertools import product
from typing import NamedTuple


class Phase(StrEnum):
    """How far an exchange is."""

    ASKING = auto()
    ANSWERED = auto()
    BODY = auto()
    CLOSING = auto()
    ENDED = auto()


class Client(StrEnum):
    """The state of the client."""

    WAITING = auto()
    """the response has not begun"""
    READING = auto()
    """the response has begun, and the client reads it"""
    BLOCKED = auto()
    """the client's write buffer is full; before BODY: with the end of an earlier response"""
    GONE = auto()
    """the client has disconnected"""


class Event(StrEnum):
    """An event in the life of an exchange."""

    # The provider.
    ACCEPTED = auto()
    """the head of an answer with a success status"""
    REFUSED = auto()
    """the answer of the last provider has another status"""
    UNREACHABLE = auto()
    """no provider answered"""
    START = auto()
    """the open exchange is durable, and the body is not collected: it may be relayed"""
    PIECE = auto()
    """bytes of the body"""
    END = auto()
    """the answer is complete"""
    BREAK = auto()
    """the answer broke off"""
    # The client.
    LEFT_CANCEL = auto()
    """the client disconnected, and the policy is not to read the rest"""
    LEFT_DRAIN = auto()
    """the client disconnected, and the rest is read for the bill"""
    LEFT_SERVED = auto()
    """the client disconnected after the last event"""
    FULL = auto()
    """the buffer of the client's connection is full"""
    DRAINED = auto()
    """the buffer of the client's connection is empty again"""
    SENT = auto()
    """everything was handed to the client's connection"""
    # Time.
    NO_ANSWER = auto()
    """no head came within `first_byte_s`"""
    SILENT = auto()
    """no piece came for too long"""
    TOO_LONG = auto()
    """the whole exchange takes too long"""
    HEARTBEAT = auto()
    """the stream was silent for `heartbeat_s`"""
    WRITE_STALL = auto()
    """the client has been blocked for too long"""
    DRAINED_ENOUGH = auto()
    """the limit of a drain, in seconds or tokens"""
    # Everything else.
    BUDGET_CUT = auto()
    """the cost exceeds the budget"""
    SHUT_DOWN = auto()
    """the proxy stops, and the grace time is over"""
    BUG = auto()
    """an exception in our own code"""


class Action(StrEnum):
    """An action, done in the order of a transition's actions."""

    BEGIN = auto()
    """write the head of the response"""
    RELAY = auto()
    """meter the piece and write it"""
    METER = auto()
    """meter the piece: it is collected, or the client is gone"""
    DELIVER = auto()
    """write the head and the whole collected body"""
    SEND_HEARTBEAT = auto()
    PAUSE = auto()
    """pause reading from the provider"""
    RESUME = auto()
    """resume reading from the provider"""
    STOP_WRITING = auto()
    """write nothing more to the client; the delivered counts are final"""
    STOP = auto()
    """release the provider's connection, or abort it in the middle of an answer"""
    SEND_ERROR_EVENT = auto()
    """write an event with the reason why the stream ends"""
    RECORD = auto()
    """write the record"""
    RESPOND = auto()
    """write an error as the response"""
    FINISH = auto()
    """write the end of the body"""
    CLOSE_CLIENT = auto()
    """close the client's connection after the last write: the body has no proper end"""
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
    """A cell of the table, with the phase and the client after it."""

    phase: Phase
    client: Client
    actions: tuple[Action, ...] = ()
    end: End | None = None
    """set exactly if the exchange gets its record here"""


class _Step(NamedTuple):
    """A transition as a row has it: None keeps the phase or the client. From BODY on, WAITING becomes READING."""

    phase: Phase | None = None
    client: Client | None = None
    actions: tuple[Action, ...] = ()
    end: End | None = None


Cell = tuple[Phase, Client, Event]
_Row = tuple[Phase, Event, _Step | str, _Step | str, _Step | str, _Step | str]

ASKING, ANSWERED, BODY, CLOSING, ENDED = Phase
WAITING, READING, BLOCKED, GONE = Client
COMPLETE, BROKEN, REFUSED, UNREACHABLE, STALLED, CLIENT_LEFT, SHUT_DOWN, BUDGET_CUT, BUG = End

# -- transitions that do not end the exchange

STAY = _Step()
TO_ANSWERED = _Step(ANSWERED)
TO_BODY = _Step(BODY)
BEGIN = _Step(BODY, None, (Action.BEGIN,))
BEGIN_PAUSED = _Step(BODY, None, (Action.BEGIN, Action.PAUSE))
METER = _Step(None, None, (Action.METER,))
RELAY = _Step(None, None, (Action.RELAY,))
HEARTBEAT = _Step(None, None, (Action.SEND_HEARTBEAT,))
BLOCK = _Step(None, BLOCKED)
PAUSE = _Step(None, BLOCKED, (Action.PAUSE,))
UNBLOCK = _Step(None, WAITING)
RESUME = _Step(None, READING, (Action.RESUME,))
ABORT = _Step(None, None, (Action.ABORT,))
DRAIN = _Step(None, GONE)
DETACH = _Step(None, GONE, (Action.STOP_WRITING,))
DETACH_AND_RESUME = _Step(None, GONE, (Action.STOP_WRITING, Action.RESUME))

# -- transitions that write the record


def _close(end: End, *actions: Action, client: Client | None = None) -> _Step:
    return _Step(CLOSING, client, actions, end)


def _record(end: End) -> _Step:
    """The actions of a transition, for a client that is gone."""
    return _close(end, Action.STOP, Action.RECORD)


def _respond(end: End) -> _Step:
    """The actions of a transition before the response has begun."""
    return _close(end, Action.STOP, Action.RECORD, Action.RESPOND)


def _send_error(end: End) -> _Step:
    """The actions of a transition after the response has begun."""
    return _close(end, Action.STOP, Action.SEND_ERROR_EVENT, Action.RECORD, Action.CLOSE_CLIENT)


LEAVE = _close(CLIENT_LEFT, Action.STOP, Action.RECORD, client=GONE)
DETACH_AND_LEAVE = _close(CLIENT_LEFT, Action.STOP_WRITING, Action.STOP, Action.RECORD, client=GONE)
SERVED = _close(COMPLETE, Action.STOP_WRITING, Action.STOP, Action.RECORD, client=GONE)
READ_TO_END = _close(CLIENT_LEFT, Action.RECORD)
DELIVER = _close(COMPLETE, Action.DELIVER, Action.RECORD)
FINISH = _close(COMPLETE, Action.RECORD, Action.FINISH)
CUT_OFF = _close(BROKEN, Action.STOP, Action.RECORD, Action.CLOSE_CLIENT)

# -- transitions after the record

TO_ENDED = _Step(ENDED)
ALL_TAKEN = _Step(ENDED, READING)
GIVE_UP = _Step(ENDED, GONE)
ABORT_AND_END = _Step(ENDED, None, (Action.ABORT,))

# -- why a cell is impossible

NOT_BEGUN = "the response has not begun, so the client does not read it"
BEGUN = "the response has begun, so the client does not wait for it"
IS_GONE = "a client that is gone neither reads nor leaves again"
IS_FULL = "the buffer of a blocked client is full already"
NOT_FULL = "only a full buffer can drain or stall"
IS_HERE = "only a client that is gone is drained for"
PAUSED = "the provider is not read while the client is blocked, so its silence means nothing"
AT_ONCE = "a client that is gone or takes everything is at ENDED in the same call"

_ROWS: tuple[_Row, ...] = (
    # phase   event                 WAITING                READING    BLOCKED                GONE
    (ASKING, Event.ACCEPTED,       TO_ANSWERED,           NOT_BEGUN, TO_ANSWERED,           TO_ANSWERED),
    (ASKING, Event.REFUSED,        _respond(REFUSED),     NOT_BEGUN, _respond(REFUSED),     _record(REFUSED)),
    (ASKING, Event.UNREACHABLE,    _respond(UNREACHABLE), NOT_BEGUN, _respond(UNREACHABLE), LEAVE),
    (ASKING, Event.LEFT_CANCEL,    LEAVE,                 NOT_BEGUN, LEAVE,                 IS_GONE),
    (ASKING, Event.LEFT_DRAIN,     DRAIN,                 NOT_BEGUN, DRAIN,                 IS_GONE),
    (ASKING, Event.FULL,           BLOCK,                 NOT_BEGUN, IS_FULL,               IS_GONE),
    (ASKING, Event.DRAINED,        NOT_FULL,              NOT_BEGUN, UNBLOCK,               IS_GONE),
    (ASKING, Event.NO_ANSWER,      _respond(STALLED),     NOT_BEGUN, _respond(STALLED),     LEAVE),
    (ASKING, Event.TOO_LONG,       _respond(STALLED),     NOT_BEGUN, _respond(STALLED),     LEAVE),
    (ASKING, Event.WRITE_STALL,    NOT_FULL,              NOT_BEGUN, ABORT,                 IS_GONE),
    (ASKING, Event.DRAINED_ENOUGH, IS_HERE,               NOT_BEGUN, IS_HERE,               LEAVE),
    (ASKING, Event.SHUT_DOWN,      _respond(SHUT_DOWN),   NOT_BEGUN, _respond(SHUT_DOWN),   LEAVE),
    (ASKING, Event.BUG,            _respond(BUG),         NOT_BEGUN, _respond(BUG),         _record(BUG)),

    # phase     event                 WAITING              READING    BLOCKED              GONE
    (ANSWERED, Event.START,          BEGIN,               NOT_BEGUN, BEGIN_PAUSED,        TO_BODY),
    (ANSWERED, Event.PIECE,          METER,               NOT_BEGUN, METER,               METER),
    (ANSWERED, Event.END,            DELIVER,             NOT_BEGUN, DELIVER,             READ_TO_END),
    (ANSWERED, Event.BREAK,          _respond(BROKEN),    NOT_BEGUN, _respond(BROKEN),    LEAVE),
    (ANSWERED, Event.LEFT_CANCEL,    LEAVE,               NOT_BEGUN, LEAVE,               IS_GONE),
    (ANSWERED, Event.LEFT_DRAIN,     DRAIN,               NOT_BEGUN, DRAIN,               IS_GONE),
    (ANSWERED, Event.FULL,           BLOCK,               NOT_BEGUN, IS_FULL,             IS_GONE),
    (ANSWERED, Event.DRAINED,        NOT_FULL,            NOT_BEGUN, UNBLOCK,             IS_GONE),
    (ANSWERED, Event.SILENT,         _respond(STALLED),   NOT_BEGUN, _respond(STALLED),   LEAVE),
    (ANSWERED, Event.TOO_LONG,       _respond(STALLED),   NOT_BEGUN, _respond(STALLED),   LEAVE),
    (ANSWERED, Event.WRITE_STALL,    NOT_FULL,            NOT_BEGUN, ABORT,               IS_GONE),
    (ANSWERED, Event.DRAINED_ENOUGH, IS_HERE,             NOT_BEGUN, IS_HERE,             LEAVE),
    (ANSWERED, Event.SHUT_DOWN,      _respond(SHUT_DOWN), NOT_BEGUN, _respond(SHUT_DOWN), LEAVE),
    (ANSWERED, Event.BUG,            _respond(BUG),       NOT_BEGUN, _respond(BUG),       _record(BUG)),

    # phase event                 WAITING READING                  BLOCKED                  GONE
    (BODY, Event.PIECE,          BEGUN,  RELAY,                   RELAY,                   METER),
    (BODY, Event.END,            BEGUN,  FINISH,                  FINISH,                  READ_TO_END),
    (BODY, Event.BREAK,          BEGUN,  CUT_OFF,                 CUT_OFF,                 LEAVE),
    (BODY, Event.LEFT_CANCEL,    BEGUN,  DETACH_AND_LEAVE,        DETACH_AND_LEAVE,        IS_GONE),
    (BODY, Event.LEFT_DRAIN,     BEGUN,  DETACH,                  DETACH_AND_RESUME,       IS_GONE),
    (BODY, Event.LEFT_SERVED,    BEGUN,  SERVED,                  SERVED,                  IS_GONE),
    (BODY, Event.FULL,           BEGUN,  PAUSE,                   IS_FULL,                 IS_GONE),
    (BODY, Event.DRAINED,        BEGUN,  NOT_FULL,                RESUME,                  IS_GONE),
    (BODY, Event.SILENT,         BEGUN,  _send_error(STALLED),    PAUSED,                  LEAVE),
    (BODY, Event.TOO_LONG,       BEGUN,  _send_error(STALLED),    _send_error(STALLED),    LEAVE),
    (BODY, Event.HEARTBEAT,      BEGUN,  HEARTBEAT,               PAUSED,                  IS_GONE),
    (BODY, Event.WRITE_STALL,    BEGUN,  NOT_FULL,                ABORT,                   IS_GONE),
    (BODY, Event.DRAINED_ENOUGH, BEGUN,  IS_HERE,                 IS_HERE,                 LEAVE),
    (BODY, Event.BUDGET_CUT,     BEGUN,  _send_error(BUDGET_CUT), _send_error(BUDGET_CUT), LEAVE),
    (BODY, Event.SHUT_DOWN,      BEGUN,  _send_error(SHUT_DOWN),  _send_error(SHUT_DOWN),  LEAVE),
    (BODY, Event.BUG,            BEGUN,  _send_error(BUG),        _send_error(BUG),        _record(BUG)),

    # phase    event              WAITING READING        BLOCKED        GONE
    (CLOSING, Event.LEFT_CANCEL, BEGUN,  AT_ONCE,       GIVE_UP,       IS_GONE),
    (CLOSING, Event.FULL,        BEGUN,  BLOCK,         IS_FULL,       IS_GONE),
    (CLOSING, Event.DRAINED,     BEGUN,  NOT_FULL,      ALL_TAKEN,     IS_GONE),
    (CLOSING, Event.SENT,        BEGUN,  TO_ENDED,      STAY,          TO_ENDED),
    (CLOSING, Event.WRITE_STALL, BEGUN,  NOT_FULL,      ABORT,         IS_GONE),
    (CLOSING, Event.SHUT_DOWN,   BEGUN,  AT_ONCE,       ABORT_AND_END, AT_ONCE),
    (CLOSING, Event.BUG,         BEGUN,  ABORT_AND_END, ABORT_AND_END, TO_ENDED),
)  # fmt: skip

_HEADS = (Event.ACCEPTED, Event.REFUSED, Event.UNREACHABLE, Event.NO_ANSWER)
_BODY = (Event.PIECE, Event.END, Event.BREAK)
_STREAM = (Event.LEFT_SERVED, Event.HEARTBEAT, Event.BUDGET_CUT)
_LIMITS = (Event.SILENT, Event.TOO_LONG, Event.HEARTBEAT, Event.DRAINED_ENOUGH, Event.BUDGET_CUT)
# Phases and events that have no row, and why they are impossible.
_NO_ROWS: tuple[tuple[tuple[Phase, ...], tuple[Event, ...], str], ...] = (
    ((ASKING,), (Event.START, *_BODY, Event.SILENT), "before the head of an answer there is no body"),
    ((ASKING, ANSWERED), _STREAM, "only in BODY a stream is cut, gets heartbeats, or was read to its last event"),
    ((ASKING, ANSWERED, BODY), (Event.SENT,), "everything is sent only once the record is written"),
    ((ANSWERED, BODY, CLOSING), _HEADS, "an answer has one head"),
    ((BODY, CLOSING), (Event.START,), "a body starts once"),
    ((CLOSING,), _BODY, "the provider is released"),
    ((CLOSING,), _LIMITS, "no deadline of the answer is armed any more, and nothing costs more"),
    ((CLOSING,), (Event.LEFT_DRAIN, Event.LEFT_SERVED), "the record is written, so a client leaves by LEFT_CANCEL"),
    ((ENDED,), tuple(Event), "the exchange is over"),
)


def _cells() -> Iterator[tuple[Cell, _Step | str]]:
    for phase, event, *steps in _ROWS:
        yield from (((phase, client, event), step) for client, step in zip(Client, steps, strict=True))
    for phases, events, reason in _NO_ROWS:
        yield from ((cell, reason) for cell in product(phases, Client, events))


def _transition(cell: Cell, step: _Step) -> Transition:
    phase, client = step.phase or cell[0], step.client or cell[1]
    if client is WAITING and phase not in (ASKING, ANSWERED):
        client = READING
    return Transition(phase, client, step.actions, step.end)


_CELLS = tuple(_cells())
TABLE: Mapping[Cell, Transition] = {cell: _transition(cell, step) for cell, step in _CELLS if isinstance(step, _Step)}
IMPOSSIBLE: Mapping[Cell, str] = {cell: reason for cell, reason in _CELLS if isinstance(reason, str)}
"""cell → why it cannot happen"""
assert len(TABLE) + len(IMPOSSIBLE) == len(_CELLS) == len(Phase) * len(Client) * len(Event), "each cell has one line"


class ImpossibleEventError(AssertionError):
    """An event that cannot happen in this phase, with this client: a bug of ours."""


class Lifecycle:
    """The phase and the client of one exchange."""

    __slots__ = ("client", "end", "phase")

    def __init__(self) -> None:
        self.phase = Phase.ASKING
        self.client = Client.WAITING
        self.end: End | None = None
        """set together with CLOSING"""

    def step(self, event: Event) -> tuple[Action, ...]:
        """Take the event. Returns what to do. Raises ImpossibleEventError, changing nothing."""
        cell = self.phase, self.client, event
        transition = TABLE.get(cell)
        if transition is None:
            raise ImpossibleEventError(f"{event} in {self.phase}, client {self.client}: {IMPOSSIBLE[cell]}")
        self.phase, self.client = transition.phase, transition.client
        if transition.end is not None:
            self.end = transition.end
        return transition.actions
