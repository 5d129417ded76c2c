"""The other nodes of a deployment, as this one last saw them.

Invariant: a restart does not forget them. After a loss of all data in Redis, which lists them too, a node waits for the
nodes that it knows, and it may have been restarted shortly before.
"""

from __future__ import annotations

from collections.abc import Set
from contextlib import suppress
from pathlib import Path

import msgspec

from proxy.foundation.files import replace_text


class KnownNodes:
    """Their names, with the generation of the store in which nothing was suspected to be lost."""

    def __init__(self, file: Path | None) -> None:
        """`file`: where they are kept; None: in memory only."""
        self._file = file
        self.generation = ""
        """empty: that of an earlier process"""
        self.names: frozenset[str] = frozenset()
        if file is not None:
            with suppress(OSError, msgspec.MsgspecError):
                self.names = msgspec.json.decode(file.read_bytes(), type=frozenset[str])

    def update(self, generation: str, names: Set[str]) -> None:
        """A disk that refuses costs only the memory of the next process."""
        self.generation = generation
        if self.names != names:
            self.names = frozenset(names)
            if self._file is not None:
                with suppress(OSError):
                    replace_text(self._file, msgspec.json.encode(sorted(self.names)).decode())
