"""What is left of an answer whose lists are left out: the same at every cut, and never more than its short parts."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from proxy.metering.wire.skim import Skim

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.sampled_from(['"', "\\", "[{", '\\"]']),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text(max_size=3), VALUES, max_size=4)


def emptied(document: dict[str, Any]) -> dict[str, Any]:
    """The slow way."""
    return {
        name: [type(one)() if isinstance(one, dict | list) else one for one in value]
        if isinstance(value, list)
        else value
        for name, value in document.items()
    }


@given(document=OBJECTS, ascii_only=st.booleans(), size=st.integers(1, 9))
def test_what_is_in_lists_is_left_out_at_every_cut(document: dict[str, Any], ascii_only: bool, size: int) -> None:
    body = json.dumps(document, ensure_ascii=ascii_only).encode()
    skim = Skim()
    kept = b"".join(skim.feed(body[at : at + size]) for at in range(0, len(body), size))
    assert json.loads(kept) == emptied(document)
    assert Skim().feed(body) == kept


@given(body=st.binary(max_size=60), size=st.integers(1, 9))
def test_whatever_comes_is_survived_alike(body: bytes, size: int) -> None:
    skim = Skim()
    assert b"".join(skim.feed(body[at : at + size]) for at in range(0, len(body), size)) == Skim().feed(body)
