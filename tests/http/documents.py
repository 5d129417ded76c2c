"""Documents as bodies of requests, bytes that are nearly JSON, and documents with long strings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import strategies as st

from proxy.http import json_body, long_json
from proxy.metering.wire.long_string import LongString

NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)
OBJECTS = st.dictionaries(st.text(max_size=12), VALUES, max_size=6)
# Bytes that are nearly JSON: where a parser's corners are.
NEARLY = st.lists(
    st.sampled_from(
        [b"{", b"}", b"[", b"]", b'"', b"\\", b":", b",", b"n", b'"a"', b'"\\u0061"', b"NaN", b"-Infinity", b"1e400",
         b"9" * 5000, b"\\ud800", b"\xff", b"\xc3", b"\xe2\x80\xa8", b"\0", b" ", b"true", b"null", b"-0", b"1.5",
         b'"\\ud800":1', b'"\\ud800":NaN', b"\xef\xbb\xbf"]
    ), max_size=30,
).map(b"".join)  # fmt: skip


@contextmanager
def cut(step_bytes: int, piece_bytes: int = 7) -> Iterator[None]:
    """Strings of so many bytes are long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_body, "AT_ONCE_BYTES", -1)
        patch.setattr(long_json, "STEP_BYTES", step_bytes)
        patch.setattr(long_json, "PIECE_BYTES", piece_bytes)
        yield


def whole(value: Any) -> Any:
    """`value` with plain strings."""
    if isinstance(value, LongString):
        return "".join(value.texts())
    if isinstance(value, dict):
        return {name: whole(one) for name, one in value.items()}
    return [whole(one) for one in value] if isinstance(value, list) else value
