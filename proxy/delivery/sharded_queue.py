"""The proxy's end of all streams of the queue.

Invariant: all records of a key go to one stream, so that one shard writes the ledger's sums of a key. Only speed
depends on that: versions before 0.2 sent to any stream, and the number of streams may change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from zlib import crc32

from proxy.billing.record import key_id_in
from proxy.delivery.redis_queue import RedisQueue
from proxy.journal.journal import Pending


def shard_of(key_id: str, shards: int) -> int:
    """The shard of a key, equal in every process and version."""
    return crc32(key_id.encode("utf-8", "backslashreplace")) % shards


class ShardedQueue:
    """A `shipper.Queue` of several streams. A message's id begins with the number of its shard."""

    def __init__(self, shards: Sequence[RedisQueue]) -> None:
        self._shards = shards

    async def add(self, records: Sequence[Pending], node: str) -> list[bytes]:
        """Send records; return their message ids, in order. Raises QueueUnavailable: none, some or all were added."""
        parts: defaultdict[int, list[Pending]] = defaultdict(list)
        for one in records:
            parts[self._shard(one)].append(one)
        message_ids: dict[int, bytes] = {}
        for shard, part in parts.items():
            added = await self._shards[shard].add(part, node)
            message_ids.update((one.seq, b"%d/%b" % (shard, name)) for one, name in zip(part, added, strict=True))
        return [message_ids[one.seq] for one in records]

    async def missing(self, message_ids: Sequence[bytes]) -> list[bytes]:
        """The ids among these that are no longer in their streams. Raises QueueUnavailable."""
        parts: defaultdict[bytes, list[bytes]] = defaultdict(list)
        for one in message_ids:
            shard, _, name = one.partition(b"/")
            parts[shard].append(name)
        missing: list[bytes] = []
        for shard, names in parts.items():
            missing += [b"%b/%b" % (shard, name) for name in await self._shards[int(shard)].missing(names)]
        return missing

    def _shard(self, one: Pending) -> int:
        if len(self._shards) == 1:
            return 0
        return shard_of(key_id_in(one.payload) or "", len(self._shards))
