"""A journal file of 256 KiB (`make faults`: 48): cut off at every offset, every byte flipped; see harmed_journal.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from proxy.journal.frames import FrameKind, encode_frame, record_payload
from proxy.journal.journal import Journal
from tests.journal.journals import crash
from tests.journal.records import ROOMY, opened, record
from tests.support.long_runs import part_of

# Another run: TOKENWEIR_CHAOS_SEED=… make faults
SEED = int(os.environ.get("TOKENWEIR_CHAOS_SEED", "2026"))
ROOT = Path(__file__).parents[2]
FILE_BYTES = part_of(16) << 14
PARTS = 2
# Of all; some four minutes on two cores that have nothing else to do.
MATRIX_S_MAX = 1_500


def a_journal_file(folder: Path, size: int, rng: Random) -> Path:
    """One of exactly `size` bytes: most of its records are settled, some pending, some exchanges open."""
    journal = Journal.open(folder, bytes_max=ROOMY)
    number = 0
    while journal._log.length < size - 30_000:
        number += 1
        journal.begin(opened(number))
        if rng.random() < 0.95:
            journal.finish(record(opened(number), details={"note": "x" * rng.randrange(9_000)}))
        if rng.random() < 0.7:
            journal.settled([one.seq for one in journal.pending(10)[: rng.randrange(1, 4)]])
    journal.begin(opened(0))
    short = len(encode_frame(FrameKind.CLOSE, 1, record_payload(record(opened(0), details={"note": ""}))))
    journal.finish(record(opened(0), details={"note": "x" * (size - journal._log.length - short)}))
    crash(journal)
    [path] = folder.glob("*.log")
    assert path.stat().st_size == size
    return path


def harm(path: Path, kind: str, first: int, last: int) -> subprocess.Popen[str]:
    """Begin with this part, in a process of its own."""
    command = [sys.executable, "-m", "tests.journal.harmed_journal", str(path), kind, str(first), str(last), str(SEED)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def harmed(path: Path, parts: list[tuple[str, int, int]], timeout_s: float) -> dict[str, Any]:
    """All of these, PARTS at a time; the sums of what they say."""
    until = time.monotonic() + timeout_s
    waiting, running = list(parts), list[subprocess.Popen[str]]()
    sums: dict[str, Any] = {"tried": 0, "wrong_count": 0, "wrong": []}
    try:
        while waiting or running:
            while waiting and len(running) < PARTS:
                running.append(harm(path, *waiting.pop()))
            out, errors = running[0].communicate(timeout=max(0.0, until - time.monotonic()))
            assert running.pop(0).returncode == 0, errors
            for name, value in json.loads(out).items():
                sums[name] += value
    finally:
        for one in running:
            one.kill()
            one.communicate()
    return sums


@pytest.mark.process
def test_a_slice_of_each(tmp_path: Path) -> None:
    path = a_journal_file(tmp_path / "journal", FILE_BYTES, Random(SEED))
    middle = Random(SEED).randrange(FILE_BYTES - 1_000)
    said = harmed(path, [("cut", middle, middle + 30), ("flip", middle, middle + 30)], timeout_s=60)
    assert (said["tried"], said["wrong"]) == (60, [])


@pytest.mark.slow
def test_every_offset_and_every_byte(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    path = a_journal_file(tmp_path / "journal", FILE_BYTES, Random(SEED))
    step = FILE_BYTES // 16
    firsts = range(0, FILE_BYTES, step)
    parts = [(kind, first, first + step) for kind in ("cut", "flip") for first in firsts]
    with capsys.disabled():
        print(f"\nseed {SEED}")
        said = harmed(path, parts, MATRIX_S_MAX)
        print(
            f"journal: {said['tried']} faults of 2 kinds, {said['wrong_count']} violations"
            f" (a file of {FILE_BYTES} bytes; {time.monotonic() - began:.0f} s)"
        )
    assert said["tried"] == 2 * FILE_BYTES
    assert said["wrong"] == []
