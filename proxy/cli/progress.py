"""The progress of a command that takes long: one line on standard error, rewritten in place and removed at the end.

Invariants: nothing is written unless standard error is a terminal and the work has taken AFTER_S. Lines that the
command prints by `say` appear above the progress line. The work only assigns numbers; a thread draws them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from shutil import get_terminal_size
from threading import Event, Lock, Thread
from typing import IO, Self, TypeVar

AFTER_S = 1.0
"""work that ends sooner shows no progress"""
EVERY_S = 0.2

_ERASED = "\r\x1b[K"

_T = TypeVar("_T")


class Progress:
    """A context around the work: `Progress("copying", "rows", total=9)` shows `copying: 4 of 9 rows`.

    `what`, `done` and `total` may be assigned at any time, by any thread. `total`: None if it is not known. `measure`:
    called for `done` when the line is drawn.
    """

    def __init__(
        self, what: str, unit: str, *, total: int | None = None, measure: Callable[[], int] | None = None
    ) -> None:
        self.what, self.unit, self.total = what, unit, total
        self.done = 0
        self.is_shown = _can_be_rewritten(sys.stderr)
        """False: no line is drawn, and a total that is costly to count is not needed"""
        self._measure = measure
        self._ended = Event()
        self._lock = Lock()
        self._thread: Thread | None = None

    def __enter__(self) -> Self:
        if self.is_shown:
            self._thread = Thread(target=self._draw, name="progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def each(self, items: Iterable[_T]) -> Iterator[_T]:
        """Yield the items, and count each."""
        for item in items:
            yield item
            self.done += 1

    def say(self, line: str, *, file: IO[str] | None = None) -> None:
        """Print a line on standard output, or in `file`, above the progress."""
        with self._lock:
            if self.is_shown:
                sys.stderr.write(_ERASED)
                sys.stderr.flush()
            print(line, file=file, flush=True)

    def _draw(self) -> None:
        if self._ended.wait(AFTER_S):
            return
        while True:
            with self._lock:
                sys.stderr.write(_ERASED + self._line()[: get_terminal_size().columns - 1])
                sys.stderr.flush()
            if self._ended.wait(EVERY_S):
                break
        sys.stderr.write(_ERASED)
        sys.stderr.flush()

    def _line(self) -> str:
        done = self.done if self._measure is None else self._measure()
        of_total = f" of {max(done, self.total):,}" if self.total is not None else ""
        return f"{self.what}: {done:,}{of_total} {self.unit}"


def _can_be_rewritten(stream: IO[str]) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"
