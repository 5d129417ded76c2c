"""Frames of WebSockets, at every cut, of both sides."""

from __future__ import annotations

import pytest

from proxy.http.websocket_frames import (
    FRAGMENT_BYTES,
    FRAGMENTS_MIN,
    NO_CODE,
    PART,
    READ_BYTES_KEPT,
    Frame,
    FrameError,
    FrameReader,
    Kind,
    close_of,
    head,
    masked,
)

LIMIT = 200_000
MASK = b"\x01\x82\x43\x24"
BOTH = pytest.mark.parametrize("mask", [b"", MASK], ids=["server", "client"])


def frame(kind: int, payload: bytes = b"", mask: bytes = b"", *, last: bool = True) -> bytes:
    wire = head(Kind(kind), len(payload), mask) + masked(payload, mask)
    return wire if last else bytes([wire[0] & 0x7F]) + wire[1:]


def read(reader: FrameReader, *pieces: bytes) -> list[Frame]:
    """What comes of them, without parts of messages."""
    found = []
    for piece in pieces:
        reader.feed(piece)
        while (one := reader.read()) is not None:
            if one is not PART:
                found.append(one)
    return found


def reader(mask: bytes, bytes_max: int = LIMIT) -> FrameReader:
    return FrameReader(masked=bool(mask), message_bytes_max=bytes_max)


SMALL, LARGE = (0, 1, 125, 126, 130), (65_535, 65_536, 70_001)


def stream(mask: bytes, sizes: tuple[int, ...] = SMALL) -> tuple[bytes, list[Frame]]:
    """Frames of every kind and with payloads of these sizes, and what is read of them."""
    whole = [Frame(Kind.TEXT if size % 2 else Kind.BINARY, bytes(i % 251 for i in range(size))) for size in sizes]
    parts = (
        frame(Kind.TEXT, b"one ", mask, last=False)
        + frame(Kind.PING, b"amid", mask)
        + frame(Kind.CONTINUATION, b"", mask, last=False)
        + frame(Kind.CONTINUATION, b"two ", mask, last=False)
        + frame(Kind.PONG, b"", mask)
        + frame(Kind.CONTINUATION, b"three", mask)
    )
    of_parts = [Frame(Kind.PING, b"amid"), Frame(Kind.PONG), Frame(Kind.TEXT, b"one two three")]
    closing = Frame(Kind.CLOSE, b"\x03\xe8bye")
    wire = parts + b"".join(frame(*one, mask) for one in whole) + frame(*closing, mask)
    return wire, [*of_parts, *whole, closing]


@BOTH
@pytest.mark.parametrize(("sizes", "pieces"), [(SMALL, (1, 2, 3, 7)), (LARGE, (4_099, 65_536))])
def test_frames_are_what_was_sent_however_they_arrive(
    mask: bytes, sizes: tuple[int, ...], pieces: tuple[int, ...]
) -> None:
    wire, frames = stream(mask, sizes)
    for size in (*pieces, len(wire)):
        assert read(reader(mask), *(wire[at : at + size] for at in range(0, len(wire), size))) == frames


@BOTH
def test_nothing_is_kept_of_what_was_read(mask: bytes) -> None:
    wire, frames = stream(mask)
    one = reader(mask)
    assert read(one, wire) == frames
    assert (one.held, one.unread, one.is_amid_message) == (0, 0, False)
    read(one, frame(Kind.TEXT, b"x" * 10, mask, last=False))
    assert (one.held, one.unread, one.is_amid_message) == (10, 0, True)
    one.feed(b"\x80")
    assert (one.held, one.unread) == (11, 1)
    one.clear()
    assert one.held == 0


