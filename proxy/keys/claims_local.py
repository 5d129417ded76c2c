"""Claims on one machine, in a SQLite file that its processes share. Law: see ClaimStore; a claim survives the process.

Its calls are short (tens of microseconds) and come once for each request that has an `Idempotency-Key`.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from proxy.billing.idempotency_record import IdempotencyRecord
from proxy.keys.idempotency import ClaimsUnavailable

# As long as a request waits for another process's write; one takes well under a millisecond.
BUSY_S = 1.0
# Old claims are looked for once in so many new ones.
_TIDY_EVERY = 256
_SCHEMA = """
CREATE TABLE IF NOT EXISTS claims (
    name TEXT PRIMARY KEY, body TEXT NOT NULL, exchange_id TEXT NOT NULL, ended INTEGER NOT NULL,
    answer BLOB, until REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS claims_until ON claims (until)
"""


class LocalClaims:
    """See ClaimStore."""

    def __init__(self, path: Path, *, remember_s: float, unix_time: Callable[[], float]) -> None:
        """Raises ClaimsUnavailable if the file cannot be used."""
        self._remember_s = remember_s
        self._unix_time = unix_time
        self._made = 0
        with _mapped(), _alone(path):  # SQLite does not wait for another process that switches WAL on, too
            os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
            self._db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
            try:
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=NORMAL")
                self._db.executescript(_SCHEMA)
            except BaseException:
                self._db.close()
                raise

    async def claim(self, name: str, body: str, exchange_id: str) -> IdempotencyRecord | None:
        """See ClaimStore."""
        now = self._unix_time()
        with _mapped():
            self._db.execute("DELETE FROM claims WHERE name = ? AND until <= ?", (name, now))
            made = self._db.execute(
                "INSERT INTO claims VALUES (?, ?, ?, 0, NULL, ?) ON CONFLICT DO NOTHING",
                (name, body, exchange_id, now + self._remember_s),
            ).rowcount
            if made:
                self._tidy(now)
                return None
            row = self._db.execute(
                "SELECT exchange_id, body, ended, answer FROM claims WHERE name = ?", (name,)
            ).fetchone()
        if row is None:  # released a moment ago
            return await self.claim(name, body, exchange_id)
        return None if row[0] == exchange_id else IdempotencyRecord(row[0], row[1] == body, bool(row[2]), row[3])

    async def end(self, name: str, exchange_id: str, answer: bytes | None) -> None:
        """See ClaimStore."""
        with _mapped():
            self._db.execute(
                "UPDATE claims SET ended = 1, answer = ? WHERE name = ? AND exchange_id = ?",
                (answer, name, exchange_id),
            )

    async def release(self, name: str, exchange_id: str) -> None:
        """See ClaimStore."""
        with _mapped():
            self._db.execute("DELETE FROM claims WHERE name = ? AND exchange_id = ?", (name, exchange_id))

    async def aclose(self) -> None:
        """See ClaimStore."""
        self._db.close()

    def _tidy(self, now: float) -> None:
        self._made += 1
        if self._made % _TIDY_EVERY == 0:
            self._db.execute("DELETE FROM claims WHERE until <= ?", (now,))


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """While no other process is here, by a lock of its own: closing a file of SQLite's would end SQLite's locks."""
    lock = os.open(f"{path}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


@contextmanager
def _mapped() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise ClaimsUnavailable(f"claims: {error}") from error
