"""Reads a journal's segments in order at start and rebuilds its state.

Invariants: frames are idempotent, so that a frame that was copied to a later segment may be read twice. Unreadable data
is quarantined and reported, never dropped and never guessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from msgspec import structs

from proxy.journal.frames import (
    RECORD_VERSION,
    Frame,
    FrameKind,
    Scan,
    UndecodableError,
    decode_envelope,
    decode_opened,
    decode_seqs,
    opened_exchange,
    scan,
)
from proxy.journal.log import lsn_of, place_of
from proxy.journal.segment import Segment, keep_aside

# A seq is one integer, epoch × 2^40 + count: 34 years at 1,000 records a second, and 8 million starts, in 63 bits.
COUNT_BITS = 40


@dataclass(frozen=True, slots=True)
class Damage:
    """Damaged or missing data. `offset` and `length` in bytes within `file`."""

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
    """exchange_id → lsn of the OPEN frame that has no CLOSE"""
    pending: dict[int, int] = field(default_factory=dict)
    """seq → lsn of the CLOSE frame that is not settled, by rising seq"""
    damage: list[Damage] = field(default_factory=list)
    torn_bytes: int = 0
    epoch_seen: int = 0
    frames: int = 0


def replay(directory: Path, segments: Sequence[Segment]) -> Replay:
    """Read all segments. Truncates the torn tail of the last one; changes nothing else."""
    state = Replay()
    for segment in segments:
        _read(state, directory, segment, last=segment is segments[-1])
    state.damage += [damage for segment in segments for damage in _unreadable(state, directory, segment)]
    state.damage += _holes(segments)
    state.pending = dict(sorted(state.pending.items()))
    return state


def _read(state: Replay, directory: Path, segment: Segment, *, last: bool) -> None:
    image = segment.image()
    content = scan(image)
    state.torn_bytes += content.torn_bytes
    state.frames += len(content.frames)
    state.damage += _gaps(directory, segment, image, content)
    for frame in content.frames:
        try:
            _take(state, frame, lsn_of(segment, frame.offset, frame.length))
        except UndecodableError as wrong:
            state.damage.append(_quarantined(directory, segment, frame, wrong))
    if last and content.torn_bytes:
        segment.cut(segment.end - content.torn_bytes)


def _unreadable(state: Replay, directory: Path, segment: Segment) -> Iterator[Damage]:
    """Quarantine the open exchanges in `segment` that this version cannot read."""
    first, last = lsn_of(segment, 0, 0), lsn_of(segment, segment.end, 0)
    for exchange_id, lsn in [(one, lsn) for one, lsn in state.open.items() if first < lsn < last]:
        offset, length = place_of(segment, lsn)
        frame = segment.read(offset, length)
        if frame is None:  # it was whole a moment ago: `Journal.unfinished` passes over it
            continue
        try:
            decode_opened(frame.payload)
        except UndecodableError as wrong:
            del state.open[exchange_id]
            yield _quarantined(directory, segment, structs.replace(frame, offset=offset), wrong)


def _holes(segments: Sequence[Segment]) -> Iterator[Damage]:
    for segment, following in pairwise(segments):
        end = segment.base + segment.end
        if end < following.base:
            yield Damage(segment.path.name, segment.end, following.base - end, "bytes are missing at the end")


def _gaps(directory: Path, segment: Segment, image: bytes, content: Scan) -> Iterator[Damage]:
    if content.gaps:
        kept_as = keep_aside(directory, segment.path.name, image)
        for offset, length in content.gaps:
            yield Damage(segment.path.name, offset, length, "unreadable bytes", kept_as)


def _quarantined(directory: Path, segment: Segment, frame: Frame, wrong: UndecodableError) -> Damage:
    """Keep the payload of a frame that this version cannot read."""
    name = f"{segment.path.name}-{frame.offset}-kind{frame.kind}"
    kept_as = keep_aside(directory, name, frame.payload)
    return Damage(segment.path.name, frame.offset, frame.length, str(wrong), kept_as)


def _take(state: Replay, frame: Frame, lsn: int) -> None:
    match frame.kind:
        case FrameKind.OPEN:
            state.open[opened_exchange(frame.payload)] = lsn
        case FrameKind.CLOSE:
            state.epoch_seen = max(state.epoch_seen, frame.seq >> COUNT_BITS)
            envelope = decode_envelope(frame.payload)
            state.open.pop(envelope.opened.exchange_id, None)
            if envelope.version > RECORD_VERSION:
                raise UndecodableError(
                    f"record version {envelope.version} is too new: this code reads up to {RECORD_VERSION}"
                )
            state.pending[frame.seq] = lsn
        case FrameKind.SETTLED:
            for seq in decode_seqs(frame.payload):
                state.pending.pop(seq, None)
        case _:
            raise UndecodableError(f"unknown frame kind: {frame.kind}")
