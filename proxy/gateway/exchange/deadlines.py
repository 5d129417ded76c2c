"""The deadlines of an exchange, with one timer. Invariant: `decide` is pure; the timer only calls it again.

The timer is moved neither by a piece (that would cost more than the piece) nor by a change of phase: it fires when a
deadline expires, and at the latest after the shortest limit. No limit that begins in between expires earlier.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from time import monotonic

from msgspec import Struct
from msgspec.structs import replace

from proxy.gateway.exchange.lifecycle import Client, Event, Phase
from proxy.gateway.upstream.provider import TimeLimits

SETTINGS: Mapping[Event, str] = {
    Event.NO_ANSWER: "first_byte_s",
    Event.SILENT: "idle_s",
    Event.TOO_LONG: "total_s",
    Event.WRITE_STALL: "write_stall_s",
    Event.DRAINED_ENOUGH: "drain.seconds",
    Event.HEARTBEAT: "heartbeat_s",
}
"""deadline → the name of its setting"""

ARMED: Mapping[tuple[Phase, Client], tuple[Event, ...]] = {
    (Phase.ASKING, Client.WAITING): (Event.TOO_LONG, Event.NO_ANSWER),
    (Phase.ASKING, Client.BLOCKED): (Event.TOO_LONG, Event.NO_ANSWER, Event.WRITE_STALL),
    (Phase.ASKING, Client.GONE): (Event.TOO_LONG, Event.NO_ANSWER, Event.DRAINED_ENOUGH),
    (Phase.ANSWERED, Client.WAITING): (Event.TOO_LONG, Event.SILENT),
    (Phase.ANSWERED, Client.BLOCKED): (Event.TOO_LONG, Event.SILENT, Event.WRITE_STALL),
    (Phase.ANSWERED, Client.GONE): (Event.TOO_LONG, Event.SILENT, Event.DRAINED_ENOUGH),
    (Phase.BODY, Client.READING): (Event.TOO_LONG, Event.SILENT, Event.HEARTBEAT),
    (Phase.BODY, Client.BLOCKED): (Event.TOO_LONG, Event.WRITE_STALL),  # the provider is silent because it is paused
    (Phase.BODY, Client.GONE): (Event.TOO_LONG, Event.SILENT, Event.DRAINED_ENOUGH),
    (Phase.CLOSING, Client.BLOCKED): (Event.WRITE_STALL,),
}
"""deadlines active in each state; the first listed wins a tie"""

NEVER = float("inf")


class Moments(Struct, gc=False):
    """The state of an exchange, and times of its last events by `time.monotonic`; 0: there was none."""

    phase: Phase
    client: Client
    began_at: float
    asked_at: float = 0.0
    """when the request was sent to the current provider"""
    last_piece_at: float = 0.0
    """when the last piece of the answer arrived, or its head"""
    blocked_at: float = 0.0
    left_at: float = 0.0
    last_beat_at: float = 0.0


def decide(now: float, moments: Moments, limits: TimeLimits) -> tuple[Event | None, float]:
    """The deadline that has expired, if any, and the time of the next check: `NEVER` if nothing can expire."""
    at, due = NEVER, None
    for event in ARMED.get((moments.phase, moments.client), ()):
        earlier_at = _due_at(event, moments, limits)
        if earlier_at < at:
            at, due = earlier_at, event
    return (due if at <= now else None), at


def _due_at(event: Event, moments: Moments, limits: TimeLimits) -> float:
    match event:
        case Event.TOO_LONG:
            return moments.began_at + limits.total_s
        case Event.NO_ANSWER:
            return moments.asked_at + limits.first_byte_s
        case Event.SILENT:
            return moments.last_piece_at + limits.idle_s
        case Event.WRITE_STALL:
            return moments.blocked_at + limits.write_stall_s
        case Event.DRAINED_ENOUGH:
            return moments.left_at + limits.drain_s
        case _:
            beats = max(moments.last_piece_at, moments.last_beat_at) + limits.heartbeat_s
            return beats if limits.heartbeat_s else NEVER


def _shortest_s(limits: TimeLimits) -> float:
    """The shortest limit that restarts by itself; all others begin where `rearm` is called."""
    return min(limits.idle_s, limits.write_stall_s, limits.heartbeat_s or limits.idle_s)


class Deadlines:
    """Reports expired deadlines until stopped."""

    __slots__ = ("_limits", "_loop", "_moments", "_on_expired", "_shortest_s", "_timer")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: TimeLimits,
        moments: Callable[[], Moments],
        on_expired: Callable[[Event], None],
    ) -> None:
        self._loop = loop
        self._limits = limits
        self._moments: Callable[[], Moments] | None = moments
        self._on_expired: Callable[[Event], None] | None = on_expired
        self._timer: asyncio.TimerHandle | None = None
        self._shortest_s = _shortest_s(limits)

    def rearm(self) -> None:
        """Set the timer to the next deadline: at the earliest in a millisecond, so that a reported deadline causes no
        busy loop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._moments is None:
            return
        now = monotonic()
        _, at = decide(now, self._moments(), self._limits)
        self._timer = self._loop.call_later(max(0.001, min(at - now, self._shortest_s)), self._check)

    def _check(self) -> None:
        self._timer = None
        if self._moments is None or self._on_expired is None:
            return
        due, _ = decide(monotonic(), self._moments(), self._limits)
        if due is not None:
            self._on_expired(due)
        if self._timer is None:
            self.rearm()

    @property
    def idle_s(self) -> float:
        """The idle limit."""
        return self._limits.idle_s

    def set_idle(self, *, idle_s: float) -> None:
        """Shorten the idle limit."""
        if idle_s < self._limits.idle_s:
            self._use(replace(self._limits, idle_s=idle_s))

    def use_limits(self, limits: TimeLimits) -> None:
        """Use another provider's limits; the total limit stays the shortest of all providers so far."""
        self._use(replace(limits, total_s=min(self._limits.total_s, limits.total_s)))

    def _use(self, limits: TimeLimits) -> None:
        self._limits, self._shortest_s = limits, _shortest_s(limits)
        self.rearm()

    def stop(self) -> None:
        """Stop for good, and drop the callbacks: a reference cycle would live until a garbage collection."""
        self._moments = self._on_expired = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
