"""One file of the journal, and the few other files beside it: the lock, the node's identity, the quarantine.

Law: bytes are appended, never changed; what could not be written whole is cut off again. Files are 0600, folders 0700.
OSError goes up untouched: the journal decides what it means.
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
    """An append-only file. `base` is the address of its first byte in the whole log."""

    __slots__ = ("alive", "base", "dirty", "end", "fd", "path", "trusted")

    def __init__(self, path: Path, fd: int, end: int) -> None:
        self.path = path
        self.base = int(path.stem)
        self.fd = fd
        self.end = end
        self.alive = 0
        """frames in here that still count"""
        self.dirty = False
        self.trusted = True

    @classmethod
    def create(cls, directory: Path, base: int) -> Segment:
        """A new, empty file. Its name survives a power cut only after the folder was synced."""
        path = directory / f"{base:020d}{SUFFIX}"
        return cls(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), 0)

    @classmethod
    def load(cls, path: Path) -> Segment:
        """A file that is there already."""
        fd = os.open(path, os.O_RDWR)
        return cls(path, fd, os.fstat(fd).st_size)

    def append(self, frame: bytes) -> int:
        """Write one frame, return its offset; it is in the page cache then. On OSError nothing of it stays."""
        offset = self.end
        written = 0
        try:
            while written < len(frame):
                count = os.pwrite(self.fd, frame[written:] if written else frame, offset + written)
                written += count or _no_room()
        except OSError:
            with suppress(OSError):  # if the cut fails too, the next frame is written over the rest
                os.ftruncate(self.fd, offset)
            raise
        self.end = offset + written
        self.dirty = True
        return offset

    def read(self, offset: int, length: int) -> Frame | None:
        """The frame at `offset`, or None if it is not there as it was written."""
        try:
            return frame_at(os.pread(self.fd, length, offset), 0)
        except OSError:
            return None

    def image(self) -> bytes:
        """The whole file."""
        return self.path.read_bytes()

    def cut(self, end: int) -> None:
        """Forget everything from offset `end` on."""
        os.ftruncate(self.fd, end)
        self.end = end
        self.dirty = True

    def sync(self) -> None:
        """Make what was appended before this call survive a power cut. May run in another thread than `append`."""
        if self.dirty:
            self.dirty = False  # before the call: what is appended meanwhile makes it dirty again
            os.fdatasync(self.fd)

    def remove(self) -> None:
        """Delete the file, also when it is gone already."""
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Give the file descriptor back."""
        os.close(self.fd)


def _no_room() -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def segments(directory: Path) -> list[Segment]:
    """The segments that are there, by rising address."""
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


def sync_directory(directory: Path) -> None:
    """Make created and deleted names survive a power cut."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def keep_aside(directory: Path, name: str, content: bytes) -> str:
    """Copy `content` into the quarantine; return the file's name. The same content is kept once."""
    quarantine = directory / "quarantine"
    quarantine.mkdir(mode=0o700, exist_ok=True)
    kept_as = f"{name}-{crc32(content):08x}"
    _write(quarantine / kept_as, content)
    return kept_as


class Node(msgspec.Struct, frozen=True):
    """Who writes this journal: `node_id` for the folder's whole life, `epoch` for one run of the process."""

    node_id: str
    epoch: int


def last_node(directory: Path) -> Node | None:
    """Who wrote last; None if that is not known or not readable."""
    try:
        return msgspec.json.decode((directory / "node.json").read_bytes(), type=Node)
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def next_node(directory: Path, last: Node | None, epoch_seen: int) -> Node:
    """The identity of this run, durable when this returns; its epoch is above every epoch of the past."""
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
