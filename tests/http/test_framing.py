"""HTTP framing is taken apart the same way at every cut; what two parsers could read differently is refused."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.http.framing import LINE_BYTES_MAX, BadFramingError, ChunkReader, LengthReader, read_head, whole_chunks
from tests.http.frames import framed, unframed
from tests.support.examples import examples, repeats

LAST = b"0\r\n\r\n"
# What a payload is made of here: everything that framing is made of, so that one can be taken for the other.
NASTY = [b"\r\n", b"\r", b"\n", LAST, b"5\r\nhello\r\n", b";", b"data: x\n\n", b"0", "é水".encode(), b"\0"]


def segments(wire: bytes, rng: random.Random) -> list[bytes]:
    """`wire` in pieces that are never empty: whole, byte by byte, or cut at random."""
    cuts = rng.choice([0, 1, 2, 5, len(wire)])
    at = sorted({0, len(wire), *(rng.randrange(len(wire) + 1) for _ in range(cuts))})
    return [wire[a:b] for a, b in pairwise(range(len(wire) + 1) if cuts == len(wire) else at)]


@dataclass
class Body:
    """What was read of one."""

    payload: bytes
    behind: bytes | None
    """what followed it, if it has ended"""
    broken: bool


def read(pieces: Iterable[bytes]) -> Body:
    """As a connection reads: the quick way where it is offered, and nothing after a break."""
    reader = ChunkReader()
    payloads: list[bytes] = []
    behind = b""
    for piece in pieces:
        if reader.broken is not None:
            break
        if reader.rest is not None:
            behind += piece
            continue
        quick = None if reader.within_chunk else whole_chunks(piece)
        if quick is not None:
            assert unframed(piece) == quick
            payloads.append(quick)
            continue
        payload, whole = reader.feed(piece)
        assert not whole or unframed(piece) == payload
        payloads.append(payload)
    return Body(b"".join(payloads), None if reader.rest is None else reader.rest + behind, reader.broken is not None)


def random_chunks(rng: random.Random) -> list[bytes]:
    return [b"".join(rng.choices(NASTY, k=rng.randint(1, 6))) for _ in range(rng.randint(0, 5))]


@pytest.mark.hypothesis
def test_the_payload_is_the_same_at_twenty_thousand_random_cuts() -> None:
    rng = random.Random(20_000)
    for _ in range(repeats(20_000, gate=2_000)):
        chunks = random_chunks(rng)
        extensions = rng.choices([b"", b"", b"", b";a=b", b' ;name="v"', b" ", b"\t"], k=len(chunks))
        last = rng.choice([LAST, b"0;x\r\n\r\n", b"000\r\nA: b\r\n\r\n", b"0\r\nA: b\r\nC: d\r\n\r\n"])
        behind = rng.choice([b"", b"", b"HTTP/1.1 200 OK\r\n\r\n", b"\r\n"])
        wire = b"".join(map(framed, chunks, extensions)) + last
        assert read(segments(wire + behind, rng)) == Body(b"".join(chunks), behind, broken=False), wire


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.randoms(use_true_random=False))
def test_any_bytes_go_through(chunks: list[bytes], rng: random.Random) -> None:
    wire = b"".join(map(framed, chunks)) + LAST
    assert read(segments(wire, rng)) == Body(b"".join(chunks), b"", broken=False)


def test_every_single_cut_of_one_stream() -> None:
    chunks = [b"data: a\n\n", LAST, b"x" * 300, "水\r".encode(), b"y" * 700]
    wire = b"".join(framed(chunk, b";e=1" if i == 1 else b"") for i, chunk in enumerate(chunks)) + LAST
    for at in range(1, len(wire)):
        assert read([wire[:at], wire[at:]]) == Body(b"".join(chunks), b"", broken=False), at
        assert read([wire[:at]]).behind is None, at  # not over before its last byte


def test_whole_chunks_keep_their_framing_and_others_do_not() -> None:
    reader = ChunkReader()
    assert reader.feed(framed(b"one")) == (b"one", True)
    assert reader.feed(framed(b"two") + framed(b"three")) == (b"twothree", True)
    assert reader.feed(framed(b"four", b";quick")) == (b"four", False)
    assert reader.feed(framed(b"five")[:4]) == (b"f", False)
    assert reader.feed(framed(b"five")[4:]) == (b"ive", False)
    assert reader.feed(framed(b"six") + LAST) == (b"six", False)
    assert reader.rest == b""


@pytest.mark.hypothesis
def test_the_quick_way_takes_only_what_it_is_sure_of() -> None:
    rng = random.Random(7)
    assert whole_chunks(framed(b"data: a\n\n")) == b"data: a\n\n"
    assert whole_chunks(framed(b"one") + framed(b"two")) == b"onetwo"
    for wire in (LAST, framed(b"a") + LAST, framed(b"a")[:-1], framed(b"a", b";x"), b"5\r\nhell\r\n", b"\r\n"):
        assert whole_chunks(wire) is None, wire
    for _ in range(repeats(20_000, gate=4_000)):
        wire = b"".join(map(framed, random_chunks(rng)))
        at = sorted(rng.choices(range(len(wire) + 1), k=2))
        piece = rng.choice([wire, wire[slice(*at)]])
        payload = whole_chunks(piece)
        if payload is not None:
            assert ChunkReader().feed(piece) == (payload, True)


@pytest.mark.parametrize(
    "wire",
    [b"xyz\r\n", b"\r\n", b"-1\r\n", b"0x5\r\nhello\r\n", b"5\r\nhelloX\r\n", b"5\r\nhello\rX", b"5\nhello\r\n\r\n",
     b"+5\r\nhello\r\n", b"fffffffff\r\n", b"5 5\r\nhello\r\n", b"5\r\nhello\n\n", b"0\r\nno trailer\r\n\r\n",
     b"0\r\n a: folded\r\n\r\n", b"1_0\r\n" + b"x" * 16 + b"\r\n"],
)  # fmt: skip
def test_bad_framing_is_refused_at_every_cut(wire: bytes) -> None:
    for at in range(len(wire)):
        assert read([wire[:at], wire[at:]] if at else [wire]).broken, at


GARBAGE = st.one_of(
    st.sampled_from([b"zz\r\n", b"5\r\nhelloworld\r\n", b"fffffffff\r\n", b"-5\r\n", b"\r\n\r\n", b"5\r\nhello\rX"]),
    st.lists(st.one_of(st.sampled_from(NASTY), st.binary(max_size=9)), max_size=4).map(b"".join),
)


@settings(max_examples=examples(500), deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), GARBAGE, st.randoms(use_true_random=False))
def test_what_comes_before_a_break_is_read_at_every_cut(
    chunks: list[bytes], garbage: bytes, rng: random.Random
) -> None:
    wire = b"".join(map(framed, chunks)) + garbage
    body = read(wire[at : at + 1] for at in range(len(wire)))
    assert body.payload.startswith(b"".join(chunks))
    assert read([wire]) == body
    if wire:
        assert read(segments(wire, rng)) == body


@pytest.mark.parametrize("excess", [-1, 0, 1])
@pytest.mark.parametrize(("begun", "ended"), [(b"5;", b"\r\nhello\r\n"), (b"0\r\nA: ", b"\r\n\r\n")])
def test_size_lines_and_trailers_have_a_bound_at_every_cut(begun: bytes, ended: bytes, excess: int) -> None:
    counted = 2 if begun == b"5;" else len(b"\r\nA: ")
    wire = begun + b"x" * (LINE_BYTES_MAX - counted + excess) + ended
    for at in range(len(wire) - 10, len(wire)):
        assert read([wire[:at], wire[at:]]).broken is (excess > 0), at
    assert read([wire]).broken is (excess > 0)
    unended = wire.removesuffix(ended)
    assert read([unended, b"x" * 9]).broken


def test_a_body_of_a_known_length() -> None:
    rng = random.Random(3)
    for _ in range(500):
        body, behind = rng.randbytes(rng.randint(0, 30)), rng.choice([b"", b"more"])
        reader = LengthReader(len(body))
        payload = got = b""
        for piece in segments(body + behind, rng) if body + behind else []:
            if reader.rest is not None:
                got += piece
                continue
            payload += reader.feed(piece)[0]
        assert payload == body
        assert reader.rest is not None
        assert reader.rest + got == behind
        assert not reader.ends_with_connection


def test_a_body_without_length_ends_with_the_connection() -> None:
    reader = LengthReader(None)
    assert reader.feed(b"a") == (b"a", False)
    assert reader.rest is None
    assert reader.ends_with_connection


@pytest.mark.parametrize(
    ("head", "chunked", "length", "keep_alive"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n", True, None, True),
        (b"HTTP/1.1 200\r\nContent-Length: 5\r\n", False, 5, True),
        (b"HTTP/1.1 200 \r\ncontent-length:5\r\nContent-Length: 5 \r\n", False, 5, True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: x, CLOSE\r\n", False, 5, False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n", False, 5, False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\nConnection: Keep-Alive\r\n", False, 5, True),
        (b"HTTP/1.1 200 OK\r\n", False, None, False),
        (b"HTTP/1.1 204 No Content\r\n", False, 0, True),
        (b"HTTP/1.1 304 Not\xe9 Modified\r\nContent-Length: 9\r\n", False, 0, True),
    ],
)
def test_heads(head: bytes, chunked: bool, length: int | None, keep_alive: bool) -> None:
    read = read_head(head)
    assert (read.chunked, read.length, read.keep_alive) == (chunked, length, keep_alive)


def test_a_head_has_the_headers_that_were_sent_in_their_order_or_none() -> None:
    """Those of the framing are read, not passed on."""
    assert read_head(b"HTTP/1.1 200 OK\r\n").headers == ()
    sent = b"HTTP/1.1 200 OK\r\nB: 1\r\nContent-Length: 5\r\na:2\r\nb: \t3 \r\n"
    assert read_head(sent).headers == (("b", "1"), ("a", "2"), ("b", "3"))


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: \xb2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length : 5\r\n",
        b"HTTP/1.1 200 OK\r\nA: b\r\n folded\r\n",
        b"HTTP/1.1 200 OK\r\nA: b\0c\r\n",
        b"HTTP/1.1 200 OK\r\nA: b\nContent-Length: 5\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n",
        b"HTTP/1.1 600 OK\r\n",
        b"HTTP/1.1 20 OK\r\n",
        b"HTTP/1.1 2000 OK\r\n",
        b"HTTP/2 200 OK\r\n",
        b"HTTP/1.12 200 OK\r\n",
        b" HTTP/1.1 200 OK\r\n",
        b"\x16\x03\x01\r\n",
        b"\r\n",
    ],
)
def test_heads_that_are_refused(head: bytes) -> None:
    with pytest.raises(BadFramingError):
        read_head(head)


@settings(max_examples=examples(500), deadline=None)
@given(st.binary(max_size=80))
def test_any_head_is_read_or_refused(noise: bytes) -> None:
    for begun in (b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nA: "):
        try:
            read_head(begun + noise + b"\r\n")
        except BadFramingError:
            continue
