"""Assigns the provider's events to the exchanges of a session.

An exchange waits for its answer, runs, and ends. Requests with one stream id are answered in their order: an answer
that begins is that of the oldest waiting request. An answer without a waiting request was begun by the provider: the
session opens an exchange for it.

Pure. Invariants: each exchange is handed out as ended once, whatever events come in which order. An event with output
or usage belongs to an exchange that runs, or one must be opened for it. An ended exchange stays ended until one with
the same id begins: its repeated events open nothing.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

from proxy.metering.socket import EventPhase, ExchangeKind, ProviderEvent

# The last ended answers, whose events may still arrive.
ENDED_MAX = 64

T = TypeVar("T")


class Step(NamedTuple, Generic[T]):
    """The effect of an event."""

    turn: T | None = None
    """the exchange of the event; None: none"""
    opens: bool = False
    """the event belongs to an exchange that must be opened first; then call `opened`"""
    ends: bool = False
    """the event is the last of its exchange"""
    refused: bool = False
    """the exchange was refused: nothing was generated"""
    over: tuple[T, ...] = ()
    """exchanges that ended earlier, without a last event"""


class _Running(Generic[T]):
    __slots__ = ("answer_id", "failing", "stream_id", "turn")

    def __init__(self, turn: T, heard: ProviderEvent) -> None:
        self.turn = turn
        self.answer_id = heard.answer_id
        self.stream_id = heard.stream_id
        self.failing = False
        """an error arrived: further events may follow or not"""


class Turns(Generic[T]):
    """The exchanges of one session."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[tuple[str | None, T]]] = {}
        """stream id → the requests that wait there, oldest first, each with the id of its message"""
        self._running: dict[str, _Running[T]] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()

    def all(self) -> Iterator[T]:
        """All waiting and running exchanges."""
        for waiting in self._waiting.values():
            yield from (turn for _, turn in waiting)
        yield from (one.turn for one in self._running.values())

    @property
    def waiting(self) -> int:
        """The number of waiting exchanges."""
        return sum(map(len, self._waiting.values()))

    @property
    def running(self) -> int:
        """The number of running exchanges."""
        return len(self._running)

    def clear(self) -> list[T]:
        """Remove all exchanges: the session has ended."""
        left = list(self.all())
        self._waiting.clear()
        self._running.clear()
        return left

    def failed_in(self, stream_id: str) -> list[T]:
        """The failed exchanges with this stream id: the next request with it shows that they have ended."""
        over = [key for key, one in self._running.items() if one.failing and one.stream_id == stream_id]
        return [self._end(key) for key in over]

    def asked(self, stream_id: str, event_id: str | None, turn: T) -> None:
        """A request is sent to the provider."""
        self._waiting.setdefault(stream_id, deque()).append((event_id, turn))

    def step(self, heard: ProviderEvent) -> Step[T]:
        """Take an event."""
        match heard.phase:
            case EventPhase.NONE:
                return Step()
            case EventPhase.FAILS:
                return self._fail(heard)
            case _:
                return self._take(heard)

    def opened(self, heard: ProviderEvent, turn: T) -> None:
        """An exchange was opened for this event, after a step with `opens`."""
        if heard.phase is not EventPhase.ENDS:
            self._running[heard.key] = _Running(turn, heard)
        elif heard.answer_id is not None:
            self._remember(heard.answer_id)

    def _take(self, heard: ProviderEvent) -> Step[T]:
        over: tuple[T, ...] = ()
        running = self._running.get(heard.key)
        if heard.answer_id is not None and heard.answer_id in self._ended:
            if heard.phase is not EventPhase.BEGINS:
                return Step()
            del self._ended[heard.answer_id]  # some providers have one id for all of them
        if heard.phase is EventPhase.BEGINS and running is not None and _is_another(running, heard):
            over, running = (self._end(heard.key),), None
        if running is None:
            turn = self._next(heard)
            if turn is None:
                opens = heard.is_billable or heard.phase is EventPhase.BEGINS
                return Step(opens=opens, ends=opens and heard.phase is EventPhase.ENDS, over=over)
            running = self._running[heard.key] = _Running(turn, heard)
        running.answer_id = running.answer_id or heard.answer_id
        if heard.phase is not EventPhase.ENDS:
            return Step(running.turn, over=over)
        return Step(self._end(heard.key), ends=True, over=over)

    def _next(self, heard: ProviderEvent) -> T | None:
        """The oldest request that this may be the answer to."""
        waiting = self._waiting.get(heard.stream_id)
        if (
            not waiting
            or heard.kind is not ExchangeKind.ANSWER
            or not (heard.is_billable or heard.phase is EventPhase.BEGINS)
        ):
            return None
        _, turn = waiting.popleft()
        if not waiting:
            del self._waiting[heard.stream_id]
        return turn

    def _fail(self, heard: ProviderEvent) -> Step[T]:
        """The exchange that runs with the stream id fails, and may still run to its end; else the waiting request is
        refused."""
        if heard.failed_event_id is not None:
            return self._refuse(heard.stream_id, heard.failed_event_id)
        running = self._running.get(heard.key)
        if running is not None:
            running.failing = True
            return Step(running.turn)
        return self._refuse(heard.stream_id, None)

    def _refuse(self, stream_id: str, event_id: str | None) -> Step[T]:
        """The oldest request whose message has this id."""
        waiting = self._waiting.get(stream_id, ())
        found = next((one for one in waiting if one[0] == event_id), None)
        if found is None:
            return Step()
        assert isinstance(waiting, deque)
        waiting.remove(found)
        if not waiting:
            del self._waiting[stream_id]
        return Step(found[1], ends=True, refused=True)

    def _end(self, key: str) -> T:
        one = self._running.pop(key)
        if one.answer_id is not None:
            self._remember(one.answer_id)
        return one.turn

    def _remember(self, answer_id: str) -> None:
        self._ended[answer_id] = None
        if len(self._ended) > ENDED_MAX:
            self._ended.popitem(last=False)


def _is_another(running: _Running[T], heard: ProviderEvent) -> bool:
    """Whether an answer that begins is not the one that runs under the same key."""
    return running.answer_id is None or heard.answer_id is None or running.answer_id != heard.answer_id
