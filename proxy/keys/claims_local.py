"""Idempotency claims and owners of responses of one machine, in a SQLite file that its processes share.

Invariants: see ClaimStore and OwnerStore; claims and owners survive the process. Calls run on the event loop: each
takes tens of microseconds, once per request with an `Idempotency-Key`, and per stored response.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from proxy.keys.idempotency import ClaimsUnavailable, IdempotencyRecord
from proxy.keys.response_owners import OWNERS_S

# The longest wait for another process's write, which takes well under a millisecond.
BUSY_S = 1.0
# Expired rows are deleted once per this many new ones.
_TIDY_EVERY = 256
# Some 150 MB; above it the oldest owners are forgotten.
OWNERS_MAX = 1_000_000
_SCHEMA = """
CREATE TABLE IF NOT EXISTS claims (
    name TEXT PRIMARY KEY, body TEXT NOT NULL, exchange_id TEXT NOT NULL, ended INTEGER NOT NULL,
    answer BLOB, until REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS claims_until ON claims (until)
"""
_OWNERS = """
CREATE TABLE IF NOT EXISTS owners (name TEXT PRIMARY KEY, owner BLOB NOT NULL, until REAL NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS owners_until ON owners (until);
"""


class LocalClaims:
    """A ClaimStore and an OwnerStore in a SQLite file."""

    def __init__(
        self, path: Path, *, retention_s: float, unix_time: Callable[[], float], owners_s: float = OWNERS_S
    ) -> None:
        """`owners_s`: how long owners are remembered. Raises ClaimsUnavailable if the file cannot be used."""
        self._retention_s = retention_s
        self._owners_s = owners_s
        self._unix_time = unix_time
        self._claimed = self._remembered = 0
        with _mapped(), _locked(path):  # SQLite does not wait while another process switches WAL on
            os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
            self._db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
            try:
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=NORMAL")
                self._db.executescript(_SCHEMA)
                self._db.executescript(_OWNERS)
            except BaseException:
                self._db.close()
                raise

    async def claim(self, name: str, body: str, exchange_id: str) -> IdempotencyRecord | None:
        now = self._unix_time()
        with _mapped():
            self._db.execute("DELETE FROM claims WHERE name = ? AND until <= ?", (name, now))
            inserted = self._db.execute(
                "INSERT INTO claims VALUES (?, ?, ?, 0, NULL, ?) ON CONFLICT DO NOTHING",
                (name, body, exchange_id, now + self._retention_s),
            ).rowcount
            if inserted:
                self._tidy(now)
                return None
            row = self._db.execute(
                "SELECT exchange_id, body, ended, answer FROM claims WHERE name = ?", (name,)
            ).fetchone()
        if row is None:  # released in the meantime
            return await self.claim(name, body, exchange_id)
        return None if row[0] == exchange_id else IdempotencyRecord(row[0], row[1] == body, bool(row[2]), row[3])

    async def end(self, name: str, exchange_id: str, answer: bytes | None) -> None:
        with _mapped():
            self._db.execute(
                "UPDATE claims SET ended = 1, answer = ? WHERE name = ? AND exchange_id = ?",
                (answer, name, exchange_id),
            )

    async def release(self, name: str, exchange_id: str) -> None:
        with _mapped():
            self._db.execute("DELETE FROM claims WHERE name = ? AND exchange_id = ?", (name, exchange_id))

    async def remember(self, name: str, owner: bytes) -> None:
        now = self._unix_time()
        with _mapped():
            self._db.execute("INSERT OR REPLACE INTO owners VALUES (?, ?, ?)", (name, owner, now + self._owners_s))
            self._remembered += 1
            if self._remembered % _TIDY_EVERY == 0:
                self._db.execute("DELETE FROM owners WHERE until <= ?", (now,))
                self._db.execute(
                    "DELETE FROM owners WHERE until <= (SELECT until FROM owners ORDER BY until DESC LIMIT 1 OFFSET ?)",
                    (OWNERS_MAX,),
                )

    async def recall(self, name: str) -> bytes | None:
        with _mapped():
            row = self._db.execute(
                "SELECT owner FROM owners WHERE name = ? AND until > ?", (name, self._unix_time())
            ).fetchone()
        return None if row is None else bytes(row[0])

    async def forget(self, name: str) -> None:
        with _mapped():
            self._db.execute("DELETE FROM owners WHERE name = ?", (name,))

    async def aclose(self) -> None:
        self._db.close()

    def _tidy(self, now: float) -> None:
        self._claimed += 1
        if self._claimed % _TIDY_EVERY == 0:
            self._db.execute("DELETE FROM claims WHERE until <= ?", (now,))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Exclude other processes, by a separate lock file: closing a descriptor of SQLite's file drops SQLite's locks."""
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
        raise ClaimsUnavailable(f"file of idempotency claims and response owners: {error}") from error
