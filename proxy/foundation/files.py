"""Writes small files, durably where that matters."""

from __future__ import annotations

import os
from pathlib import Path


def write_private(file: Path, content: bytes) -> None:
    """Write a new file, readable by its owner only, that survives a power cut. Raises FileExistsError, OSError."""
    fd = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(fd, "wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(fd)


def sync(path: Path) -> None:
    """Make a file's content, or the names in a folder, survive a power cut. Raises OSError."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_whole(file: Path, content: bytes) -> None:
    """Replace the file's content atomically and durably; the file is readable by its owner only. Raises OSError."""
    new = file.with_suffix(".new")
    new.unlink(missing_ok=True)
    write_private(new, content)
    os.replace(new, file)
    sync(file.parent)


def replace_text(file: Path, text: str) -> None:
    """Replace the file's content by `text` atomically; the file is readable by its owner only. Not durable. Raises
    OSError."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.chmod(0o600)
    os.replace(new, file)
