"""The length of Vorbis, by the number of its packets, which have no length of their own. Vorbis I specification"""

from __future__ import annotations

# Short blocks make an answer shorter than its packets could be: in recordings, to no smaller share.
_LEAST = 0.2
_HEADER_BYTES = 30


def is_vorbis(header: bytes) -> bool:
    """Whether this is the beginning of an identification header."""
    return header.startswith(b"\x01vorbis") and len(header) >= _HEADER_BYTES


def vorbis_s(header: bytes, packets: int, told: float) -> float:
    """The seconds of so many packets of sound: what the container tells (in samples), if it can be so; else all that
    they can have."""
    rate, long_block = int.from_bytes(header[12:16], "little"), 1 << (header[28] >> 4)
    most = max(packets, 0) * long_block / 2
    return (told if most * _LEAST <= told <= most else most) / rate if rate else 0.0
