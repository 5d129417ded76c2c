"""Usage objects read by a table: every member that states a count is read, and an invalid count spoils itself only."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.metering.usage import TOKENS_MAX, UNITS_MAX, Usage
from proxy.metering.usage_reader import OPENAI_COUNTS, UsageReader, openai_usage_of

read = UsageReader(
    prompt_tokens="a | in.a + in.list[kind=B/2].n",
    cached_tokens="in.deep.c, c",
    completion_tokens="out | out2",
    total_tokens="total",
    searches="s",
)


@pytest.mark.parametrize(
    ("raw", "counts", "flags"),
    [
        ({}, Usage(), ""),
        ({"a": 1, "in": {"a": None}}, Usage(1), ""),
        ({"a": 2, "in": {"a": 2}}, Usage(2), ""),
        ({"a": 0, "in": {"a": 2}}, Usage(2), "usage_conflict"),
        ({"out": 9, "out2": 12, "total": 10}, Usage(completion_tokens=9, total_tokens=10), "usage_conflict"),
        ({"out": 11, "out2": 12, "total": 10}, Usage(completion_tokens=12, total_tokens=10), "usage_conflict"),
        ({"in": {"deep": {"c": 0}}, "c": 5}, Usage(cached_tokens=0), ""),
        ({"in": {"deep": {"c": None}}, "c": 5}, Usage(cached_tokens=5), ""),
        ({"in": {"a": 3.0}, "out": TOKENS_MAX}, Usage(3, completion_tokens=TOKENS_MAX), ""),
        ({"in": [{"a": 2}], "out": 1}, Usage(completion_tokens=1), ""),
        (
            {"a": 1, "in": {"list": [{"kind": "b", "n": 2}, {"kind": 2, "n": 3}, {"kind": "c", "n": 9}, 7]}},
            Usage(6),
            "",
        ),
        ({"in": {"list": {"kind": "B", "n": 2}}, "out": 1}, Usage(completion_tokens=1), ""),
        ({"s": UNITS_MAX}, Usage(searches=UNITS_MAX), ""),
        ({"s": UNITS_MAX + 1, "out": 1}, Usage(completion_tokens=1), "usage_invalid"),
        ({"out": TOKENS_MAX + 1, "a": 1}, Usage(1), "usage_invalid"),
        ({"a": -1, "in": {"a": 7}}, Usage(7), "usage_invalid"),
        ({"a": 4, "in": {"list": [{"kind": "B", "n": "2"}]}, "out": 1}, Usage(completion_tokens=1), "usage_invalid"),
        ({"a": True, "out": 1}, Usage(completion_tokens=1), "usage_invalid"),
        ({"a": "1"}, Usage(), "usage_invalid"),
        ({"a": 1.5}, Usage(), "usage_invalid"),
        ({"a": float("inf")}, Usage(), "usage_invalid"),
    ],
    ids=str,
)
def test_every_member_that_states_a_count_is_read(raw: dict[str, Any], counts: Usage, flags: str) -> None:
    found: set[str] = set()
    assert read(raw, found) == counts
    assert found == {*flags.split()}


def test_a_table_names_fields_of_a_usage() -> None:
    with pytest.raises(AssertionError, match="tokens"):
        UsageReader(tokens="a")


def test_known_members_are_those_outside_lists() -> None:
    assert read.paths == "a in.a in.deep.c c out out2 total s"


COUNTED = {field: [path.strip() for path in paths.split("|")] for field, paths in OPENAI_COUNTS.items()}
values = st.none() | st.integers(-2, 60) | st.sampled_from(["7", True, 1.5, 8.0, [], {}])


def with_member(raw: dict[str, Any], path: str, value: object) -> None:
    *holders, name = path.split(".")
    for holder in holders:
        raw = raw.setdefault(holder, {})
    raw[name] = value


def valid(value: object) -> bool:
    return type(value) in (int, float) and value == int(value) and value >= 0  # type: ignore[arg-type, call-overload, operator]


@given(st.dictionaries(st.sampled_from([path for paths in COUNTED.values() for path in paths]), values))
def test_the_counts_of_any_usage_are_those_of_a_plain_model(stated: dict[str, Any]) -> None:
    """Every member of every published type, present or absent: no count is lost, and no contradiction is silent."""
    raw: dict[str, Any] = {}
    for path, value in stated.items():
        with_member(raw, path, value)
    expected, conflicts = {}, False
    totals = [int(stated[path]) for path in COUNTED["total_tokens"] if path in stated and valid(stated[path])]
    for field, paths in COUNTED.items():
        counts = [int(stated[path]) for path in paths if path in stated and valid(stated[path])]
        total = max(totals, default=0) or TOKENS_MAX
        if counts:
            allowed = [count for count in counts if count <= total]
            conflicts = conflicts or len({*counts}) > 1
            expected[field] = max(counts) if len({*counts}) == 1 else max(allowed or counts)
    flags: set[str] = set()
    assert openai_usage_of(raw, flags) == Usage(**expected)
    assert ("usage_conflict" in flags) == conflicts
    assert ("usage_invalid" in flags) == any(value is not None and not valid(value) for value in stated.values())
