"""Matroska and WebM: elements. Counted are the blocks of the sound track, each a packet of the codec; the duration in
the header is ignored. RFC 8794, RFC 9559"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from struct import unpack

from proxy.metering.audio.codecs import FRAME, config_rate, is_vorbis, opus_s, vorbis_s
from proxy.metering.audio.mpeg import frame_at
from proxy.metering.audio.parts import Parts

_SEGMENT, _INFO, _SCALE, _TRACKS, _TRACK = 0x18538067, 0x1549A966, 0x2AD7B1, 0x1654AE6B, 0xAE
_NUMBER, _KIND, _CODEC, _PRIVATE, _AUDIO, _RATE = 0xD7, 0x83, 0x86, 0x63A2, 0xE1, 0xB5
_CLUSTER, _TIME, _GROUP, _BLOCK, _SIMPLE = 0x1F43B675, 0xE7, 0xA0, 0xA1, 0xA3
_INSIDE = (_SEGMENT, _INFO, _TRACKS, _TRACK, _AUDIO, _CLUSTER, _GROUP)
_SOUND = 2
# Of other codecs, the times of the blocks count, but no less than their bytes at this rate: 24 bits of 48 kHz, stereo.
_BYTES_PER_S_MAX = 288_000
# No two blocks are further apart, in seconds: where a recording was silent, or where the times are not so.
_GAP_S_MAX = 1.0


class _Sound:
    """A track: its fields, and its blocks."""

    def __init__(self) -> None:
        self.number = self.kind = self.rate = 0
        self.codec = self.private = b""
        self.cluster = 0.0
        """time of the cluster in seconds: times of its blocks are relative to it"""
        self._packets = self._bytes = 0
        self._packets_s = self._times_s = 0.0
        self._last: float | None = None

    def read(self, audio: bytes, at: int, end: int, scale: float) -> None:
        """A block: two bytes of time, flags, and with several packets their number. Raises IndexError."""
        laced = audio[at + 2] & 6
        packets, first = (audio[at + 3] + 1, at + 4) if laced else (1, at + 3)
        self._packets += packets
        self._bytes += end - first
        if self.codec == b"A_OPUS":
            self._packets_s += packets * opus_s(audio, first)
        elif self.codec.startswith(b"A_MPEG") and (frame := frame_at(audio, first)) is not None:
            self._packets_s += packets * frame[1]
        time = self.cluster + int.from_bytes(audio[at : at + 2], signed=True) * scale
        if self._last is not None:
            self._times_s += min(max(time - self._last, 0.0), _GAP_S_MAX)
        self._last = time

    def seconds(self) -> float:
        if self.codec == b"A_OPUS" or self.codec.startswith(b"A_MPEG"):
            return self._packets_s
        if self.codec.startswith(b"A_AAC") and (rate := config_rate(self.private) or self.rate):
            return self._packets * FRAME / rate
        at = self.private.find(b"\x01vorbis")
        if self.codec == b"A_VORBIS" and at >= 0 and is_vorbis(header := self.private[at : at + 64]):
            return vorbis_s(header, self._packets, self._times_s * int.from_bytes(header[12:16], "little"))
        return max(self._times_s, self._bytes / _BYTES_PER_S_MAX)


def matroska_s(audio: bytes, parts: Parts) -> float:
    """The seconds of the first sound track."""
    tracks: dict[int, _Sound] = {}
    track, scale = _Sound(), 1e-3
    for element, start, end in _elements(audio, 0, len(audio), parts):
        if element in (_BLOCK, _SIMPLE):
            with suppress(ValueError, IndexError):  # the file ends in the block
                number, at = _number(audio, start, keep_marker=False)
                if number in tracks:
                    tracks[number].read(audio, at, end, scale)
        elif element == _TIME:
            for one in tracks.values():
                one.cluster = int.from_bytes(audio[start:end]) * scale
        elif element == _SCALE:
            scale = int.from_bytes(audio[start:end]) / 1e9 or scale
        elif element == _TRACK:
            track = _Sound()
        else:
            _read(element, audio[start : min(end, start + 4096)], track)
        if track.kind == _SOUND and track.number and not tracks:
            tracks[track.number] = track
    return max([one.seconds() for one in tracks.values()], default=0.0)


def _read(element: int, content: bytes, track: _Sound) -> None:
    """The fields of a track."""
    if element == _NUMBER:
        track.number = int.from_bytes(content[:8])
    elif element == _KIND:
        track.kind = int.from_bytes(content[:8])
    elif element == _CODEC:
        track.codec = content[:32].rstrip(b"\0")
    elif element == _PRIVATE:
        track.private = content
    elif element == _RATE and len(content) in (4, 8):
        rate = unpack(">f" if len(content) == 4 else ">d", content)[0]
        track.rate = int(rate) if 0 < rate < 1e6 else 0


def _number(audio: bytes, at: int, *, keep_marker: bool) -> tuple[int, int]:
    """A number of variable length, and the offset behind it. Raises ValueError, IndexError."""
    width = 9 - audio[at].bit_length()
    if width > 8:
        raise ValueError("no number")
    value = int.from_bytes(audio[at : at + width])
    return (value if keep_marker else value & (1 << 7 * width) - 1), at + width


def _elements(audio: bytes, at: int, end: int, parts: Parts) -> Iterator[tuple[int, int, int]]:
    """Id, start and end of all elements, each before the elements inside it. Recorders that stream write elements of
    unknown size: such an element is entered, and never left."""
    ends = [end]
    while ends and parts.next(at):
        if at + 2 > ends[-1]:
            at = max(at, ends.pop())
            continue
        try:
            element, size_at = _number(audio, at, keep_marker=True)
            size, start = _number(audio, size_at, keep_marker=False)
        except (ValueError, IndexError):
            return
        unknown = size == (1 << 7 * (start - size_at)) - 1
        element_end = ends[-1] if unknown else min(start + size, ends[-1])
        yield element, start, element_end
        if unknown or element not in _INSIDE:
            at = start if unknown else element_end
        else:
            ends.append(element_end)
            at = start
