"""Frames: what was written is read back exactly, and nothing else is, whatever happened to the bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.journal.frames import (
    HEADER_BYTES,
    MAGIC,
    PAYLOAD_BYTES_MAX,
    FrameKind,
    UndecodableError,
    decode_envelope,
    decode_opened,
    decode_record,
    encode_frame,
    opened_payload,
    record_payload,
    scan,
)
from tests.journal.records import opened, record

WRITTEN = [
    (FrameKind.OPEN, 0, b'{"a":1}'),
    (FrameKind.CLOSE, 7, b'{"b":"' + b"x" * 40 + b'"}'),
    (FrameKind.SETTLED, 0, b"[7]"),
]
FRAMES = [encode_frame(*frame) for frame in WRITTEN]
IMAGE = b"".join(FRAMES)


def read(image: bytes) -> list[tuple[int, int, bytes]]:
    return [(frame.kind, frame.seq, frame.payload) for frame in scan(image).frames]


def test_a_whole_image_has_its_frames_and_nothing_else() -> None:
    found = scan(IMAGE)
    assert (read(IMAGE), found.gaps, found.torn_bytes) == (WRITTEN, [], 0)
    assert [frame.offset for frame in found.frames] == [0, len(FRAMES[0]), len(FRAMES[0]) + len(FRAMES[1])]
    assert sum(frame.length for frame in found.frames) == len(IMAGE)


def test_cut_anywhere_the_whole_frames_before_the_cut_are_read_and_the_rest_is_torn() -> None:
    ends = [len(FRAMES[0]), len(FRAMES[0]) + len(FRAMES[1]), len(IMAGE)]
    for cut in range(len(IMAGE) + 1):
        found = scan(IMAGE[:cut])
        whole = sum(end <= cut for end in ends)
        assert read(IMAGE[:cut]) == WRITTEN[:whole]
        assert (found.gaps, found.torn_bytes) == ([], cut - ([0, *ends][whole]))


def test_a_flipped_bit_loses_one_frame_at_most_and_is_never_taken_for_a_torn_tail() -> None:
    for position in range(len(IMAGE)):
        for bit in range(8):
            image = bytearray(IMAGE)
            image[position] ^= 1 << bit
            found = scan(bytes(image))
            left = read(bytes(image))
            assert len(left) == 2
            assert all(frame in WRITTEN for frame in left)
            assert len(found.gaps) == 1
            assert found.torn_bytes == 0


def test_a_stretch_cut_out_of_the_middle_costs_only_the_frames_it_touched() -> None:
    image = FRAMES[0] + FRAMES[1][:30] + FRAMES[2]
    assert read(image) == [WRITTEN[0], WRITTEN[2]]
    assert scan(image).gaps == [(len(FRAMES[0]), 30)]


@given(st.binary(max_size=60), st.binary(max_size=60), st.binary(max_size=60))
def test_rubbish_between_frames_is_skipped(one: bytes, two: bytes, three: bytes) -> None:
    image = one + FRAMES[0] + two + FRAMES[1] + three
    found = scan(image)
    assert [frame.payload for frame in found.frames] == [WRITTEN[0][2], WRITTEN[1][2]]
    accounted = sum(frame.length for frame in found.frames) + sum(length for _, length in found.gaps)
    assert accounted + found.torn_bytes == len(image)


@given(st.binary(max_size=400))
def test_rubbish_alone_gives_nothing(image: bytes) -> None:
    assert scan(image).frames == []
    assert scan(MAGIC * 20 + image).frames == []


def test_zeros_are_damage_not_a_torn_tail() -> None:
    found = scan(FRAMES[0] + bytes(5000))
    assert (found.gaps, found.torn_bytes) == ([(len(FRAMES[0]), 5000)], 0)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=50))
def test_no_name_can_forge_a_frame(name: str) -> None:
    exchange = opened(1, model=name + MAGIC.decode("latin-1"))
    assert MAGIC not in opened_payload(exchange)
    assert decode_opened(opened_payload(exchange)) == exchange


def test_a_record_comes_back_exactly() -> None:
    sent = record(opened(1))
    assert decode_record(record_payload(sent)) == sent
    assert decode_envelope(record_payload(sent)).opened.exchange_id == sent.opened.exchange_id


@pytest.mark.io
def test_what_a_provider_says_cannot_stop_a_record() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    sent = record(
        opened(1),
        finish_reason="st\ud800op",
        provider_response_id="\udfff",
        details={"fine": 1, "lone": "\ud800", "deep": deep, "odd": object(), "big": 10**40},
    )
    got = decode_record(record_payload(sent))
    assert (got.finish_reason, got.provider_response_id) == ("st?op", "?")
    assert got.details == {"fine": 1, "big": 10**40, "details_dropped": ["lone", "deep", "odd"]}
    assert (got.reading, got.events, got.bytes, got.opened) == (sent.reading, sent.events, sent.bytes, sent.opened)


def test_too_long_details_are_dropped_not_the_record() -> None:
    sent = record(opened(1), details={"words": "x" * 2_000_000}, finish_reason="y" * 2_000_000)
    got = decode_record(record_payload(sent))
    assert got.reading == sent.reading
    assert got.details["details_dropped"] > 4_000_000 - 10
    assert len(encode_frame(FrameKind.CLOSE, 1, record_payload(sent))) < HEADER_BYTES + PAYLOAD_BYTES_MAX


def test_an_exchange_too_long_to_journal_is_refused() -> None:
    with pytest.raises(ValueError, match="the journal takes"):
        opened_payload(opened(1, model="m" * 600_000))


def test_a_record_of_a_later_version_is_not_guessed_at() -> None:
    with pytest.raises(UndecodableError, match="version 2"):
        decode_record(record_payload(record(opened(1), version=2)))


@pytest.mark.parametrize("payload", [b"", b"{", b"[]", b"null", b"\xff", b'{"opened":3}', b"[" * 100_000])
def test_rubbish_is_undecodable(payload: bytes) -> None:
    for decode in (decode_opened, decode_record, decode_envelope):
        with pytest.raises(UndecodableError):
            decode(payload)
