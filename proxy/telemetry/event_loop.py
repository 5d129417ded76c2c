"""Watches how late the event loop is, and finds the function that keeps it, from another thread.

Invariants: it costs nothing per request or event: the loop answers a probe four times a second. A log line names
functions, never values, and there is at most one in LOG_S.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from time import monotonic

from proxy.telemetry.histogram import Buckets

PROBE_S = 0.25
# When the loop is late by this, the function that it runs is looked up.
LATE_S = 0.1
LOG_S = 10.0
# A loop that is late for less than this, and has used less than this part of it, waits for a busy machine: no line.
WAITED_S, CPU_PART = 1.0, 0.5
# How often a probe without an answer looks whether it still has to wait.
PATIENCE_S = 1.0

_log = logging.getLogger(__name__)


class EventLoopWatch:
    """Watches the running loop, until `stop`."""

    def __init__(self, late: Buckets) -> None:
        """`late`: counts by how many seconds the loop was late at each probe."""
        self._late = late
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._cpu_clock = time.pthread_getcpuclockid(self._loop_thread)
        self._stopped = threading.Event()
        self._log_at = 0.0
        self._unlogged = 0
        threading.Thread(target=self._run, name="event-loop-watch", daemon=True).start()

    def stop(self) -> None:
        """End the thread, without waiting for it: it may wait for the loop."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(PROBE_S):
            try:
                self._probe()
            except RuntimeError:  # the loop is closed
                return

    def _probe(self) -> None:
        probe = _Probe(self._late)
        cpu_s = time.clock_gettime(self._cpu_clock)
        self._loop.call_soon_threadsafe(probe.answer)
        if probe.answered.wait(LATE_S):
            return
        where = self._where()
        while not probe.answered.wait(PATIENCE_S):
            if self._stopped.is_set() or self._loop.is_closed():
                return
        self._report(probe.late_s, time.clock_gettime(self._cpu_clock) - cpu_s, where)

    def _where(self) -> str:
        """The innermost function of ours that the loop runs."""
        frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001  there is no other way
        while frame is not None:
            module = frame.f_globals.get("__name__", "")
            if module.startswith("proxy."):
                return f"{module}.{frame.f_code.co_qualname}, line {frame.f_lineno}"
            frame = frame.f_back
        return "no function of its own"

    def _report(self, late_s: float, cpu_s: float, where: str) -> None:
        if late_s < WAITED_S and cpu_s < CPU_PART * late_s:
            return
        if monotonic() < self._log_at:
            self._unlogged += 1
            return
        more = f"; so it was {self._unlogged} more times since the last line" if self._unlogged else ""
        self._log_at, self._unlogged = monotonic() + LOG_S, 0
        _log.warning("the event loop was late by %.2f s (CPU time %.2f s), in %s%s", late_s, cpu_s, where, more)


class _Probe:
    def __init__(self, late: Buckets) -> None:
        self._late = late
        self._sent_at = monotonic()
        self.answered = threading.Event()
        self.late_s = 0.0

    def answer(self) -> None:
        """Called by the loop."""
        self.late_s = monotonic() - self._sent_at
        self._late.observe(self.late_s)
        self.answered.set()
