"""The text of a stream is held once and whole, whatever cuts the bytes, within its room; and no object shows it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.metering.dialect import Dialect
from proxy.metering.dialects import DIALECTS
from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.dialects.openai.request import facts
from proxy.metering.held_text import AnswerText, PromptText, TextKind, TextRoom
from proxy.metering.metered import Metered
from tests.gateway.dialects.languages import MESSAGES, RESPONSES, Language
from tests.metering.fixtures import call, chunk, cut_at, fed, say, sse
from tests.support.examples import examples

ROOMY = 1 << 20


def room(answer: int = ROOMY, together: int = ROOMY) -> TextRoom:
    return TextRoom(answer_bytes_max=answer, bytes_max=together)


def read(pieces: Sequence[bytes], dialect: Dialect = OPENAI_CHAT, within: TextRoom | None = None) -> Metered:
    """Each piece read by itself."""
    return fed(dialect.stream_meter(held=AnswerText(within or room())), pieces, fold=True)


def held(metered: Metered) -> list[str]:
    """Text, reasoning, calls."""
    assert metered.held is not None
    return metered.held.texts()


WORDS = st.text('ab 水🌊\n"\\', min_size=1, max_size=40)
DELTAS = st.one_of(
    WORDS.map(lambda text: {"content": text}),
    WORDS.map(lambda text: {"reasoning_content": text}),
    WORDS.map(lambda text: call(0, text)),
)


@settings(max_examples=examples(60))
@given(st.lists(DELTAS, max_size=12), st.lists(st.integers(0, 4000), max_size=9), st.integers(1, 70))
def test_no_cut_changes_what_is_held(deltas: list[dict[str, object]], at: list[int], many: int) -> None:
    # Two texts that are no repetition first: what follows are fragments.
    told = [*say("Down", "river "), *(chunk({"reasoning_content": text}) for text in ("Hm", "well "))]
    body = sse(*told, *([chunk(delta) for delta in deltas] * many))
    whole, cut = read([body]), read(cut_at(body, at))
    assert held(cut) == held(whole)
    assert cut.evidence == whole.evidence
    assert sum(map(len, held(whole))) == whole.evidence.chars


def test_a_run_is_held_as_what_it_says() -> None:
    fragments = ["Down", " the", " weir", ' "goes', "\\ 水", " 🌊", "\n", " day"]
    assert held(read([sse(one) for one in say(*fragments)])) == ["".join(fragments), "", ""]


@pytest.mark.parametrize("language", [MESSAGES, RESPONSES], ids=["messages", "responses"])
def test_every_language_holds_what_its_evidence_counts(language: Language) -> None:
    dialect = next(one for one in DIALECTS if one.endpoint == language.path)
    assert held(read(language.events, dialect))[0] == "Much more than before."


@pytest.mark.parametrize(
    ("texts", "cumulative", "said"),
    [
        (["A", "A w", "A we", "A weir", "A weir"], None, "A weir"),
        (["A", "A w", "A weir"], True, "A weir"),
        (["1", "10", "100", " and"], None, "100110 and"),  # taken for repetition at first: the order is lost, no text
        (["ha", "ha", "ha"], None, "hahaha"),
        (["1", "10", "100"], False, "110100"),
    ],
)
def test_repeated_texts_are_held_once(texts: list[str], cumulative: bool | None, said: str) -> None:
    meter = OPENAI_CHAT.stream_meter(cumulative=cumulative, held=AnswerText(room()))
    metered = fed(meter, [sse(*say(*texts))])
    assert held(metered)[0] == said
    assert metered.evidence.chars == len(said)


def test_what_cannot_be_told_apart_is_not_held() -> None:
    assert read([sse(*say("A", " weir"), *say("Or", " not", index=1))]).held is None
    far_apart = ["=" * 5000, "=" * 5000, "different"]  # too long to be kept while it may be a repetition
    assert read([sse(*say(*far_apart))]).held is None
    assert read([]).held is None


def test_a_whole_answer_is_held_if_it_does_not_report_its_usage() -> None:
    for more, expected in (b"", ["All of it", "", ""]), (b',"usage":{"prompt_tokens":1,"completion_tokens":3}', None):
        body = b'{"choices":[{"message":{"content":"All of it"}}]%b}' % more
        metered = fed(OPENAI_CHAT.plain_meter(held=AnswerText(room())), [body])
        assert (metered.held and metered.held.texts()) == expected
        assert metered.evidence.chars == 9


@given(st.lists(WORDS, max_size=40), st.integers(0, 9000), st.integers(0, 20_000))
def test_room_is_kept_and_given_back(texts: list[str], answer: int, together: int) -> None:
    within = room(answer, together)
    kept = [AnswerText(within) for _ in range(3)]
    for number, text in enumerate(texts * 40):
        kept[number % 3].add(TextKind.TEXT, text)
        assert 0 <= within.free <= together
    for number, one in enumerate(kept):
        whole = "".join((texts * 40)[number::3])
        assert one.size <= answer
        assert len("".join(one.texts()).encode()) <= one.size
        if answer >= len(whole.encode()) + 4096 and together >= 3 * (answer + 4096):
            assert one.texts()[0] == whole
    kept.clear()
    del one
    assert within.free == together


def test_beyond_its_room_a_text_ends_at_a_character() -> None:
    text = AnswerText(room(answer=10))
    text.add(TextKind.TEXT, "水水水水水")
    assert text.texts() == ["水水水", "", ""]
    text.add(TextKind.TEXT, "more")
    assert text.size == 10


@pytest.mark.parametrize("size", [10, 5000, 100_000])
def test_a_prompt_is_held_within_its_room(size: int) -> None:
    within = room(answer=8000, together=8000)
    prompt = facts({"model": "m", "messages": [{"role": "user", "content": "x" * size}]}).prompt
    prompt.text.hold(within)
    assert prompt.text.text == "x" * len(prompt.text.text)
    assert min(size, 7000) <= len(prompt.text.text) <= 8000
    assert within.free < 8000
    second = PromptText("y" * 8000)
    second.hold(within)
    assert second.text == "", "no room is left"
    del prompt
    assert within.free == 8000


def test_no_object_shows_its_text() -> None:
    prompt = facts({"model": "m", "messages": [{"role": "user", "content": "canary"}]}).prompt
    answer = AnswerText(room())
    answer.add(TextKind.TEXT, "canary")
    metered = read([sse(*say("canary", " sings"))])
    for one in (prompt, prompt.text, answer, metered):
        assert "canary" not in f"{one!r} {one}"


def test_without_a_room_a_prompt_is_dropped() -> None:
    prompt = PromptText("words")
    prompt.hold(None)
    assert prompt.text == ""
