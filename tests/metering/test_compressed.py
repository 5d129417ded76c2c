"""Compressed answers: what is in them is metered, whatever their pieces, and no piece can become too much."""

from __future__ import annotations

import gzip
import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.metering.compressed import RATIO_MAX, SPARE_BYTES, CompressedMeter, compressed_meter
from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.metered import BodyMeter, Metered
from proxy.metering.tally import Tally
from proxy.metering.usage import Usage
from proxy.metering.wire.framing import SSE


def event(**fields: object) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


TEXTS = [event(choices=[{"index": 0, "delta": {"content": f"word {number} "}}]) for number in range(40)]
USED = Usage(9, None, 41, None, 50)
USAGE = {"prompt_tokens": 9, "completion_tokens": 41, "total_tokens": 50}
STREAM = b"".join((*TEXTS, event(choices=[], usage=USAGE), b"data: [DONE]\n\n"))


def metered(body: bytes, cuts: list[int], coding: str = "gzip") -> tuple[Metered, CompressedMeter]:
    meter = compressed_meter(coding, OPENAI_CHAT.stream_meter(SSE, None, None))
    assert isinstance(meter, CompressedMeter)
    for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True):
        meter.feed(body[start:end])
    assert meter.bytes_seen == len(body)
    return meter.close(), meter


PACKED = {"gzip": gzip.compress(STREAM), "deflate": zlib.compress(STREAM)}


@given(st.sampled_from(sorted(PACKED)), st.data())
def test_it_is_the_same_for_all_pieces(coding: str, data: st.DataObject) -> None:
    body = PACKED[coding]
    result, meter = metered(body, sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=8))), coding)
    assert (result.usage, result.complete, result.events) == (USED, True, 42)
    assert (meter.done, meter.tally.events, result.flags) == (True, 42, ())


@given(st.integers(0, len(PACKED["gzip"]) - 1))
def test_a_cut_body_is_read_as_far_as_it_came(end: int) -> None:
    result, meter = metered(PACKED["gzip"][:end], [])
    assert result.evidence.chars <= len(STREAM)
    assert meter.tally.events <= 42
    assert result.flags == () or "cut" in str(result.flags)


@given(st.binary(min_size=1, max_size=300))
def test_noise_never_raises_and_is_counted_by_its_size(noise: bytes) -> None:
    result, _ = metered(b"\x00" + noise, [])
    assert (result.evidence.chars, result.complete, result.flags) == (1 + len(noise), True, ("encoded",))


def test_noise_after_some_text_adds_its_size() -> None:
    whole, _ = metered(gzip.compress(b"".join(TEXTS)), [])
    packed = gzip.compress(b"".join(TEXTS))
    broken, _ = metered(packed + b"noise", [len(packed)])
    assert broken.evidence.chars == whole.evidence.chars + 5
    assert broken.flags == ("encoded",)


def test_one_piece_cannot_become_too_much() -> None:
    """A megabyte of blanks for each kilobyte: it is given up, and what was read until then is small."""
    bomb = gzip.compress(bytes(16 << 20), 9)
    read: list[int] = []

    class Inner(BodyMeter):
        def feed(self, payload: bytes) -> None:
            read.append(len(payload))

    meter = CompressedMeter(Inner(Tally()))
    meter.feed(bomb)
    assert sum(read) <= SPARE_BYTES + RATIO_MAX * len(bomb)


def test_what_python_cannot_decompress_is_opaque() -> None:
    meter = compressed_meter("br", OPENAI_CHAT.stream_meter(SSE, None, None))
    meter.feed(b"12345")
    assert (meter.close().evidence.chars, meter.close().flags) == (5, ("encoded",))


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_a_byte_order_mark_is_no_part_of_an_answer(bom: bytes) -> None:
    stream = OPENAI_CHAT.stream_meter(SSE, None, None)
    stream.feed(bom + STREAM)
    plain = OPENAI_CHAT.plain_meter()
    plain.feed(bom + json.dumps({"choices": [], "usage": USAGE}).encode())
    for result in (stream.close(), plain.close()):
        assert (result.usage, result.complete, result.flags) == (USED, True, ())
