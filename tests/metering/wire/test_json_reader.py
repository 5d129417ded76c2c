"""JSON of the wire: whatever comes, what is well-typed in it is kept and nothing raises."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.metering.wire.json_reader import document_of, reader


class Leaf(msgspec.Struct):
    name: str | None = None


class Tree(msgspec.Struct):
    size: int | None = None
    leaf: Leaf | None = None
    leaves: list[Leaf] | None = None
    words: list[str] | None = None
    raw: dict[str, Any] | None = None
    other: Any = None


read = reader(Tree)


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        (b"{}", Tree()),
        (b'{"size":1,"leaf":{"name":"a"},"new":[]}', Tree(1, Leaf("a"))),
        (b'{"size":"1","leaf":{"name":"a"}}', Tree(None, Leaf("a"))),
        (b'{"size":true,"leaf":{"name":5},"other":[1]}', Tree(None, Leaf(), other=[1])),
        (b'{"leaves":[{"name":"a"},7,{"name":8}],"leaf":"none"}', Tree(leaves=[Leaf("a"), Leaf()])),
        (b'{"words":["a",1,null],"raw":{"a":1},"size":1.5}', Tree(words=["a"], raw={"a": 1})),
        (b'{"leaf":{"name":"a\xff"}}', Tree(leaf=Leaf("a\ufffd"))),
        (b'{"size":' + b"9" * 5000 + b',"words":[]}', Tree(words=[])),
    ],
)
def test_each_field_that_fits_is_kept(text: bytes, tree: Tree) -> None:
    assert read(text) == tree


@pytest.mark.parametrize("text", [b"", b"[]", b"5", b"null", b'{"size":', b"[" * 100_000, b'{"a":' * 100_000])
def test_what_is_no_object_is_none(text: bytes) -> None:
    assert read(text) is None


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(Tree.__struct_fields__), _values))
def test_any_object_is_read(document: dict[str, Any]) -> None:
    found = read(msgspec.json.encode(document))
    assert found is not None
    assert msgspec.convert(msgspec.to_builtins(found), Tree) == found


@given(st.binary(max_size=40))
def test_no_bytes_raise(text: bytes) -> None:
    read(text)
    document_of(text)
