"""Ogg: pages of packets, of one stream after the other. Opus packets state their length; Vorbis packets have at most
half a long block of samples; of other codecs the position of the last page counts. RFC 3533, RFC 7845, Vorbis I"""

from __future__ import annotations

from proxy.metering.audio.codecs import is_vorbis, opus_s, vorbis_s
from proxy.metering.audio.parts import Parts

_PAGE_BYTES, _NO_POSITION = 27, (1 << 64) - 1
# More streams in one file, one after the other, are no recording.
_STREAMS_MAX = 256
_OPUS_HEADERS, _VORBIS_HEADERS = 2, 3


class _Stream:
    """The packets of one stream."""

    def __init__(self, first: bytes) -> None:
        """`first`: the beginning of the stream's first packet."""
        self._first = first
        self._is_opus = first.startswith(b"OpusHead")
        self._begun = False  # a packet continues on the next page
        self._packets = self._position = 0
        self._opus_s = 0.0

    def read(self, audio: bytes, at: int, lacing: bytes, position: int, parts: Parts) -> None:
        """A page, whose packets begin at `at`."""
        if position != _NO_POSITION:
            self._position = max(self._position, position)
        for size in lacing:
            if not self._begun:
                self._packets += 1
                if self._is_opus and self._packets > _OPUS_HEADERS and parts.next(at):
                    self._opus_s += opus_s(audio, at)
            self._begun = size == 255
            at += size

    def seconds(self) -> float:
        first = self._first
        if self._is_opus:
            return self._opus_s
        if is_vorbis(first):
            return vorbis_s(first, self._packets - _VORBIS_HEADERS, self._position)
        if first.startswith(b"\x7fFLAC"):
            return self._position / (int.from_bytes(first[27:30]) >> 4 or 48_000)
        if first.startswith(b"Speex"):
            return self._position / (int.from_bytes(first[36:40], "little") or 16_000)
        return 0.0


def ogg_s(audio: bytes, parts: Parts) -> float:
    """The seconds of all streams."""
    at, streams = 0, dict[bytes, _Stream]()
    while (at := audio.find(b"OggS", at)) >= 0 and at + _PAGE_BYTES <= len(audio) and parts.next(at):
        count, serial = audio[at + 26], audio[at + 14 : at + 18]
        lacing = audio[at + _PAGE_BYTES : at + _PAGE_BYTES + count]
        start = at + _PAGE_BYTES + count
        if serial not in streams and len(streams) < _STREAMS_MAX:
            streams[serial] = _Stream(audio[start : start + 64])
        if serial in streams:
            streams[serial].read(audio, start, lacing, int.from_bytes(audio[at + 6 : at + 14], "little"), parts)
        at = start + sum(lacing)
    return sum(stream.seconds() for stream in streams.values())