@BOTH
@pytest.mark.parametrize("size", [1, 4_000, READ_BYTES_KEPT])
def test_nothing_is_kept_either_for_whoever_is_always_one_frame_behind(mask: bytes, size: int) -> None:
    one, wire = reader(mask), frame(Kind.BINARY, b"x" * size, mask)
    one.feed(wire)
    most = 0
    for _ in range(4 * READ_BYTES_KEPT // len(wire) + 4):
        one.feed(wire)
        assert one.read() == Frame(Kind.BINARY, b"x" * size)
        assert (one.held, one.unread) == (len(wire), len(wire))
        most = max(most, len(one._buffer))
    assert most <= READ_BYTES_KEPT + 2 * len(wire)


@BOTH
@pytest.mark.parametrize("kind", [Kind.TEXT, Kind.BINARY])
def test_a_length_is_written_in_the_fewest_bytes(kind: Kind, mask: bytes) -> None:
    flag = 0x80 if mask else 0
    for marker, in_bytes, least, most in ((126, 2, 126, 65_535), (127, 8, 65_536, LIMIT)):
        for size in (0, 1, 125, 126, 65_535, 65_536, LIMIT):
            if size >= 1 << 8 * in_bytes:
                continue
            wire = bytes((0x80 | kind, flag | marker)) + size.to_bytes(in_bytes, "big") + mask
            if least <= size <= most:
                assert [len(one.payload) for one in read(reader(mask), wire + bytes(size))] == [size]
                continue
            for pieces in ((wire,), tuple(bytes([byte]) for byte in wire)):
                with pytest.raises(FrameError) as broken:
                    read(reader(mask), *pieces)
                assert broken.value.code == 1002


def test_one_frame_is_read_at_a_time() -> None:
    one = reader(b"")
    one.feed(frame(Kind.TEXT, last=False) + frame(Kind.CONTINUATION, last=False) * 100)
    assert [one.read() for _ in range(102)] == [PART] * 101 + [None]


BROKEN = {
    b"\x83\x00": 1002,  # no such opcode
    b"\xc1\x00": 1002,  # an extension
    b"\x91\x00": 1002,
    b"\x09\x00": 1002,  # a ping in fragments
    b"\x89\x7e": 1002,  # and one that is too long
    b"\x80\x00": 1002,  # the rest of nothing
    b"\x01\x00\x81\x00": 1002,  # a message in a message
    b"\x01\x00\x82\x00": 1002,
    b"\x81\x7f" + b"\xff" * 8: 1002,  # the first bit of a length is 0
    b"\x81\x7f\x7f" + b"\xff" * 7: 1009,
    b"\x81\x7f" + (LIMIT + 1).to_bytes(8, "big"): 1009,
}


@pytest.mark.parametrize(("wire", "code"), BROKEN.items())
def test_what_breaks_the_protocol_is_refused_at_once(wire: bytes, code: int) -> None:
    with pytest.raises(FrameError) as broken:
        read(reader(b""), wire)
    assert broken.value.code == code


@BOTH
def test_masks_are_the_clients(mask: bytes) -> None:
    with pytest.raises(FrameError) as broken:
        read(reader(mask), frame(Kind.TEXT, b"x", b"" if mask else MASK)[:2])
    assert broken.value.code == 1002


@pytest.mark.parametrize("sizes", [(LIMIT,), (LIMIT - 1, 1), (1, LIMIT - 1, 0)])
def test_a_message_may_be_as_long_as_its_limit(sizes: tuple[int, ...]) -> None:
    def wire(more: int) -> bytes:
        kinds = [Kind.TEXT] + [Kind.CONTINUATION] * (len(sizes) - 1)
        last = len(sizes) - 1
        lengths = (*sizes[:-1], sizes[-1] + more)
        return b"".join(frame(kinds[n], b"x" * size, last=n == last) for n, size in enumerate(lengths))

    assert [len(one.payload) for one in read(reader(b""), wire(0))] == [LIMIT]
    with pytest.raises(FrameError, match="longer than 200000 bytes"):
        read(reader(b""), wire(1))


def test_the_fragments_of_a_message_are_counted() -> None:
    most = FRAGMENTS_MIN + LIMIT // FRAGMENT_BYTES
    begin, more, last = frame(Kind.TEXT, last=False), frame(Kind.CONTINUATION, last=False), frame(Kind.CONTINUATION)
    one = reader(b"")
    for _ in range(2):
        assert read(one, begin + more * (most - 2) + last) == [Frame(Kind.TEXT)]
    with pytest.raises(FrameError) as broken:
        read(one, begin + more * (most - 1) + last)
    assert broken.value.code == 1009


@pytest.mark.parametrize(
    ("payload", "code", "reason"),
    [
        (b"", NO_CODE, ""),
        (b"\x03\xe8", 1000, ""),
        (b"\x0f\xa0" + "schließt".encode(), 4000, "schließt"),
        (b"\x03", 1002, None),
        (b"\x03\xed", 1002, None),
        (b"\x03\xee", 1002, None),
        (b"\x00\x00", 1002, None),
        (b"\x13\x88", 1002, None),
        (b"\x03\xe8\xff", 1007, None),
    ],
)
def test_close_frames(payload: bytes, code: int, reason: str | None) -> None:
    if reason is not None:
        assert close_of(payload) == (code, reason)
        return
    with pytest.raises(FrameError) as broken:
        close_of(payload)
    assert broken.value.code == code
