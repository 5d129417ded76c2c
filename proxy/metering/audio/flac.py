"""FLAC: frames with a header that has a checksum and the number of samples, but not the size. RFC 9639"""

from __future__ import annotations

from proxy.metering.audio.parts import Parts

_RATES = (0, 88_200, 176_400, 192_000, 8_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000)
# Rates in the header: bytes, and Hz of the unit.
_RATES_IN_HEADER = {12: (1, 1_000), 13: (2, 1), 14: (2, 10)}


def _crc8(byte: int) -> int:
    for _ in range(8):
        byte = (byte << 1 ^ 7 if byte & 128 else byte << 1) & 255
    return byte


_CRC8 = bytes(map(_crc8, range(256)))


def flac_s(audio: bytes, parts: Parts) -> float:
    """The samples of all frames. The total in the file header is ignored."""
    at, rate = 4, 0
    while at + 4 <= len(audio) and parts.next(at):  # blocks of metadata; the first one has the sample rate
        last, size = audio[at] >> 7, int.from_bytes(audio[at + 1 : at + 4])
        if audio[at] & 127 == 0:
            rate = int.from_bytes(audio[at + 14 : at + 17]) >> 4
        at += 4 + size
        if last:
            break
    seconds = 0.0
    while 0 <= (at := audio.find(b"\xff", at)) < len(audio) - 5 and parts.next(at):
        samples, header_rate, size = _header(audio, at)
        if samples and (header_rate or rate):
            seconds += samples / (header_rate or rate)
        at += size or 1
    return seconds


def _header(audio: bytes, at: int) -> tuple[int, int, int]:
    """Samples of a frame, sample rate (0: that of the file), bytes of the frame header; all 0: no frame."""
    none = 0, 0, 0
    if audio[at + 1] & 0xFE != 0xF8 or audio[at + 3] & 1:
        return none
    block, rate = audio[at + 2] >> 4, audio[at + 2] & 15
    if block == 0 or rate == 15 or audio[at + 3] >> 4 > 10:
        return none
    number = audio[at + 4]
    end = at + 5 + (0 if number < 0x80 else max(8 - (number ^ 0xFF).bit_length() - 1, 0))
    if block in (6, 7):
        width = block - 5
        samples = int.from_bytes(audio[end : end + width]) + 1
        end += width
    else:
        samples = 192 if block == 1 else 576 << (block - 2) if block <= 5 else 256 << (block - 8)
    hertz = _RATES[rate] if rate < len(_RATES) else 0
    if rate in _RATES_IN_HEADER:
        width, unit = _RATES_IN_HEADER[rate]
        hertz = int.from_bytes(audio[end : end + width]) * unit
        end += width
    checksum = 0
    for byte in audio[at:end]:
        checksum = _CRC8[checksum ^ byte]
    if end >= len(audio) or checksum != audio[end]:
        return none
    return samples, hertz, end + 1 - at
