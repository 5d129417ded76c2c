"""Tokenizers count on a thread of their own, bounded; what cannot be counted is nobody's estimate."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.runtime.proxy import tokenizers
from proxy.runtime.proxy.tokenizers import StreamCounter, Tokenizers, TokenizerThread, read_tokenizer
from proxy.settings import ModelSettings, SettingsError
from tests.support.tokenizer import every_character

MISSING = "the extra tokenweir[tokenizers] is not installed"
# A test ends after it, if the thread does nothing; none waits for it.
PATIENCE_S = 20.0


@pytest.fixture
def counting() -> Iterator[TokenizerThread]:
    one = TokenizerThread()
    one.start()
    yield one
    one.close()


def test_a_file_counts_all_of_a_text(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason=MISSING)
    file = every_character(tmp_path / "tokenizer.json")
    made = Tokenizers([ModelSettings(name="a", tokenizer=file), ModelSettings(name="b")])
    assert made.of("b") is None
    assert made.of("a") is not None
    count = read_tokenizer(file, "models.a.tokenizer")
    assert count("Wehr 水門 🌊\n") == 10, "whatever the file says of truncation"


@pytest.mark.parametrize("written", [None, "", "{}", '{"model": 1}', "\0"])
def test_what_is_no_tokenizer_is_refused_by_its_field(tmp_path: Path, written: str | None) -> None:
    pytest.importorskip("tokenizers", reason=MISSING)
    file = tmp_path / "other.json"
    if written is not None:
        file.write_text(written)
    with pytest.raises(SettingsError, match=r"^models\.a\.tokenizer: cannot be read as a tokenizer\.json"):
        Tokenizers([ModelSettings(name="a", tokenizer=file)])


def test_without_the_extra_it_says_which(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(SettingsError, match=r"^models\.a\.tokenizer: needs .*tokenweir\[tokenizers\]"):
        Tokenizers([ModelSettings(name="a", tokenizer=tmp_path / "tokenizer.json")])
    unused = Tokenizers([ModelSettings(name="a")])
    unused.start()
    unused.close()


def test_streams_are_counted_apart(counting: TokenizerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizers, "WAIT_S", PATIENCE_S)
    one, other = StreamCounter(counting, len), StreamCounter(counting, len)
    for text in ("ab", "cde"):
        one.add(text)
        other.add(text * 2)
    assert (one.total(), other.total()) == (5, 10)
    one.add("f")
    assert one.total() == 6
    assert counting.waiting == 0


def test_a_text_that_cannot_be_counted_ends_the_count(
    counting: TokenizerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizers, "WAIT_S", PATIENCE_S)
    one, other = StreamCounter(counting, lambda text: len(text.encode())), StreamCounter(counting, len)
    for counter in (one, other):
        counter.add("\ud83d")
        counter.add("good")
    assert (one.total(), other.total()) == (None, 5)


def test_nothing_waits_longer_than_it_may_and_nothing_piles_up(
    counting: TokenizerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy, free = threading.Event(), threading.Event()

    def slow(text: str) -> int:
        busy.set()
        assert free.wait(PATIENCE_S)
        return len(text)

    stuck = StreamCounter(counting, slow)
    stuck.add("ab")
    assert busy.wait(PATIENCE_S)
    assert stuck.total() is None, "not in time"
    late = StreamCounter(counting, len)
    late.add("x" * tokenizers.WAIT_CHARS_MAX)
    monkeypatch.setattr(tokenizers, "WAIT_S", PATIENCE_S)
    assert late.total() is None, "too much before it to be waited for"
    full = StreamCounter(counting, len)
    full.add("x" * tokenizers.WAITING_CHARS_MAX)
    full.add("y")
    free.set()
    while counting.waiting > tokenizers.WAIT_CHARS_MAX:
        threading.Event().wait(0.001)
    assert full.total() is None, "part of it found no room"
    assert (stuck.total(), late.total()) == (2, tokenizers.WAIT_CHARS_MAX)


async def test_the_event_loop_is_told_later(counting: TokenizerThread) -> None:
    told: asyncio.Queue[tuple[int | None, int]] = asyncio.Queue()
    here = threading.get_ident()
    good, bad = StreamCounter(counting, len), StreamCounter(counting, lambda text: 1 // 0)
    for counter in (good, bad):
        counter.add("abc")
        counter.then(lambda count: told.put_nowait((count, threading.get_ident())))
    assert [await asyncio.wait_for(told.get(), PATIENCE_S) for _ in range(2)] == [(3, here), (None, here)]
