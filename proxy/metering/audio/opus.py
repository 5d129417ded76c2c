"""The length of an Opus packet, by its first bytes. RFC 6716, 3.1"""

from __future__ import annotations

# Milliseconds of one frame, by the configuration: SILK, hybrid, CELT.
_FRAME_MS = (*(10.0, 20.0, 40.0, 60.0) * 3, *(10.0, 20.0) * 2, *(2.5, 5.0, 10.0, 20.0) * 4)
# A packet has at most so much.
_PACKET_MS_MAX = 120.0


def opus_s(audio: bytes, at: int) -> float:
    """The seconds of the packet that begins at `at`."""
    if at >= len(audio):
        return 0.0
    first = audio[at]
    frames = (1, 2, 2, audio[at + 1] & 63 if at + 1 < len(audio) else 1)[first & 3]
    return min(frames * _FRAME_MS[first >> 3], _PACKET_MS_MAX) / 1000
