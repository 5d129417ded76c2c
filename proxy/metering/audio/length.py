"""The length of an audio file, where the provider bills by length and its answer does not report it.

Invariant: samples, frames and packets are counted, as a decoder would. Lengths in headers and containers are ignored,
because they can be forged in either direction. Fields that change the decoded audio (sample rate, channels, bits) are
believed, because the provider decodes by them, too. Nothing raises; any file takes a bounded time. A doubtful length is
flagged: a file of unknown format counts by its bytes at the rate of compressed speech; a file with too many parts
counts in proportion.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from proxy.metering.audio.flac import flac_s
from proxy.metering.audio.matroska import matroska_s
from proxy.metering.audio.mp4 import mp4_s
from proxy.metering.audio.mpeg import mpeg_s
from proxy.metering.audio.ogg import ogg_s
from proxy.metering.audio.parts import Parts
from proxy.metering.audio.pcm import aiff_s, wav_s

# Compressed speech: 32 kbit/s.
_UNKNOWN_BYTES_PER_S = 4_000
# A file without its content, such as a link: ten minutes, a guess.
UNSEEN_MS = 600_000
# No provider takes longer ones: a day.
_MS_MAX = 86_400_000


class Length(NamedTuple):
    """A length of audio."""

    ms: int
    doubtful: bool
    """the length is a guess from the size"""


UNSEEN = Length(UNSEEN_MS, doubtful=True)

# The first bytes of a file, and where they are, by which decoders know it; MPEG audio has none.
_FORMATS: tuple[tuple[int, bytes, Callable[[bytes, Parts], float]], ...] = (
    (0, b"RIFF", wav_s),
    (0, b"RF64", wav_s),
    (0, b"FORM", aiff_s),
    (0, b"fLaC", flac_s),
    (0, b"OggS", ogg_s),
    (4, b"ftyp", mp4_s),
    (0, b"\x1a\x45\xdf\xa3", matroska_s),
)


def length_of(audio: bytes) -> Length:
    """The length of a file."""
    parts = Parts()
    read = next((read for at, magic, read in _FORMATS if audio[at : at + len(magic)] == magic), mpeg_s)
    try:
        seconds = read(audio, parts)
    except (struct.error, IndexError, ValueError, OverflowError):  # it ends in a header
        seconds = 0.0
    if seconds <= 0:
        return Length(_ms(len(audio) / _UNKNOWN_BYTES_PER_S), doubtful=True)
    if parts.counted_to < len(audio) and parts.exhausted:
        return Length(_ms(seconds * len(audio) / max(parts.counted_to, 1)), doubtful=True)
    return Length(_ms(seconds), doubtful=False)


def _ms(seconds: float) -> int:
    return min(round(seconds * 1000), _MS_MAX)
