"""Brackets of a JSON text: those that a scanner of single bytes finds, at every cut, in linear time."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from proxy.metering.wire.brackets import Brackets
from proxy.metering.wire.framing import JsonArrayFramer
from tests.metering.fixtures import cut_at, in_pieces

TEXTS = st.text(alphabet=st.sampled_from('a"\\[]{}, \n\u00e9'), max_size=60).map(str.encode)


def one_by_one(body: bytes) -> list[int]:
    """The slow way."""
    found, in_string, escaped = [], False, False
    for at, byte in enumerate(body):
        if in_string:
            in_string, escaped = escaped or byte != 0x22, not escaped and byte == 0x5C
        elif byte == 0x22:
            in_string = True
        elif byte in b"[]{}":
            found.append(at)
    return found


def scanned(pieces: list[bytes]) -> tuple[list[int], int]:
    brackets = Brackets()
    starts = accumulate(map(len, pieces), initial=0)
    found = [start + at for start, piece in zip(starts, pieces, strict=False) for at in brackets.feed(piece)]
    return found, brackets.depth


@given(TEXTS, st.lists(st.integers(0, 60), max_size=6))
def test_the_brackets_of_any_text_at_any_cut(body: bytes, cut: list[int]) -> None:
    expected = one_by_one(body)
    depth = sum(1 if body[at] in b"[{" else -1 for at in expected)
    for pieces in ([body], cut_at(body, cut), [b"", *(bytes([byte]) for byte in body)]):
        assert scanned(pieces) == (expected, depth)


@given(TEXTS, st.integers(1, 9))
def test_any_text_has_the_same_elements_at_any_cut(body: bytes, size: int) -> None:
    body = b"[{}," + body
    whole, cut = JsonArrayFramer(), JsonArrayFramer()
    pieces = in_pieces(body, size)
    assert whole.feed(body) == [element for piece in pieces for element in cut.feed(piece)]
    assert whole.at_boundary == cut.at_boundary


def test_within_an_element_no_other_may_follow() -> None:
    framer = JsonArrayFramer()
    assert framer.feed(b'[{"a":1},{"b":') == [(b'{"a":1}', b"")]
    assert not framer.at_boundary


def test_a_string_without_an_end_is_looked_at_once() -> None:
    # A search that begins anew at each quote would take 10^10 steps here.
    body = b'["' + b'\\"\\\\' * 200_000
    assert scanned([body]) == ([0], 1)
    assert scanned([body[:-1], b'\\"]']) == ([0, len(body) + 1], 0)
