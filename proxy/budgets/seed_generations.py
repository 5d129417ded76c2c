"""In which life of a store the ledger is being read, gate by gate.

Law: what was read for a store that has lost everything since is not told to the one that came after: what was settled
meanwhile would be in no sum, and held by nobody any more.
"""

from __future__ import annotations

from collections.abc import Iterable

from proxy.billing.limits import LimitCounter

# Readings that never came to anything leave 100 bytes each. Beyond this they are forgotten, and any sum is believed.
READINGS_MAX = 10_000


class SeedGenerations:
    """One handle's."""

    def __init__(self) -> None:
        self._lives: dict[str, str] = {}

    def begin(self, gates: Iterable[LimitCounter], life: str) -> None:
        """These were said to be unseeded. A reading that others began earlier may be shared: the first counts."""
        if len(self._lives) > READINGS_MAX:
            self._lives.clear()
        for gate in gates:
            self._lives.setdefault(gate.gate_id, life)

    def end(self, gate_id: str) -> str:
        """The life in which it began; empty: nobody was told to read."""
        return self._lives.pop(gate_id, "")
