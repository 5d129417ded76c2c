"""What a test downloads or builds once, kept in a folder of the user's cache, never in the repository.

Invariant: a folder that was not finished is made again. What cannot be fetched skips the test and says why; what cannot
be built of our own sources fails it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import venv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

FETCH_S_MAX = 900.0
BUILD_S_MAX = 900.0
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tokenweir-tests"


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name`, filled by `make` at the first use."""
    home = CACHE / name
    if not (home / "complete").exists():
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        make(home)
        (home / "complete").touch()
    return home


def fetch(command: Sequence[str | Path], folder: Path, environment: Mapping[str, str] | None = None) -> None:
    """A download by a package manager. Skips the test where it fails."""
    done = _run(command, folder, FETCH_S_MAX, environment)
    if done.returncode:
        why = " ".join((done.stderr.strip() or done.stdout.strip())[-300:].split())
        pytest.skip(f"`{Path(command[0]).name} {' '.join(map(str, command[1:4]))}…` is not possible here: {why}")


def build(command: Sequence[str | Path], folder: Path, environment: Mapping[str, str] | None = None) -> None:
    """A compiler on our own sources."""
    done = _run(command, folder, BUILD_S_MAX, environment)
    assert done.returncode == 0, done.stdout + done.stderr


def _run(
    command: Sequence[str | Path], folder: Path, timeout_s: float, environment: Mapping[str, str] | None
) -> subprocess.CompletedProcess[str]:
    whole = {**os.environ, **(environment or {})}
    return subprocess.run(
        command, cwd=folder, env=whole, capture_output=True, text=True, timeout=timeout_s, check=False
    )


def python_environment(name: str, *requirements: str) -> Path:
    """A virtual environment with these packages, which no environment of ours gets."""

    def make(home: Path) -> None:
        venv.create(home, with_pip=True)
        fetch([home / "bin" / "python", "-m", "pip", "install", "--quiet", *requirements], home)

    return cached(name, make)
