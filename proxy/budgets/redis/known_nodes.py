"""The other nodes of a deployment, as this node last saw them.

Invariant: the names survive a restart. After Redis has lost all data, which includes its list of nodes, a node waits
for the nodes in its own list, even if it was restarted shortly before.
"""

from __future__ import annotations

from collections.abc import Set
from contextlib import suppress
from pathlib import Path

import msgspec

from proxy.foundation.files import replace_text


class KnownNodes:
    """Names of nodes, and the store's generation in which no loss was suspected."""

    def __init__(self, file: Path | None) -> None:
        """`file`: stores the names; None: they are in memory only."""
        self._file = file
        self.generation = ""
        """the store's generation of the names; empty: a generation of an earlier process"""
        self.names: frozenset[str] = frozenset()
        if file is not None:
            with suppress(OSError, msgspec.MsgspecError):
                self.names = msgspec.json.decode(file.read_bytes(), type=frozenset[str])

    def update(self, generation: str, names: Set[str]) -> None:
        """Replace the names. If the file cannot be written, only the next process lacks them."""
        self.generation = generation
        if self.names != names:
            self.names = frozenset(names)
            if self._file is not None:
                with suppress(OSError):
                    replace_text(self._file, msgspec.json.encode(sorted(self.names)).decode())
