"""The journal when the disk, the file or the process fails: nothing is lost in silence, nothing wrong is given out."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from proxy.journal import log
from proxy.journal.frames import MAGIC, FrameKind, encode_frame, opened_payload, record_payload, scan
from proxy.journal.journal import Journal
from proxy.journal.log import JournalBroken, JournalFull
from proxy.journal.replay import Damage
from tests.journal.harmed_journal import NAME, holding, wrong_when_cut, wrong_when_flipped
from tests.journal.journals import crash, numbers_of, reopen, run_through
from tests.journal.records import ROOMY, exchange_id, opened, record

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


class Disk:
    """The disk under this process, with errors to order: half of a frame is written when a write fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.write_error = 0
        self.sync_error = 0
        self._pwrite, self._fdatasync = os.pwrite, os.fdatasync
        monkeypatch.setattr(os, "pwrite", self.pwrite)
        monkeypatch.setattr(os, "fdatasync", self.fdatasync)

    def pwrite(self, fd: int, content: bytes, offset: int) -> int:
        if self.write_error and not content.startswith(MAGIC):
            raise OSError(self.write_error, os.strerror(self.write_error))
        return self._pwrite(fd, content[: len(content) // 2] if self.write_error else content, offset)

    def fdatasync(self, fd: int) -> None:
        if self.sync_error:
            raise OSError(self.sync_error, os.strerror(self.sync_error))
        self._fdatasync(fd)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_on_a_full_disk_nothing_begins_and_what_runs_ends_in_memory(
    folder: Path, journal: Journal, disk: Disk, error: int
) -> None:
    run_through(journal, range(2))
    for number in range(2, 6):
        journal.begin(opened(number))
    disk.write_error = error
    with pytest.raises(JournalFull):
        journal.begin(opened(99))
    assert [journal.finish(record(opened(number))) for number in range(2, 5)] == [False] * 3
    assert (journal.unwritten_count, journal.depth, journal.open_count) == (3, 5, 1)
    assert [pending.record for pending in journal.pending(10)] == [record(opened(number)) for number in range(5)]
    journal.settled([journal.pending(10)[i].seq for i in (0, 3)])  # one is on the disk, one in memory only
    assert not journal.retry()
    with pytest.raises(JournalFull):
        journal.begin(opened(99))
    disk.write_error = 0
    journal.begin(opened(6))  # writes first what was waiting
    assert (journal.unwritten_count, journal.unsettled_bytes) == (0, sum_of_alive(folder, journal))
    journal = reopen(journal)
    assert numbers_of(journal) == [1, 2, 4]
    assert [of.exchange_id for of in journal.unfinished()] == [exchange_id(5), exchange_id(6)]
    assert (journal.damage, journal.torn_bytes) == ([], 0)


def sum_of_alive(folder: Path, journal: Journal) -> int:
    again = [encode_frame(FrameKind.CLOSE, pending.seq, pending.payload) for pending in journal.pending(10**6)]
    again += [encode_frame(FrameKind.OPEN, 0, opened_payload(of)) for of in journal.unfinished()]
    return sum(map(len, again))


def test_a_crash_on_a_full_disk_leaves_the_held_ones_open(journal: Journal, disk: Disk) -> None:
    for number in range(3):
        journal.begin(opened(number))
    assert journal.finish(record(opened(0)))
    disk.write_error = errno.ENOSPC
    assert not journal.finish(record(opened(1)))
    disk.write_error = 0
    journal = reopen(journal)
    assert numbers_of(journal) == [0]
    assert [of.exchange_id for of in journal.unfinished()] == [exchange_id(1), exchange_id(2)]


def test_after_a_write_error_all_that_is_alive_moves_to_a_new_file(folder: Path, journal: Journal, disk: Disk) -> None:
    run_through(journal, range(3))
    journal.begin(opened(3))
    [old] = folder.glob("*.log")
    disk.write_error = errno.EIO
    with pytest.raises(JournalBroken):
        journal.begin(opened(4))
    disk.write_error = 0
    with pytest.raises(JournalBroken):  # in `power` mode nobody may take this for durable
        journal.sync()
    assert journal.finish(record(opened(3)))
    journal.sync()
    assert not old.exists()
    assert not journal.broken
    journal = reopen(journal)
    assert (numbers_of(journal), journal.unfinished(), journal.damage) == ([0, 1, 2, 3], [], [])


def test_after_a_failed_sync_the_file_is_never_trusted_again(folder: Path, journal: Journal, disk: Disk) -> None:
    run_through(journal, range(3))
    journal.begin(opened(3))
    [old] = folder.glob("*.log")
    disk.sync_error = errno.EIO
    with pytest.raises(JournalBroken):
        journal.sync()
    disk.sync_error = 0
    with pytest.raises(JournalBroken):  # a second fdatasync would say yes: the kernel reports an error once
        journal.sync()
    assert journal.retry()
    journal.sync()
    assert not old.exists()
    run_through(journal, range(4, 6))
    journal = reopen(journal)
    assert numbers_of(journal) == [0, 1, 2, 4, 5]
    assert journal.unfinished() == [opened(3)]


def test_a_disk_that_fails_twice_is_given_up_and_what_runs_still_ends(journal: Journal, disk: Disk) -> None:
    run_through(journal, range(2))
    journal.begin(opened(2))
    disk.sync_error = errno.EIO
    for _ in range(2):
        with pytest.raises(JournalBroken):
            journal.sync()
        journal.retry()
    assert journal.broken
    with pytest.raises(JournalBroken, match="twice"):
        journal.begin(opened(3))
    assert not journal.finish(record(opened(2)))
    assert numbers_of(journal) == [0, 1, 2]
    journal.settled([pending.seq for pending in journal.pending(10)])
    assert journal.depth == 0
    disk.sync_error = 0
    journal.close()


def test_no_room_for_another_file_means_going_on_in_this_one(
    folder: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "SEGMENT_BYTES", 2_048)

    def no_file(directory: Path, base: int) -> Any:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("proxy.journal.segment.Segment.create", no_file)
        run_through(journal, range(20))
    assert len(list(folder.glob("*.log"))) == 1
    run_through(journal, range(20, 22))
    assert len(list(folder.glob("*.log"))) > 1
    assert numbers_of(reopen(journal)) == list(range(22))


def small_journal(folder: Path) -> bytes:
    """Four exchanges: settled, pending, open, pending. The bytes of its one file."""
    journal = Journal.open(folder, bytes_max=ROOMY)
    run_through(journal, range(2))
    journal.settled([journal.pending(1)[0].seq])
    journal.begin(opened(2))
    run_through(journal, range(3, 4))
    crash(journal)
    [path] = folder.glob("*.log")
    return path.read_bytes()


@pytest.mark.parametrize("step", [23, pytest.param(2, marks=pytest.mark.slow)])
def test_cut_off_anywhere_it_opens_with_all_that_is_whole(folder: Path, step: int) -> None:
    image = small_journal(folder)
    cuts = range(0, len(image) + 1, step)  # test_frames cuts and flips at every one
    assert list(wrong_when_cut(folder, image, cuts)) == []
    for cut in cuts[::8]:
        journal = holding(folder, image[:cut])
        before = numbers_of(journal)
        run_through(journal, range(20, 21))
        journal = reopen(journal)
        assert numbers_of(journal) == [*before, 20]
        assert (journal.damage, journal.torn_bytes) == ([], 0)
        crash(journal)


@pytest.mark.parametrize("step", [31, pytest.param(2, marks=pytest.mark.slow)])
def test_a_flipped_byte_is_said_kept_and_costs_one_frame(folder: Path, step: int) -> None:
    image = small_journal(folder)
    assert list(wrong_when_flipped(folder, image, range(0, len(image), step), Random(0x41))) == []


def quarantined(folder: Path, damage: Damage) -> bytes:
    assert damage.kept_as is not None
    return (folder / "quarantine" / damage.kept_as).read_bytes()


def test_damage_is_said_once_and_left_behind(folder: Path) -> None:
    image = small_journal(folder)
    journal = holding(folder, image[:300] + bytes(100) + image[300:])
    assert len(journal.damage) == 1
    assert not (folder / NAME).exists()
    numbers = numbers_of(journal)
    journal = reopen(journal)
    assert (journal.damage, numbers_of(journal)) == ([], numbers)


def test_a_missing_middle_is_said(folder: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "SEGMENT_BYTES", 2_048)
    run_through(journal, range(20))
    crash(journal)
    sorted(folder.glob("*.log"))[2].unlink()
    journal = Journal.open(folder, bytes_max=ROOMY)
    assert [damage.what for damage in journal.damage] == ["bytes are missing at the end"]
    assert len(journal.pending(100)) > 10
    run_through(journal, range(30, 31))
    assert numbers_of(reopen(journal))[-1] == 30


def test_a_frame_that_rots_under_a_running_journal_is_said_and_kept(
    folder: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "SEGMENT_BYTES", 2_048)
    run_through(journal, range(1))
    journal.begin(opened(1))
    first = min(folder.glob("*.log"))
    rotten = bytearray(first.read_bytes())
    rotten[-5] ^= 1
    first.write_bytes(rotten)
    for number in range(2, 12):
        run_through(journal, range(number, number + 1))
        journal.settled([journal.pending(10)[-1].seq])
    [damage] = journal.damage
    assert quarantined(folder, damage)
    assert numbers_of(journal) == [0]
    assert journal.finish(record(opened(1)))  # the exchange itself still ends
    assert numbers_of(reopen(journal)) == [0, 1]


@pytest.mark.parametrize(
    ("frame", "what"),
    [
        (encode_frame(9, 5, b'{"new":1}'), "unknown frame kind: 9"),
        (encode_frame(FrameKind.CLOSE, 1 << 40, record_payload(record(opened(2), version=2))), "record version 2"),
        (encode_frame(FrameKind.OPEN, 0, b'{"exchange_id":7}'), "Expected `str`"),
        (encode_frame(FrameKind.CLOSE, 1 << 40, b"[]"), "Expected `object`"),
        (encode_frame(FrameKind.SETTLED, 0, b'["x"]'), "Expected `int`"),
    ],
)
def test_what_a_later_version_wrote_is_kept_aside(folder: Path, frame: bytes, what: str) -> None:
    journal = holding(folder, small_journal(folder) + frame)
    [damage] = journal.damage
    assert what in damage.what
    assert quarantined(folder, damage) == scan(frame).frames[0].payload
    assert numbers_of(journal) == [1, 3]
    assert journal.unfinished() == ([] if "version" in what else [opened(2)])
    journal = reopen(journal)
    assert (journal.damage, numbers_of(journal)) == ([], [1, 3])


def test_a_folder_that_cannot_be_written_is_a_clear_no(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalBroken, match="cannot be written"):
        Journal.open(tmp_path / "file" / "journal", bytes_max=ROOMY)


def script(name: str, *arguments: str) -> dict[str, Any]:
    """Run a script of this folder in a process of its own; its last line is JSON."""
    ended = subprocess.run(
        [sys.executable, str(HERE / name), *arguments],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    said: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return said


@pytest.mark.process
def test_a_second_process_is_refused(folder: Path, journal: Journal) -> None:
    code = (
        "import sys; from pathlib import Path; from proxy.journal.journal import Journal\n"
        "Journal.open(Path(sys.argv[1]), bytes_max=1)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, str(folder)], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.returncode == 1
    assert "JournalInUse: another process has the journal" in ended.stderr
    run_through(journal, range(1))


@pytest.mark.process
def test_a_real_limit_of_the_kernel_is_a_full_disk(folder: Path) -> None:
    said = script("limited_disk.py", str(folder))
    assert (said["torn"], said["damage"]) == (0, 0)
    assert said["begun"] > 10
    assert 0 <= said["begun"] - said["held"] <= 1


@pytest.mark.process
@pytest.mark.parametrize("kills", [5, pytest.param(40, marks=pytest.mark.slow)])
def test_kill_9_at_any_instant_forgets_nothing_acknowledged(folder: Path, kills: int) -> None:
    said = script("killed_writer.py", str(folder), str(kills))
    assert said["wrong"] == []
    assert said["kills"] == kills
    assert said["acknowledged"] > 50 * kills
