"""The log under the journal: one address space, split into segment files that are named by their first address.

Invariants: an lsn (log sequence number: address and length in one integer) identifies a frame. Segments are retired in
the order of their addresses, and only when the copies of their live frames are on the disk: reading all files in order
gives the state at the instant of a crash. A retired segment is deleted or kept aside (`kept.py`). After an I/O error no
existing file is trusted (fsync reports an error only once).

All methods run on one thread, except `sync`, which may run in another.
"""

from __future__ import annotations

import errno
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from proxy.foundation.files import sync
from proxy.journal.frames import Frame, encode_frame
from proxy.journal.kept import KeptSegments
from proxy.journal.segment import Segment

# A busy proxy (10 MB/s of frames) starts at most one segment a second, and copying one takes milliseconds.
SEGMENT_BYTES = 8 << 20

# An lsn is address × 2^20 + length: an outage keeps a million of them in memory, and a tuple takes three times as much.
_LENGTH_BITS = 20
_LENGTH_MASK = (1 << _LENGTH_BITS) - 1

NOWHERE = 0
"""the lsn of a frame that is not in the log"""

# What deleting files resolves: no space, no quota.
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
# Temporary conditions: besides, above the file size limit, out of file descriptors.
_FULL = _NO_SPACE | {errno.EFBIG, errno.EMFILE, errno.ENFILE}


class JournalUnavailable(Exception):  # noqa: N818 - a state of the disk, named like JournalFull and JournalBroken
    """No exchange can be opened durably now. Running exchanges are unaffected."""


class JournalFull(JournalUnavailable):
    """The disk is full, or the limit of unsettled bytes is reached. Temporary."""


class JournalBroken(JournalUnavailable):
    """The disk fails to store written data."""


class JournalInUse(JournalUnavailable):
    """Another process has this journal open."""


@contextmanager
def unavailable() -> Iterator[None]:
    """Map OSError to JournalFull or JournalBroken. The only function that does so."""
    try:
        yield
    except OSError as error:
        kind = JournalFull if error.errno in _FULL else JournalBroken
        raise kind(f"the journal cannot be written: {error.strerror}") from error


def lsn_of(segment: Segment, offset: int, length: int) -> int:
    """The lsn of a frame; never NOWHERE."""
    return segment.base + offset << _LENGTH_BITS | length


def place_of(segment: Segment, lsn: int) -> tuple[int, int]:
    """The offset in its segment, and the length, of the frame at `lsn`."""
    return (lsn >> _LENGTH_BITS) - segment.base, lsn & _LENGTH_MASK


