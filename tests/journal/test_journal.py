"""The journal in ordinary life: what goes in stays until it is settled, in order, once."""

from __future__ import annotations

import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.journal import log
from proxy.journal.frames import MAGIC
from proxy.journal.journal import Journal
from proxy.journal.log import JournalFull, JournalInUse
from tests.journal.journals import crash, numbers_of, reopen, run_through
from tests.journal.records import ROOMY, exchange_id, opened, record


def test_a_record_waits_until_it_is_settled(journal: Journal) -> None:
    one = opened(1)
    journal.begin(one)
    assert (journal.open_count, journal.depth, journal.woken.is_set()) == (1, 0, False)
    assert journal.unfinished() == [one]
    assert journal.finish(record(one))
    assert (journal.open_count, journal.depth, journal.woken.is_set()) == (0, 1, True)
    [pending] = journal.pending(10)
    assert pending.record == record(one)
    assert journal.pending(10) == [pending]
    journal.settled([pending.seq])
    assert (journal.pending(10), journal.depth, journal.unsettled_bytes) == ([], 0, 0)
    journal.settled([pending.seq])
    assert journal.depth == 0


def test_the_next_run_finds_everything_as_it_was(journal: Journal) -> None:
    run_through(journal, range(5))
    journal.begin(opened(7))
    journal.settled([journal.pending(10)[i].seq for i in (0, 3)])
    before = journal.pending(10), journal.unsettled_bytes
    journal = reopen(journal)
    assert (journal.pending(10), journal.unsettled_bytes) == before
    assert numbers_of(journal) == [1, 2, 4]
    assert journal.unfinished() == [opened(7)]
    assert (journal.damage, journal.torn_bytes) == ([], 0)
    assert journal.finish(record(opened(7)))
    assert numbers_of(reopen(journal)) == [1, 2, 4, 7]


def test_what_is_passed_on_is_what_the_next_run_finds(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "SEGMENT_BYTES", 4_096)
    one = opened(1)
    journal.begin(one)
    bytes_of_one = journal.unsettled_bytes
    for turn in range(40):  # through many segments: it is copied, and passed on again
        one = opened(1, provider=f"other-{turn:02}")
        journal.reassign(one)
        journal.begin(opened(2 + turn))
        journal.finish(record(opened(2 + turn)))
        journal.settled([journal.pending(1)[0].seq])
    assert journal.unfinished() == [one]
    assert abs(journal.unsettled_bytes - bytes_of_one) < 20, "what it was takes no room"
    journal = reopen(journal)
    assert (journal.unfinished(), journal.open_count, journal.damage) == ([one], 1, [])
    assert journal.finish(record(one))
    assert reopen(journal).unfinished() == []


def test_what_cannot_be_passed_on_stays_what_it_was(folder: Path) -> None:
    journal = Journal.open(folder, bytes_max=1)
    journal.begin(opened(1))
    with pytest.raises(JournalFull):
        journal.reassign(opened(1, provider="other"))
    assert journal.unfinished() == [opened(1)]
    assert journal.finish(record(opened(1)))


def test_a_cursor_lets_several_batches_be_under_way(journal: Journal) -> None:
    run_through(journal, range(10))
    first = journal.pending(4)
    second = journal.pending(4, after=first[-1].seq)
    third = journal.pending(4, after=second[-1].seq)
    assert [len(first), len(second), len(third)] == [4, 4, 2]
    journal.settled([pending.seq for pending in second])
    assert numbers_of(journal) == [0, 1, 2, 3, 8, 9]
    assert journal.pending(4) == first


def test_seqs_have_no_gaps_within_an_epoch_and_rise_for_ever(journal: Journal) -> None:
    nodes = set()
    seen: list[int] = []
    for epoch in (1, 2, 3):
        assert journal.node.epoch == epoch
        nodes.add(journal.node.node_id)
        run_through(journal, range(10 * epoch, 10 * epoch + 3))
        new = [pending.seq for pending in journal.pending(100, after=seen[-1] if seen else 0)]
        assert [(seq >> 40, seq & (1 << 40) - 1) for seq in new] == [(epoch, 1), (epoch, 2), (epoch, 3)]
        seen += new
        journal = reopen(journal)
    assert len(nodes) == 1


