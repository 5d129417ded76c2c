"""Journals as tests make, crash and read them."""

from __future__ import annotations

import os
from pathlib import Path

from proxy.journal.journal import Journal
from tests.pipeline.making import ROOMY, opened, record

MEMORY = Path("/dev/shm")


def run_through(journal: Journal, numbers: range) -> None:
    """Begin and finish these exchanges."""
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
