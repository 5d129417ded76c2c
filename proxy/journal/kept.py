"""Segments whose records the ledger has confirmed, kept in case the ledger loses them.

A Postgres that fails over to an asynchronous standby, or that is restored from a backup, loses its last commits. Their
records are then sent again from these segments (`reader.py` reads them).

Invariants: a kept segment has no live frame. It is not read at start, and counts as neither open nor unsettled. It is
deleted `keep_s` after its last record was confirmed; earlier when the journal needs space, when kept segments would
take more of the disk than they leave free, or when a write finds the disk full.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from proxy.journal.segment import SUFFIX, Segment

FOLDER: Final = "settled"
"""a folder in the journal's folder, in which no version looks for live segments"""


class KeptSegments:
    """The folder of kept segments of one journal. Safe for use by several threads: every step is idempotent."""

    def __init__(self, journal: Path, *, keep_s: float, bytes_max: int) -> None:
        """`bytes_max`: the limit of the whole journal."""
        self._folder = journal / FOLDER
        self._keep_s = keep_s
        self._bytes_max = bytes_max

    def keep(self, segment: Segment) -> None:
        """Keep a retired segment, or delete it if segments are not kept. Raises OSError."""
        if not self._keep_s:
            segment.remove()
            return
        self._folder.mkdir(mode=0o700, exist_ok=True)
        with suppress(FileNotFoundError):  # it was deleted meanwhile
            os.utime(segment.path)  # its age is the time since now
            segment.path.rename(self._folder / segment.path.name)
        segment.close()

    def prune(self, live_bytes: int) -> None:
        """Delete segments that are too old, or more than fit; `live_bytes`: the size of the other segments. Raises
        OSError."""
        kept = [(path, path.stat()) for path in self._oldest_first()]
        total = sum(stat.st_size for _, stat in kept)
        if not kept:
            return
        disk = os.statvfs(self._folder)
        room = min(self._bytes_max - live_bytes, disk.f_bavail * disk.f_frsize)
        now = time.time()  # files have this clock
        for path, stat in kept:
            if total <= room and now - stat.st_mtime < self._keep_s:
                break
            path.unlink(missing_ok=True)
            total -= stat.st_size

    def drop_oldest(self) -> bool:
        """Delete the oldest segment, for space; False if no segment is kept. Raises OSError."""
        for path in self._oldest_first()[:1]:
            path.unlink(missing_ok=True)
            return True
        return False

    @property
    def empty(self) -> bool:
        """True if no segment is kept."""
        return not self._oldest_first()

    def _oldest_first(self) -> list[Path]:
        return sorted(self._folder.glob(f"*{SUFFIX}"))
