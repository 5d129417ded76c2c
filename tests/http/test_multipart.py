"""Forms: what is read of one is what goes up, a file's bytes as they came; what two parsers could read differently, or
what is too much, is refused."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.foundation import long_bytes
from proxy.http.errors import ApiError
from proxy.http.multipart import PARTS_MAX, parse, serialise, without_boundary
from proxy.metering.request import Upload

TYPE = "multipart/form-data; boundary=b7"
FILE = b'--b7\r\nContent-Disposition: form-data; name="file"; filename="a.mp3"\r\n'
FILE += b"Content-Type: audio/mpeg\r\n\r\n\0\r\n--b\r\n"
MODEL = b'--b7\r\nContent-Disposition: form-data; name="model"\r\n\r\nweir\r\n'
END = b"--b7--\r\n"


def part(disposition: str, content: bytes = b"x") -> bytes:
    return b"--b7\r\nContent-Disposition: " + disposition.encode() + b"\r\n\r\n" + content + b"\r\n"


def test_a_form_as_sdks_write_it() -> None:
    document = parse(MODEL + FILE + END, TYPE)
    assert document == {"model": "weir", "file": Upload("a.mp3", "audio/mpeg", b"\0\r\n--b")}
    assert list(document) == ["model", "file"]


@pytest.mark.parametrize(
    ("body", "document"),
    [
        (part('form-data; name="a[]"', b"1") + part('form-data; name="a[]"', b"2"), {"a[]": ["1", "2"]}),
        (part("form-data; name=a", "ü".encode()), {"a": "ü"}),
        (part('form-data; name="a"', b""), {"a": ""}),
        (part('form-data; name="a"; filename="say \\"x\\".wav"'), {"a": Upload('say "x".wav', "", b"x")}),
        (part('form-data; name="a"; filename="?"; filename*=UTF-8\'\'%C3%BC.wav'), {"a": Upload("ü.wav", "", b"x")}),
        (part('form-data; name="chunking_strategy[type]"'), {"chunking_strategy[type]": "x"}),
    ],
)
def test_every_spelling_in_use(body: bytes, document: dict[str, Any]) -> None:
    assert parse(body + END, TYPE) == document
    assert parse(body + END[:-2], TYPE) == document


@pytest.mark.parametrize(
    "content_type",
    ['multipart/form-data; boundary="b7"', "Multipart/Form-Data;boundary=b7",
     "multipart/form-data; charset=utf-8; boundary=b7"],
)  # fmt: skip
def test_every_spelling_of_its_type(content_type: str) -> None:
    assert parse(MODEL + END, content_type) == {"model": "weir"}


@given(
    fields=st.dictionaries(st.from_regex(r"[a-z_]{1,9}(\[\])?", fullmatch=True), st.text(max_size=9), max_size=4),
    content=st.binary(max_size=60),
    filename=st.text(max_size=9),
)
def test_what_goes_up_is_what_was_read(fields: dict[str, str], content: bytes, filename: str) -> None:
    texts: dict[str, Any] = {name: [value] if name.endswith("[]") else value for name, value in fields.items()}
    document = texts | {"file": Upload(filename, "audio/wav", content)}
    content_type, body = serialise(document)
    again = parse(b"".join(body), content_type)
    assert again.pop("file").content == content
    assert again == {name: value for name, value in texts.items() if name != "file"}


def test_no_client_can_know_our_boundary() -> None:
    assert serialise({"a": "x"})[0] != serialise({"a": "x"})[0]


def test_a_repetition_is_the_same_but_for_its_boundary() -> None:
    first, again, other = (_unbounded({"a": value, "file": Upload("f", "", b"\0" * 200_000)}) for value in "xxy")
    assert first == again != other


def _unbounded(document: dict[str, Any]) -> bytes:
    content_type, body = serialise(document)
    return b"".join(without_boundary(b"".join(body), content_type))


@given(st.lists(st.sampled_from([b"--b7", b"\r\n", b"\r", b"-", b"x"]), max_size=40).map(b"".join), st.integers(1, 9))
def test_what_is_searched_step_by_step_is_found_as_at_once(body: bytes, step_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_bytes, "STEP_BYTES", step_bytes)
        assert [long_bytes.find(body, b"\r\n--b7", at) for at in range(9)] == [
            body.find(b"\r\n--b7", at) for at in range(9)
        ]
        assert [long_bytes.copied(body, at, 20) for at in range(9)] == [body[at:20] for at in range(9)]


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (MODEL + MODEL + END, "model", "duplicate_key"),
        (part('form-data; name="a"', b"\xff") + END, "a", "invalid_multipart"),
        (part('form-data; name="a"', b"x" * ((1 << 20) + 1)) + END, "a", "invalid_multipart"),
        (part('form-data; name="a"\r\nContent-Transfer-Encoding: base64') + END, "a", "invalid_multipart"),
        *[
            (body, None, "invalid_multipart")
            for body in (
                b"", b"{}", MODEL, MODEL + b"--b7", b"x" + MODEL + END, MODEL + END + b"x", MODEL + b"--b7--x",
                b"--b7 \r\n" + MODEL[6:] + END, b"--b7\r\n\r\nx\r\n" + END, b"--b7\r\nname\r\n\r\nx\r\n" + END,
                part("form-data") + END, part('form-data; name=""') + END, part('attachment; name="a"') + END,
                part('form-data; name="a"; name="b"') + END, part('form-data; name="a\\"b"') + END,
                part('form-data; name="a b"') + END, part('form-data; name="a" x') + END,
                part('form-data; name="a"\r\nContent-Disposition: form-data; name="b"') + END,
                part('form-data; name="a"\r\n X: folded') + END, part('form-data; name="a"\nX: 1') + END,
                part('form-data; name="a"\r\nX: ' + "y" * 5000) + END,
                b"".join(part(f'form-data; name="a{at}"') for at in range(PARTS_MAX + 1)) + END,
            )
        ],
    ],
)  # fmt: skip
def test_what_is_no_plain_form_is_refused(body: bytes, param: str | None, code: str) -> None:
    with pytest.raises(ApiError) as refusal:
        parse(body, TYPE)
    assert (refusal.value.status, refusal.value.param, refusal.value.code) == (400, param, code)


@pytest.mark.parametrize(
    "content_type",
    ["", "application/json", "multipart/form-data", "multipart/form-data; boundary=", "multipart/mixed; boundary=b7",
     "multipart/form-data; boundary=b7; boundary=b8", 'multipart/form-data; boundary="b7',
     "multipart/form-data; boundary=ü"],
)  # fmt: skip
def test_another_type_is_a_415(content_type: str) -> None:
    with pytest.raises(ApiError) as refusal:
        parse(MODEL + END, content_type)
    assert (refusal.value.status, refusal.value.param) == (415, "Content-Type")


def test_the_largest_form_of_parts_is_read() -> None:
    many = b"".join(part('form-data; name="a[]"') for _ in range(PARTS_MAX))
    assert parse(many + END, TYPE) == {"a[]": ["x"] * PARTS_MAX}


PIECES = st.lists(st.sampled_from([MODEL, FILE, END, b"--b7", b"\r\n", b"; ", b'"']))


@given(body=st.binary(max_size=80) | PIECES.map(b"".join))
def test_anything_else_is_survived(body: bytes) -> None:
    with suppress(ApiError):
        content_type, again = serialise(parse(body, TYPE))
        assert parse(again, content_type) == parse(body, TYPE)
