"""Runs blocking calls on a bounded number of threads, off the event loop. Invariant: running and waiting calls are
bounded; a further call is refused at once, so that a database that hangs uses up neither memory nor other executors'
threads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Semaphore
from typing import Any, TypeVar

# More than the tasks of a process submit at once: each task awaits its call.
WAITING_MAX = 1_000

InThread = Callable[..., Awaitable[Any]]
"""runs a function with its arguments in another thread and returns its result"""

_T = TypeVar("_T")


class ExecutorFull(OSError):  # noqa: N818  a state, named like LedgerUnavailable
    """Too many calls wait. A later retry may succeed."""


class BoundedExecutor:
    """A bounded number of threads. `close` it after the last call."""

    def __init__(self, threads: int, *, name: str, waiting_max: int = WAITING_MAX) -> None:
        """`name`: prefix of the thread names."""
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._slots = Semaphore(threads + waiting_max)
        self._name = name

    def run(self, work: Callable[..., _T], *arguments: object) -> asyncio.Future[_T]:
        """The future result, on the running event loop. Cancelling it before the call starts prevents the call.

        Raises ExecutorFull.
        """
        if not self._slots.acquire(blocking=False):
            raise ExecutorFull(f"too many calls wait for the threads of {self._name}")
        try:
            running = self._pool.submit(work, *arguments)
        except BaseException:
            self._slots.release()
            raise
        running.add_done_callback(lambda _: self._slots.release())
        return asyncio.wrap_future(running)

    def close(self, *, wait: bool = True) -> None:
        """Drop the waiting calls; with `wait`, return when the running calls have ended."""
        self._pool.shutdown(wait=wait, cancel_futures=True)
