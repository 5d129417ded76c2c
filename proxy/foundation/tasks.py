"""Background tasks: referenced until they end, awaited at shutdown. Invariant: all tasks start here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

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
