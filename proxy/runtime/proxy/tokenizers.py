"""Counts the text of streams with the tokenizers of their models, on one thread.

Invariants: the event loop waits only where an estimate needs a count, and for at most WAIT_S. The text that waits to
be counted is bounded: a stream beyond the bound is estimated by its counters. Nothing is downloaded.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from proxy.metering.tokenizer_feed import TokenCounter
from proxy.settings import ModelSettings, SettingsError

# The text of all streams that waits to be counted: about half a second of work.
WAITING_CHARS_MAX = 1 << 20
# The last piece of a stream is counted in less than a millisecond.
WAIT_S = 0.01
# No wait for more text than can be counted in that time.
WAIT_CHARS_MAX = 16 << 10

Count = Callable[[str], int]
"""A text → its tokens"""


def read_tokenizer(file: Path, field: str) -> Count:
    """The tokenizer in a file. Raises SettingsError, naming the field."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # it has one thread
    try:
        import tokenizers
    except ImportError:
        raise SettingsError(f"{field}: needs the package tokenizers (pip install 'tokenweir[tokenizers]')") from None
    try:
        known: Any = tokenizers.Tokenizer.from_file(str(file))
    except Exception:  # noqa: BLE001  it raises nothing narrower
        raise SettingsError(f"{field}: cannot be read as a tokenizer.json") from None
    known.no_truncation()  # some files set it
    known.no_padding()
    # A batch of one: that call releases the GIL, and computes no offsets.
    return lambda text: len(known.encode_batch_fast([text], add_special_tokens=False)[0])


class Tokenizers:
    """The tokenizers of all models, and their thread."""

    def __init__(self, models: Iterable[ModelSettings]) -> None:
        """Raises SettingsError. `start` before anything is counted."""
        files: dict[Path, Count] = {}
        self._counts: dict[str, Count] = {}
        for model in models:
            if model.tokenizer is not None:
                if model.tokenizer not in files:
                    files[model.tokenizer] = read_tokenizer(model.tokenizer, f"models.{model.name}.tokenizer")
                self._counts[model.name] = files[model.tokenizer]
        self._counting = TokenizerThread()

    def start(self) -> None:
        """Start the thread, if any model has a tokenizer."""
        if self._counts:
            self._counting.start()

    def close(self) -> None:
        """End the thread; text that waits is not counted."""
        self._counting.close()

    def of(self, model: str) -> Callable[[], TokenCounter] | None:
        """The factory of counters for streams of this model; None: it has no tokenizer."""
        count = self._counts.get(model)
        return None if count is None else partial(StreamCounter, self._counting, count)


class TokenizerThread:
    """One thread with a queue of calls, bounded by characters."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Callable[[], None], int] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        # Characters; each of the two is written by one thread alone: the caller's, and this one.
        self._added = self._done = 0

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="tokenizers", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End. Idempotent."""
        if self._thread is not None:
            self._added = self._done + WAITING_CHARS_MAX  # every later call is refused
            self._queue.put(None)
            self._thread.join(1.0)
            self._thread = None

    @property
    def waiting(self) -> int:
        """Characters not counted yet."""
        return self._added - self._done

    def submit(self, call: Callable[[], None], chars: int = 0) -> bool:
        """Queue a call that counts so many characters. False: there is no room."""
        if chars and self.waiting + chars > WAITING_CHARS_MAX:
            return False
        self._added += chars
        self._queue.put((call, chars))
        return True

    def _run(self) -> None:
        while (queued := self._queue.get()) is not None:
            call, chars = queued
            call()
            self._done += chars


class StreamCounter:
    """The `TokenCounter` of one stream; its methods are for the event loop's thread."""

    __slots__ = ("_added", "_count", "_counted", "_counting", "_lost", "_tokens")

    def __init__(self, counting: TokenizerThread, count: Count) -> None:
        self._counting = counting
        self._count = count
        self._tokens = 0
        self._added = self._counted = 0  # texts
        self._lost = False

    def add(self, text: str) -> None:
        """Count it after what is queued, or never."""
        self._added += 1
        self._lost = self._lost or not self._counting.submit(partial(self._add, text), len(text))

    def _add(self, text: str) -> None:
        """Count; on the tokenizers' thread."""
        if not self._lost:
            try:
                self._tokens += self._count(text)
            except Exception:  # noqa: BLE001  lone surrogates, for example; it raises nothing narrower
                self._lost = True
        self._counted += 1  # last: a reader that sees it sees the sum, too

    @property
    def _sum(self) -> int | None:
        return None if self._lost else self._tokens

    def total(self) -> int | None:
        """The count; waits for at most WAIT_S. None: not counted."""
        if self._lost or self._counted == self._added:
            return self._sum
        counted = threading.Event()
        if self._counting.waiting > WAIT_CHARS_MAX or not self._counting.submit(counted.set):
            return None
        return self._sum if counted.wait(WAIT_S) else None

    def then(self, told: Callable[[int | None], None]) -> None:
        """Call `told` with the count on the running event loop, when everything is counted."""
        loop = asyncio.get_running_loop()

        def report() -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(told, self._sum)

        self._counting.submit(report)
