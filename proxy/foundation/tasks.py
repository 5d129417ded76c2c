"""Background tasks: referenced until they end, awaited at shutdown. Invariant: all tasks start here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Protocol

_log = logging.getLogger(__name__)


class Tasks:
    """A set of running tasks: none is garbage-collected early, and every failure is logged."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        """Run `work`; an exception from it is a bug and is logged with its traceback."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (bug := task.exception()) is not None:
            _log.error("task %s failed", task.get_name(), exc_info=bug)

    async def stop(self) -> None:
        """Cancel the running tasks and wait for them."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class Part(Protocol):
    """Runs until it is cancelled, or is asked to finish."""

    async def run(self) -> None: ...

    def finish(self) -> None:
        """End `run` after the step under way."""
        ...


class Steps:
    """The end and the pauses of a part that repeats a step."""

    def __init__(self) -> None:
        self._finished = asyncio.Event()

    def finish(self) -> None:
        """No other step may begin."""
        self._finished.set()

    @property
    def finished(self) -> bool:
        """True after `finish`."""
        return self._finished.is_set()

    async def pause(self, seconds: float) -> None:
        """Return after this time, or at `finish`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._finished.wait()


class Parts:
    """Running parts by name. A part runs when the one of its name that it replaces has finished."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._last: dict[str, tuple[Part, asyncio.Task[None]]] = {}

    def put(self, name: str, part: Part | None) -> None:
        """Run `part` in place of the one with this name, if there is one; None: run no other."""
        before = self._last.get(name)
        if before is not None:
            before[0].finish()
        if part is not None:
            task = self._tasks.start(_run_after(None if before is None else before[1], part), name=name)
            self._last[name] = part, task


async def _run_after(before: asyncio.Task[None] | None, part: Part) -> None:
    if before is not None:
        await asyncio.wait([before])
    await part.run()
