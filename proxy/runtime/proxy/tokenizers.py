"""Counts texts with a vocabulary, the reference or a model's own, on one thread.

Invariants: nothing is counted on the event loop, and nothing on it waits. Waiting texts are bounded; the usage of a
text beyond the bound is estimated from counters, and the estimator learns nothing from it. A vocabulary that fails
fails for one text only. Nothing is downloaded.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from proxy.metering.held_text import AnswerText, PromptText, TextRoom
from proxy.metering.profile import Counted, CountTokens, Profile, profiles_of
from proxy.settings import ModelSettings, SettingsError
from proxy.settings.estimates import EstimateSettings

_log = logging.getLogger(__name__)

# The text that waits to be counted, in bytes: a second of work where an entry waits for it; where it only teaches, a
# hundredth.
URGENT_BYTES_MAX, TEACHING_BYTES_MAX = 8 << 20, 128 << 10

REFERENCE = "o200k_base"

OnCounted = Callable[[Counted | None, Profile | None], None]
"""called with the counts of the answer and of the prompt; None: not counted"""


def reference() -> CountTokens:
    """The reference vocabulary, loaded. Raises ImportError."""
    import toktok

    def count(texts: list[str]) -> list[int]:
        return list(toktok.batch_count(texts, REFERENCE, 1))  # on this thread

    count([""])
    return count


def read_tokenizer(file: Path, field: str) -> CountTokens:
    """The tokenizer in a file. Raises SettingsError that names the field."""
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
    # That call releases the GIL, and computes no offsets.
    return lambda texts: [len(found) for found in known.encode_batch_fast(texts, add_special_tokens=False)]


class Tokenizers:
    """The vocabularies of all models, and their thread."""

    def __init__(self, models: Iterable[ModelSettings], settings: EstimateSettings) -> None:
        """Read the models' vocabularies. Raises SettingsError. Call `start` before the first count."""
        self._files: dict[Path, CountTokens] = {}
        self.read(models)
        self.reference: CountTokens | None = None
        """the reference vocabulary; None: it is not loaded"""
        self.room = TextRoom(answer_bytes_max=settings.answer_bytes_max, bytes_max=settings.bytes_max)
        """the bound of all kept texts"""
        self.thread = CountingThread()

    def read(self, models: Iterable[ModelSettings]) -> None:
        """Read the vocabularies of these models that are not read yet. Raises SettingsError."""
        for model in models:
            if model.tokenizer is not None and model.tokenizer not in self._files:
                self._files[model.tokenizer] = read_tokenizer(model.tokenizer, f"models.{model.name}.tokenizer")

    def start(self) -> None:
        """Load the reference vocabulary, which takes a third of a second, and start the thread; neither if no text is
        kept."""
        if not self.room.answer_bytes_max:
            return
        try:
            self.reference = reference()
        except ImportError:
            _log.warning("the package toktok-rs is not installed: estimates are made from counters")
        self.thread.start()

    def close(self) -> None:
        """End the thread; waiting texts are not counted."""
        self.thread.close()

    def of(self, model: ModelSettings) -> ModelTexts:
        """The counter of this model's texts, whose vocabulary has been read."""
        return ModelTexts(self, None if model.tokenizer is None else self._files[model.tokenizer])


class ModelTexts:
    """The `TextCounter` of one model; its methods are for the event loop's thread."""

    def __init__(self, tokenizers: Tokenizers, own: CountTokens | None) -> None:
        self._tokenizers = tokenizers
        self._own = own

    @property
    def room(self) -> TextRoom | None:
        """The bound of kept texts; None: nothing is counted."""
        known = self._tokenizers
        return known.room if (self._own or known.reference) and known.room.answer_bytes_max else None

    def count(self, held: AnswerText | None, prompt: PromptText | None, on_counted: OnCounted, *, urgent: bool) -> bool:
        """Count these texts and drop them; then call `on_counted` on the running event loop. False: too many texts
        wait, and there is no call. `urgent` False: the counts only train the estimator."""
        count = self._own or self._tokenizers.reference
        if count is None:
            return False
        loop, own = asyncio.get_running_loop(), self._own is not None

        def tell(counted: Counted | None, asked: Profile | None) -> None:
            if held is not None:
                held.give_up()
            if prompt is not None:
                prompt.drop()
            on_counted(counted, asked)

        def work() -> None:
            counted = None if held is None else _answer(held.texts(), count, own=own)
            asked = None if prompt is None or not prompt.text else _prompt(prompt.text, count, own=own)
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(tell, counted, asked)

        size = (0 if held is None else held.size) + (0 if prompt is None else len(prompt.text))
        return self._tokenizers.thread.submit(work, size, URGENT_BYTES_MAX if urgent else TEACHING_BYTES_MAX)


def _answer(texts: list[str], count: CountTokens, *, own: bool) -> Counted | None:
    profiles = _profiles(texts, count)
    if profiles is None:
        return None
    text, reasoning, calls = profiles
    return Counted(text + reasoning, calls, own)


def _prompt(text: str, count: CountTokens, *, own: bool) -> Profile | None:
    profiles = _profiles([text.encode(errors="replace").decode()], count)  # a client may send half a surrogate pair
    if profiles is None:
        return None
    return profiles[0].tokens_alone() if own else profiles[0]


def _profiles(texts: list[str], count: CountTokens) -> list[Profile] | None:
    try:
        return profiles_of(texts, count)
    except BaseException as failure:  # noqa: BLE001  a panic of the vocabulary's code is no Exception
        # Without its message, which may quote the text.
        _log.warning("a text could not be counted: %s", type(failure).__name__)
        return None


class CountingThread:
    """One thread with a queue of calls, bounded by bytes."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Callable[[], None], int] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        # Bytes; each of the two is written by one thread alone: the caller's, and this one.
        self._added = self._done = 0

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="tokenizers", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            thread.join(1.0)

    @property
    def waiting(self) -> int:
        """Bytes of texts that wait."""
        return self._added - self._done

    def submit(self, call: Callable[[], None], size: int, bytes_max: int) -> bool:
        """Queue a call that counts `size` bytes. False: the thread has ended, or more than `bytes_max` would wait."""
        if self._thread is None or self.waiting + size > bytes_max:
            return False
        self._added += size
        self._queue.put((call, size))
        return True

    def _run(self) -> None:
        while (queued := self._queue.get()) is not None:
            call, size = queued
            call()
            self._done += size
            del call, queued  # the text that it holds
