"""Settles records that the ledger has lost, from the journals of this machine, without their proxies.

Invariant: journals are only read, so their proxies may run or not; a record that both this module and a proxy settle
becomes one entry.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from proxy.billing.settlement import entry
from proxy.delivery.delivery import DeliveredRecord
from proxy.delivery.replay import lost_records
from proxy.journal.segment import last_node
from proxy.ledger.settling.settler import Settler
from proxy.ledger.settling.store import LedgerStore, Settled
from proxy.runtime.machine.data_folder import DataFolder
from proxy.settings import Settings

# Of one journal; a million records take two minutes.
SETTLE_S_MAX = 3_600.0

_log = logging.getLogger(__name__)


class LostRecords(msgspec.Struct, frozen=True):
    """The settled records of one journal that the ledger lacks."""

    journal: Path
    node: str
    records: Sequence[DeliveredRecord]


def lost(settings: Settings, store: LedgerStore) -> Iterator[LostRecords]:
    """Find the lost records of every journal of this machine. Raises OSError."""
    alone = DataFolder(settings.data_dir)
    for folder in (alone, *alone.left_behind()):
        node = last_node(folder.journal)
        if node is not None:
            pages = lost_records(folder.journal, node.node_id, store)
            records = [DeliveredRecord(node.node_id, one.seq, one.payload) for page in pages for one in page]
            yield LostRecords(folder.journal, node.node_id, records)


def settle_again(store: LedgerStore, records: Sequence[DeliveredRecord]) -> dict[str, int]:
    """Settle the records, and return their number by result. If the ledger becomes unavailable, wait for it. Raises
    TimeoutError."""
    return asyncio.run(_settled(store, records))


async def _settled(store: LedgerStore, records: Sequence[DeliveredRecord]) -> dict[str, int]:
    counter = _ResultCounter()
    settler = Settler(_GivenRecords(records), store, to_entry=entry, observer=counter)
    whole, _ = await asyncio.gather(settler.close(SETTLE_S_MAX), asyncio.wait_for(settler.run(), SETTLE_S_MAX))
    assert whole, "the settler ends when no record is left"
    return dict(counter.results)


class _GivenRecords:
    """A settler's source that has the given records."""

    def __init__(self, records: Sequence[DeliveredRecord]) -> None:
        self._left = list(records)

    async def take(self, limit: int) -> Sequence[DeliveredRecord]:
        taken, self._left = self._left[:limit], self._left[limit:]
        return taken

    async def extend_claim(self, taken: Sequence[DeliveredRecord]) -> None: ...
    async def settled(self, taken: Sequence[DeliveredRecord]) -> None: ...
    def drain(self) -> None: ...


class _ResultCounter:
    """A settler's observer that counts results."""

    def __init__(self) -> None:
        self.results: Counter[str] = Counter()

    def committed(self, settled: Settled, *, unreadable: int, duration_s: float) -> None:
        """One transaction was committed."""
        self.results["settled"] += len(settled.inserted) + len(settled.adjusted)
        self.results["repeated"] += settled.repeated
        self.results["dead_letters"] += settled.conflicts + settled.rejected + unreadable

    def failed(self, error: Exception) -> None:
        """Log a failed attempt; it is repeated."""
        _log.warning("settling: %s", error)
