"""Reads a journal that another process may be using: its settled records, and the ids of its unsettled exchanges.

Invariants: reading takes no lock and writes nothing. Damaged bytes and frames of later versions are skipped: the
journal reports them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from proxy.journal.frames import (
    Frame,
    FrameKind,
    UndecodableError,
    decode_envelope,
    decode_opened,
    decode_seqs,
    scan,
)
from proxy.journal.journal import Pending
from proxy.journal.kept import FOLDER
from proxy.journal.segment import SUFFIX


def settled_records(journal: Path) -> Iterator[list[Pending]]:
    """The settled records of kept segments, and of segments with live records, newest segment first: one list a
    segment, by rising seq. A record that waits for the ledger is never among them. Raises OSError."""
    settled: set[int] = set()
    seen: set[int] = set()
    names = {path.name for path in journal.glob(f"*{SUFFIX}")}
    names |= {path.name for path in (journal / FOLDER).glob(f"*{SUFFIX}")}
    for name in sorted(names, reverse=True):
        found = _settled(_frames(journal, name), settled, seen)
        yield sorted(found, key=lambda one: one.seq)


def _settled(frames: Sequence[Frame], settled: set[int], seen: set[int]) -> Iterator[Pending]:
    """Read the frames from the last to the first: the frames after a record's last copy decide whether it is
    settled."""
    for frame in reversed(frames):
        if frame.kind == FrameKind.SETTLED:
            try:
                settled.update(set(decode_seqs(frame.payload)) - seen)
            except UndecodableError:
                continue
        elif frame.kind == FrameKind.CLOSE and frame.seq not in seen:
            seen.add(frame.seq)
            if frame.seq in settled:
                yield Pending(frame.seq, frame.payload)


def _frames(journal: Path, name: str) -> Sequence[Frame]:
    """The frames of a segment, which may be moved or deleted meanwhile."""
    for path in (journal / name, journal / FOLDER / name):
        try:
            return scan(path.read_bytes()).frames
        except FileNotFoundError:
            continue
    return ()


def unsettled_exchanges(folder: Path) -> set[str]:
    """The ids of the exchanges that are open, or whose records have no receipt yet. Raises OSError.

    They may include an exchange that has just been settled, and never lack one that was opened before the call.
    """
    opened: set[str] = set()
    closed: dict[int, str] = {}
    settled: set[int] = set()
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            frames = scan(path.read_bytes()).frames
        except FileNotFoundError:  # all its records have just been settled
            continue
        for frame in frames:
            try:
                if frame.kind == FrameKind.OPEN:
                    opened.add(decode_opened(frame.payload).exchange_id)
                elif frame.kind == FrameKind.CLOSE:
                    closed[frame.seq] = decode_envelope(frame.payload).opened.exchange_id
                    settled.discard(frame.seq)  # it is pending again: the ledger has lost it
                elif frame.kind == FrameKind.SETTLED:
                    settled |= set(decode_seqs(frame.payload))
            except UndecodableError:  # of a later version, or damaged: the journal quarantines and logs it
                continue
    return opened - set(closed.values()) | {one for seq, one in closed.items() if seq not in settled}
