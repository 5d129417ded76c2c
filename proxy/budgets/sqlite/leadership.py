"""The election of one leading process on a machine. Invariant: the lock ends with its process, even if the process is
killed."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from proxy.budgets.store import BudgetsUnavailable


class Leadership:
    """A lock on a separate file: closing a descriptor of SQLite's file would drop SQLite's locks."""

    def __init__(self, path: Path) -> None:
        """The first `acquire` creates the file; its folder must exist."""
        self._path = path
        self._lock: int | None = None

    def acquire(self) -> bool:
        """True if this process has the lock, now or already. Raises BudgetsUnavailable."""
        if self._lock is not None:
            return True
        try:
            lock = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise BudgetsUnavailable(f"budgets: {error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        self._lock = lock
        return True

    def release(self) -> None:
        """Release the lock to another process."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
