"""The queue between machines: one Redis stream per shard, which one consumer group of settlers reads.

Invariants: if Redis loses all data, only time is lost: the journals have every record. A message is deleted only when
the ledger has its record. The delivery count of a message is its number of attempts: a message that kills its worker is
retried alone and becomes a dead letter after five attempts; the other messages of its batch do not.
"""

from __future__ import annotations

import time
from asyncio import sleep
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import msgspec
from redis.exceptions import ResponseError

from proxy.delivery.delivery import DeliveredRecord
from proxy.journal.journal import Pending
from proxy.storage.redis_client import BLOCK_MS, QueueUnavailable, RedisClient, Word, map_errors, pipelined
from proxy.storage.redis_keys import PREFIX, RedisKeys

GROUP = "settlers"

# A worker that has not renewed its claim on a message for this long is dead; a living one renews every few seconds
# (`extend_claim`).
CLAIM_AFTER_MS = 30_000
# Checks for messages of dead workers within that time.
_CHECKS_PER_CLAIM = 3
# A consumer that was idle for so many times that time is dead.
_GONE_AFTER_CLAIMS = 20
# Interval of the clean-up of orphaned messages and dead consumers; both are rare.
TIDY_S = 60.0
_STRAYS_AT_ONCE = 100
# A record has one or two KiB.
_READ_AT_ONCE = 1_000
# XRANGE returns whole messages: this many block a proxy's event loop for a millisecond.
_CHECKED_AT_ONCE = 100
# Until a queue that another worker settles looks again whether it is its turn.
STANDBY_S = 0.5
# Under load, wait this long for more records to share a transaction; the first one after a pause does not wait.
LINGER_S = 0.02

# Version of a message: `n` and `s` keep their meaning in every version, so that the ledger's receipt is right.
_VERSION = b"1"
_SEQ_MAX = 2**63

_NO_GROUP = ("NOGROUP", "UNBLOCKED", "no such key")
"""beginnings of the errors that creating the group resolves"""

_Entry: TypeAlias = tuple[bytes, dict[bytes, bytes]]
"""a message in the form that Redis returns: id and fields"""


class ReclaimLock:
    """A lock by which only one queue of a process at a time retries messages of dead workers.

    A fatal record kills its whole process: records that another queue reclaims at the same time would count equal
    failed attempts and become dead letters too.
    """

    holder: RedisQueue | None = None


