"""The elements of a long JSON array: the same at every cut, in linear time and bounded memory."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.metering.wire.framing import JsonArrayFramer
from proxy.metering.wire.outline import UnreadText
from proxy.metering.wire.sse import EVENT_BYTES_MAX
from tests.metering.fixtures import cut_at, cuts, in_pieces
from tests.support.linear import assert_linear

texts = st.text(alphabet=st.sampled_from('a"\\[]{},:\n\u00e9\u2028🌊'), max_size=12)
scalars = st.none() | st.booleans() | st.integers(-99, 99) | texts
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3))
elements = st.lists(st.dictionaries(texts, values, max_size=4) | scalars, max_size=5)


def framed(pieces: list[bytes]) -> tuple[list[bytes], int]:
    framer = JsonArrayFramer()
    found = [element for piece in pieces for element, _ in framer.feed(piece)]
    framer.close()
    return found, framer.too_long


@given(elements, st.booleans(), st.sampled_from([None, 1]), st.lists(st.integers(0, 400), max_size=8))
def test_every_object_is_an_element_at_any_cut(
    wanted: list[Any], ascii_only: bool, indent: int | None, at: list[int]
) -> None:
    body = json.dumps(wanted, ensure_ascii=ascii_only, indent=indent).encode()
    pieces = cut_at(body, at)
    objects = [element for element in wanted if isinstance(element, dict)]
    for cut in (pieces, [body], [body[place : place + 1] for place in range(len(body))]):
        found, too_long = framed(cut)
        assert ([json.loads(element) for element in found], too_long) == (objects, 0)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b"", []),
        (b" \n", []),
        (b"[]", []),
        (b"[", []),
        (b"\xef\xbb\xbf [{}\n,\r\n{}]", [b"{}", b"{}"]),
        (b'{"a":[{}]}', []),
        (b'data: [{"a":1}]\n\n', []),
        (b'[{"a":1}', [b'{"a":1}']),
        (b'[{"a":"\\"]}"},{"b":"\\\\"}]', [b'{"a":"\\"]}"}', b'{"b":"\\\\"}']),
        (b'[1,"{}",null,[{}],{"a":{}}]', [b"[{}]", b'{"a":{}}']),
        (b'[{"a":1}] [{"b":2}]', [b'{"a":1}']),
        (b'[{"a":"[{"}', [b'{"a":"[{"}']),
    ],
)
def test_what_is_an_element(body: bytes, found: list[bytes]) -> None:
    for pieces in cuts(body):
        assert framed(pieces) == (found, 0)


def test_another_element_may_follow_only_behind_one() -> None:
    framer = JsonArrayFramer()
    told = []
    for byte in b'[ {"a":[{}]} \n, {} ]':
        framer.feed(bytes([byte]))
        told.append(framer.at_boundary)
    behind = [place for place, true in enumerate(told) if true]
    assert behind == [11, 12, 13, 17, 18]
    assert not framer.feed(b"{}")
    assert not framer.at_boundary


@pytest.mark.parametrize("over", [0, 1])
def test_of_an_element_that_is_too_long_there_is_the_outline(over: int) -> None:
    filler = b'{"a":"%b"}' % b"]".ljust(EVENT_BYTES_MAX + over - 8, b"x")
    body = b'[{"b":1},%b,{"c":2}]' % filler
    for size in (len(body), 65_537, EVENT_BYTES_MAX - 5):
        found, too_long = framed(in_pieces(body, size))
        assert (len(found), too_long) == (3, over)
        element = found[1].text() if isinstance(found[1], UnreadText) else found[1]
        assert element == (b'{"a":" "}' if over else filler)
        assert (found[0], found[-1]) == (b'{"b":1}', b'{"c":2}')


def test_one_byte_pieces_take_linear_time() -> None:
    def read(size: int) -> None:
        body = b'[{"a":"%b"}]' % (b'\\"' * size)
        found, _ = framed(in_pieces(body, 1))
        assert [len(element) for element in found] == [len(body) - 2]

    assert_linear(read, 5_000)
