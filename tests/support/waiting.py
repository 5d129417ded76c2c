"""Waiting for what others do in their own time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from inspect import isawaitable
from typing import Any, TypeVar

_T = TypeVar("_T")


async def until(holds: Callable[[], Any | Awaitable[Any]], *, within_s: float = 10.0, poll_s: float = 0.002) -> None:
    """Return when the result of `holds`, or what it awaits, is true. Raises TimeoutError."""
    async with asyncio.timeout(within_s):
        while not (await found if isawaitable(found := holds()) else found):
            await asyncio.sleep(poll_s)


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """It runs for as long as the block does; what it raises ends both."""
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(work)
        yield
        task.cancel()


def wait_until(
    holds: Callable[[], _T],
    why: Callable[[], object] = lambda: "not in time",
    *,
    within_s: float = 20.0,
    poll_s: float = 0.01,
) -> _T:
    """The first true result of `holds`, for tests without an event loop. Raises AssertionError with that of `why`."""
    deadline = time.monotonic() + within_s
    while not (found := holds()):
        assert time.monotonic() < deadline, why()
        time.sleep(poll_s)
    return found
