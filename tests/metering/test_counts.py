"""Usage objects read by a table: each count from the first place that reports one; one impossible count spoils all."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.metering.counts import UsageReader, with_total
from proxy.metering.usage import TOKENS_MAX, UNITS_MAX, Usage

read = UsageReader(prompt_tokens="a | in.a | in.b", completion_tokens="out", searches="s")


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        ({}, Usage()),
        ({"a": 1, "in": {"a": 2}}, Usage(1)),
        ({"a": None, "in": {"a": 2, "b": 3}}, Usage(2)),
        ({"a": 0, "in": {"a": 2}}, Usage(0)),
        ({"in": {"b": 3.0}, "out": TOKENS_MAX}, Usage(3, completion_tokens=TOKENS_MAX)),
        ({"in": [{"a": 2}], "out": 1}, Usage(completion_tokens=1)),
        ({"a": 1, "in": {"a": "not needed"}}, Usage(1)),
        ({"s": UNITS_MAX}, Usage(searches=UNITS_MAX)),
        ({"s": UNITS_MAX + 1}, None),
        ({"out": TOKENS_MAX + 1}, None),
        ({"a": 1, "out": -1}, None),
        ({"a": True}, None),
        ({"a": "1"}, None),
        ({"a": 1.5}, None),
        ({"a": float("inf")}, None),
    ],
    ids=str,
)
def test_the_first_place_with_a_count_is_taken(raw: dict[str, Any], found: Usage | None) -> None:
    assert read(raw) == found


def test_a_table_names_fields_of_a_usage() -> None:
    with pytest.raises(AssertionError, match="tokens"):
        UsageReader(tokens="a")


@pytest.mark.parametrize(("usage", "total"), [(Usage(1, None, 2), 3), (Usage(1), None), (Usage(total_tokens=5), None)])
def test_a_total_is_that_of_both_sides(usage: Usage, total: int | None) -> None:
    assert with_total(usage).total_tokens == total
