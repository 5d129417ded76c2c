"""MP4, M4A and MOV: boxes. Counted are the samples in the tables of the sound track, each a frame of the codec; the
durations in headers are ignored. ISO/IEC 14496-12, 14496-14"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from struct import error, unpack_from

from proxy.metering.audio.codecs import FRAME, config_rate
from proxy.metering.audio.parts import Parts

# Samples of one frame of a codec. Of other codecs the table of times counts, but no less than their bytes at this rate,
# which is the highest of Opus: 510 kbit/s.
_FRAMES = {b".mp3": 1152, b"samr": 160, b"sawb": 320}
_BYTES_PER_S_MAX = 64_000
_INSIDE = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"moof", b"traf")
_TRACKS_MAX, _TIMES_MAX, _DEPTH_MAX = 16, 4_096, 8


class _Track:
    """The fields in the boxes of a track."""

    def __init__(self) -> None:
        self.is_sound = False
        self.number = self.rate = self.scale = self.samples = self.frame = self.deltas = self.delta = 0

    def seconds(self, added: int, size: int) -> float:
        """The seconds of the samples in the tables and in fragments. `size`: bytes of the file."""
        stated_s = (self.deltas + added * self.delta) / self.scale if self.scale else 0.0
        if self.frame and self.rate:
            frame_s = self.frame / self.rate
            most = (self.samples + added) * frame_s
            return stated_s if most - frame_s <= stated_s <= most else most  # the last frame may be shorter
        return max(stated_s, size / _BYTES_PER_S_MAX) if self.samples + added else 0.0


def mp4_s(audio: bytes, parts: Parts) -> float:
    """The seconds of the longest sound track."""
    tracks: list[_Track] = []
    added: dict[int, int] = {}  # number of a track → samples of its fragments
    fragment = 0
    for name, start, end in _boxes(audio, 0, len(audio), parts):
        with suppress(error, IndexError):  # the file ends in the box
            if name == b"trak" and len(tracks) < _TRACKS_MAX:
                tracks.append(_Track())
            elif name == b"tfhd":
                fragment = unpack_from(">I", audio, start + 4)[0]
            elif name == b"trun":  # each sample has a byte at least
                added[fragment] = min(added.get(fragment, 0) + unpack_from(">I", audio, start + 4)[0], len(audio))
            elif tracks:
                _read(audio, name, start, end, tracks[-1])
    parts.counted_to = len(audio)
    return max([one.seconds(added.get(one.number, 0), len(audio)) for one in tracks if one.is_sound], default=0.0)


def _read(audio: bytes, name: bytes, start: int, end: int, track: _Track) -> None:
    """A box of a track. Raises struct.error, IndexError."""
    if name == b"tkhd":
        track.number = unpack_from(">I", audio, start + (20 if audio[start] else 12))[0]
    elif name == b"mdhd":
        track.scale = unpack_from(">I", audio, start + (20 if audio[start] else 12))[0]
    elif name == b"hdlr":
        track.is_sound = audio[start + 8 : start + 12] == b"soun"
    elif name == b"stsd":
        _read_codec(audio[start:end], track)
    elif name in (b"stsz", b"stz2"):
        one, count = unpack_from(">II", audio, start + 4)
        # All have the same size and are in the file, or each has one in the table, of four bits at least.
        track.samples = min(count, len(audio) // one if name == b"stsz" and one else (end - start) * 2)
    elif name == b"stts":
        count = min(unpack_from(">I", audio, start + 4)[0], (end - start) // 8, _TIMES_MAX)
        for at in range(start + 8, start + 8 + 8 * count, 8):
            samples, track.delta = unpack_from(">II", audio, at)
            track.deltas += samples * track.delta


def _read_codec(box: bytes, track: _Track) -> None:
    """Codec, samples of a frame, and sample rate for decoders. Raises struct.error, IndexError."""
    codec, rate = box[12:16], unpack_from(">H", box, 40)[0]
    track.frame = _FRAMES.get(codec, 0)
    if codec == b"mp4a":
        track.frame = FRAME
        if (at := box.find(b"esds")) >= 0:
            rate = config_rate(_aac_config(box, at + 8)) or rate
    elif codec == b"alac" and (at := box.find(b"alac", 16)) >= 0:
        track.frame, rate = unpack_from(">I16xI", box, at + 8)
    track.rate = rate


def _aac_config(box: bytes, at: int) -> bytes:
    """The codec configuration in an ES descriptor. Raises IndexError."""
    for tag, header in ((3, 3), (4, 13), (5, 0)):
        if box[at] != tag:
            return b""
        at += 1
        while box[at] & 128:  # a length of seven bits in a byte
            at += 1
        at += 1 + header
    return box[at : at + 5]


def _boxes(audio: bytes, at: int, end: int, parts: Parts, depth: int = 0) -> Iterator[tuple[bytes, int, int]]:
    """Name, start and end of all boxes that are read, each before the boxes inside it."""
    while at + 8 <= end and parts.next(at):
        size, name = unpack_from(">I4s", audio, at)
        start = at + 8
        if size == 1 and at + 16 <= end:
            size, start = unpack_from(">Q", audio, start)[0], start + 8
        box_end = end if size == 0 else min(at + size, end)
        if box_end < start:
            return
        yield name, start, box_end
        if name in _INSIDE and depth < _DEPTH_MAX:
            yield from _boxes(audio, start, box_end, parts, depth + 1)
        at = box_end
