"""The local durable outbox: every exchange is opened here before its first response byte, and closed by its record.

Invariants: frames that `begin` and `finish` wrote survive `kill -9` once they return (the page cache does), and a
power cut after the next `sync`. A record stays until the ledger has it; what it then still has of the record counts as
settled (`kept.py`), and `revive` makes it pending again. No data is dropped silently: on a full disk, records wait in
memory; after a failed fsync, live frames are rewritten to a new file; damaged bytes are quarantined and reported.

The lsn of each live frame is in memory (about 150 bytes each). The oldest segment is retired when it has no live frame;
when less than half of the log is live, the live frames of the oldest are copied to the end. The disk therefore holds
less than twice the unsettled bytes plus two segments, a byte is copied about once, and an outage copies nothing.

All methods run on one thread, except `sync`, which may run in another.
"""

from __future__ import annotations

import asyncio
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from proxy.billing.record import Opened, UsageRecord, exchange_id_in
from proxy.journal.frames import (
    FrameKind,
    decode_opened,
    decode_record,
    opened_payload,
    record_payload,
    settled_payload,
)
from proxy.journal.kept import KeptSegments
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
"""what an exchange survives from its first response byte on: `kill -9`, or a power cut (then the owner awaits
`sync`)"""

# Copying a frame takes about 8 µs: one call's compaction delays running streams by 2 ms at most.
_MOVED_AT_ONCE = 250

# One SETTLED frame stays far below the longest payload: 15 bytes a seq.
_SEQS_PER_FRAME = 10_000

_Key = TypeVar("_Key", str, int)


class Pending(msgspec.Struct, frozen=True, gc=False):
    """A record that the ledger may not have yet."""

    seq: int
    """epoch × 2^40 + count: rises over all runs of the node, without gaps within an epoch"""
    payload: bytes
    """the record as JSON"""

    @property
    def record(self) -> UsageRecord:
        """The record. Raises UndecodableError (a ValueError) if this version cannot read it."""
        return decode_record(self.payload)

    @property
    def exchange_id(self) -> str | None:
        """The id of the exchange that the record closes; None if it cannot be read."""
        return exchange_id_in(self.payload)


