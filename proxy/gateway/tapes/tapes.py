"""All tapes of this process.

Invariants: all tapes together hold at most `total_bytes_max`. Beyond that, the tape that ended first is dropped, or
else the oldest one. A tape is kept for `kept_s` after its stream has ended.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from time import monotonic

from proxy.gateway.tapes.tape import Tape
from proxy.metering.refusal import ErrorShape


class Tapes:
    """Call `begin` for each stream, and `end` when it has ended."""

    def __init__(self, *, bytes_max: int, total_bytes_max: int, kept_s: float) -> None:
        """`bytes_max`: the length of one tape. `total_bytes_max`: the length of all."""
        self._bytes_max = min(bytes_max, total_bytes_max)
        self._total_bytes_max = total_bytes_max
        self._kept_s = kept_s
        self._running: OrderedDict[str, Tape] = OrderedDict()  # oldest first
        self._ended: OrderedDict[str, tuple[Tape, float]] = OrderedDict()  # the first to end first
        self._timer: asyncio.TimerHandle | None = None
        self.size = 0
        """bytes in memory, approximately"""

    def begin(
        self, exchange_id: str, key_id: str, *, content_type: str, errors: ErrorShape, heartbeat_s: float
    ) -> Tape:
        """A new tape. `errors`: the error format of the stream's dialect."""
        tape = Tape(
            exchange_id, key_id, content_type=content_type, errors=errors, heartbeat_s=heartbeat_s,
            bytes_max=self._bytes_max, grew=self._grew,
        )  # fmt: skip
        self._running[exchange_id] = tape
        return tape

    def of(self, exchange_id: str) -> Tape | None:
        """The tape of this exchange; None: not in memory, or not any more."""
        found = self._ended.get(exchange_id)
        tape = self._running.get(exchange_id) if found is None else found[0]
        return tape if tape is not None and tape.readable else None

    def end(self, tape: Tape, *, whole: bool, error_sent: bool) -> None:
        """The stream of `tape` has ended: see `Tape.end`."""
        tape.end(whole=whole, error_sent=error_sent)
        if self._running.pop(tape.exchange_id, None) is not None and tape.readable:
            self._ended[tape.exchange_id] = tape, monotonic()
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(self._kept_s, self._expire)

    def close(self) -> None:
        """Drop all tapes."""
        if self._timer is not None:
            self._timer.cancel()
        for tape in (*self._running.values(), *(one for one, _ in self._ended.values())):
            tape.drop()

    def _grew(self, tape: Tape, size: int) -> None:
        self.size += size
        while self.size > self._total_bytes_max and size > 0:
            if self._ended:
                self._ended.popitem(last=False)[1][0].drop()
            elif self._running:
                self._running.popitem(last=False)[1].drop()
            else:
                return  # the tape that has just begun

    def _expire(self) -> None:
        self._timer = None
        now = monotonic()
        while self._ended:
            exchange_id, (tape, ended_at) = next(iter(self._ended.items()))
            if ended_at + self._kept_s > now:
                self._timer = asyncio.get_running_loop().call_later(ended_at + self._kept_s - now, self._expire)
                return
            del self._ended[exchange_id]
            tape.drop()
