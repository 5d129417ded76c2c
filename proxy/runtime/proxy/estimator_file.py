"""The estimator's learned state in a file. Invariant: a crash loses at most KEEP_S of it, and a bad file never prevents
a start."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import msgspec

from proxy.foundation.files import replace_text
from proxy.metering.estimator.estimate import Estimator

KEEP_S = 30.0


class EstimatorFile:
    """Restores the estimator; `run` and `save` write it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        try:
            self.estimator = Estimator.restore(msgspec.json.decode(file.read_bytes()))
        except (OSError, ValueError, msgspec.MsgspecError):
            self.estimator = Estimator()

    async def run(self) -> None:
        """Save every KEEP_S until cancelled."""
        while True:
            await asyncio.sleep(KEEP_S)
            await asyncio.to_thread(self._write, self.estimator.export())

    def save(self) -> None:
        """Save now. A failed write loses only the changes since the last save."""
        self._write(self.estimator.export())

    def _write(self, learned: dict[str, object]) -> None:
        with suppress(OSError):
            replace_text(self._file, msgspec.json.encode(learned).decode())
