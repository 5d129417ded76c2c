"""Counts the text of streams with their models' own tokenizers, on a thread of its own.

Law: the event loop never waits for it but where an estimate needs a count, and then WAIT_S at most. What waits to be
counted is bounded: a stream that finds no room is estimated by its counters. Nothing is downloaded.
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

# Of all streams together, waiting to be counted: about half a second of work.
WAITING_CHARS_MAX = 1 << 20
# The last piece of a stream is counted in less than a millisecond.
WAIT_S = 0.01
# More than can be counted in that time is not waited for.
WAIT_CHARS_MAX = 16 << 10

Count = Callable[[str], int]
"""A text → its tokens"""


def read_tokenizer(file: Path, field: str) -> Count:
    """What the file says. Raises SettingsError, naming the field."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # one thread is what it gets
    try:
        import tokenizers
    except ImportError:
        raise SettingsError(f"{field}: needs the package tokenizers (pip install 'tokenweir[tokenizers]')") from None
    try:
        known: Any = tokenizers.Tokenizer.from_file(str(file))
    except Exception:  # noqa: BLE001  it raises nothing narrower
        raise SettingsError(f"{field}: is no tokenizer.json that can be read") from None
    known.no_truncation()  # some files cut what they are given
    known.no_padding()
    # Of a batch of one: that lets other threads run, and tells no places of tokens.
    return lambda text: len(known.encode_batch_fast([text], add_special_tokens=False)[0])


class Tokenizers:
    """Those of all models, and the thread that they count on."""

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
        """If there is anything to count with."""
        if self._counts:
            self._counting.start()

    def close(self) -> None:
        """What waits is not counted any more."""
        self._counting.close()

    def of(self, model: str) -> Callable[[], TokenCounter] | None:
        """What makes a counter for each stream of the model of that name; None: it has no tokenizer."""
        count = self._counts.get(model)
        return None if count is None else partial(StreamCounter, self._counting, count)


class TokenizerThread:
    """One thread that does one thing after the other."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[tuple[Callable[[], None], int] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        # Characters: what came is written here by the asking thread alone, what is done by the other alone.
        self._came = self._done = 0

    def start(self) -> None:
        """Begin to count."""
        self._thread = threading.Thread(target=self._run, name="tokenizers", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End. Idempotent."""
        if self._thread is not None:
            self._came = self._done + WAITING_CHARS_MAX  # nothing more finds room
            self._asked.put(None)
            self._thread.join(1.0)
            self._thread = None

    @property
    def waiting(self) -> int:
        """Characters not counted yet."""
        return self._came - self._done

    def ask(self, act: Callable[[], None], chars: int = 0) -> bool:
        """Done in its turn, for so many characters. False: there is no room."""
        if chars and self.waiting + chars > WAITING_CHARS_MAX:
            return False
        self._came += chars
        self._asked.put((act, chars))
        return True

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            act, chars = asked
            act()
            self._done += chars


class StreamCounter:
    """One stream: a `TokenCounter`, of the thread that made it."""

    __slots__ = ("_added", "_count", "_counted", "_counting", "_lost", "_tokens")

    def __init__(self, counting: TokenizerThread, count: Count) -> None:
        self._counting = counting
        self._count = count
        self._tokens = 0
        self._added = self._counted = 0  # texts
        self._lost = False

    def add(self, text: str) -> None:
        """Counted in its turn, or never."""
        self._added += 1
        self._lost = self._lost or not self._counting.ask(partial(self._add, text), len(text))

    def _add(self, text: str) -> None:
        """On the other thread."""
        if not self._lost:
            try:
                self._tokens += self._count(text)
            except Exception:  # noqa: BLE001  halves of characters, say; it raises nothing narrower
                self._lost = True
        self._counted += 1  # last: whoever sees it sees the sum, too

    @property
    def _found(self) -> int | None:
        return None if self._lost else self._tokens

    def total(self) -> int | None:
        """Waits WAIT_S at most."""
        if self._lost or self._counted == self._added:
            return self._found
        counted = threading.Event()
        if self._counting.waiting > WAIT_CHARS_MAX or not self._counting.ask(counted.set):
            return None
        return self._found if counted.wait(WAIT_S) else None

    def then(self, told: Callable[[int | None], None]) -> None:
        """Tells the event loop that this is called on."""
        loop = asyncio.get_running_loop()

        def tell() -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(told, self._found)

        self._counting.ask(tell)