def test_a_lost_identity_is_said_and_no_seq_is_used_twice(folder: Path, journal: Journal) -> None:
    run_through(journal, range(3))
    old = [pending.seq for pending in journal.pending(10)]
    (folder / "node.json").write_bytes(b"\x00\xff")
    journal = reopen(journal)
    assert [damage.file for damage in journal.damage] == ["node.json"]
    run_through(journal, range(3, 6))
    seqs = [pending.seq for pending in journal.pending(10)]
    assert seqs[:3] == old
    assert seqs == sorted(set(seqs))


def test_deleted_segments_are_said(folder: Path, journal: Journal) -> None:
    run_through(journal, range(3))
    crash(journal)
    for segment in folder.glob("*.log"):
        segment.unlink()
    assert [damage.what for damage in Journal.open(folder, bytes_max=ROOMY).damage] == ["all segments are missing"]


def test_a_second_owner_is_refused(folder: Path, journal: Journal) -> None:
    with pytest.raises(JournalInUse, match="another process has the journal"):
        Journal.open(folder, bytes_max=ROOMY)
    journal.close()
    Journal.open(folder, bytes_max=ROOMY).close()


def test_nobody_else_can_read_it(folder: Path, journal: Journal) -> None:
    run_through(journal, range(3))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_beyond_the_mark_nothing_begins_but_what_runs_ends(folder: Path) -> None:
    journal = Journal.open(folder, bytes_max=2_000)
    begun = range(4)
    for number in begun:
        journal.begin(opened(number))
    with pytest.raises(JournalFull, match="are unsettled"):
        journal.begin(opened(100))
    assert all(journal.finish(record(opened(number))) for number in begun)
    with pytest.raises(JournalFull):
        journal.begin(opened(100))
    journal.settled([pending.seq for pending in journal.pending(100)])
    journal.begin(opened(100))


def test_the_oldest_age_is_counted_from_the_end_of_the_exchange(journal: Journal) -> None:
    assert journal.oldest_age_s(5.0) == 0.0
    for number, started_at in enumerate((1000.0, 2000.0)):
        of = opened(number, started_at=started_at)
        journal.begin(of)
        journal.finish(record(of, duration_ms=500.0))
    assert journal.oldest_age_s(1010.5) == 10.0
    assert journal.oldest_age_s(900.0) == 0.0


def disk_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.log"))


def test_the_disk_holds_what_is_alive_and_little_more(
    folder: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "SEGMENT_BYTES", 8_192)
    for number in (10_001, 10_002):  # two that stay open all the time
        journal.begin(opened(number))
    for number in range(300):
        run_through(journal, range(number, number + 1))
        if number >= 5:  # five records are always unsettled
            journal.settled([journal.pending(1)[0].seq])
        if number % 7 == 0:
            journal.sync()
            assert disk_bytes(folder) < 2 * journal.unsettled_bytes + 3 * 8_192
    assert not list(folder.glob("00000000000000000000.log"))
    journal = reopen(journal)
    assert numbers_of(journal) == list(range(295, 300))
    assert {of.exchange_id for of in journal.unfinished()} == {exchange_id(10_001), exchange_id(10_002)}


def test_tidying_never_holds_the_streams_up_for_long(
    folder: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "SEGMENT_BYTES", 400_000)
    for number in range(10_000, 10_600):  # stay open
        journal.begin(opened(number))
    steps = []
    for number in range(800):
        before = journal._log.segments[-1].base + journal._log.segments[-1].end
        run_through(journal, range(number, number + 1))
        journal.settled([journal.pending(1)[0].seq])
        steps.append(journal._log.segments[-1].base + journal._log.segments[-1].end - before)
    assert 100_000 < max(steps) < 2 * 260 * 700, "bytes written in one step: some are copies, never all of them"
    journal.sync()
    assert min(folder.glob("*.log")).stem != "0" * 20
    assert len(reopen(journal).unfinished()) == 600


