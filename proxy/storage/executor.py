"""Named threads for blocking work, off the event loop. Invariant: no more calls run and wait than was said; one more is
refused at once, so that a database that hangs costs neither memory nor the threads that others need."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Semaphore
from typing import Any, TypeVar

# More than all tasks of a process ask at once, each of which waits for its answer.
WAITING_MAX = 1_000

InThread = Callable[..., Awaitable[Any]]
"""A function and its arguments → its result, from another thread"""

_T = TypeVar("_T")


class ExecutorFull(OSError):  # noqa: N818  a state of the world, named like its siblings
    """Too many calls wait already. Trying again later may work."""


class BoundedExecutor:
    """`close` it after the last call."""

    def __init__(self, threads: int, *, name: str, waiting_max: int = WAITING_MAX) -> None:
        """`name`: of its threads, for whoever looks at the process."""
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._places = Semaphore(threads + waiting_max)
        self._name = name

    def run(self, work: Callable[..., _T], *arguments: object) -> asyncio.Future[_T]:
        """Its result, on the running event loop. Cancelled before it began, it is not done. Raises ExecutorFull."""
        if not self._places.acquire(blocking=False):
            raise ExecutorFull(f"too much waits for the threads of {self._name}")
        try:
            running = self._pool.submit(work, *arguments)
        except BaseException:
            self._places.release()
            raise
        running.add_done_callback(lambda _: self._places.release())
        return asyncio.wrap_future(running)

    def close(self, *, wait: bool = True) -> None:
        """Return when the calls that run have ended, or, without `wait`, now. Those that wait are not done."""
        self._pool.shutdown(wait=wait, cancel_futures=True)
