"""The records in the queue and the exchanges under lease, for integrity checks. Invariant: both are read before the
ledger, so that a record that is settled meanwhile is found in the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proxy.reconciliation.integrity import RecordsInFlight
from proxy.settings import Settings

if TYPE_CHECKING:
    from proxy.runtime.machine.queue import Queue


async def records_in_flight(queue: Queue) -> RecordsInFlight:
    """Every record in the queue and every lease; takes some seconds per 100,000 records. Raises QueueUnavailable."""
    leased = {node: await queue.leases.ids(node) for node in await queue.leases.nodes()}
    ages_s = [await shard.oldest_age_s() for shard in queue.shards]
    queued = [receipt for shard in queue.shards for receipt in await shard.receipts()]
    return RecordsInFlight(queued=queued, oldest_age_s=max(ages_s), leased=leased)


async def read_records_in_flight(settings: Settings) -> RecordsInFlight:
    """Read the records in flight over a new connection. Raises QueueUnavailable."""
    from proxy.runtime.machine.queue import Queue

    queue = Queue(settings)
    try:
        return await records_in_flight(queue)
    finally:
        await queue.close()
