"""Texts are counted on a thread of their own, bounded; what cannot be counted is nobody's estimate."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.metering.held_text import AnswerText, PromptText, TextKind, TextRoom
from proxy.metering.profile import Counted, Profile, profiles_of
from proxy.runtime.proxy import tokenizers
from proxy.runtime.proxy.tokenizers import CountingThread, ModelTexts, Tokenizers, read_tokenizer, reference
from proxy.settings import ModelSettings, SettingsError
from proxy.settings.estimates import EstimateSettings
from tests.support.tokenizer import every_character

MISSING = "the extra tokenweir[tokenizers] is not installed"
# A test ends after it, if the thread does nothing; none waits for it.
PATIENCE_S = 20.0
DEFAULT = EstimateSettings()


@pytest.fixture
def running() -> Iterator[Tokenizers]:
    one = Tokenizers((), DEFAULT)
    one.start()
    yield one
    one.close()


def answer(room: TextRoom, text: str, reasoning: str = "", calls: str = "") -> AnswerText:
    held = AnswerText(room)
    for kind, one in zip(TextKind, (text, reasoning, calls), strict=True):
        held.add(kind, one)
    return held


async def counted(
    texts: ModelTexts, held: AnswerText, prompt: PromptText | None = None
) -> tuple[Counted | None, Profile | None]:
    told: asyncio.Queue[tuple[Counted | None, Profile | None, int]] = asyncio.Queue()
    assert texts.count(held, prompt, lambda *found: told.put_nowait((*found, threading.get_ident())), urgent=True)
    count, asked, thread = await asyncio.wait_for(told.get(), PATIENCE_S)
    assert thread == threading.get_ident(), "the event loop's own"
    return count, asked


def test_a_file_counts_all_of_a_text(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason=MISSING)
    file = every_character(tmp_path / "tokenizer.json")
    count = read_tokenizer(file, "models.a.tokenizer")
    assert count(["Wehr 水門 🌊\n", "", "ab"]) == [10, 0, 2], "whatever the file says of truncation"


@pytest.mark.parametrize("written", [None, "", "{}", '{"model": 1}', "\0"])
def test_what_is_no_tokenizer_is_refused_by_its_field(tmp_path: Path, written: str | None) -> None:
    pytest.importorskip("tokenizers", reason=MISSING)
    file = tmp_path / "other.json"
    if written is not None:
        file.write_text(written)
    with pytest.raises(SettingsError, match=r"^models\.a\.tokenizer: cannot be read as a tokenizer\.json"):
        Tokenizers([ModelSettings(name="a", tokenizer=file)], DEFAULT)


def test_without_the_extra_it_says_which(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(SettingsError, match=r"^models\.a\.tokenizer: needs .*tokenweir\[tokenizers\]"):
        Tokenizers([ModelSettings(name="a", tokenizer=tmp_path / "tokenizer.json")], DEFAULT)


def test_without_room_no_vocabulary_is_loaded() -> None:
    off = Tokenizers([ModelSettings(name="a")], EstimateSettings(answer_bytes_max=0))
    off.start()
    assert off.reference is None
    assert off.of(ModelSettings(name="a")).room is None
    assert threading.active_count() == 1 or "tokenizers" not in {one.name for one in threading.enumerate()}
    off.close()


def test_a_machine_that_the_package_is_not_made_for_counts_by_counters(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "toktok", None)
    made = Tokenizers([ModelSettings(name="a")], DEFAULT)
    made.start()
    assert "toktok-rs is not installed" in caplog.text
    assert made.of(ModelSettings(name="a")).room is None
    made.close()


def test_the_reference_counts_what_it_should() -> None:
    assert reference()(["The weir", "", "水", "<|endoftext|>"]) == [3, 0, 1, 7], "special tokens are text"


async def test_an_answer_and_its_prompt_are_counted_and_dropped(running: Tokenizers) -> None:
    texts = running.of(ModelSettings(name="any"))
    room = texts.room
    assert room is not None
    held, prompt = answer(room, "The weir", "Hm, well", '{"a":1}'), PromptText("水門 and 1,480")
    prompt.hold(room)
    assert room.free < DEFAULT.bytes_max
    count, profile = await counted(texts, held, prompt)
    assert count is not None
    assert (count.text.tokens, count.text.chars, count.calls.chars) == (6, 16, 7)
    assert profile is not None
    assert (profile.han, profile.digits, profile.chars) == (2, 4, 12)
    assert not held
    assert prompt.text == ""
    assert room.free == DEFAULT.bytes_max


async def test_a_models_own_vocabulary_stands_before_the_reference(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason=MISSING)
    file = every_character(tmp_path / "tokenizer.json")
    models = ModelSettings(name="a", tokenizer=file), ModelSettings(name="b")
    made = Tokenizers(models, DEFAULT)
    made.start()
    try:
        found = [await counted(made.of(one), answer(made.room, "weirs"), PromptText("weirs")) for one in models]
    finally:
        made.close()
    assert [count and (count.tokens, count.own) for count, _ in found] == [(5, True), (2, False)]
    assert [profile and profile.tokens for _, profile in found] == [5, 2]


class Panic(BaseException):
    """As Rust's code raises it."""


