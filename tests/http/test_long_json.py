"""Of a body whose long strings are cut out, all that is read is what a parser reads of the whole, and each refusal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.http import long_json
from proxy.http.errors import ApiError
from proxy.http.json_body import OBJECT_MEMBERS_MAX, parse_object, serialise
from proxy.http.long_json import NAME_BYTES_MAX, REST_BYTES_MAX
from proxy.metering.held_text import TextRoom
from proxy.metering.request import counted, json_bytes
from proxy.metering.wire.long_string import LongString
from proxy.metering.wire.text import chars_of
from tests.http.documents import NEARLY, OBJECTS, cut, whole

# Parts of strings, some of them wrong, and what may be around.
UNITS = st.sampled_from(
    [b"a", b" ", b"\xc3\xbc", b"\xe6\xb0\xb4", b"\xf0\x9f\x92\xa7", b"\\n", b"\\\\", b'\\"', b"\\/", b"\\u00fc",
     b"\\u0000", b"\\ud83d\\udca7", b"\\ud83d", b"\\udca7", b"\\u12", b"\\x", b"\n", b"\xff", b"\xbf", b"\\", b"\x7f"]
)  # fmt: skip
STRINGS = st.lists(UNITS, max_size=12).map(lambda units: b'"%b"' % b"".join(units))
AROUND = st.lists(
    st.sampled_from([b'{"a":', b'"b":', b"[", b"]", b"}", b",", b":", b" \r\n\t ", b"       ", b"1", b"-2.5e7", b"0",
                     b"NaN", b"true", b"\xef\xbb\xbf"]) | STRINGS, max_size=14,
).map(b"".join)  # fmt: skip
BODIES = AROUND | AROUND.map(lambda inner: b'{"a":[%b]}' % inner) | NEARLY | STRINGS.map(lambda one: b'{"a":%b}' % one)


def outcome(body: bytes) -> Any:
    """The document, or all that the refusal says."""
    try:
        return parse_object(body)
    except ApiError as refusal:
        return refusal.status, refusal.code, refusal.param, refusal.message


def texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from texts_in(one)


def numbers_in(value: Any) -> int:
    if isinstance(value, float):
        return 1
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return sum(map(numbers_in, inner))


@given(BODIES, st.integers(2, 9), st.integers(6, 30))
def test_the_outcome_is_that_of_the_whole(body: bytes, step_bytes: int, piece_bytes: int) -> None:
    expected = outcome(body)
    with cut(step_bytes, piece_bytes):
        found = outcome(body)
    assert whole(found) == expected
    if isinstance(expected, dict):
        assert json.loads(serialise(found)) == expected


@given(OBJECTS, st.integers(2, 9), st.integers(6, 30))
def test_the_counts_and_the_bytes_are_those_of_the_whole(
    document: dict[str, Any], step_bytes: int, piece_bytes: int
) -> None:
    for body in (json.dumps(document).encode(), json.dumps(document, ensure_ascii=False).encode("utf-8", "replace")):
        expected = parse_object(body)
        with cut(step_bytes, piece_bytes):
            found = parse_object(body)
        long, plain = list(texts_in(found)), list(texts_in(expected))
        assert [chars_of(one) for one in long] == [chars_of(one) for one in plain]
        assert list(map(len, long)) == list(map(len, plain))
        assert counted(long)[0] == counted(plain)[0]
        assert json_bytes(found) == len(serialise(found))
        assert json_bytes(expected) == len(serialise(expected))
        if not any("\ud800" <= char <= "\udfff" for one in plain for char in one):
            assert serialise(found) == serialise(expected)
        # The encoders write exponents differently, and which of them writes depends on where lone surrogates are.
        assert abs(json_bytes(found) - json_bytes(expected)) <= 2 * numbers_in(expected)


LONE = OBJECTS.map(lambda document: document | {"\ud800": "\udfff", "long": "\ud800" + "über den Damm " * 8})


@given(LONE | OBJECTS.map(lambda document: {"a": "\udfff", "b": "Wasser \N{WATER WAVE} " * 8} | document))
def test_a_lone_surrogate_hides_nothing(document: dict[str, Any]) -> None:
    body = json.dumps(document).encode()
    with cut(8):
        found = parse_object(body)
    assert json.loads(serialise(found).decode()) == document
    assert json_bytes(found) == len(serialise(found))
    assert abs(json_bytes(found) - json_bytes(parse_object(body))) <= 2 * numbers_in(document)


@pytest.mark.parametrize("lone", [b"\\ud800", b"\\udfffa"])
def test_a_prompt_counts_whole_wherever_a_lone_surrogate_is(lone: bytes) -> None:
    text = "Stärke \N{WATER WAVE} ".encode() * 10_000
    for body in (
        b'{"a":[{"b":"%b"},{"c":"%b"}]}' % (lone, text),
        b'{"a":[{"c":"%b"},{"b":"%b"}]}' % (text, lone),
        b'{"a":"%b%b"}' % (text, lone),
        b'{"%b":"%b"}' % (lone, text),
    ):
        document = parse_object(body)
        assert (json_bytes(document), serialise(document)) == (len(body), body)


def test_a_text_is_held_from_its_beginning() -> None:
    text = "über den Damm \N{WATER WAVE}\n" * 20
    with cut(8):
        long = parse_object(json.dumps({"a": text}).encode())["a"]
    assert type(long) is LongString
    for bytes_max in (100, 10_000):
        _, one = counted(["Wasser ", text])
        _, other = counted(["Wasser ", long])
        for prompt in (one, other):
            prompt.hold(TextRoom(answer_bytes_max=bytes_max, bytes_max=1 << 20))
        assert one.text.startswith(other.text)
        assert len(other.text) >= min(len(one.text), bytes_max // 4 - 20)


def test_a_surrogate_in_the_rest_leaves_long_strings_whole() -> None:
    with cut(8):
        document = parse_object(b'{"\\ud800":"\\ud801","a":["%b","\\udfff%b"]}' % (b"x" * 50, b"y" * 50))
    assert json.loads(serialise(document)) == {"\ud800": "\ud801", "a": ["x" * 50, "\udfff" + "y" * 50]}
    assert ["".join(one.texts()) for one in document["a"]] == ["x" * 50, "\udfff" + "y" * 50]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"a":[%b1]}' % (b'"%b",' % (b"x" * 4000) * (REST_BYTES_MAX // 4000)), f"{REST_BYTES_MAX} bytes"),
        (b'{"%b":1,"a":"%b"}' % (b"n" * NAME_BYTES_MAX, b"x" * 70_000), f"{NAME_BYTES_MAX} bytes in a name"),
        (b'{"a":{%b"b":1}}' % b"".join(b'"%d":null,' % one for one in range(OBJECT_MEMBERS_MAX)), "in one object"),
        (b'{"a":{%b"b":1' % b"".join(b'"%d":null,' % one for one in range(OBJECT_MEMBERS_MAX)), "in one object"),
    ],
)
def test_more_than_a_parser_may_read_at_once_is_refused(body: bytes, message: str) -> None:
    assert outcome(body)[:2] == (400, "json_too_large")
    assert message in outcome(body)[3]


def test_blanks_are_no_part_of_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_json, "REST_BYTES_MAX", 20_000)
    blanks = b" \r\n\t" * 20_000
    assert outcome(blanks + b'{"a":' + blanks + b"1" + blanks + b"}" + blanks) == {"a": 1}
    assert outcome(blanks + b"{" + blanks + b"x")[3].endswith(f"at character {2 * len(blanks) + 1}.")
