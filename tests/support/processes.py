"""Holds a test to its word that it starts no process; and processes for those that do."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, util
from typing import NoReturn

import pytest

# Children start clean: no thread, no connection and no event loop of the tests. They are copies of one process that has
# imported what they need and nothing else: to import that takes longer than most of what they do.
CLEAN = multiprocessing.get_context("forkserver")
CLEAN.set_forkserver_preload(
    ["pytest", "tests.ledger.making", "proxy.budgets.redis.store", "proxy.budgets.sqlite.store"]
)


@contextmanager
def no_processes() -> Iterator[None]:
    """Within it, whatever starts a process raises AssertionError."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("a test that starts a process is marked `process` (pytest.mark.process)")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "_execute_child", refuse)
        patch.setattr(util, "spawnv_passfds", refuse)
        patch.setattr(forkserver, "connect_to_new_process", refuse)
        patch.setattr(os, "fork", refuse)
        yield
