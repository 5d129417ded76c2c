"""Small files of the data directory."""

from __future__ import annotations

import os
from pathlib import Path


def replace_text(file: Path, text: str) -> None:
    """Replace the file's content by `text` atomically; the file is readable by its owner only. Not durable. Raises
    OSError."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.chmod(0o600)
    os.replace(new, file)
