"""The length of audio is what decodes: as FFmpeg decodes it, whatever headers and containers say of it.

The sounds are a tone of 0.7 s, by FFmpeg's encoders.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.foundation.slices import AT_ONCE_BYTES, in_slices
from proxy.gateway.exchange.handler import read_request
from proxy.http.multipart import serialise
from proxy.http.request_body import CODECS
from proxy.metering.audio.codecs import config_rate
from proxy.metering.audio.length import UNSEEN_MS, length_of
from proxy.metering.audio.parts import PARTS_MAX
from proxy.metering.dialects.openai_media.transcriptions import OPENAI_TRANSCRIPTIONS
from proxy.metering.request import RequestFacts, Upload
from proxy.metering.usage import Usage
from tests.metering.fixtures import wrong_field

SOUNDS = {path.name: path.read_bytes() for path in sorted((Path(__file__).parent / "sounds").iterdir())}
# Seconds that FFmpeg decodes.
DECODED = {
    "a.aac": 0.768, "a.flac": 0.7, "a.m4a": 0.704, "a.mp2": 0.731, "a.opus": 0.7, "aac.mkv": 0.704, "adpcm.wav": 0.765,
    "alac.m4a": 0.7, "cbr.mp3": 0.7, "flac.ogg": 0.7, "fragmented.mp4": 0.768, "long.opus": 0.7, "opus.webm": 0.7,
    "u.wav": 0.7, "vbr.mp3": 0.7, "vorbis.ogg": 0.743, "vorbis.webm": 0.702,
}  # fmt: skip
# What encoders add before and after, and what decoders take off again: two frames at most.
PADDING_S = 0.16


def seconds(audio: bytes) -> float:
    found = length_of(audio)
    assert not found.doubtful
    return found.ms / 1000


def wav(
    size: int, *, byte_rate: int = 32_000, said: int | None = None, form: tuple[int, ...] = (1, 1, 16_000, 16)
) -> bytes:
    """`form`: kind, channels, rate, bits. `said`: of the size of the data."""
    kind, channels, rate, bits = form
    head = pack("<HHIIHH", kind, channels, rate, byte_rate, channels * bits // 8, bits)
    body = b"WAVEfmt " + pack("<I", len(head)) + head + b"data" + pack("<I", size if said is None else said)
    return b"RIFF" + pack("<I", len(body) + size) + body + bytes(size)


def aiff(size: int, rate: int = 22_050) -> bytes:
    exponent = rate.bit_length() - 1
    form = pack(">hIhHQ", 1, size // 2, 16, 16_383 + exponent, rate << 63 - exponent)
    body = b"AIFFCOMM" + pack(">I", len(form)) + form + b"SSND" + pack(">I", size + 8) + bytes(8 + size)
    return b"FORM" + pack(">I", len(body)) + body


@pytest.mark.parametrize("name", sorted(SOUNDS))
def test_it_is_what_decodes(name: str) -> None:
    assert seconds(SOUNDS[name]) == pytest.approx(DECODED[name], abs=PADDING_S)


def test_each_sound_is_compared() -> None:
    assert DECODED.keys() == SOUNDS.keys()


@pytest.mark.parametrize(
    ("audio", "length"),
    [
        (wav(1_920_000), 60.0),
        (wav(1_920_000, byte_rate=10_000_000), 60.0),  # 0.19 s by its byte rate
        (wav(1_920_000, byte_rate=1), 60.0),
        (wav(1_920_000, said=100), 60.0),  # nothing follows that is a chunk: all of it is data
        (wav(1_920_000, said=0), 60.0),
        (wav(1_920_000, said=0xFFFFFFFF), 60.0),
        (wav(32_000, said=0x7FFFFFFF), 1.0),
        (wav(32_000) + b"LIST" + pack("<I", 4) + b"INFO", 1.0),
        (wav(32_000) + b"id3 " + pack("<I", 5000) + bytes(5000), 1.0),
        (wav(192_000, form=(1, 2, 48_000, 16)), 1.0),
        (wav(8_000, form=(7, 1, 8_000, 8)), 1.0),
        (wav(192_000, form=(3, 1, 48_000, 32)), 1.0),
        (aiff(44_100), 1.0),
        (SOUNDS["cbr.mp3"] + b"TAG" + bytes(125), 0.784),
        (b"ID3\x04\0\0\0\0\x07\x76" + bytes(1_014) + SOUNDS["cbr.mp3"], 0.784),
        (bytes(5_000) + SOUNDS["cbr.mp3"], 0.784),
    ],
)
def test_headers_are_not_believed_where_they_speak_of_time(audio: bytes, length: float) -> None:
    assert seconds(audio) == pytest.approx(length, abs=0.05)


def patched(name: str, *changes: tuple[bytes, int, bytes]) -> bytes:
    """A sound with bytes written at an offset from the first of a mark."""
    audio = bytearray(SOUNDS[name])
    for mark, offset, value in changes:
        at = audio.find(mark)
        assert at >= 0, mark
        audio[at + offset : at + offset + len(value)] = value
    return bytes(audio)


def with_positions(name: str, position: int) -> bytes:
    """An Ogg file whose pages all say the same position."""
    audio, at = bytearray(SOUNDS[name]), 0
    while (at := audio.find(b"OggS", at)) >= 0:
        audio[at + 6 : at + 14] = pack("<Q", position)
        at += 27
    return bytes(audio)


SCALE, LONG, ONE = b"\x2a\xd7\xb1\x83", b"\x7f\xff\xff\xff", b"\0\0\0\1"
FORGED = {
    "frames in the header of MP3: one": patched("vbr.mp3", (b"Xing", 8, ONE)),
    "frames in the header of MP3: many": patched("vbr.mp3", (b"Xing", 8, LONG)),
    "samples in the header of FLAC: one": patched("a.flac", (b"fLaC", 22, ONE)),
    "positions of Opus: none": with_positions("a.opus", 0),
    "positions of Opus: many": with_positions("a.opus", 1 << 60),
    "positions of Vorbis: none": with_positions("vorbis.ogg", 1),
    "positions of Vorbis: many": with_positions("vorbis.ogg", 1 << 60),
    "times of MP4: short": patched("a.m4a", (b"mdhd", 20, ONE), (b"mvhd", 20, ONE), (b"stts", 16, ONE)),
    "times of MP4: long": patched("a.m4a", (b"mdhd", 20, LONG), (b"mvhd", 20, LONG), (b"stts", 16, LONG)),
    "rate of MP4": patched("a.m4a", (b"mp4a", 28, b"\xff\xff")),
    "scale of WebM: short": patched("opus.webm", (SCALE, 4, b"\0\0\1")),
    "scale of WebM with Vorbis: short": patched("vorbis.webm", (SCALE, 4, b"\0\0\1")),
    "scale of WebM with Vorbis: long": patched("vorbis.webm", (SCALE, 4, b"\xff\xff\xff")),
    "scale of Matroska with AAC": patched("aac.mkv", (SCALE, 4, b"\0\0\1")),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_time_changes_next_to_nothing(what: str) -> None:
    """All are of 0.7 s. Of Vorbis, all packets count as long ones, which is somewhat too much."""
    assert FORGED[what] not in SOUNDS.values()
    assert 0.65 <= seconds(FORGED[what]) <= 1.1


def test_streams_one_after_the_other_all_count() -> None:
    other = bytearray(SOUNDS["a.opus"])
    at = 0
    while (at := other.find(b"OggS", at)) >= 0:
        other[at + 14] ^= 1
        at += 27
    assert seconds(SOUNDS["a.opus"] + bytes(other)) == pytest.approx(2 * seconds(SOUNDS["a.opus"]), abs=0.01)


def test_what_is_not_known_is_a_guess_by_its_size() -> None:
    for audio in (b"x" * 8_000, wav(7_956, form=(1, 200, 16_000, 16)), b"\xff\xfb" * 4_000):
        assert length_of(audio) == (2_000, True)
    assert length_of(b"") == (0, True)


def test_what_is_nested_without_end_is_no_audio() -> None:
    boxes = b"".join((80_000 - 8 * depth).to_bytes(4) + b"moov" for depth in range(10_000))
    assert length_of(b"\0\0\0\x08ftyp" + boxes) == (20_002, True)
    elements = b"\x1a\x45\xdf\xa3\x80" + b"\x18\x53\x80\x67\x01\xff\xff\xff\xff\xff\xff\xff" * 10_000
    assert length_of(elements).doubtful


def test_of_very_many_parts_the_rest_counts_in_proportion() -> None:
    frames = SOUNDS["cbr.mp3"]
    start = frames.index(b"\xff\xf3", 200)
    one = frames[start : frames.index(frames[start : start + 2], start + 50)]
    times = PARTS_MAX * 3 // 2
    found = length_of(one * times)
    assert found.doubtful
    assert found.ms == pytest.approx(times * 576 / 22_050 * 1000, rel=0.01)


@pytest.mark.parametrize(
    ("config", "rate"),
    [
        (b"\x12\x10", 44_100),
        (b"\x14\x08", 16_000),
        (b"\x2b\x92\x08\x00", 22_050),
        (bytes([0x17, 0x80 | 48_000 >> 17, 48_000 >> 9 & 255, 48_000 >> 1 & 255, 0]), 48_000),  # written out
        (b"\x16\x90", 0),  # an index of no rate
        (b"\x12", 0),
        (b"", 0),
    ],
)
def test_the_rate_of_aac(config: bytes, rate: int) -> None:
    assert config_rate(config) == rate


@pytest.mark.parametrize("name", sorted(SOUNDS))
def test_a_file_that_ends_anywhere_is_no_longer_than_the_whole(name: str) -> None:
    audio = SOUNDS[name]
    for size in range(0, len(audio), 97):
        found = length_of(audio[:size])
        assert 0 <= found.ms <= max(length_of(audio).ms * 1.4, size / 4) + 200


@given(
    st.sampled_from(sorted(SOUNDS)),
    st.lists(st.tuples(st.integers(0, 12_000), st.binary(min_size=1, max_size=9)), max_size=8),
)
def test_nothing_raises_and_nothing_is_negative(name: str, changes: list[tuple[int, bytes]]) -> None:
    audio = bytearray(SOUNDS[name])
    for at, value in changes:
        audio[at : at + len(value)] = value
    assert 0 <= length_of(bytes(audio)).ms <= 86_400_000


@given(
    st.binary(max_size=300),
    st.sampled_from([b"", b"RIFF", b"FORM", b"fLaC", b"OggS", b"\0\0\0\0ftyp", b"\x1a\x45\xdf\xa3", b"ID3"]),
)
def test_no_content_is_too_odd(content: bytes, magic: bytes) -> None:
    assert 0 <= length_of(magic + content).ms <= 86_400_000


# -- requests ----------------------------------------------------------------------------------------------------


def asked(**fields: Any) -> RequestFacts:
    document = {"model": "m", **fields}
    measured = OPENAI_TRANSCRIPTIONS.measured
    assert measured is not None
    return measured(OPENAI_TRANSCRIPTIONS.facts(document), document)


def test_a_request_is_for_the_length_of_its_file() -> None:
    sound = asked(file=Upload("a.wav", "", wav(1_920_000, byte_rate=10_000_000)))
    assert (sound.asked, sound.doubts) == (Usage(audio_ms=60_000), ())
    odd = asked(file=Upload("a.wav", "", b"x" * 4_000))
    assert (odd.asked, odd.doubts) == (Usage(audio_ms=1_000), ("audio_doubtful",))


@pytest.mark.parametrize("link", ["file_url", "file_id", "url"])
def test_a_link_is_a_guess(link: str) -> None:
    """Mistral's and Groq's."""
    found = asked(**{link: "https://weir.test/a.mp3"})
    assert (found.asked, found.doubts) == (Usage(audio_ms=UNSEEN_MS), ("audio_doubtful",))
    for bad in ("", 7, None, ["a"]):
        assert wrong_field(OPENAI_TRANSCRIPTIONS.facts, {"model": "m", link: bad}) == "file"


async def test_files_are_not_read_by_the_event_loop() -> None:
    threads: list[threading.Thread] = []

    def measured(facts: RequestFacts, document: dict[str, Any]) -> RequestFacts:
        threads.append(threading.current_thread())
        return facts

    document = {"model": "m", "file": Upload("a", "", b"x" * AT_ONCE_BYTES)}
    content_type, pieces = serialise(document)
    body = b"".join(pieces)
    dialect, codec = replace(OPENAI_TRANSCRIPTIONS, measured=measured), CODECS[OPENAI_TRANSCRIPTIONS.request_body]
    read, found, _ = await in_slices(len(body), read_request, codec, dialect, body, content_type, None)
    assert (read, found) == (document, OPENAI_TRANSCRIPTIONS.facts(document))
    assert threads != [threading.current_thread()]
    assert len(threads) == 1
