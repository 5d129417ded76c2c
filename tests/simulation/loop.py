"""An event loop whose time is a number. Law: nothing waits; when nothing can run, the clock jumps to the next timer.

Deterministic: no threads, no sockets, no real clock; the order of what is ready is asyncio's own.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

_T = TypeVar("_T")


class _NoIO(selectors.BaseSelector):
    """Selects nothing, ever; waiting is moving the clock."""

    def __init__(self) -> None:
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "everything waits for everything else"
        self.now += max(0.0, timeout)
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, 0, None)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return {}


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time starts at 0.0 s."""

    def __init__(self) -> None:
        self._virtual = _NoIO()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


def run(world: Coroutine[Any, Any, _T]) -> _T:
    """Run it to its end on a clock of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(world)
