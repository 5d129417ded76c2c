"""The SQLite file that the processes of one machine keep holds and sums in.

Law: it is a cache, and lives no longer than the machine runs. What is damaged, of another version, or from before the
machine was started is thrown away and begun anew. The path is a link to the file of this life, whose name nothing else
ever had: whoever still has an older one open finds that out at its next transaction, and cannot hurt the new one.
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
# After a life begins while other processes may hold something: they look each half second, and announce it.
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
# The file is not what it should be: by the primary code, and by the extended one.
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT})
_DAMAGED_IN_FULL = frozenset({sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.SQLITE_READONLY_DBMOVED})
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


class Busy(Exception):  # noqa: N818  a state, not an error
    """Another process is in the middle of a transaction; nothing happened."""


class Damaged(Exception):  # noqa: N818  as above
    """What is kept makes no sense; nothing happened."""


class BudgetFile:
    """One process's way to the file. It is opened when it is first used."""

    def __init__(self, path: Path) -> None:
        self.generation = ""
        """this life's own name"""
        self.warm_until = 0.0
        """`time.monotonic`, which all processes of a machine share"""
        self.execute: Callable[..., sqlite3.Cursor]
        self.executemany: Callable[..., sqlite3.Cursor]
        self._path = path
        self._name = str(path)
        self._lock: int | None = None
        self._database: sqlite3.Connection | None = None
        self._inode = 0

    def transaction(self, work: Callable[..., _T], *asked: Any) -> _T:
        """`work(*asked)`, all of it or nothing. Raises Busy, BudgetsUnavailable."""
        try:
            try:
                return self._transaction(work, *asked)
            except Damaged:
                self._begin_anew(warm_s=WARM_S)
                return self._transaction(work, *asked)
        except Damaged as error:
            raise BudgetsUnavailable(f"the budgets' file is damaged, and a new one is too: {error}") from None
        except OSError as error:
            raise BudgetsUnavailable(f"the budgets' file: {error.strerror or error}") from None

    def close(self) -> None:
        """Let go; the next transaction opens it again. Never raises."""
        self._leave()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _transaction(self, work: Callable[..., _T], *asked: Any) -> _T:
        try:
            self._follow()
            self.execute("BEGIN IMMEDIATE")
            try:
                answer = work(*asked)
                self.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise _meaning(error) from None
        return answer

    def _follow(self) -> None:
        """Be on the file of this life, whoever began it."""
        try:
            inode = os.stat(self._name).st_ino
        except FileNotFoundError:
            inode = 0
        if inode != self._inode or self._database is None:
            self._open(inode)

    def _open(self, inode: int) -> None:
        alone = self._lock is None and self._enter()
        try:
            self._leave()
            if alone:
                self._tidy()
            if not inode:
                # Nobody else is there to know of anything: this is the first time.
                self._begin_anew(warm_s=0.0 if alone else WARM_S)
            else:
                self._attach(checked=alone)
        finally:
            if alone and self._lock is not None:
                fcntl.flock(self._lock, fcntl.LOCK_SH)

    def _enter(self) -> bool:
        """Say that this process is there; True if no other is, and none comes in until the lock is shared.
        Raises Busy while another is alone."""
        fd = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        for kind in (fcntl.LOCK_EX, fcntl.LOCK_SH):
            with suppress(BlockingIOError):
                fcntl.flock(fd, kind | fcntl.LOCK_NB)
                self._lock = fd
                return kind == fcntl.LOCK_EX
        os.close(fd)
        raise Busy

    def _attach(self, *, checked: bool) -> None:
        """Open what the path leads to. Raises Damaged if it is not fit to be used."""
        if not self._path.is_symlink():
            raise Damaged("not made here")
        target = self._path.parent / os.readlink(self._path)
        database = _connect(target)
        try:
            self.generation, self.warm_until = _life(database, checked=checked)
            self._inode = target.stat().st_ino
        except BaseException:
            database.close()
            raise
        self._database, self.execute, self.executemany = database, database.execute, database.executemany

    def _begin_anew(self, *, warm_s: float) -> None:
        """A new life. Should two processes begin one at the same time, the later counts, and the other follows."""
        self._leave()
        name = f"{self._path.name}.{secrets.token_hex(8)}"
        target, link = self._path.with_name(name), self._path.with_name(f"{name}.link")
        old = self._path.parent / os.readlink(self._path) if self._path.is_symlink() else None
        try:
            _make(target, name, time.monotonic() + warm_s)
        except sqlite3.Error as error:
            raise BudgetsUnavailable(f"the budgets' file cannot be made: {error}") from None
        link.symlink_to(name)
        link.replace(self._path)
        if old is not None:
            _remove(old)
        try:
            self._attach(checked=False)
        except sqlite3.Error as error:
            raise _meaning(error) from None

    def _leave(self) -> None:
        """Close the file of a life."""
        if self._database is not None:
            with suppress(sqlite3.Error):
                self._database.close()
        self._database, self._inode = None, 0

    def _tidy(self) -> None:
        """Remove what earlier lives left. Only while nobody else is there."""
        current = os.readlink(self._path) if self._path.is_symlink() else ""
        for path in self._path.parent.glob(f"{self._path.name}.*"):
            if path.name != f"{self._path.name}.lock" and not (current and path.name.startswith(current)):
                path.unlink(missing_ok=True)


def _connect(path: Path) -> sqlite3.Connection:
    # A wait of SQLite's own would hold up every stream; whoever finds it busy comes again.
    database = sqlite3.connect(f"file:{_quoted(path)}?mode=rw", timeout=0, isolation_level=None, uri=True)
    try:
        database.execute("PRAGMA synchronous = OFF")
    except BaseException:
        database.close()
        raise
    return database


def _life(database: sqlite3.Connection, *, checked: bool) -> tuple[str, float]:
    """Its generation, and until when it is warming. Raises Damaged if it is not fit to be used."""
    if database.execute("PRAGMA user_version").fetchone() != (VERSION,):
        raise Damaged("of another version")
    if checked and database.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
        raise Damaged("it does not pass its check")
    found = database.execute("SELECT generation, boot, warm_until FROM life").fetchone()
    if found is None or found[1] != _boot():
        raise Damaged("from before the machine was started")
    return found[0], found[2]


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


def _meaning(error: sqlite3.Error) -> Exception:
    """What went wrong, in our words; a bug of ours as it is."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return error  # the library was used wrongly
    if code & 0xFF in _BUSY:
        return Busy()
    if code & 0xFF in _DAMAGED or code in _DAMAGED_IN_FULL or "no such table" in str(error):
        return Damaged(str(error))
    return BudgetsUnavailable(f"the budgets' file: {error}")


def _boot() -> str:
    """Which run of the machine this is; empty where that cannot be told."""
    with suppress(OSError):
        return _BOOT_ID.read_text("ascii").strip()
    return ""


def _quoted(path: Path) -> str:
    return str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
