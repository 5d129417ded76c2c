"""The local durable outbox: every exchange is opened here before its first response byte, and closed by its record.

Law: what `begin` and `finish` wrote survives `kill -9` when they return (the page cache does), and a power cut after
the next `sync`. A record stays until the ledger has it. Nothing is dropped in silence: not by a full disk (records wait
in memory), not by a failed fsync (what is alive is written anew, elsewhere), not by damage (kept aside and said).

What is alive is known in memory by its place in the log (about 150 bytes each). The oldest segment goes when nothing in
it is alive; when less than half of the log is alive, what is alive in the oldest is copied to the end. So the disk
holds less than twice what is unsettled plus two segments, a byte is copied about once, and an outage copies nothing.

All methods run on one thread, except `sync`, which may run in another.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from proxy.billing.record import Opened, UsageRecord
from proxy.journal.frames import (
    FrameKind,
    decode_opened,
    decode_record,
    opened_payload,
    record_payload,
    settled_payload,
)
from proxy.journal.log import (
    NOWHERE,
    JournalFull,
    JournalInUse,
    JournalUnavailable,
    Log,
    lsn_of,
    unavailable,
)
from proxy.journal.replay import COUNT_BITS, Damage, Replay, replay
from proxy.journal.segment import Node, Segment, keep_aside, last_node, lock, next_node, segments

Durability = Literal["process", "power"]
"""What an exchange must survive before its first response byte: `kill -9`, or a power cut (the owner awaits `sync`)."""

# A copied frame costs about 8 µs: running streams wait 2 ms at most for the tidying of one call.
_MOVED_AT_ONCE = 250

# One SETTLED frame stays far below the longest payload: 15 bytes a seq.
_SEQS_PER_FRAME = 10_000

_Key = TypeVar("_Key", str, int)


class Pending(msgspec.Struct, frozen=True, gc=False):
    """A record that the ledger may not have yet."""

    seq: int
    """rises over the node's whole life: epoch × 2^40 + count, without gaps within an epoch"""
    payload: bytes
    """the record as JSON"""

    @property
    def record(self) -> UsageRecord:
        """The record. Raises UndecodableError (a ValueError) if this version cannot read it."""
        return decode_record(self.payload)


