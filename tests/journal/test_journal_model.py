"""The journal against a simple model: any steps, crashes and full disks; nothing lost, nothing doubled, order kept."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from proxy.journal import log
from proxy.journal.frames import MAGIC
from proxy.journal.journal import Journal
from proxy.journal.log import JournalFull, JournalUnavailable
from tests.journal.journals import MEMORY, crash, numbers_of
from tests.journal.records import ROOMY, exchange_id, opened, record
from tests.support.examples import examples


class JournalModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)
        self.real_pwrite = os.pwrite
        self.patches = [patch.object(os, "pwrite", self.pwrite), patch.object(log, "SEGMENT_BYTES", 4_096)]
        for one in self.patches:
            one.start()
        self.disk_full = False
        self.open: list[int] = []
        self.finished: list[int] = []
        self.settled: set[int] = set()
        self.saved_settled: set[int] = set()
        self.count = 0
        self.turns = 0
        self.passed: dict[str, str] = {}
        self.journal = Journal.open(Path(self.folder.name), bytes_max=ROOMY)

    def teardown(self) -> None:
        crash(self.journal)
        for one in self.patches:
            one.stop()
        self.folder.cleanup()

    def pwrite(self, fd: int, content: bytes, offset: int) -> int:
        if self.disk_full and not content.startswith(MAGIC):
            raise OSError(errno.ENOSPC, "full")
        return self.real_pwrite(fd, content[: len(content) // 2] if self.disk_full else content, offset)

    @property
    def pending(self) -> list[int]:
        return [number for number in self.finished if number not in self.settled]

    @rule(times=st.integers(1, 4))
    def begin(self, times: int) -> None:
        for _ in range(times):
            self.count += 1
            try:
                self.journal.begin(opened(self.count))
                self.open.append(self.count)
            except JournalFull:
                assert self.disk_full

    @precondition(lambda self: self.open)
    @rule(pick=st.integers(0, 10**6))
    def pass_on(self, pick: int) -> None:
        number = self.open[pick % len(self.open)]
        self.turns += 1
        passed = opened(number, provider=f"other-{self.turns}")
        try:
            self.journal.reassign(passed)
            self.passed[passed.exchange_id] = passed.provider
        except JournalFull:
            assert self.disk_full

    @precondition(lambda self: self.open)
    @rule(pick=st.integers(0, 10**6))
    def finish(self, pick: int) -> None:
        number = self.open.pop(pick % len(self.open))
        assert self.journal.finish(record(opened(number))) == (not self.disk_full)
        self.finished.append(number)

    @precondition(lambda self: self.pending)
    @rule(pick=st.integers(0, 10**6), size=st.integers(1, 6))
    def settle(self, pick: int, size: int) -> None:
        start = pick % len(self.pending)
        batch = self.journal.pending(10**6)[start : start + size]
        self.settled |= {int(one.record.opened.exchange_id[-6:], 16) for one in batch}
        self.journal.settled([one.seq for one in batch])

    @rule()
    def sync(self) -> None:
        self.journal.sync()

    @rule()
    def disk_fills(self) -> None:
        self.disk_full = True

    @rule()
    def disk_has_room(self) -> None:
        self.disk_full = False
        assert self.journal.retry()

    @rule()
    def crashes(self) -> None:
        """What was in memory only is open again; what was settled on a full disk may come once more."""
        held = [int(exchange[-6:], 16) for exchange, _ in self.journal._unwritten.values()]
        crash(self.journal)
        self.disk_full = False
        self.journal = Journal.open(Path(self.folder.name), bytes_max=ROOMY)
        again = set(numbers_of(self.journal)) & self.settled
        assert again.isdisjoint(self.saved_settled), "the file said settled, and forgot it"
        self.settled -= again | set(held)
        self.finished = [number for number in self.finished if number not in held]
        self.open += held

    @invariant()
    def all_is_there_once_and_in_order(self) -> None:
        if not self.disk_full:
            self.saved_settled |= self.settled
        assert numbers_of(self.journal) == self.pending
        seqs = [pending.seq for pending in self.journal.pending(10**6)]
        assert seqs == sorted(set(seqs))
        assert self.journal.damage == []
        assert self.journal.depth == len(self.pending)
        assert self.journal.open_count == len(self.open)
        found = self.journal.unfinished()
        assert [of.provider for of in found] == [self.passed.get(of.exchange_id, "electron") for of in found]
        unfinished = {of.exchange_id for of in found}
        assert {exchange_id(number) for number in self.open} <= unfinished
        assert len(unfinished) == len(self.open) + self.journal.unwritten_count

    @invariant()
    def the_disk_is_bounded(self) -> None:
        try:
            if self.disk_full:
                return
            self.journal.sync()
        except JournalUnavailable:
            raise AssertionError("the disk works") from None
        size = sum(path.stat().st_size for path in Path(self.folder.name).glob("*.log"))
        assert size <= 2 * self.journal.unsettled_bytes + 3 * 4_096


JournalModel.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestJournalModel = JournalModel.TestCase
