"""MPEG audio (MP3 and its earlier layers) and AAC in ADTS: frames, each with its size in a header."""

from __future__ import annotations

from proxy.metering.audio.codecs import FRAME, RATES
from proxy.metering.audio.parts import Parts

# kbit/s by index, from 1 on, of MPEG 1 (3) and its successors (2), and of the layers 1 (3) to 3 (1). ISO/IEC 11172-3,
# 13818-3
_KBITS = {
    (3, 3): (32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (3, 2): (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (3, 1): (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (2, 3): (32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (2, 2): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (2, 1): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_RATES = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8_000)}
# This many frames in a row are no coincidence: each has a pattern of 11 bits and valid numbers.
_SURE = 3
_HEADER_BYTES = 7


def _headers() -> dict[tuple[int, int], tuple[int, float]]:
    """The second and third byte of each valid MPEG header → its bytes, without padding, and its seconds."""
    headers: dict[tuple[int, int], tuple[int, float]] = {}
    for version, rates in _RATES.items():
        for layer in (1, 2, 3):  # layer 3, 2 and 1
            samples = {3: 384, 2: 1152, 1: 1152 if version == 3 else 576}[layer]
            for rate_index, rate in enumerate(rates):
                for kbits_index, kbits in enumerate(_KBITS[3 if version == 3 else 2, layer], 1):
                    size = 12_000 * kbits // rate * 4 if layer == 3 else samples * 125 * kbits // rate
                    for protection in (0, 1):
                        second = 0xE0 | version << 3 | layer << 1 | protection
                        headers[second, kbits_index << 4 | rate_index << 2] = size, samples / rate
    return headers


_HEADERS = _headers()


def mpeg_s(audio: bytes, parts: Parts) -> float:
    """The seconds of all frames. Bytes between frames are skipped, as in decoders."""
    at, seconds, size = _after_tag(audio), 0.0, len(audio)
    row, unsure = 0, 0.0
    while at + _HEADER_BYTES <= size and parts.next(at):
        frame = frame_at(audio, at) if audio[at] == 0xFF else None
        if frame is None:
            row, unsure = 0, 0.0
            at = audio.find(b"\xff", at + 1)
            if at < 0:
                break
            continue
        row += 1
        if row < _SURE:
            unsure += frame[1]
        else:
            seconds += unsure + frame[1]
            unsure = 0.0
        at += frame[0]
    return seconds


def frame_at(audio: bytes, at: int) -> tuple[int, float] | None:
    """Bytes and seconds of the frame that begins at `at`; None: no frame. Raises IndexError."""
    second, third = audio[at + 1], audio[at + 2]
    if second & 0xF6 == 0xF0:
        return _adts(audio, at)
    header = _HEADERS.get((second, third & 0xFC))
    if header is None:
        return None
    padding = third >> 1 & 1
    return (header[0] + (4 * padding if second >> 1 & 3 == 3 else padding)), header[1]


def _adts(audio: bytes, at: int) -> tuple[int, float] | None:
    index, blocks = audio[at + 2] >> 2 & 15, audio[at + 6] & 3
    size = (audio[at + 3] & 3) << 11 | audio[at + 4] << 3 | audio[at + 5] >> 5
    if index >= len(RATES) or size < _HEADER_BYTES:
        return None
    return size, (blocks + 1) * FRAME / RATES[index]


def _after_tag(audio: bytes) -> int:
    """The offset of the first frame: behind an ID3 tag, whose size has seven bits in a byte."""
    if not audio.startswith(b"ID3") or len(audio) < 10:
        return 0
    a, b, c, d = audio[6:10]
    return 10 + ((a & 127) << 21 | (b & 127) << 14 | (c & 127) << 7 | d & 127)