class Journal:
    """The journal of one node. Create it by `Journal.open`; every call takes microseconds."""

    def __init__(
        self, directory: Path, lock_fd: int, *, bytes_max: int, durability: Durability, keep_settled_s: float
    ) -> None:
        last = last_node(directory)
        existing = segments(directory)
        state = replay(directory, existing)
        self._directory = directory
        self._lock_fd = lock_fd
        self._bytes_max = bytes_max
        self._kept = KeptSegments(directory, keep_s=keep_settled_s, bytes_max=bytes_max)
        self._log = Log(directory, existing, self._kept)
        self._open = state.open
        self._pending = state.pending
        self._earlier = sorted(state.pending)
        """seqs of earlier runs, settled ones included"""
        self._settled_to = 0
        """no seq up to this value is pending"""
        self._unwritten: dict[int, tuple[str, bytes]] = {}
        """seq → (exchange_id, payload) of records that could not be written yet; their OPEN stays in `_open`"""
        self._unwritten_bytes = 0
        self._unwritten_settled: list[int] = []
        self.durability = durability
        self.woken = asyncio.Event()
        """set when a record becomes pending; the task that settles or ships the records waits for it"""
        self.torn_bytes = state.torn_bytes
        """length of the incomplete frame that the last run left: normal after a crash"""
        self.damage = [*state.damage, *_losses(last, state, existing)]
        """damaged or missing data: an alarm if not empty"""
        self._begin_run()
        self.node = next_node(directory, last, state.epoch_seen)
        self._seq = self.node.epoch << COUNT_BITS

    @classmethod
    def open(
        cls, directory: Path, *, bytes_max: int, durability: Durability = "process", keep_settled_s: float = 0.0
    ) -> Journal:
        """Lock and read the journal. `bytes_max`: from so many unsettled bytes on, `begin` raises JournalFull.
        `keep_settled_s`: how long segments of settled records are kept, as far as `bytes_max` allows.

        Raises JournalInUse; JournalFull or JournalBroken if the folder cannot be written.
        """
        with unavailable():
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock_fd = lock(directory)
            if lock_fd is None:
                raise JournalInUse(f"another process has the journal {directory} open")
            try:
                journal = cls(
                    directory, lock_fd, bytes_max=bytes_max, durability=durability, keep_settled_s=keep_settled_s
                )
                journal.sync()
            except BaseException:
                os.close(lock_fd)
                raise
        return journal

    def begin(self, opened: Opened) -> None:
        """Open an exchange durably.

        Raises JournalFull or JournalBroken: the exchange is not open and must not be served.
        """
        assert opened.exchange_id not in self._open, "an exchange begins once"
        self._open[opened.exchange_id] = self._write_opened(opened)

    def reassign(self, opened: Opened) -> None:
        """Replace the `Opened` of an open exchange, durably.

        Raises JournalFull or JournalBroken: the old one remains.
        """
        assert opened.exchange_id in self._open, "only an open exchange is reassigned"
        lsn = self._write_opened(opened)
        self._log.mark_dead(self._open[opened.exchange_id])  # read after the write, which may move live frames
        self._open[opened.exchange_id] = lsn

    def _write_opened(self, opened: Opened) -> int:
        """Write an OPEN frame; return its lsn. Raises JournalFull, JournalBroken."""
        if self._log.alive_bytes + self._unwritten_bytes >= self._bytes_max:
            raise JournalFull(f"{self.unsettled_bytes} bytes are unsettled, {self._bytes_max} are allowed")
        if self._unwritten and not self.retry():
            raise JournalFull("the disk is full: records of ended exchanges wait in memory")
        return self._write(FrameKind.OPEN, 0, opened_payload(opened))

    def finish(self, record: UsageRecord) -> bool:
        """Close an open exchange. A failing disk raises nothing.

        False: the record is in memory only, until `retry` succeeds; keep its progress slot until then.
        """
        exchange_id = record.opened.exchange_id
        assert exchange_id in self._open, "an exchange ends once, after it began"
        payload = record_payload(record)
        self._seq += 1
        self._unwritten[self._seq] = exchange_id, payload
        self._unwritten_bytes += len(payload)
        self._pending[self._seq] = NOWHERE
        written = self.retry()
        self.woken.set()
        return written

    def pending(self, limit: int, after: int = 0) -> list[Pending]:
        """The first `limit` unsettled records with a seq above `after`, in order."""
        records: list[Pending] = []
        for seq in self._pending_after(after):
            if (payload := self._payload(seq, self._pending[seq])) is not None:
                records.append(Pending(seq, payload))
                if len(records) >= limit:
                    break
        return records

    def _pending_after(self, seq: int) -> Iterator[int]:
        """Unsettled seqs above `seq`, in order. Settled seqs at the beginning are skipped once, not at each call: with
        a long backlog, or in a long run, skipping them would block the event loop."""
        seq = max(seq, self._settled_to)
        first, unbroken = self.node.epoch << COUNT_BITS, seq == self._settled_to
        places = range(bisect_right(self._earlier, seq), len(self._earlier))
        for one in chain(map(self._earlier.__getitem__, places), range(max(seq, first) + 1, self._seq + 1)):
            if one in self._pending:
                unbroken = False
                yield one
            elif unbroken:
                self._settled_to = one

    def settled(self, seqs: Iterable[int]) -> None:
        """Forget records that the ledger has committed. Idempotent."""
        for seq in seqs:
            lsn = self._pending.pop(seq, None)
            if lsn is not None:
                self._log.mark_dead(lsn)
                self._unwritten_settled.append(seq)
        self.retry()

    def revive(self, lost: Iterable[Pending]) -> list[int]:
        """Make settled records that the ledger has lost pending again. Returns the seqs of those that were not pending.
        Call it with a few hundred records. Raises JournalFull, JournalBroken: some may be pending; call it again."""
        self._write_waiting()  # else it may say later that they are settled
        revived = []
        for one in lost:
            if one.seq not in self._pending:
                self._pending[one.seq] = self._write(FrameKind.CLOSE, one.seq, one.payload)
                self._note_pending(one.seq)
                revived.append(one.seq)
        return revived

    def _note_pending(self, seq: int) -> None:
        """Let `pending` find a record that was settled before."""
        self._settled_to = min(self._settled_to, seq - 1)
        at = bisect_left(self._earlier, seq)
        if seq <= self.node.epoch << COUNT_BITS and self._earlier[at : at + 1] != [seq]:
            self._earlier.insert(at, seq)

    def prune_kept(self) -> None:
        """Delete kept segments that are too old or too large. May run in another thread; blocks. Never raises."""
        with suppress(OSError):  # the next call tries again
            self._kept.prune(self._log.length)

    @property
    def keeps_segments(self) -> bool:
        """True if segments of settled records are kept."""
        return not self._kept.empty

    def unfinished(self) -> list[Opened]:
        """The open exchanges; right after `open`: those that a crash interrupted."""
        frames = (self._log.read(lsn) for lsn in self._open.values())
        return [decode_opened(frame.payload) for frame in frames if frame is not None]

    def retry(self) -> bool:
        """Write the waiting frames, in order; True if none is left. Call it periodically."""
        try:
            self._write_waiting()
            written = True
        except JournalUnavailable:
            written = False
        if len(self._log.segments) > 1:
            self._compact()
        return written

    def sync(self) -> None:
        """Make everything written so far survive a power cut. May run in another thread; blocks for the disk.

        Raises JournalUnavailable; the next call on the journal's own thread then rewrites the live frames.
        """
        self._log.sync()

    def close(self) -> None:
        """Sync, close the files and release the lock. A failed sync is ignored: the next `open` finds the damage."""
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
        """Number of records that are not settled yet."""
        return len(self._pending)

    @property
    def open_count(self) -> int:
        """Number of exchanges that began and did not end."""
        return len(self._open) - len(self._unwritten)

    @property
    def unwritten_count(self) -> int:
        """Number of records that are in memory only."""
        return len(self._unwritten)

    @property
    def unsettled_bytes(self) -> int:
        """Bytes of all exchanges that are open or unsettled."""
        return self._log.alive_bytes + self._unwritten_bytes

    @property
    def broken(self) -> bool:
        """True if the disk failed twice in a row: no exchange is admitted until a restart."""
        return self._log.broken

    def oldest_age_s(self, now: float) -> float:
        """Seconds since the end of the oldest exchange that is not settled; `now` in Unix seconds."""
        for pending in self.pending(1):
            with suppress(ValueError):
                record = pending.record
                return max(0.0, now - record.opened.started_at - record.duration_ms / 1000)
        return 0.0

    def _begin_run(self) -> None:
        """Ensure a segment to append to; after damage a new one, to which the live frames of the others are copied."""
        for lsn in (*self._open.values(), *self._pending.values()):
            self._log.mark_live(lsn)
        old = tuple(self._log.segments)
        if not old or self.damage:
            self._log.roll()
            for segment in old:
                self._copy_live(segment)
        self._compact()

    def _write_waiting(self) -> None:
        """Write the frames that are in memory only. Raises JournalFull, JournalBroken."""
        if self._log.suspect:
            self._rewrite()
        for seq, (exchange_id, payload) in list(self._unwritten.items()):
            lsn = self._write(FrameKind.CLOSE, seq, payload)
            del self._unwritten[seq]
            self._unwritten_bytes -= len(payload)
            self._log.mark_dead(self._open.pop(exchange_id))
            if seq in self._pending:
                self._pending[seq] = lsn
            else:  # settled while it was in memory only
                self._log.mark_dead(lsn)
        while self._unwritten_settled:
            self._write(FrameKind.SETTLED, 0, settled_payload(self._unwritten_settled[:_SEQS_PER_FRAME]), live=False)
            del self._unwritten_settled[:_SEQS_PER_FRAME]

    def _write(self, kind: int, seq: int, payload: bytes, *, live: bool = True) -> int:
        """Append a frame; return its lsn. Raises JournalFull, JournalBroken."""
        if self._log.suspect:
            self._rewrite()
        return self._log.append(kind, seq, payload, live=live)

    def _rewrite(self) -> None:
        """Copy the live frames of distrusted segments to a new one. Raises JournalFull, JournalBroken."""
        log = self._log
        log.suspect = False
        try:
            if not log.segments[-1].trusted:
                with unavailable():
                    log.roll()
            log.probation = True
            for segment in tuple(log.segments):
                if not segment.trusted:
                    self._copy_live(segment)
        except JournalUnavailable:
            log.suspect = not log.broken
            raise

    def _compact(self) -> None:
        """Retire the oldest segments that have no live frame, or while less than half of the log is live."""
        log = self._log
        with suppress(JournalUnavailable):  # no space for a copy: a later call compacts
            while len(log.segments) > 1 and not log.suspect:
                oldest = log.segments[0]
                if oldest.alive and 2 * log.alive_bytes >= log.length:
                    break
                self._copy_live(oldest, _MOVED_AT_ONCE)
                if oldest.alive:
                    break  # the next call continues
                log.retire_oldest()

    def _copy_live(self, segment: Segment, frames_max: int | None = None) -> None:
        """Copy the live frames of `segment`, at most `frames_max` of them, to the end of the log."""
        limit = segment.alive if frames_max is None else min(segment.alive, frames_max)
        limit -= self._move(self._open, segment, limit)
        self._move(self._pending, segment, limit)

    def _move(self, lsns: dict[_Key, int], segment: Segment, frames_max: int) -> int:
        """Copy up to `frames_max` of these frames that lie in `segment`; return how many were copied or lost."""
        first, last = lsn_of(segment, 0, 0), lsn_of(segment, segment.end, 0)
        within = (key for key, lsn in lsns.items() if first < lsn < last)
        keys = list(islice(within, frames_max))
        for key in keys:
            lsn = lsns[key]
            frame = self._log.read(lsn)
            if frame is None:
                self._record_loss(lsn)
                lsns[key] = NOWHERE
            else:
                lsns[key] = self._write(frame.kind, frame.seq, frame.payload)
            self._log.mark_dead(lsn)
        return len(keys)

    def _record_loss(self, lsn: int) -> None:
        """A frame has become unreadable: quarantine its segment and report the damage."""
        segment, offset, length = self._log.locate(lsn)
        kept_as = None
        with suppress(OSError):
            kept_as = keep_aside(self._directory, segment.path.name, segment.image())
        self.damage.append(Damage(segment.path.name, offset, length, "unreadable bytes", kept_as))

    def _payload(self, seq: int, lsn: int) -> bytes | None:
        """JSON of a pending record; None if it is lost (see `damage`)."""
        if seq in self._unwritten:
            return self._unwritten[seq][1]
        frame = self._log.read(lsn)
        return None if frame is None else frame.payload


def _losses(last: Node | None, state: Replay, existing: list[Segment]) -> list[Damage]:
    """Damage by missing files."""
    if last is None and state.frames:
        return [Damage("node.json", 0, 0, "the node's identity is lost; a new one was created")]
    if last is not None and not existing:
        return [Damage("journal", 0, 0, "all segments are missing")]
    return []
