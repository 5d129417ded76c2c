"""What a stream says reaches a tokenizer once and whole, in pieces that no cut of the bytes changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.metering.dialect import Dialect
from proxy.metering.dialects import DIALECTS
from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.metered import Metered
from proxy.metering.tokenizer_feed import PIECE_CHARS, TextKind, TokenizerFeed
from tests.gateway.languages import MESSAGES, RESPONSES, Language
from tests.metering.fixtures import call, chunk, say, sse
from tests.support.examples import examples


class Pieces:
    """A counter that keeps what it is told."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def add(self, text: str) -> None:
        self.texts.append(text)

    def total(self) -> int | None:
        return sum(map(len, self.texts))

    def then(self, told: Callable[[int | None], None]) -> None:
        told(self.total())


def read(pieces: Sequence[bytes], dialect: Dialect = OPENAI_CHAT) -> tuple[Pieces, Metered]:
    """Each piece read by itself."""
    counter = Pieces()
    meter = dialect.stream_meter(counter=counter)
    for piece in pieces:
        meter.feed(piece)
        meter.fold()
    return counter, meter.close()


WORDS = st.text('ab 水🌊\n"\\', min_size=1, max_size=40)
DELTAS = st.one_of(
    WORDS.map(lambda text: {"content": text}),
    WORDS.map(lambda text: {"reasoning_content": text}),
    WORDS.map(lambda text: call(0, text)),
)


@settings(max_examples=examples(60))
@given(st.lists(DELTAS, max_size=12), st.lists(st.integers(0, 4000), max_size=9), st.integers(1, 70))
def test_no_cut_changes_what_is_counted(deltas: list[dict[str, object]], at: list[int], many: int) -> None:
    # Two texts that are no repetition first: what follows are fragments.
    told = [*say("Down", "river "), *(chunk({"reasoning_content": text}) for text in ("Hm", "well "))]
    body = sse(*told, *([chunk(delta) for delta in deltas] * many))
    ends = sorted({0, *(one % (len(body) + 1) for one in at), len(body)})
    cut = [body[start:end] for start, end in pairwise(ends)]
    whole, metered = read([body])
    pieces, again = read(cut)
    assert Counter(pieces.texts) == Counter(whole.texts)
    assert metered.counter is whole
    assert again.evidence == metered.evidence
    assert whole.total() == metered.evidence.chars
    assert all(0 < len(text) <= PIECE_CHARS for text in whole.texts)


def test_a_run_is_counted_as_what_it_says() -> None:
    fragments = ["Down", " the", " weir", ' "goes', "\\ 水", " 🌊", "\n", " day"]
    pieces, _ = read([sse(one) for one in say(*fragments)])
    assert "".join(pieces.texts) == "".join(fragments)


def test_pieces_end_before_a_blank() -> None:
    counter = Pieces()
    feed = TokenizerFeed(counter)
    feed.add(TextKind.TEXT, "water " * 400)
    assert [len(text) for text in counter.texts] == [1019, 1020]
    assert all(text.startswith(" ") for text in counter.texts[1:])
    feed.add(TextKind.CALLS, "=" * 3000)  # without any: where it is full
    assert [len(text) for text in counter.texts[2:]] == [1024, 1024]
    assert feed.end() is feed.end() is counter
    assert counter.total() == 5400


@pytest.mark.parametrize("language", [MESSAGES, RESPONSES], ids=["messages", "responses"])
def test_every_language_tells_what_its_evidence_counts(language: Language) -> None:
    dialect = next(one for one in DIALECTS if one.endpoint == language.path)
    pieces, metered = read(language.events, dialect)
    assert pieces.texts == ["Much more than before."]
    assert metered.counter is pieces


@pytest.mark.parametrize(
    ("texts", "cumulative", "said"),
    [
        (["A", "A w", "A we", "A weir", "A weir"], None, "A weir"),
        (["A", "A w", "A weir"], True, "A weir"),
        (["1", "10", "100", " and"], None, None),  # what was taken for repetition is not known any more
        (["ha", "ha", "ha"], None, None),
        (["1", "10", "100"], False, "110100"),
    ],
)
def test_repeated_texts_are_counted_once_or_not_at_all(
    texts: list[str], cumulative: bool | None, said: str | None
) -> None:
    counter = Pieces()
    meter = OPENAI_CHAT.stream_meter(cumulative=cumulative, counter=counter)
    meter.feed(sse(*say(*texts)))
    metered = meter.close()
    assert (None if metered.counter is None else "".join(counter.texts)) == said


def test_what_cannot_be_told_apart_is_not_counted() -> None:
    _, several = read([sse(*say("A", " weir"), *say("Or", " not", index=1))])
    assert several.counter is None
    document, meter = b'{"choices":[{"message":{"content":"All of it"}}]}', OPENAI_CHAT.stream_meter(counter=Pieces())
    meter.feed(document)  # no stream at all
    assert meter.close().counter is None
