"""The log under the journal: one long address space, cut into segment files named by their first address.

Law: a frame is known by its place, one integer. Segments leave in the order they came, and are deleted only when what
replaced them is on the disk: reading all files in order gives the state at whatever instant the process died. After an
I/O error no present file is trusted again (fsync reports an error once and forgets it).

All methods run on one thread, except `sync`, which may run in another.
"""

from __future__ import annotations

import errno
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from proxy.journal.frames import Frame, encode_frame
from proxy.journal.segment import Segment, sync_directory

# Large enough that a busy proxy (10 MB/s of frames) begins one a second at most, small enough to copy in milliseconds.
SEGMENT_BYTES = 8 << 20

# A place is address × 2^20 + length: an outage keeps a million of them in memory, and a tuple costs three times that.
_LENGTH_BITS = 20
_LENGTH_MASK = (1 << _LENGTH_BITS) - 1

NOWHERE = 0
"""the place of what is not in the log"""

# What passes by itself: no room, no quota, past the file size limit, out of file descriptors.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE})


class JournalUnavailable(Exception):  # noqa: N818 - a state of the disk, named like JournalFull and JournalBroken
    """No exchange can be opened durably now. Running ones are not harmed."""


class JournalFull(JournalUnavailable):
    """The disk is full, or more is unsettled than allowed. It passes by itself."""


class JournalBroken(JournalUnavailable):
    """The disk does not keep what is written to it."""


class JournalInUse(JournalUnavailable):
    """Another process has this journal open."""


@contextmanager
def unavailable() -> Iterator[None]:
    """The one seam where OSError becomes JournalFull or JournalBroken."""
    try:
        yield
    except OSError as error:
        kind = JournalFull if error.errno in _FULL else JournalBroken
        raise kind(f"the journal cannot be written: {error.strerror}") from error


def lsn_of(segment: Segment, offset: int, length: int) -> int:
    """Where a frame is in the whole log, and how long it is; never NOWHERE."""
    return segment.base + offset << _LENGTH_BITS | length


class Log:
    """Append, read back, and account for what is alive."""

    def __init__(self, directory: Path, segments: Sequence[Segment]) -> None:
        self.segments = list(segments)
        self.alive_bytes = 0
        """length of all frames that still count"""
        self.suspect = False
        """a write or a sync failed: what is alive must be written anew"""
        self.probation = False
        """it was written anew, and no sync has succeeded since"""
        self.broken = False
        """a failure during probation: the disk is given up"""
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

    def append(self, kind: int, seq: int, payload: bytes) -> int:
        """Write a frame at the end; return its place. It does not count as alive yet.

        Raises JournalFull, JournalBroken.
        """
        if self.broken:
            raise JournalBroken("the disk failed twice in a row")
        segment = self.segments[-1]
        if segment.end >= SEGMENT_BYTES:
            with suppress(OSError):  # no room for another file: go on in this one
                segment = self.roll()
        frame = encode_frame(kind, seq, payload)
        try:
            offset = segment.append(frame)
        except OSError as error:
            if error.errno not in _FULL:
                self.distrust()
            with unavailable():
                raise
        return lsn_of(segment, offset, len(frame))

    def read(self, place: int) -> Frame | None:
        """The frame at `place`; None if there is none, or it is not as it was written."""
        if place == NOWHERE:
            return None
        segment, offset, length = self.locate(place)
        return segment.read(offset, length)

    def mark_live(self, place: int) -> None:
        """The frame at `place` counts."""
        segment, _, length = self.locate(place)
        segment.alive += 1
        self.alive_bytes += length

    def mark_dead(self, place: int) -> None:
        """The frame at `place` does not count any more."""
        if place != NOWHERE:
            segment, _, length = self.locate(place)
            segment.alive -= 1
            self.alive_bytes -= length

    def locate(self, place: int) -> tuple[Segment, int, int]:
        """The segment, the offset in it and the length of the frame at `place`."""
        address = place >> _LENGTH_BITS
        segment = self.segments[-1]
        if address < segment.base:
            segment = self.segments[bisect_right(self.segments, address, key=lambda s: s.base) - 1]
        return segment, address - segment.base, place & _LENGTH_MASK

    def roll(self) -> Segment:
        """A new segment at the end. Raises OSError."""
        end = self.segments[-1].base + self.segments[-1].end if self.segments else 0
        segment = Segment.create(self._directory, end)
        self.segments.append(segment)
        self._directory_dirty = True
        return segment

    def retire_oldest(self) -> None:
        """Let the oldest segment go, in which nothing is alive; the next `sync` deletes it."""
        assert self.segments[0].alive == 0, "a segment with living frames stays"
        self._retired.append(self.segments.pop(0))

    def distrust(self) -> None:
        """After an I/O error: what is alive in the present files must be written anew; if it was already, give up."""
        for segment in tuple(self.segments):
            segment.trusted = False
        self.broken = self.broken or self.probation
        self.suspect = not self.broken

    def sync(self) -> None:
        """Make everything written before this call survive a power cut, then delete what is replaced. Blocks.

        Raises JournalBroken (or JournalFull: a file system may say only now that it has no room).
        """
        with self._sync_lock:
            retired = tuple(self._retired)  # first: what replaced these is then in the segments synced below
            try:
                self._sync_files()
            except OSError:
                self.distrust()
                with unavailable():
                    raise
            if self.suspect or self.broken:
                raise JournalBroken("an earlier write or sync failed")
            self.probation = False
            with suppress(OSError):  # tried again at the next sync; deletion keeps the order
                for segment in retired:
                    segment.remove()
                    self._retired.remove(segment)

    def _sync_files(self) -> None:
        for segment in tuple(self.segments):
            segment.sync()
        if self._directory_dirty:
            self._directory_dirty = False
            sync_directory(self._directory)

    def close(self) -> None:
        """Give the files back."""
        with self._sync_lock:
            for segment in (*self._retired, *self.segments):
                segment.close()
