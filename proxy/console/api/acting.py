"""Blocking work of the console, off the event loop. Law: a few at a time and a few that wait; more are told to come
again, so that no dashboard takes the ledger from those who settle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from proxy.http.errors import overloaded

# Readings of the ledger at once, and those that may wait for them.
THREADS = 2
WAITING_MAX = 32

_T = TypeVar("_T")


class Threads:
    """`close` it after the last call."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="console")
        self._asked = 0

    async def run(self, work: Callable[..., _T], *arguments: object) -> _T:
        """Its result. Raises ApiError 503 if too many wait, and what it raises."""
        if self._asked >= THREADS + WAITING_MAX:
            raise overloaded("Too many questions are waiting for the ledger.", code="console_busy")
        self._asked += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)
        finally:
            self._asked -= 1

    def close(self) -> None:
        """What has not begun is not done."""
        self._pool.shutdown(wait=True, cancel_futures=True)
