"""The configured time limits of a provider."""

from __future__ import annotations

from msgspec import Struct


class TimeLimits(Struct, frozen=True):
    """Seconds. `heartbeat_s` 0: no heartbeats."""

    first_byte_s: float
    """from the request's arrival to the answer's head, including the connection"""
    idle_s: float
    total_s: float
    write_stall_s: float
    drain_s: float
    heartbeat_s: float = 0.0
