"""When the next grant of a prepaid key or account begins, for the message of a refusal.

Invariants: a refusal waits at most WAIT_S. The ledger is read once in KEPT_S for a key or an account; while it does not
answer, the time is unknown. Memory is bounded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from sqlalchemy import Engine

from proxy.ledger.grants.rows import next_begin
from proxy.storage.executor import InThread

WAIT_S = 0.5
KEPT_S = 5.0
# Keys and accounts.
KEPT_MAX = 4_096


class NextGrants:
    """The next grants of a process."""

    def __init__(
        self, engine: Engine, in_thread: InThread = asyncio.to_thread, *, unix_time: Callable[[], float] = time.time
    ) -> None:
        self._engine = engine
        self._in_thread = in_thread
        self._unix_time = unix_time
        self._known: dict[str, tuple[float | None, float]] = {}
        """id of a key or an account → the result, and the end of its validity in Unix seconds"""

    async def begin(self, scope_id: str) -> float | None:
        """Unix seconds; None: no grant is planned, or this is not known in time."""
        now = self._unix_time()
        found, until = self._known.get(scope_id, (None, 0.0))
        if now < until:
            return found
        try:
            async with asyncio.timeout(WAIT_S):  # a TimeoutError is an OSError
                found = await self._in_thread(next_begin, self._engine, scope_id, now)
        except OSError:
            found = None
        if len(self._known) >= KEPT_MAX:
            self._known.clear()
        self._known[scope_id] = found, min(now + KEPT_S, found or now + KEPT_S)
        return found