class RedisQueue:
    """Both ends of one stream. Each end is used by one task."""

    def __init__(
        self,
        redis: RedisClient,
        *,
        consumer: str,
        prefix: str = PREFIX,
        shard: int = 0,
        claim_after_ms: int = CLAIM_AFTER_MS,
        block_ms: int = BLOCK_MS,
        linger_s: float = LINGER_S,
        reclaim: ReclaimLock | None = None,
        settles: Callable[[], bool] = lambda: True,
        monotonic: Callable[[], float] = time.monotonic,
        unix_time: Callable[[], float] = time.time,
    ) -> None:
        """`consumer`: unique name of this worker. `reclaim`: shared by all queues of a worker process. `settles`: False
        while another worker takes from this stream; both may do so for a moment."""
        self.shard = shard
        self._redis: Any = redis  # the library types its answers for all protocols at once
        self._key = RedisKeys(prefix).records(shard).encode()
        self._consumer = consumer
        self._claim_after_ms = claim_after_ms
        self._block_ms = block_ms
        self._linger_s = linger_s
        self._reclaim = reclaim or ReclaimLock()
        self._settles = settles
        self._monotonic = monotonic
        self._unix_time = unix_time
        self._full = True
        """True if the last take was full: more messages wait"""
        self._taken: set[bytes] = set()
        self._unacknowledged: list[bytes] = []
        """ids of settled messages that are not acknowledged yet"""
        self._unsure = True
        """True if an answer was lost: messages may have been delivered to this consumer without reaching it"""
        self._draining = False
        self._check_at = 0.0
        self._tidy_at = monotonic() + TIDY_S

    # -- the proxy's end -----------------------------------------------------------------------------------------

    async def add(self, records: Sequence[Pending], node: str) -> list[bytes]:
        """Send records; return their message ids, in order. Raises QueueUnavailable: none, some or all were added.

        The group is created with the stream: a full server would refuse a group later, and nothing could be read.
        """
        message_ids: dict[int, bytes] = {}
        async with map_errors(self._redis, "sending records"):
            while left := [one for one in records if one.seq not in message_ids]:
                answers = await pipelined(self._redis, [self._message(one, node) for one in left])
                message_ids.update((one.seq, answer) for one, answer in zip(left, answers, strict=True) if answer)
                if None in answers:  # no such stream
                    await self._make_group()
        return [message_ids[one.seq] for one in records]

    async def missing(self, message_ids: Sequence[bytes]) -> list[bytes]:
        """The ids among these that are no longer in the stream. Raises QueueUnavailable."""
        async with map_errors(self._redis, "checking records"):
            return await self._missing(message_ids)

    async def depth(self) -> int:
        """The number of unsettled messages. Raises QueueUnavailable."""
        async with map_errors(self._redis, "counting records"):
            length: int = await self._redis.xlen(self._key)
        return length

    async def oldest_age_s(self) -> float:
        """Age of the oldest message: from the server's clock to the local one. Raises QueueUnavailable."""
        async with map_errors(self._redis, "reading the oldest record"):
            oldest: list[_Entry] = await self._redis.xrange(self._key, count=1)
        if not oldest:
            return 0.0
        added_ms = int(oldest[0][0].partition(b"-")[0])
        return max(0.0, self._unix_time() - added_ms / 1000)

    async def receipts(self) -> list[tuple[str, int]]:
        """(node, journal seq) of every readable message; reads the whole stream. Raises QueueUnavailable."""
        receipts: list[tuple[str, int]] = []
        after = "-"
        while True:
            async with map_errors(self._redis, "reading the queue"):
                entries: list[_Entry] = await self._redis.xrange(self._key, min=after, count=_READ_AT_ONCE)
            receipts += [(one.node, one.seq) for one in (_delivery(*entry, 1) for entry in entries) if one.node]
            if len(entries) < _READ_AT_ONCE:
                return receipts
            after = f"({entries[-1][0].decode()}"

    # -- the worker's end ----------------------------------------------------------------------------------------

    def drain(self) -> None:
        """From now on `take` returns nothing; other workers continue. A waiting `take` returns within a second."""
        self._draining = True

    async def take(self, limit: int) -> Sequence[DeliveredRecord]:
        """The next records to settle: those of dead workers, else new ones, oldest first; may be empty.

        Waits up to about a second for the first one. Raises QueueUnavailable. Can be cancelled.
        """
        try:
            async with map_errors(self._redis, "taking records"):
                taken = await self._take_in_group(limit)
        except BaseException:
            self._unsure = True
            self._end_reclaim()
            raise
        self._taken.update(one.message_id for one in taken)
        return taken

    async def settled(self, taken: Sequence[DeliveredRecord]) -> None:
        """Acknowledge these records, which the ledger has committed. Never raises: a failure is retried with the next
        take."""
        message_ids = [one.message_id for one in taken]
        self._taken.difference_update(message_ids)
        self._unacknowledged += message_ids
        self._end_reclaim()
        with suppress(QueueUnavailable):
            async with map_errors(self._redis, "acknowledging records"):
                await self._acknowledge()

    async def extend_claim(self, taken: Sequence[DeliveredRecord]) -> None:
        """Renew the claim on these records. Never raises."""
        with suppress(QueueUnavailable):
            async with map_errors(self._redis, "renewing the claim on records"):
                await self._claim([one.message_id for one in taken])

    def _message(self, one: Pending, node: str) -> tuple[Word, ...]:
        return "XADD", self._key, b"NOMKSTREAM", b"*", b"v", _VERSION, b"n", node, b"s", one.seq, b"r", one.payload

    async def _take_in_group(self, limit: int) -> list[DeliveredRecord]:
        while True:
            try:
                return await self._take(limit)
            except ResponseError as error:
                if not str(error).startswith(_NO_GROUP):
                    raise
            await self._make_group()  # the stream is new, or the server has lost it

    async def _take(self, limit: int) -> list[DeliveredRecord]:
        await self._acknowledge()
        if self._draining:
            return []
        if self._monotonic() >= self._tidy_at:
            self._tidy_at = self._monotonic() + TIDY_S
            await self._find_strays()
            await self._remove_dead_consumers()
        if unseen := await self._unseen(limit):
            return unseen
        if not self._settles():
            await sleep(STANDBY_S)
            return []
        return await self._orphaned(limit) or await self._new(limit)

    async def _new(self, limit: int) -> list[DeliveredRecord]:
        """Messages that were never delivered."""
        if not self._full:
            await sleep(self._linger_s)
        answer = await self._redis.xreadgroup(
            GROUP, self._consumer, {self._key: ">"}, count=limit, block=self._block_ms
        )
        entries: list[_Entry] = answer[0][1] if answer else []
        self._full = len(entries) >= limit
        return [_delivery(message_id, fields, 1) for message_id, fields in entries]

    async def _unseen(self, limit: int) -> list[DeliveredRecord]:
        """Messages that were delivered to this consumer in a lost answer."""
        if not self._unsure:
            return []
        pending = await self._pending(limit, consumername=self._consumer)
        self._unsure = bool(pending)
        return await self._claim_batch(pending, min_idle_ms=0)

    async def _orphaned(self, limit: int) -> list[DeliveredRecord]:
        """Messages of dead workers."""
        if self._monotonic() < self._check_at or self._reclaim.holder is not None:
            return []
        self._reclaim.holder = self
        idle_ms = self._claim_after_ms
        pending = await self._pending(limit, idle=idle_ms)
        if not pending:
            self._check_at = self._monotonic() + idle_ms / 1000 / _CHECKS_PER_CLAIM
        taken = await self._claim_batch(pending, min_idle_ms=idle_ms)
        if not taken:
            self._end_reclaim()
        return taken

    def _end_reclaim(self) -> None:
        if self._reclaim.holder is self:
            self._reclaim.holder = None

    async def _pending(self, limit: int, **filters: object) -> list[dict[str, Any]]:
        """Pending messages that this queue has not taken."""
        pending = await self._redis.xpending_range(self._key, GROUP, "-", "+", limit + len(self._taken), **filters)
        return [one for one in pending if one["message_id"] not in self._taken]

    async def _claim_batch(self, pending: Sequence[Mapping[str, Any]], *, min_idle_ms: int) -> list[DeliveredRecord]:
        """Claim together all messages that were delivered once; if there are none, one of the others, alone.

        Not by XAUTOCLAIM, which raises the delivery count of every message that it scans: after five deaths of a worker
        all of them would become dead letters. The count is raised last, when the messages have arrived: a lost answer
        is not an attempt. `min_idle_ms` lets one of several competing workers win.
        """
        chosen = [one for one in pending if one["times_delivered"] < 2] or pending[:1]
        if not chosen:
            return []
        message_ids: list[bytes] = [one["message_id"] for one in chosen]
        tries = max(one["times_delivered"] for one in chosen)
        answer = await self._redis.xclaim(self._key, GROUP, self._consumer, min_idle_ms, message_ids, retrycount=tries)
        claimed: dict[bytes, dict[bytes, bytes]] = {name: fields for name, fields in answer if name is not None}
        await self._forget_deleted([one for one in message_ids if one not in claimed])
        await self._claim(list(claimed), tries=tries + 1)
        return [_delivery(message_id, fields, tries + 1) for message_id, fields in claimed.items()]

    async def _claim(self, message_ids: list[bytes], *, tries: int | None = None) -> None:
        """Claim messages for this consumer and reset their idle time; `tries`: their new delivery count, if it
        changes."""
        if message_ids:
            await self._redis.xclaim(self._key, GROUP, self._consumer, 0, message_ids, retrycount=tries, justid=True)

    async def _acknowledge(self) -> None:
        """Delete settled messages, then acknowledge them.

        If only the deletion succeeds, a later claim finds no message. In the other order, a message could stay in the
        stream for ever, pending for no consumer.
        """
        settled, self._unacknowledged = self._unacknowledged, []
        if not settled:
            return
        try:
            await pipelined(self._redis, [("XDEL", self._key, *settled), ("XACK", self._key, GROUP, *settled)])
        except BaseException:
            self._unacknowledged += settled
            raise

    async def _forget_deleted(self, message_ids: Sequence[bytes]) -> None:
        """Acknowledge the messages that are no longer in the stream. (Redis 7 and Valkey do this without a command.)"""
        if gone := await self._missing(message_ids):
            await self._redis.xack(self._key, GROUP, *gone)

    async def _missing(self, message_ids: Sequence[bytes]) -> list[bytes]:
        missing: list[bytes] = []
        for start in range(0, len(message_ids), _CHECKED_AT_ONCE):
            part = message_ids[start : start + _CHECKED_AT_ONCE]
            answers = await pipelined(self._redis, [("XRANGE", self._key, one, one) for one in part])
            missing += [message_id for message_id, entries in zip(part, answers, strict=True) if not entries]
        return missing

    async def _make_group(self) -> None:
        """Create the group, from the first message on: every message in the stream is unsettled."""
        try:
            await self._redis.xgroup_create(self._key, GROUP, id="0", mkstream=True)
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):  # another worker has created it
                raise

    async def _find_strays(self) -> None:
        """Claim orphaned messages: they were delivered, but are pending for no consumer, because theirs was removed
        from the group."""
        groups = await self._redis.xinfo_groups(self._key)
        last = next((one["last-delivered-id"] for one in groups if one["name"] == GROUP.encode()), b"0-0")
        entries: list[_Entry] = await self._redis.xrange(self._key, max=last, count=_STRAYS_AT_ONCE)
        delivered = [message_id for message_id, _ in entries]
        if not delivered:
            return
        pending = await self._redis.xpending_range(self._key, GROUP, delivered[0], delivered[-1], 2 * _STRAYS_AT_ONCE)
        pending_ids = {one["message_id"] for one in pending}
        if strays := [one for one in delivered if one not in pending_ids]:
            await self._redis.xclaim(
                self._key, GROUP, self._consumer, self._claim_after_ms, strays, retrycount=1, force=True, justid=True
            )
            self._unsure = True

    async def _remove_dead_consumers(self) -> None:
        """Remove old consumers without pending messages: each start of a worker adds a consumer."""
        for one in await self._redis.xinfo_consumers(self._key, GROUP):
            if one["pending"] == 0 and one["idle"] > _GONE_AFTER_CLAIMS * self._claim_after_ms:
                await self._redis.xgroup_delconsumer(self._key, GROUP, one["name"])


def _delivery(message_id: bytes, fields: Mapping[bytes, bytes], deliveries: int) -> DeliveredRecord:
    """A message as a record; an unreadable message keeps its fields, and the settler makes it a dead letter."""
    seq = fields.get(b"s", b"")
    known = seq.isdigit() and len(seq) < 20 and int(seq) < _SEQ_MAX
    payload = fields.get(b"r") if fields.get(b"v") == _VERSION and known else None
    if payload is None:
        texts = {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, value in fields.items()}
        payload = msgspec.json.encode(texts)
    node = fields.get(b"n", b"").decode("ascii", "replace") if known else ""
    return DeliveredRecord(node, int(seq) if known else 0, payload, deliveries, message_id)
