"""Debian's Prometheus and its promtool, as tests use them; a test that needs them skips where they are not."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

START_S_MAX = 30.0


def installed(name: str) -> str:
    """Where `prometheus` or `promtool` is; skips the test if nowhere."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} (of the Debian package prometheus) is not installed here")
    return found


def promtool(*arguments: str, stdin: str = "") -> str:
    """Run promtool; returns its output. Fails the test if promtool fails."""
    done = subprocess.run(
        [installed("promtool"), *arguments], input=stdin, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


class Prometheus:
    """A server with its own folder, on a free port."""

    def __init__(self, folder: Path, config: Path, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._log = folder / "prometheus.log"
        with self._log.open("w") as log:
            self._child = subprocess.Popen(
                [
                    installed("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                ],
                stdout=log, stderr=log, cwd=folder,
            )  # fmt: skip

    def get(self, path: str, **parameters: str) -> Any:
        """The field `data` of an answer of its API. Raises HTTPError, which has its words."""
        with urlopen(f"{self.url}/api/v1/{path}?{urlencode(parameters)}", timeout=10) as response:
            return json.load(response)["data"]

    def until(self, holds: Callable[[Prometheus], bool], what: str) -> None:
        """Wait until the condition holds; a missing answer counts as false."""
        deadline = time.monotonic() + START_S_MAX
        while True:
            try:
                if holds(self):
                    return
            except URLError:
                assert self._child.poll() is None, self._log.read_text()[-3000:]
            assert time.monotonic() < deadline, f"not within {START_S_MAX} s: {what}"
            time.sleep(0.05)

    def close(self) -> None:
        self._child.terminate()
        self._child.wait(START_S_MAX)
