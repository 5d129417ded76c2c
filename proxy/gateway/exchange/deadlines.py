"""The deadlines of a stream, with one timer. Invariant: `decide` is pure; the timer only calls it again.

The timer is not moved with every piece (that would cost more than the piece): it wakes at the earliest moment
anything could be due, looks at when the last piece came, and sleeps on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from enum import StrEnum
from time import monotonic

from msgspec import Struct
from msgspec.structs import replace

from proxy.gateway.time_limits import TimeLimits


class Expired(StrEnum):
    """An expired deadline; the values are the names of the settings."""

    NOTHING = "nothing"
    NO_ANSWER = "first_byte_s"
    """no answer within `first_byte_s`"""
    IDLE = "idle_s"
    """the provider was silent for longer than `idle_s`"""
    OUT_OF_TIME = "total_s"
    """the exchange takes longer than `total_s`"""
    WRITE_STALL = "write_stall_s"
    """the client did not read for longer than `write_stall_s`"""
    DRAINED_ENOUGH = "drain.seconds"
    """the client disconnected more than `drain_s` ago"""
    HEARTBEAT = "heartbeat_s"
    """the provider was silent for `heartbeat_s`: send the client a heartbeat"""


class Moments(Struct, frozen=True, gc=False):
    """Times of the last events, by `time.monotonic`."""

    started_at: float
    last_piece_at: float | None
    """None: the answer has not begun"""
    paused_at: float | None = None
    left_at: float | None = None
    last_beat_at: float = 0.0


def decide(now: float, moments: Moments, limits: TimeLimits) -> tuple[Expired, float]:
    """The deadline that has expired (NOTHING if none), and the time of the next check."""
    at, due = moments.started_at + limits.total_s, Expired.OUT_OF_TIME
    for earlier_at, earlier in _looks(moments, limits):
        if earlier_at < at:
            at, due = earlier_at, earlier
    return (due if at <= now else Expired.NOTHING), at


def _looks(moments: Moments, limits: TimeLimits) -> Iterator[tuple[float, Expired]]:
    if moments.left_at is not None:
        yield moments.left_at + limits.drain_s, Expired.DRAINED_ENOUGH
    if moments.last_piece_at is None:
        yield moments.started_at + limits.first_byte_s, Expired.NO_ANSWER
    elif moments.paused_at is not None:
        yield moments.paused_at + limits.write_stall_s, Expired.WRITE_STALL
    else:
        yield moments.last_piece_at + limits.idle_s, Expired.IDLE
        if limits.heartbeat_s and moments.left_at is None:
            yield max(moments.last_piece_at, moments.last_beat_at) + limits.heartbeat_s, Expired.HEARTBEAT


class Deadlines:
    """Reports expired deadlines until stopped."""

    __slots__ = ("_limits", "_loop", "_moments", "_on_expired", "_timer")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: TimeLimits,
        moments: Callable[[], Moments],
        found: Callable[[Expired], None],
    ) -> None:
        self._loop = loop
        self._limits = limits
        self._moments: Callable[[], Moments] | None = moments
        self._on_expired: Callable[[Expired], None] | None = found
        self._timer: asyncio.TimerHandle | None = None

    def rearm(self) -> None:
        """Check the deadlines now, and again at the next possible one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._moments is None or self._on_expired is None:
            return
        now = monotonic()
        due, at = decide(now, self._moments(), self._limits)
        if due is not Expired.NOTHING:
            self._on_expired(due)
            now = monotonic()
        if due in (Expired.NOTHING, Expired.HEARTBEAT):
            # At the earliest a millisecond from now: what has just been found must not make this loop.
            self._timer = self._loop.call_later(max(0.001, at - now), self.rearm)

    def set_idle(self, *, idle_s: float) -> None:
        """Shorten the idle limit."""
        self._limits = replace(self._limits, idle_s=min(idle_s, self._limits.idle_s))
        self.rearm()

    def use_limits(self, limits: TimeLimits, *, started_at: float) -> None:
        """Use another provider's limits; the total limit stays the shortest of all providers so far."""
        first_byte_s = monotonic() - started_at + limits.first_byte_s
        total_s = min(self._limits.total_s, limits.total_s)
        self._limits = replace(limits, first_byte_s=first_byte_s, total_s=total_s)
        self.rearm()

    def stop(self) -> None:
        """Stop for good, and drop the callback: a reference cycle would live until a garbage collection."""
        self._moments = self._on_expired = None
        self.rearm()
