"""Holds a test to its word that it starts no process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import util
from typing import NoReturn

import pytest


@contextmanager
def no_processes() -> Iterator[None]:
    """Within it, whatever starts a process raises AssertionError."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("a test that starts a process is marked `process` (pytest.mark.process)")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "_execute_child", refuse)
        patch.setattr(util, "spawnv_passfds", refuse)
        patch.setattr(os, "fork", refuse)
        yield