def test_an_outage_copies_nothing_and_drains_to_nothing(
    folder: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "SEGMENT_BYTES", 8_192)
    run_through(journal, range(200))
    once = sum(segment.end for segment in journal._log.segments)
    images = [path.read_bytes() for path in folder.glob("*.log")]
    assert len(images) > 10
    assert once == sum(map(len, images))
    assert sum(image.count(MAGIC) for image in images) == 400, "an OPEN and a CLOSE for each exchange, and no more"
    while batch := journal.pending(50):
        journal.settled([pending.seq for pending in batch])
    journal.sync()
    assert len(list(folder.glob("*.log"))) == 1
    assert numbers_of(reopen(journal)) == []


@pytest.mark.parametrize("step", [17, pytest.param(1, marks=pytest.mark.slow)])
def test_a_crash_within_the_copy_or_before_the_deletion_is_harmless(folder: Path, journal: Journal, step: int) -> None:
    run_through(journal, range(4))
    journal.begin(opened(7))
    journal.settled([journal.pending(10)[i].seq for i in (1, 2)])
    before = journal.pending(10), journal.unfinished()
    journal._log.roll()
    journal._copy_live(journal._log.segments[0])
    assert (journal.pending(10), journal.unfinished()) == before
    crash(journal)
    old, new = sorted(folder.glob("*.log"))
    images = old.read_bytes(), new.read_bytes()
    for cut in range(0, len(images[1]) + 1, step):
        for path in folder.glob("*.log"):
            path.unlink()
        old.write_bytes(images[0])
        new.write_bytes(images[1][:cut])
        journal = Journal.open(folder, bytes_max=ROOMY)
        assert (journal.pending(10), journal.unfinished(), journal.damage) == (*before, [])
        crash(journal)
    old.unlink(missing_ok=True)  # and the other order: the copy is whole, the old file is gone
    new.write_bytes(images[1])
    journal = Journal.open(folder, bytes_max=ROOMY)
    assert (journal.pending(10), journal.unfinished(), journal.damage) == (*before, [])


def test_syncs_in_another_thread_disturb_nothing(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "SEGMENT_BYTES", 4_096)
    stop = threading.Event()
    wrong: list[BaseException] = []

    def syncing() -> None:
        try:
            while not stop.is_set():
                journal.sync()
        except BaseException as error:
            wrong.append(error)

    thread = threading.Thread(target=syncing)
    thread.start()
    for number in range(750):
        run_through(journal, range(number, number + 1))
        if number % 3 == 0:
            journal.settled([pending.seq for pending in journal.pending(4)])
    stop.set()
    thread.join()
    assert wrong == []
    left = numbers_of(journal)
    assert numbers_of(reopen(journal)) == left


def test_close_leaves_everything_on_the_disk(folder: Path) -> None:
    journal = Journal.open(folder, bytes_max=ROOMY, durability="power")
    assert journal.durability == "power"
    run_through(journal, range(3))
    assert journal.dirty
    journal.sync()
    assert not journal.dirty
    journal.close()
    assert numbers_of(Journal.open(folder, bytes_max=ROOMY)) == [0, 1, 2]


class Counting(dict[int, int]):
    """Counts how often it is looked into."""

    looks = 0

    def __contains__(self, key: object) -> bool:
        self.looks += 1
        return super().__contains__(key)

    def __iter__(self) -> Iterator[int]:
        for key in super().__iter__():
            self.looks += 1
            yield key


def test_a_backlog_of_an_earlier_run_is_paged_through_once(folder: Path, journal: Journal) -> None:
    """Seen: each page began at the oldest record, and a start with 150,000 took 26 s."""
    run_through(journal, range(2_000))
    journal.close()
    journal = Journal.open(folder, bytes_max=ROOMY)
    run_through(journal, range(2_000, 2_100))
    journal._pending = pending = Counting(journal._pending)
    seen: list[int] = []
    while page := journal.pending(50, seen[-1] if seen else 0):
        seen += [one.seq for one in page]
        journal.settled(seen[-50:-25])  # some are settled meanwhile
    assert len(seen) == 2_100
    assert seen == sorted(seen)
    assert pending.looks < 3 * 2_100
    journal.close()
