"""The SQLite file of reservations and spend totals, shared by the processes of one machine.

Invariants: The file is a cache, valid until the machine reboots. A file that is damaged, of another version, or older
than the last boot is deleted and replaced: a new generation. The path is a symbolic link to the file of the current
generation, which has a unique name. A process that has an older file open detects that at its next transaction, and
cannot damage the new file.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeVar

from proxy.budgets.store import BudgetsUnavailable

_T = TypeVar("_T")

VERSION = 2
# Length of the warm-up after a new generation: every process checks twice a second, and re-announces.
WARM_S = 1.5

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_TABLES = """
CREATE TABLE life (
    generation TEXT NOT NULL, boot TEXT NOT NULL, warm_until REAL NOT NULL,
    cursor INTEGER, floor_us INTEGER NOT NULL, floor_until REAL NOT NULL
);
CREATE TABLE nodes (node TEXT PRIMARY KEY, announced TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE gates (
    gate_id TEXT PRIMARY KEY, since REAL, spent INTEGER, as_of_us INTEGER,
    held INTEGER NOT NULL, open INTEGER NOT NULL, closed INTEGER NOT NULL, counted BLOB
) WITHOUT ROWID;
CREATE TABLE holds (
    exchange_id TEXT PRIMARY KEY, node TEXT NOT NULL, nusd INTEGER NOT NULL, tokens INTEGER NOT NULL,
    second INTEGER NOT NULL, closed_at REAL, passage INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE passages (passage INTEGER PRIMARY KEY, gates BLOB NOT NULL);
"""
# Error codes of a damaged file: primary and extended.
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT})
_DAMAGED_EXTENDED = frozenset({sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.SQLITE_READONLY_DBMOVED})
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


class Busy(Exception):  # noqa: N818  a state, not an error
    """Another process has a transaction open; nothing was changed."""


class Damaged(Exception):  # noqa: N818  as above
    """The file is invalid; nothing was changed."""


class BudgetFile:
    """One process's handle of the file. The first transaction opens the file."""

    def __init__(self, path: Path) -> None:
        self.generation = ""
        """unique name of the current generation"""
        self.warm_until = 0.0
        """end of the warm-up, by `time.monotonic`, which all processes of a machine share"""
        self.execute: Callable[..., sqlite3.Cursor]
        self.executemany: Callable[..., sqlite3.Cursor]
        self._path = path
        self._name = str(path)
        self._lock: int | None = None
        self._database: sqlite3.Connection | None = None
        self._inode = 0

    def transaction(self, work: Callable[..., _T], *arguments: Any) -> _T:
        """Run `work(*arguments)` in a transaction. Raises Busy, BudgetsUnavailable."""
        try:
            try:
                return self._transaction(work, *arguments)
            except Damaged:
                self._begin_generation(warm_s=WARM_S)
                return self._transaction(work, *arguments)
        except Damaged as error:
            raise BudgetsUnavailable(f"budgets file {self._path}: replaced, but damaged again: {error}") from None
        except OSError as error:
            raise BudgetsUnavailable(f"budgets file {self._path}: {error.strerror or error}") from None

    def close(self) -> None:
        """Close the file; the next transaction opens it again. Never raises."""
        self._disconnect()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _transaction(self, work: Callable[..., _T], *arguments: Any) -> _T:
        try:
            self._open_current()
            self.execute("BEGIN IMMEDIATE")
            try:
                result = work(*arguments)
                self.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise self._translated(error) from None
        return result

    def _open_current(self) -> None:
        """Make sure that the file of the current generation is open."""
        try:
            inode = os.stat(self._name).st_ino
        except FileNotFoundError:
            inode = 0
        if inode != self._inode or self._database is None:
            self._open(inode)

    def _open(self, inode: int) -> None:
        exclusive = self._lock is None and self._acquire_lock()
        try:
            self._disconnect()
            if exclusive:
                self._remove_old_files()
            if not inode:
                # Exclusive: no other process has reservations to re-announce, so no warm-up.
                self._begin_generation(warm_s=0.0 if exclusive else WARM_S)
            else:
                self._attach(checked=exclusive)
        finally:
            if exclusive and self._lock is not None:
                fcntl.flock(self._lock, fcntl.LOCK_SH)

    def _acquire_lock(self) -> bool:
        """Lock the lock file. True: exclusively, because no other process uses the file; the caller downgrades the lock
        later. Raises Busy while another process has it exclusively."""
        fd = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        for kind in (fcntl.LOCK_EX, fcntl.LOCK_SH):
            with suppress(BlockingIOError):
                fcntl.flock(fd, kind | fcntl.LOCK_NB)
                self._lock = fd
                return kind == fcntl.LOCK_EX
        os.close(fd)
        raise Busy

    def _attach(self, *, checked: bool) -> None:
        """Open the file behind the link. Raises Damaged if it is unusable."""
        if not self._path.is_symlink():
            raise Damaged("the path is not a symbolic link")
        target = self._path.parent / os.readlink(self._path)
        database = _connect(target)
        try:
            self.generation, self.warm_until = _generation(database, checked=checked)
            self._inode = target.stat().st_ino
        except BaseException:
            database.close()
            raise
        self._database, self.execute, self.executemany = database, database.execute, database.executemany

    def _begin_generation(self, *, warm_s: float) -> None:
        """Create a new file. Of two processes that do so at the same time, the later link wins."""
        self._disconnect()
        name = f"{self._path.name}.{secrets.token_hex(8)}"
        target, link = self._path.with_name(name), self._path.with_name(f"{name}.link")
        old = self._path.parent / os.readlink(self._path) if self._path.is_symlink() else None
        try:
            _make(target, name, time.monotonic() + warm_s)
        except sqlite3.Error as error:
            raise BudgetsUnavailable(f"budgets file {self._path}: cannot be created: {error}") from None
        link.symlink_to(name)
        link.replace(self._path)
        if old is not None:
            _remove(old)
        try:
            self._attach(checked=False)
        except sqlite3.Error as error:
            raise self._translated(error) from None

    def _disconnect(self) -> None:
        """Close the database connection."""
        if self._database is not None:
            with suppress(sqlite3.Error):
                self._database.close()
        self._database, self._inode = None, 0

    def _translated(self, error: sqlite3.Error) -> Exception:
        """Busy, Damaged or BudgetsUnavailable; `error` itself if it is a programming error."""
        code = getattr(error, "sqlite_errorcode", None)
        if code is None:
            return error
        if code & 0xFF in _BUSY:
            return Busy()
        if code & 0xFF in _DAMAGED or code in _DAMAGED_EXTENDED or "no such table" in str(error):
            return Damaged(str(error))
        return BudgetsUnavailable(f"budgets file {self._path}: {error}")

    def _remove_old_files(self) -> None:
        """Remove the files of earlier generations. Requires the exclusive lock."""
        current = os.readlink(self._path) if self._path.is_symlink() else ""
        for path in self._path.parent.glob(f"{self._path.name}.*"):
            if path.name != f"{self._path.name}.lock" and not (current and path.name.startswith(current)):
                path.unlink(missing_ok=True)


def _connect(path: Path) -> sqlite3.Connection:
    # No timeout: a wait within SQLite would block every stream. Callers retry after Busy.
    database = sqlite3.connect(f"file:{_quoted(path)}?mode=rw", timeout=0, isolation_level=None, uri=True)
    try:
        database.execute("PRAGMA synchronous = OFF")
    except BaseException:
        database.close()
        raise
    return database


def _generation(database: sqlite3.Connection, *, checked: bool) -> tuple[str, float]:
    """The file's generation, and the end of its warm-up. Raises Damaged if it is unusable."""
    if database.execute("PRAGMA user_version").fetchone() != (VERSION,):
        raise Damaged("another version of the format")
    if checked and database.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
        raise Damaged("integrity check failed")
    row = database.execute("SELECT generation, boot, warm_until FROM life").fetchone()
    if row is None or row[1] != _boot():
        raise Damaged("from before the last boot")
    return row[0], row[2]


def _make(path: Path, generation: str, warm_until: float) -> None:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with closing(_connect(path)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.executescript(_TABLES)
        database.execute("INSERT INTO life VALUES (?, ?, ?, NULL, 0, 0)", (generation, _boot(), warm_until))
        database.execute(f"PRAGMA user_version = {VERSION}")


def _remove(target: Path) -> None:
    for ending in ("", "-wal", "-shm"):
        with suppress(OSError):
            target.with_name(target.name + ending).unlink()


def _boot() -> str:
    """Identifier of the current boot of the machine; empty if it is not available."""
    with suppress(OSError):
        return _BOOT_ID.read_text("ascii").strip()
    return ""


def _quoted(path: Path) -> str:
    return str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
