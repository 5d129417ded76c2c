"""Who runs this process, for the audit log."""

from __future__ import annotations

import getpass
import os
from contextlib import suppress


def operator() -> str:
    """The operating system's user; `uid 1000`, if it has no name."""
    with suppress(KeyError, OSError):
        return getpass.getuser()
    return f"uid {os.getuid()}"
