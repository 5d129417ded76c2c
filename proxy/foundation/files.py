"""Small files of the data directory."""

from __future__ import annotations

import os
from pathlib import Path


def replace_text(file: Path, text: str) -> None:
    """The file has this text at once, or keeps what it has; only its owner reads it. Not durable. Raises OSError."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.chmod(0o600)
    os.replace(new, file)
