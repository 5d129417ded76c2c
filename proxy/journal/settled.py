"""The settled records that a journal still has, read by another process: those of kept segments, and those that share a
segment with live records.

Invariants: reading takes no lock and writes nothing, so a proxy may use the journal meanwhile. A record that waits for
the ledger is not returned. Damaged bytes and frames of later versions are skipped: the journal reports them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from proxy.journal.frames import Frame, FrameKind, UndecodableError, decode_seqs, scan
from proxy.journal.journal import Pending
from proxy.journal.kept import FOLDER
from proxy.journal.segment import SUFFIX


def settled_records(journal: Path) -> Iterator[list[Pending]]:
    """The settled records, newest segment first, one list a segment, by rising seq. Raises OSError."""
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
