"""The deadlines of a session. Invariant: `due` is pure."""

from __future__ import annotations

from msgspec import Struct

from proxy.gateway.upstream.provider import TimeLimits
from proxy.gateway.websocket.lifecycle import Event, Phase

# Middleboxes close what is silent for a minute.
PING_S = 25.0
# A side that sends nothing and answers no pings for this long is gone.
SILENT_S = 3 * PING_S


class Side(Struct, gc=False):
    """One side's connection. Times by `time.monotonic`."""

    heard_at: float
    """when bytes last arrived; now, while it is not read"""
    writing_since: float | None = None
    """since when written bytes wait for the side to read; None: none wait"""


class Moments(Struct, gc=False):
    """The state of a session, and times of its last events by `time.monotonic`."""

    phase: Phase
    client: Side
    provider: Side | None
    """None: not connected yet"""
    said_at: float
    """when the last message arrived, from either side"""
    answered_at: float
    """when the last message of the provider arrived"""
    asked_at: float | None = None
    """when the oldest exchange that waits for its answer began; None: none waits"""
    runs: bool = False
    """True if an answer has begun and not ended"""
    began_at: float | None = None
    """when the oldest open exchange began; None: none is open"""
    left_at: float = 0.0


def due(now: float, at: Moments, limits: TimeLimits) -> Event | None:
    """The expired deadline; None: none. Of several, the first in the order below."""
    return _of_client(now, at, limits) or _of_provider(now, at, limits) or _of_exchanges(now, at, limits)


def _of_client(now: float, at: Moments, limits: TimeLimits) -> Event | None:
    if at.phase is Phase.LEAVING:
        return Event.DRAINED_ENOUGH if now >= at.left_at + limits.drain_s else None
    return _of_side(now, at.client, limits, Event.CLIENT_STALLED, Event.CLIENT_CLOSED)


def _of_provider(now: float, at: Moments, limits: TimeLimits) -> Event | None:
    if at.provider is None:
        return None
    return _of_side(now, at.provider, limits, Event.PROVIDER_STALLED, Event.PROVIDER_LOST)


def _of_side(now: float, side: Side, limits: TimeLimits, stalled: Event, lost: Event) -> Event | None:
    if side.writing_since is not None and now >= side.writing_since + limits.write_stall_s:
        return stalled
    return lost if now >= side.heard_at + SILENT_S else None


def _of_exchanges(now: float, at: Moments, limits: TimeLimits) -> Event | None:
    if at.began_at is None:
        return Event.IDLE if at.phase is Phase.OPEN and now >= at.said_at + limits.total_s else None
    if now >= at.began_at + limits.total_s:
        return Event.TOO_LONG
    if at.client.writing_since is not None:
        return None  # the provider is silent because it is not read
    if at.runs:
        return Event.SILENT if now >= at.answered_at + limits.idle_s else None
    assert at.asked_at is not None, "what does not run waits"
    return Event.NO_ANSWER if now >= max(at.asked_at, at.answered_at) + limits.first_byte_s else None


def tick_s(limits: TimeLimits) -> float:
    """The interval of checks: at most a second, or a tenth of the shortest limit."""
    shortest = min(limits.idle_s, limits.first_byte_s, limits.total_s, limits.write_stall_s, limits.drain_s)
    return min(1.0, max(0.01, shortest / 10))
