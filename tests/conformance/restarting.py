"""`--restart` of the suite for a gateway that a test holds: the command asks, this process kills and starts it."""

from __future__ import annotations

import shlex
import tempfile
import threading
from pathlib import Path
from typing import Protocol, Self


class Gateway(Protocol):
    """What can be killed and started again at the same address."""

    def kill(self) -> object: ...

    def start(self) -> object: ...


class Restarting:
    """While it is entered, `command` kills the gateway once, starts it, and ends when it listens."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._folder = tempfile.TemporaryDirectory()
        self._wanted, self._done = (Path(self._folder.name) / name for name in ("wanted", "done"))
        self._over = threading.Event()
        self._watching = threading.Thread(target=self._watch)

    @property
    def command(self) -> str:
        """For the shell."""
        wanted, done = (shlex.quote(str(path)) for path in (self._wanted, self._done))
        return f"touch {wanted}; until [ -e {done} ]; do sleep 0.02; done"

    def _watch(self) -> None:
        while not self._over.wait(0.01):
            if self._wanted.exists() and not self._done.exists():
                self._gateway.kill()
                self._gateway.start()
                self._done.touch()

    def __enter__(self) -> Self:
        self._watching.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watching.join()
        self._folder.cleanup()