class Journal:
    """See the law above. Made by `Journal.open`; every call costs microseconds."""

    def __init__(self, directory: Path, lock_fd: int, *, bytes_max: int, durability: Durability) -> None:
        last = last_node(directory)
        found = segments(directory)
        state = replay(directory, found)
        self._directory = directory
        self._lock_fd = lock_fd
        self._bytes_max = bytes_max
        self._log = Log(directory, found)
        self._open = state.open
        self._pending = state.pending
        self._owed: dict[int, tuple[str, bytes]] = {}
        """seq → (exchange_id, payload) of records that could not be written yet; their OPEN stays in `_open`"""
        self._owed_bytes = 0
        self._owed_settled: list[int] = []
        self.durability = durability
        self.wakeup: Callable[[], None] = lambda: None
        """called when a record becomes pending; the owner sets it"""
        self.torn_bytes = state.torn_bytes
        """length of the half-written frame that the last run left: the ordinary trace of a crash"""
        self.damage = [*state.damage, *_losses(last, state, found)]
        """what is not as it was written: an alarm if it is not empty"""
        self._begin_run()
        self.node = next_node(directory, last, state.epoch_seen)
        self._seq = self.node.epoch << COUNT_BITS

    @classmethod
    def open(cls, directory: Path, *, bytes_max: int, durability: Durability = "process") -> Journal:
        """Read what is there and take the journal over. `bytes_max`: unsettled bytes beyond which `begin` says no.

        Raises JournalInUse; JournalFull or JournalBroken if the folder cannot be written.
        """
        with unavailable():
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock_fd = lock(directory)
            if lock_fd is None:
                raise JournalInUse(f"another process has the journal {directory} open")
            try:
                journal = cls(directory, lock_fd, bytes_max=bytes_max, durability=durability)
                journal.sync()
            except BaseException:
                os.close(lock_fd)
                raise
        return journal

    def begin(self, opened: Opened) -> None:
        """Open an exchange durably.

        Raises JournalFull or JournalBroken: it was not opened, and must not be served.
        """
        assert opened.exchange_id not in self._open, "an exchange begins once"
        self._open[opened.exchange_id] = self._write_opened(opened)

    def reassign(self, opened: Opened) -> None:
        """An exchange that was begun goes on as this; what it was is forgotten once this is written.

        Raises JournalFull or JournalBroken: it is still what it was.
        """
        assert opened.exchange_id in self._open, "what goes on was begun"
        place = self._write_opened(opened)
        self._log.mark_dead(
            self._open[opened.exchange_id]
        )  # where it is only now: what is alive moves as others are written
        self._open[opened.exchange_id] = place

    def _write_opened(self, opened: Opened) -> int:
        """→ its place. Raises JournalFull, JournalBroken."""
        if self.unsettled_bytes >= self._bytes_max:
            raise JournalFull(f"{self.unsettled_bytes} bytes are unsettled, {self._bytes_max} are allowed")
        if self._owed and not self.retry():
            raise JournalFull("ended exchanges are waiting for room on the disk")
        return self._write(FrameKind.OPEN, 0, opened_payload(opened))

    def finish(self, record: UsageRecord) -> bool:
        """Close an exchange that was begun. Never fails for the disk.

        False: the record is in memory only, until `retry` succeeds; keep its progress slot until then.
        """
        exchange_id = record.opened.exchange_id
        assert exchange_id in self._open, "an exchange ends once, after it began"
        payload = record_payload(record)
        self._seq += 1
        self._owed[self._seq] = exchange_id, payload
        self._owed_bytes += len(payload)
        self._pending[self._seq] = NOWHERE
        written = self.retry()
        self.wakeup()
        return written

    def pending(self, limit: int, after: int = 0) -> list[Pending]:
        """The first `limit` records with a seq above `after`, in order; the same ones until they are settled."""
        found: list[Pending] = []
        for seq in self._pending_after(after):
            if (payload := self._payload(seq, self._pending[seq])) is not None:
                found.append(Pending(seq, payload))
                if len(found) >= limit:
                    break
        return found

    def _pending_after(self, seq: int) -> Iterable[int]:
        """Those of this run are found by counting: stepping over a long backlog would hold the event loop."""
        if seq < self.node.epoch << COUNT_BITS:
            return (one for one in self._pending if one > seq)
        return (one for one in range(seq + 1, self._seq + 1) if one in self._pending)

    def settled(self, seqs: Iterable[int]) -> None:
        """The ledger has these records for good: forget them. Saying it twice changes nothing."""
        for seq in seqs:
            place = self._pending.pop(seq, None)
            if place is not None:
                self._log.mark_dead(place)
                self._owed_settled.append(seq)
        self.retry()

    def unfinished(self) -> list[Opened]:
        """The exchanges that began and did not end; right after `open`: those that a crash cut off."""
        frames = (self._log.read(place) for place in self._open.values())
        return [decode_opened(frame.payload) for frame in frames if frame is not None]

    def retry(self) -> bool:
        """Write what could not be written so far, in order; True if nothing is left to write. Call it now and then."""
        try:
            self._write_waiting()
            written = True
        except JournalUnavailable:
            written = False
        self._tidy()
        return written

    def sync(self) -> None:
        """Make everything written before this call survive a power cut. May run in another thread; blocks for the disk.

        Raises JournalUnavailable; what is alive is then written anew by the next call on the journal's own thread.
        """
        self._log.sync()

    def close(self) -> None:
        """Sync, and give the journal to the next process. A failed sync is left to the next one's reading."""
        with suppress(JournalUnavailable):
            self.sync()
        self._log.close()
        os.close(self._lock_fd)

    @property
    def dirty(self) -> bool:
        """True if `sync` has something to do."""
        return self._log.dirty

    @property
    def depth(self) -> int:
        """Records not settled yet."""
        return len(self._pending)

    @property
    def open_count(self) -> int:
        """Exchanges that began and did not end."""
        return len(self._open) - len(self._owed)

    @property
    def held_count(self) -> int:
        """Records that are in memory only."""
        return len(self._owed)

    @property
    def unsettled_bytes(self) -> int:
        """Bytes of all exchanges that are open or unsettled."""
        return self._log.alive_bytes + self._owed_bytes

    @property
    def broken(self) -> bool:
        """True if the disk failed twice in a row: nothing more is admitted until a restart."""
        return self._log.broken

    def oldest_age_s(self, now: float) -> float:
        """Seconds since the end of the oldest exchange that is not settled; `now` in Unix seconds."""
        for pending in self.pending(1):
            with suppress(ValueError):
                record = pending.record
                return max(0.0, now - record.opened.started_at - record.duration_ms / 1000)
        return 0.0

    def _begin_run(self) -> None:
        """Have a segment to append to; leave damaged ones behind, once what is alive in them was copied."""
        for place in (*self._open.values(), *self._pending.values()):
            self._log.mark_live(place)
        old = tuple(self._log.segments)
        if not old or self.damage:
            self._log.roll()
            for segment in old:
                self._vacate(segment)
        self._tidy()

    def _write_waiting(self) -> None:
        """Write what is not in the log yet. Raises JournalFull, JournalBroken."""
        if self._log.suspect:
            self._rewrite()
        for seq, (exchange_id, payload) in list(self._owed.items()):
            place = self._write(FrameKind.CLOSE, seq, payload)
            del self._owed[seq]
            self._owed_bytes -= len(payload)
            self._log.mark_dead(self._open.pop(exchange_id))
            if seq in self._pending:
                self._pending[seq] = place
            else:  # settled while it was in memory only
                self._log.mark_dead(place)
        while self._owed_settled:
            self._append(FrameKind.SETTLED, 0, settled_payload(self._owed_settled[:_SEQS_PER_FRAME]))
            del self._owed_settled[:_SEQS_PER_FRAME]

    def _write(self, kind: int, seq: int, payload: bytes) -> int:
        """Append a frame that counts; return its place. Raises JournalFull, JournalBroken."""
        place = self._append(kind, seq, payload)
        self._log.mark_live(place)
        return place

    def _append(self, kind: int, seq: int, payload: bytes) -> int:
        if self._log.suspect:
            self._rewrite()
        return self._log.append(kind, seq, payload)

    def _rewrite(self) -> None:
        """Copy what is alive in distrusted segments into a new one. Raises JournalFull, JournalBroken."""
        log = self._log
        log.suspect = False
        try:
            if not log.segments[-1].trusted:
                with unavailable():
                    log.roll()
            log.probation = True
            for segment in tuple(log.segments):
                if not segment.trusted:
                    self._vacate(segment)
        except JournalUnavailable:
            log.suspect = not log.broken
            raise

    def _tidy(self) -> None:
        """Let the oldest segments go while nothing, or less than half of the log, is alive in them."""
        log = self._log
        if len(log.segments) == 1:
            return
        with suppress(JournalUnavailable):  # no room for a copy: it is no harm to wait
            while len(log.segments) > 1 and not log.suspect:
                oldest = log.segments[0]
                if oldest.alive and 2 * log.alive_bytes >= log.length:
                    break
                self._vacate(oldest, _MOVED_AT_ONCE)
                if oldest.alive:
                    break  # the next call goes on
                log.retire_oldest()

    def _vacate(self, segment: Segment, frames_max: int | None = None) -> None:
        """Copy what is alive in `segment`, or so many frames of it, to the end of the log."""
        room = segment.alive if frames_max is None else min(segment.alive, frames_max)
        room -= self._move(self._open, segment, room)
        self._move(self._pending, segment, room)

    def _move(self, places: dict[_Key, int], segment: Segment, frames_max: int) -> int:
        """Copy up to `frames_max` of these; return how many there were."""
        first, last = lsn_of(segment, 0, 0), lsn_of(segment, segment.end, 0)
        within = (key for key, place in places.items() if first < place < last)
        keys = list(islice(within, frames_max))
        for key in keys:
            place = places[key]
            frame = self._log.read(place)
            if frame is None:
                self._lose(place)
                places[key] = NOWHERE
            else:
                places[key] = self._write(frame.kind, frame.seq, frame.payload)
            self._log.mark_dead(place)
        return len(keys)

    def _lose(self, place: int) -> None:
        """A frame that was good is not readable any more: say so, and keep what is there."""
        segment, offset, length = self._log.locate(place)
        kept_as = None
        with suppress(OSError):
            kept_as = keep_aside(self._directory, segment.path.name, segment.image())
        self.damage.append(Damage(segment.path.name, offset, length, "unreadable bytes", kept_as))

    def _payload(self, seq: int, place: int) -> bytes | None:
        """JSON of a pending record; None if it was lost (`damage` says so)."""
        if seq in self._owed:
            return self._owed[seq][1]
        frame = self._log.read(place)
        return None if frame is None else frame.payload


def _losses(last: Node | None, state: Replay, found: list[Segment]) -> list[Damage]:
    """Files that must have been there."""
    if last is None and state.frames:
        return [Damage("node.json", 0, 0, "the node's identity is lost; a new one was made")]
    if last is not None and not found:
        return [Damage("journal", 0, 0, "all segments are missing")]
    return []