class Log:
    """Appends and reads frames, and counts the live ones."""

    def __init__(self, directory: Path, segments: Sequence[Segment], kept: KeptSegments) -> None:
        self.kept = kept
        self.segments = list(segments)
        self.alive_bytes = 0
        """bytes of all live frames"""
        self.suspect = False
        """True if a write or a sync failed: live frames must be rewritten"""
        self.probation = False
        """True if live frames were rewritten, and no sync has succeeded since"""
        self.broken = False
        """True after a failure during probation: no further writes"""
        self._directory = directory
        self._directory_dirty = True
        self._retired: list[Segment] = []
        self._sync_lock = threading.Lock()

    @property
    def length(self) -> int:
        """Bytes of all segments in use."""
        return self.segments[-1].base + self.segments[-1].end - self.segments[0].base

    @property
    def dirty(self) -> bool:
        """True if `sync` has something to do."""
        return bool(self._retired) or any(segment.dirty for segment in self.segments)

    def append(self, kind: int, seq: int, payload: bytes, *, live: bool) -> int:
        """Write a frame at the end; return its lsn. `live`: as by `mark_live`. Raises JournalFull, JournalBroken."""
        if self.broken:
            raise JournalBroken("the journal cannot be written: its disk failed twice in a row; restart to try again")
        segment = self.segments[-1]
        if segment.end >= SEGMENT_BYTES:
            with suppress(OSError):  # no space for another file: continue in this one
                segment = self.roll()
        frame = encode_frame(kind, seq, payload)
        try:
            try:
                offset = segment.append(frame)
            except OSError as error:
                offset = self._append_in_their_place(segment, frame, error)
        except OSError as error:
            if error.errno not in _FULL:
                self.distrust()
            with unavailable():
                raise
        length = len(frame)
        if live:
            segment.alive += 1
            self.alive_bytes += length
        return segment.base + offset << _LENGTH_BITS | length  # as `lsn_of`

    def _append_in_their_place(self, segment: Segment, frame: bytes, error: OSError) -> int:
        """On a full disk, delete kept segments until the frame fits. Raises OSError: `error`, if it still does not
        fit."""
        while error.errno in _NO_SPACE and self.kept.drop_oldest():
            try:
                return segment.append(frame)
            except OSError as again:
                error = again
        raise error

    def read(self, lsn: int) -> Frame | None:
        """The frame at `lsn`; None if it is missing or damaged."""
        if lsn == NOWHERE:
            return None
        segment, offset, length = self.locate(lsn)
        return segment.read(offset, length)

    def mark_live(self, lsn: int) -> None:
        """Mark a frame as needed: it is copied before its segment is deleted."""
        segment, _, length = self.locate(lsn)
        segment.alive += 1
        self.alive_bytes += length

    def mark_dead(self, lsn: int) -> None:
        """Mark a frame as no longer needed."""
        if lsn != NOWHERE:
            segment, _, length = self.locate(lsn)
            segment.alive -= 1
            self.alive_bytes -= length

    def locate(self, lsn: int) -> tuple[Segment, int, int]:
        """The segment, the offset in it and the length of the frame at `lsn`."""
        address = lsn >> _LENGTH_BITS
        segment = self.segments[-1]
        if address < segment.base:
            segment = self.segments[bisect_right(self.segments, address, key=lambda s: s.base) - 1]
        return segment, address - segment.base, lsn & _LENGTH_MASK

    def roll(self) -> Segment:
        """A new segment at the end. Raises OSError."""
        end = self.segments[-1].base + self.segments[-1].end if self.segments else 0
        segment = Segment.create(self._directory, end)
        self.segments.append(segment)
        self._directory_dirty = True
        return segment

    def retire_oldest(self) -> None:
        """Retire the oldest segment, which has no live frame; the next `sync` deletes it or keeps it aside."""
        assert self.segments[0].alive == 0, "a segment with live frames is not retired"
        self._retired.append(self.segments.pop(0))

    def distrust(self) -> None:
        """Handle an I/O error: the live frames of all files must be rewritten; during probation, the log is broken."""
        for segment in tuple(self.segments):
            segment.trusted = False
        self.broken = self.broken or self.probation
        self.suspect = not self.broken

    def sync(self) -> None:
        """Make everything written so far survive a power cut, then delete retired segments or keep them aside. Blocks.

        Raises JournalBroken (or JournalFull: some file systems report only now that the disk is full).
        """
        with self._sync_lock:
            retired = tuple(self._retired)  # first: the copies of their frames are in the segments synced below
            try:
                self._sync_files()
            except OSError:
                self.distrust()
                with unavailable():
                    raise
            if self.suspect or self.broken:
                raise JournalBroken("the journal cannot be synced: an earlier write or sync failed")
            self.probation = False
            with suppress(OSError):  # retried at the next sync; segments still go in order
                for segment in retired:
                    self.kept.keep(segment)
                    self._retired.remove(segment)
                if retired:
                    self.kept.prune(self.length)

    def _sync_files(self) -> None:
        for segment in tuple(self.segments):
            segment.sync()
        if self._directory_dirty:
            self._directory_dirty = False
            sync(self._directory)

    def close(self) -> None:
        """Close all files."""
        with self._sync_lock:
            for segment in (*self._retired, *self.segments):
                segment.close()
