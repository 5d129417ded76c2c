"""Characters by class: each in its own, nothing counted twice, and cutting a text changes no count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.metering.usage import Evidence
from proxy.metering.wire.text import NO_CHARS, Chars, GrowingText, chars_of, minus_floor, plus


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("", {}),
        ("Weir 12, mill!", {"chars_latin": 14, "blanks": 2, "marks": 4}),
        ("\n\t", {"chars_latin": 2}),
        ("Mühle", {"chars_latin": 5, "chars_accented": 1}),
        ("мир", {"chars_other": 3, "chars_greek": 3}),
        ("λ", {"chars_other": 1, "chars_greek": 1}),
        ("نهر", {"chars_other": 3, "chars_arabic": 3}),
        ("नदी", {"chars_other": 3, "chars_indic": 3}),
        ("น้ำ", {"chars_other": 3, "chars_indic": 3}),
        ("河川", {"chars_wide": 2}),
        ("かわ。", {"chars_wide": 3, "chars_kana": 3}),
        ("강물", {"chars_wide": 2, "chars_hangul": 2}),
        ("🌊", {"chars_wide": 1}),
        ("—", {"chars_other": 1}),
        ("\ud83c", {"chars_other": 1}),  # half of a character
    ],
)
def test_each_character_is_in_its_class(text: str, counts: dict[str, int]) -> None:
    found = Evidence()
    found.count(chars_of(text), reasoning=False)
    assert found == Evidence(**counts)


@given(st.text(), st.text())
def test_a_cut_changes_no_count(one: str, other: str) -> None:
    assert plus(chars_of(one), chars_of(other)) == chars_of(one + other)
    assert minus_floor(chars_of(one + other), chars_of(one)) == chars_of(other)
    assert minus_floor(NO_CHARS, chars_of(one)) == NO_CHARS


@given(st.text())
def test_the_first_three_are_all(text: str) -> None:
    found = chars_of(text)
    assert sum(found[:3]) == len(text)
    assert found[3] + found[4] + found[5] <= found[0]
    read = Evidence()
    read.count(found, reasoning=True)
    assert read.chars == read.reasoning_chars == len(text)


def told(texts: list[str]) -> Chars:
    """What a stream of these texts has: it is cumulative if each repeats all before it, or a part, and three grew."""
    longest, grown, every = "", 0, NO_CHARS
    for text in texts:
        every = plus(every, chars_of(text))
        if grown < 0 or not (text.startswith(longest) or longest.startswith(text)):
            grown = -1
        elif len(text) > len(longest):
            grown, longest = grown + bool(longest), text
    return chars_of(longest) if grown >= 3 else every


GROWING = st.lists(
    st.integers(1, 7).map(lambda size: "a b水c мd"[:size]) | st.sampled_from(["a", "b", "\n"]), max_size=9
)


@given(GROWING)
def test_what_is_counted_is_at_any_moment_what_a_stream_that_ends_there_has(texts: list[str]) -> None:
    growing, counted = GrowingText(sure=False), NO_CHARS
    for index, text in enumerate(texts, 1):
        counted = plus(counted, chars_of(text) if growing.plain else growing.take(text))
        assert counted == told(texts[:index])


@given(GROWING)
def test_a_tokenizer_has_the_whole_text_or_knows_that_it_has_not(texts: list[str]) -> None:
    growing, fed = GrowingText(sure=False), ""
    for text in texts:
        if growing.plain:
            fed += text
        else:
            growing.take(text)
            if growing.news is None:
                return
            fed += growing.news
    if not growing.plain:
        growing.settle()
        assert growing.news is not None
        fed += growing.news
    assert chars_of(fed) == told(texts)


@given(GROWING)
def test_texts_that_are_declared_to_grow_count_once(texts: list[str]) -> None:
    growing, counted = GrowingText(sure=False), NO_CHARS
    for text in texts:
        counted = plus(counted, NO_CHARS if growing.plain else growing.take(text))
    if not growing.plain:
        counted = plus(counted, growing.be_sure())
        longest = max(texts, key=len, default="")
        assert counted == chars_of(longest)
        assert plus(counted, growing.take(longest + "!")) == chars_of(longest + "!")
        growing.settle()
        assert growing.news == ""
