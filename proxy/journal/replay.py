"""What the segments of a journal say, read in order, at start.

Law: every frame is idempotent, so a frame that was copied to a later segment may be read twice; what cannot be
read is kept aside and said, never dropped and never guessed at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from proxy.journal.frames import (
    RECORD_VERSION,
    Frame,
    FrameKind,
    Scan,
    UndecodableError,
    decode_envelope,
    decode_opened,
    decode_seqs,
    scan,
)
from proxy.journal.log import lsn_of
from proxy.journal.segment import Segment, keep_aside

# A seq is one integer, epoch × 2^40 + count: 34 years at 1,000 records a second, and 8 million starts, in 63 bits.
COUNT_BITS = 40


@dataclass(frozen=True, slots=True)
class Damage:
    """Something that is not as it was written. `offset` and `length` in bytes within `file`."""

    file: str
    offset: int
    length: int
    what: str
    kept_as: str | None = None
    """name of the copy in the quarantine folder"""


@dataclass(slots=True)
class Replay:
    """The state of a journal after its last frame."""

    open: dict[str, int] = field(default_factory=dict)
    """exchange_id → place of the OPEN frame that has no CLOSE"""
    pending: dict[int, int] = field(default_factory=dict)
    """seq → place of the CLOSE frame that is not settled, by rising seq"""
    damage: list[Damage] = field(default_factory=list)
    torn_bytes: int = 0
    epoch_seen: int = 0
    frames: int = 0


def replay(directory: Path, segments: Sequence[Segment]) -> Replay:
    """Read everything. Cuts the torn tail off the last segment; changes nothing else."""
    state = Replay()
    for segment in segments:
        _read(state, directory, segment, last=segment is segments[-1])
    state.damage += _holes(segments)
    state.pending = dict(sorted(state.pending.items()))
    return state


def _read(state: Replay, directory: Path, segment: Segment, *, last: bool) -> None:
    image = segment.image()
    found = scan(image)
    state.torn_bytes += found.torn_bytes
    state.frames += len(found.frames)
    state.damage += _gaps(directory, segment, image, found)
    for frame in found.frames:
        state.damage += _apply(state, directory, segment, frame)
    if last and found.torn_bytes:
        segment.cut(segment.end - found.torn_bytes)


def _holes(segments: Sequence[Segment]) -> Iterator[Damage]:
    for segment, following in pairwise(segments):
        end = segment.base + segment.end
        if end < following.base:
            yield Damage(segment.path.name, segment.end, following.base - end, "bytes are missing at the end")


def _gaps(directory: Path, segment: Segment, image: bytes, found: Scan) -> Iterator[Damage]:
    if found.gaps:
        kept_as = keep_aside(directory, segment.path.name, image)
        for offset, length in found.gaps:
            yield Damage(segment.path.name, offset, length, "unreadable bytes", kept_as)


def _apply(state: Replay, directory: Path, segment: Segment, frame: Frame) -> Iterator[Damage]:
    """Take one frame into the state; what this version cannot read goes to the quarantine."""
    try:
        _take(state, frame, lsn_of(segment, frame.offset, frame.length))
    except UndecodableError as wrong:
        name = f"{segment.path.name}-{frame.offset}-kind{frame.kind}"
        kept_as = keep_aside(directory, name, frame.payload)
        yield Damage(segment.path.name, frame.offset, frame.length, str(wrong), kept_as)


def _take(state: Replay, frame: Frame, place: int) -> None:
    match frame.kind:
        case FrameKind.OPEN:
            state.open[decode_opened(frame.payload).exchange_id] = place
        case FrameKind.CLOSE:
            state.epoch_seen = max(state.epoch_seen, frame.seq >> COUNT_BITS)
            envelope = decode_envelope(frame.payload)
            state.open.pop(envelope.opened.exchange_id, None)
            if envelope.version > RECORD_VERSION:
                raise UndecodableError(f"record version {envelope.version}, this code reads up to {RECORD_VERSION}")
            state.pending[frame.seq] = place
        case FrameKind.SETTLED:
            for seq in decode_seqs(frame.payload):
                state.pending.pop(seq, None)
        case _:
            raise UndecodableError(f"unknown kind of frame: {frame.kind}")
