"""Estimates of streams from real tokenizers are as near as they are said to be; and such a stream is what it says."""

from __future__ import annotations

import random

import pytest

from tests.bench import tokenized
from tests.bench.figures import ridge
from tests.bench.tokenized import LANGUAGES, answered, errors, events, of_all_languages, sentences, vocabulary

NAMES = ["o200k", "deepseek", "qwen3.6"]


def test_a_character_is_never_torn() -> None:
    tokens = [b"a", "é".encode()[:1], "é".encode()[1:], b" b", b"c"]
    assert list(events(tokens, None)) == [("a", 1), ("é", 2), (" b", 1), ("c", 1)]
    joined = list(events(tokens * 50, random.Random(1)))
    assert "".join(text for text, _ in joined) == "aé bc" * 50
    assert sum(count for _, count in joined) == 250
    assert max(count for _, count in joined) > 4


def test_a_cut_stream_has_the_tokens_of_what_came() -> None:
    tokens, rng = [b" x"] * 200, random.Random(1)
    cuts = [one for _ in range(40) if (one := answered("m", tokens, rng, joined=False, cut=True))]
    assert {one.tokens for one in cuts} == {one.evidence.text_events for one in cuts}
    assert 50 <= min(one.tokens for one in cuts) < 80
    assert len({one.tokens for one in cuts}) > 10


@pytest.mark.parametrize("name", NAMES)
def test_a_vocabulary_cuts_and_loses_nothing(name: str) -> None:
    cut = _installed(name)
    for language in LANGUAGES:
        text = "".join(sentences(language))
        assert b"".join(cut(text)).decode() == text
        assert len(text) / 8 < len(cut(text)) < 2 * len(text)


def test_the_figures_are_reached() -> None:
    for name in NAMES:
        _installed(name)
    models = [
        model
        for joined in (False, True)
        for model in of_all_languages(NAMES, joined=joined, apart=False, streams=3, seed=0)
    ]
    found = errors(models, ridge)
    assert found.streams >= 150
    assert found.median <= 0.03
    assert found.high <= 0.10
    assert found.bias == pytest.approx(1, abs=0.01)


def _installed(name: str) -> tokenized.Cut:
    try:
        return vocabulary(name)
    except ImportError as missing:
        pytest.skip(f"a tokenizer of the dev group is not installed: {missing.name}")
