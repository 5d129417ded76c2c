"""The console's threads: some for operators, others for keys.

Invariant: requests with a key, however many, take no thread of an operator's request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from proxy.storage.executor import BoundedExecutor

_T = TypeVar("_T")

_is_key: ContextVar[bool] = ContextVar("is_key", default=False)
"""whether the current request is one of a key"""


@contextmanager
def called_by(*, is_key: bool) -> Iterator[None]:
    """The calls in this context are of a key's request, or of an operator's."""
    token = _is_key.set(is_key)
    try:
        yield
    finally:
        _is_key.reset(token)


class CallerThreads(BoundedExecutor):
    """Runs calls on the threads of their caller. `close` it after the last call."""

    def __init__(self, threads: int, *, name: str, waiting_max: int) -> None:
        """`threads`, `waiting_max`: of operators, and as many of keys."""
        super().__init__(threads, name=name, waiting_max=waiting_max)
        self._of_keys = BoundedExecutor(threads, name=f"{name} of keys", waiting_max=waiting_max)

    def run(self, work: Callable[..., _T], *arguments: object) -> asyncio.Future[_T]:
        """As `BoundedExecutor.run`."""
        return self._of_keys.run(work, *arguments) if _is_key.get() else super().run(work, *arguments)

    def close(self, *, wait: bool = True) -> None:
        """As `BoundedExecutor.close`."""
        super().close(wait=wait)
        self._of_keys.close(wait=wait)
