"""The generation of the store in which each read of a counter's spend from the ledger began.

Invariant: a spend total that was read for one generation of the store is not written to a later one. Entries settled in
between would be missing from the total, and no reservation would cover them.
"""

from __future__ import annotations

from collections.abc import Iterable

from proxy.billing.limits import LimitCounter

# Unfinished reads take 100 bytes each. Beyond this number they are dropped, and every spend total is accepted.
READS_MAX = 10_000


class SeedGenerations:
    """Running reads of one store handle."""

    def __init__(self) -> None:
        self._generations: dict[str, str] = {}

    def begin(self, counters: Iterable[LimitCounter], generation: str) -> None:
        """Record that these counters were unseeded. A read may be shared: the earliest generation is kept."""
        if len(self._generations) > READS_MAX:
            self._generations.clear()
        for counter in counters:
            self._generations.setdefault(counter.counter_id, generation)

    def end(self, counter_id: str) -> str:
        """The generation in which the read began; empty: not recorded."""
        return self._generations.pop(counter_id, "")
