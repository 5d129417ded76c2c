"""Lengths and rates in the frames of codecs that several containers hold: Opus, Vorbis, AAC."""

from __future__ import annotations

# Opus: RFC 6716, 3.1

# Milliseconds of one frame, by the configuration: SILK, hybrid, CELT.
_FRAME_MS = (*(10.0, 20.0, 40.0, 60.0) * 3, *(10.0, 20.0) * 2, *(2.5, 5.0, 10.0, 20.0) * 4)
# Longest packet.
_PACKET_MS_MAX = 120.0


def opus_s(audio: bytes, at: int) -> float:
    """The seconds of the packet that begins at `at`."""
    if at >= len(audio):
        return 0.0
    first = audio[at]
    frames = (1, 2, 2, audio[at + 1] & 63 if at + 1 < len(audio) else 1)[first & 3]
    return min(frames * _FRAME_MS[first >> 3], _PACKET_MS_MAX) / 1000


# Vorbis: Vorbis I specification

# Least share of the longest possible length, in recordings: short blocks make packets shorter.
_LEAST = 0.2
_HEADER_BYTES = 30


def is_vorbis(header: bytes) -> bool:
    """Whether this is the beginning of an identification header."""
    return header.startswith(b"\x01vorbis") and len(header) >= _HEADER_BYTES


def vorbis_s(header: bytes, packets: int, stated: float) -> float:
    """The seconds of `packets` packets. `stated`: the length in samples that the container states. It counts if the
    packets can have it, else their longest possible length does."""
    rate, long_block = int.from_bytes(header[12:16], "little"), 1 << (header[28] >> 4)
    most = max(packets, 0) * long_block / 2
    return (stated if most * _LEAST <= stated <= most else most) / rate if rate else 0.0


# AAC: ISO/IEC 14496-3

RATES = (96_000, 88_200, 64_000, 48_000, 44_100, 32_000, 24_000, 22_050, 16_000, 12_000, 11_025, 8_000, 7_350)
"""sample rates by their index in an AudioSpecificConfig and in ADTS"""
FRAME = 1024
"""samples of one AAC frame"""
_WRITTEN_OUT = 15


def config_rate(config: bytes) -> int:
    """The sample rate in an AudioSpecificConfig, in Hz; 0: none. The config begins with five bits of a type and four of
    an index, or has the rate itself. Decoders use it, even if a container states another rate."""
    bits = int.from_bytes(config[:5].ljust(5, b"\0"))
    index = bits >> 31 & 15
    if index == _WRITTEN_OUT:
        return bits >> 7 & 0xFFFFFF
    return RATES[index] if index < len(RATES) and len(config) >= 2 else 0
