"""Characters by class: each in its own, nothing counted twice, and cutting a text changes no count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.metering.usage import Evidence
from proxy.metering.wire.text import NO_CHARS, chars_of, minus_floor, plus


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
