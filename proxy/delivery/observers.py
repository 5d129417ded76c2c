"""Reports the work of settlers, shippers and sweepers to metrics and the log."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from proxy.billing.record import UsageRecord
from proxy.foundation.outage import Outage, OutageLog
from proxy.ledger.settling.store import Settled
from proxy.telemetry.metrics import Metrics

_log = logging.getLogger(__name__)


class SettlerObserver:
    """Receives a settler's transactions, and its outages."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._outage = Outage(OutageLog("settling"))

    def committed(self, settled: Settled, *, unreadable: int, duration_s: float) -> None:
        """One transaction was committed."""
        results = {
            "inserted": len(settled.inserted),
            "repeated": settled.repeated,
            "adjusted": len(settled.adjusted),
            "conflict": settled.conflicts,
            "dead_letter": settled.rejected + unreadable,
        }
        self._metrics.committed(results, entries=settled.inserted, duration_s=duration_s)
        self._outage.over()
        if settled.conflicts or settled.rejected or unreadable:
            _log.error("ledger: records became dead letters: %s", results)

    def failed(self, error: Exception) -> None:
        """One attempt failed; it is retried."""
        self._metrics.ledger.write_failures.inc()
        self._outage.began(error)


class ShipperObserver(OutageLog):
    """Receives a shipper's progress, and outages of the queue and of the ledger. Called on the event loop's thread."""

    def __init__(self, metrics: Metrics) -> None:
        super().__init__("shipping", metrics.ledger.outages.inc)
        self._metrics = metrics

    def sent(self, records: int, *, again: int) -> None:
        """Records were added to the queue; `again`: how many of them were sent before, in this run or the last."""
        self._metrics.ledger.sent(records, again=again)

    def confirmed(self, records: int) -> None:
        """The ledger has confirmed records."""
        self._metrics.confirmed(records)


class SweeperObserver(OutageLog):
    """Receives a sweeper's progress, and outages of the lease registry and of the ledger."""

    def __init__(self, metrics: Metrics) -> None:
        super().__init__("sweeping", metrics.ledger.outages.inc)
        self._metrics = metrics

    def checked(self, nodes: int) -> None:
        """The lease registry was read and has this many nodes."""
        self._metrics.ledger.nodes.set(nodes)

    def swept(self, node: str, records: Sequence[UsageRecord]) -> None:
        """A node is dead, and the ledger has these records (some possibly from before)."""
        self._metrics.ledger.swept.inc(len(records))
        _log.warning("node %s is dead: %d of its exchanges were settled from their leases", node, len(records))

    def damaged(self, node: str, exchange_id: str, why: str) -> None:
        """A lease of a dead node cannot be read: an alarm. The lease stays in the registry."""
        self._metrics.ledger.leases_damaged.inc()
        _log.error("lease of exchange %s on node %s cannot be read: %s", exchange_id, node, why)
