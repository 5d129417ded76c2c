"""Journals as tests make, crash and read them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.journal.journal import Journal
from tests.journal.records import ROOMY, opened, record

MEMORY = Path("/dev/shm")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for a journal: in memory where possible, since these tests sync thousands of times."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        yield Path(name) / "journal"


@pytest.fixture
def journal(folder: Path) -> Journal:
    """A new one, with room for all; it is closed with the process."""
    return Journal.open(folder, bytes_max=ROOMY)


def run_through(journal: Journal, numbers: range) -> None:
    for number in numbers:
        journal.begin(opened(number))
        journal.finish(record(opened(number)))


def numbers_of(journal: Journal) -> list[int]:
    """The numbers of the pending exchanges."""
    return [int(pending.record.opened.exchange_id[-6:], 16) for pending in journal.pending(10**9)]


def crash(journal: Journal) -> None:
    """Give everything back as a dying process does: no sync, nothing written."""
    journal._log.close()
    os.close(journal._lock_fd)


def reopen(journal: Journal) -> Journal:
    crash(journal)
    return Journal.open(journal._directory, bytes_max=ROOMY)
