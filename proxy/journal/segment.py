"""The journal's files: segments, the lock, the node's identity, the quarantine.

Invariants: bytes are appended, never changed; an incomplete write is truncated. Files are 0600, folders 0700. OSError
passes through unchanged: the journal interprets it.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec

from proxy.journal.frames import Frame, frame_at

SUFFIX: Final = ".log"


class Segment:
    """An append-only file. `base`: address of its first byte in the log."""

    __slots__ = ("alive", "base", "dirty", "end", "fd", "path", "trusted")

    def __init__(self, path: Path, fd: int, end: int) -> None:
        self.path = path
        self.base = int(path.stem)
        self.fd = fd
        self.end = end
        self.alive = 0
        """number of live frames"""
        self.dirty = False
        self.trusted = True

    @classmethod
    def create(cls, directory: Path, base: int) -> Segment:
        """A new, empty file. Its name survives a power cut only after the folder is synced."""
        path = directory / f"{base:020d}{SUFFIX}"
        return cls(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), 0)

    @classmethod
    def load(cls, path: Path) -> Segment:
        """Open an existing file."""
        fd = os.open(path, os.O_RDWR)
        return cls(path, fd, os.fstat(fd).st_size)

    def append(self, frame: bytes) -> int:
        """Write one frame to the page cache; return its offset. After an OSError, no byte of it remains."""
        offset = self.end
        written = 0
        try:
            while written < len(frame):
                count = os.pwrite(self.fd, frame[written:] if written else frame, offset + written)
                written += count or _no_space()
        except OSError:
            with suppress(OSError):  # if this fails too, the next frame overwrites the rest
                os.ftruncate(self.fd, offset)
            raise
        self.end = offset + written
        self.dirty = True
        return offset

    def read(self, offset: int, length: int) -> Frame | None:
        """The frame at `offset`, or None if it is missing or damaged."""
        try:
            return frame_at(os.pread(self.fd, length, offset), 0)
        except OSError:
            return None

    def image(self) -> bytes:
        """The whole file."""
        return self.path.read_bytes()

    def cut(self, end: int) -> None:
        """Truncate the file to `end` bytes."""
        os.ftruncate(self.fd, end)
        self.end = end
        self.dirty = True

    def sync(self) -> None:
        """Make the bytes appended so far survive a power cut. May run in another thread than `append`."""
        if self.dirty:
            self.dirty = False  # before the call: an append during it sets this again
            os.fdatasync(self.fd)

    def remove(self) -> None:
        """Delete the file, if it exists, and close it."""
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Close the file descriptor."""
        os.close(self.fd)


def _no_space() -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def segments(directory: Path) -> list[Segment]:
    """The existing segments, by rising address."""
    paths = (path for path in directory.glob(f"*{SUFFIX}") if path.stem.isdecimal())
    return [Segment.load(path) for path in sorted(paths, key=lambda path: int(path.stem))]


def lock(directory: Path) -> int | None:
    """The file descriptor that holds the folder's lock, or None if another process has it."""
    fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def is_locked(directory: Path) -> bool:
    """Whether a process has the folder's lock."""
    if not directory.is_dir():
        return False
    fd = lock(directory)
    if fd is not None:
        os.close(fd)
    return fd is None


def keep_aside(directory: Path, name: str, content: bytes) -> str:
    """Copy `content` into the quarantine; return the file's name. Equal content is stored once."""
    quarantine = directory / "quarantine"
    quarantine.mkdir(mode=0o700, exist_ok=True)
    kept_as = f"{name}-{crc32(content):08x}"
    _write(quarantine / kept_as, content)
    return kept_as


class Node(msgspec.Struct, frozen=True):
    """The writer of a journal: `node_id` never changes for one folder, `epoch` rises with each run."""

    node_id: str
    epoch: int


def last_node(directory: Path) -> Node | None:
    """The last writer; None if its file is missing or unreadable."""
    try:
        return msgspec.json.decode((directory / "node.json").read_bytes(), type=Node)
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def next_node(directory: Path, last: Node | None, epoch_seen: int) -> Node:
    """The identity of this run, durable when this returns; its epoch is above every earlier epoch."""
    if last is None:
        node = Node(os.urandom(8).hex(), epoch_seen + 1)
    else:
        node = Node(last.node_id, max(last.epoch, epoch_seen) + 1)
    new = directory / "node.json.new"
    _write(new, msgspec.json.encode(node))
    new.replace(directory / "node.json")
    return node


def _write(path: Path, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(fd)