@pytest.mark.parametrize("failure", [Panic("canary"), ValueError("canary"), MemoryError()])
async def test_a_text_that_cannot_be_counted_fails_alone(
    running: Tokenizers, failure: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def count(texts: list[str]) -> list[int]:
        if "canary" in texts[0]:
            raise failure
        return list(map(len, texts))

    texts = ModelTexts(running, count)
    with caplog.at_level(logging.DEBUG):
        assert await counted(texts, answer(running.room, "canary")) == (None, None)
        good, _ = await counted(texts, answer(running.room, "good"))
    assert good is not None
    assert good.tokens == 4
    assert "canary" not in caplog.text


async def test_nothing_piles_up_and_the_loop_never_waits(running: Tokenizers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizers, "URGENT_BYTES_MAX", 800_000)
    monkeypatch.setattr(tokenizers, "TEACHING_BYTES_MAX", 12_800)
    busy, free = threading.Event(), threading.Event()

    def slow(texts: list[str]) -> list[int]:
        busy.set()
        assert free.wait(PATIENCE_S)
        return list(map(len, texts))

    texts = ModelTexts(running, slow)
    told: list[Counted | None] = []

    def add(size: int, *, urgent: bool) -> bool:
        room = TextRoom(answer_bytes_max=size, bytes_max=size)
        return texts.count(answer(room, "x" * size), None, lambda count, _: told.append(count), urgent=urgent)

    began = time.perf_counter()
    assert add(100, urgent=True)
    assert busy.wait(PATIENCE_S)
    assert add(tokenizers.TEACHING_BYTES_MAX - 100, urgent=False)
    assert not add(1, urgent=False), "what only teaches waits for little"
    assert add(tokenizers.URGENT_BYTES_MAX - tokenizers.TEACHING_BYTES_MAX, urgent=True)
    assert not add(1, urgent=True)
    assert time.perf_counter() - began < PATIENCE_S / 2
    assert told == []
    free.set()
    while len(told) < 3 or running.thread.waiting:
        await asyncio.sleep(0.001)
    assert add(1, urgent=False)


async def test_after_the_end_nothing_is_counted(running: Tokenizers) -> None:
    running.close()
    assert not running.of(ModelSettings(name="m")).count(answer(running.room, "late"), None, pytest.fail, urgent=True)


MANY = 300_000


@pytest.mark.parametrize(
    "text", ["a" * MANY, "/" * MANY, " " * MANY, "\n" * MANY, "a\u0301" * (MANY // 3), "\U0001f30a" * (MANY // 4),
             " \t" * (MANY // 2), "\u0e17\u0e35\u0e48" * (MANY // 5), "1" * MANY, "\ud83d" * 1000],
)  # fmt: skip
def test_no_text_takes_long(text: str) -> None:
    """In proportion to its length, whatever it repeats: a square would take minutes."""
    count = reference()
    began = time.thread_time()
    (profile,) = profiles_of([text.encode(errors="replace").decode()], count)
    assert profile.tokens > 0
    assert time.thread_time() - began < 1.0


def test_the_thread_ends() -> None:
    thread = CountingThread()
    thread.start()
    thread.close()
    thread.close()
    assert not thread.submit(lambda: None, 0, 1)
