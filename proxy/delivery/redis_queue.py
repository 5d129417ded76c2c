"""The queue between machines: one Redis stream per shard, read by one group of settlers.

Law: Redis may lose everything at any time, and only time is lost: the journals have it all. A message goes away only
when the ledger has its record. How often a message was delivered says how often it was tried, so that one that kills
its worker ends up alone: five tries later it is laid aside, and its neighbours never were in danger.
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
from proxy.storage.redis_client import BLOCK_MS, QueueUnavailable, RedisClient, Word, door, pipelined

GROUP = "settlers"

# A worker that has not said for this long that it still holds a message is dead. One that lives says so every few
# seconds (`hold`).
CLAIM_AFTER_MS = 30_000
# The dead's messages are looked for this often, in parts of that time.
_LOOKS_PER_CLAIM = 3
# Nobody who is silent for so many times that time comes back under the same name.
_GONE_AFTER_CLAIMS = 20
# Strays and the names of dead workers are the traces of rare accidents.
TIDY_S = 60.0
_STRAYS_AT_ONCE = 100
# A record is one or two KiB.
_READ_AT_ONCE = 1_000
# Messages that are looked for come whole: this many hold a proxy's loop for a millisecond.
_LOOKS_AT_ONCE = 100
# While records keep coming, others share the transaction; the first after a pause does not wait.
LINGER_S = 0.02

# Its shape on the wire: `n` and `s` keep their meaning in every version, so that the ledger's receipt is right.
_VERSION = b"1"
_SEQ_MAX = 2**63

_NO_GROUP = ("NOGROUP", "UNBLOCKED", "no such key")
"""how errors begin that a new group mends"""

_Entry: TypeAlias = tuple[bytes, dict[bytes, bytes]]
"""a message as Redis gives it: its ticket, its fields"""


class ReclaimLock:
    """Whose turn it is, among the queues of one process, to try again what dead workers held.

    One at a time: what dies does so with all of its process, and whatever stood beside a record that kills, each time,
    would be laid aside with it.
    """

    holder: RedisQueue | None = None


class RedisQueue:
    """One stream, as both its ends see it. Used by one task for each end."""

    def __init__(
        self,
        redis: RedisClient,
        *,
        consumer: str,
        prefix: str = "tokenweir",
        shard: int = 0,
        claim_after_ms: int = CLAIM_AFTER_MS,
        block_ms: int = BLOCK_MS,
        linger_s: float = LINGER_S,
        turn: ReclaimLock | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        unix_time: Callable[[], float] = time.time,
    ) -> None:
        """`consumer`: this worker's name, no other's. `turn`: the same for all queues of a process that takes."""
        self._redis: Any = redis  # the library types its answers for all protocols at once
        self._key = f"{{{prefix}:{shard}}}:records".encode()
        self._consumer = consumer
        self._claim_after_ms = claim_after_ms
        self._block_ms = block_ms
        self._linger_s = linger_s
        self._turn = turn or ReclaimLock()
        self._monotonic = monotonic
        self._unix_time = unix_time
        self._full = True
        """the last take was: there is more, at once"""
        self._held: set[bytes] = set()
        self._owed: list[bytes] = []
        """tickets of settled records that the server has not been told of"""
        self._unsure = True
        """an answer was lost: messages may be ours that we never saw"""
        self._draining = False
        self._look_at = 0.0
        self._tidy_at = monotonic() + TIDY_S

    # -- the proxy's end -----------------------------------------------------------------------------------------

    async def add(self, records: Sequence[Pending], node: str) -> list[bytes]:
        """Send; the tickets, in order. Raises QueueUnavailable: then none, some or all of them were added.

        A stream is made with its group: once a server is full, it takes no group either, and nobody could empty it.
        """
        tickets: dict[int, bytes] = {}
        async with door(self._redis, "sending records"):
            while left := [one for one in records if one.seq not in tickets]:
                answers = await pipelined(self._redis, [self._message(one, node) for one in left])
                tickets.update((one.seq, ticket) for one, ticket in zip(left, answers, strict=True) if ticket)
                if None in answers:  # no such stream
                    await self._make_group()
        return [tickets[one.seq] for one in records]

    async def missing(self, tickets: Sequence[bytes]) -> list[bytes]:
        """Those of them that are not in the stream any more. Raises QueueUnavailable."""
        async with door(self._redis, "looking for records"):
            return await self._missing(tickets)

    async def depth(self) -> int:
        """Messages that are not settled. Raises QueueUnavailable."""
        async with door(self._redis, "counting records"):
            length: int = await self._redis.xlen(self._key)
        return length

    async def oldest_age_s(self) -> float:
        """Seconds since the oldest of them came, by the server's clock and ours. Raises QueueUnavailable."""
        async with door(self._redis, "looking at the oldest record"):
            oldest: list[_Entry] = await self._redis.xrange(self._key, count=1)
        if not oldest:
            return 0.0
        came_ms = int(oldest[0][0].partition(b"-")[0])
        return max(0.0, self._unix_time() - came_ms / 1000)

    async def receipts(self) -> list[tuple[str, int]]:
        """(node, journal seq) of every message that says whose it is; reads them all. Raises QueueUnavailable."""
        found: list[tuple[str, int]] = []
        after = "-"
        while True:
            async with door(self._redis, "reading what is in the queue"):
                entries: list[_Entry] = await self._redis.xrange(self._key, min=after, count=_READ_AT_ONCE)
            found += [(one.node, one.seq) for one in (_delivery(*entry, 1) for entry in entries) if one.node]
            if len(entries) < _READ_AT_ONCE:
                return found
            after = f"({entries[-1][0].decode()}"

    # -- the worker's end ----------------------------------------------------------------------------------------

    def drain(self) -> None:
        """From now on `take` gives nothing: other workers go on. A take that waits already ends within a second."""
        self._draining = True

    async def take(self, limit: int) -> Sequence[DeliveredRecord]:
        """The next records to settle: first what a dead worker held, else new ones, oldest first. Waits up to about a
        second for the first one; may be empty. Raises QueueUnavailable; it can be cancelled at any time."""
        try:
            async with door(self._redis, "taking records"):
                taken = await self._take_in_group(limit)
        except BaseException:
            self._unsure = True
            self._end_turn()
            raise
        self._held.update(one.message_id for one in taken)
        return taken

    async def settled(self, taken: Sequence[DeliveredRecord]) -> None:
        """The ledger has these for good. Never raises: what could not be said is said with the next."""
        tickets = [one.message_id for one in taken]
        self._held.difference_update(tickets)
        self._owed += tickets
        self._end_turn()
        with suppress(QueueUnavailable):
            async with door(self._redis, "acknowledging records"):
                await self._acknowledge()

    async def hold(self, taken: Sequence[DeliveredRecord]) -> None:
        """These take their time, and their worker lives. Never raises."""
        with suppress(QueueUnavailable):
            async with door(self._redis, "holding records"):
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
            await self._make_group()  # the stream is new, or its server has lost it

    async def _take(self, limit: int) -> list[DeliveredRecord]:
        await self._acknowledge()
        if self._draining:
            return []
        if self._monotonic() >= self._tidy_at:
            self._tidy_at = self._monotonic() + TIDY_S
            await self._find_strays()
            await self._remove_dead_consumers()
        return await self._unseen(limit) or await self._orphaned(limit) or await self._new(limit)

    async def _new(self, limit: int) -> list[DeliveredRecord]:
        """What nobody was given yet."""
        if not self._full:
            await sleep(self._linger_s)
        answer = await self._redis.xreadgroup(
            GROUP, self._consumer, {self._key: ">"}, count=limit, block=self._block_ms
        )
        entries: list[_Entry] = answer[0][1] if answer else []
        self._full = len(entries) >= limit
        return [_delivery(ticket, fields, 1) for ticket, fields in entries]

    async def _unseen(self, limit: int) -> list[DeliveredRecord]:
        """What was given to us in an answer that was lost."""
        if not self._unsure:
            return []
        found = await self._pending(limit, consumername=self._consumer)
        self._unsure = bool(found)
        return await self._take_over(found, min_idle_ms=0)

    async def _orphaned(self, limit: int) -> list[DeliveredRecord]:
        """What a dead worker held."""
        if self._monotonic() < self._look_at or self._turn.holder is not None:
            return []
        self._turn.holder = self
        idle_ms = self._claim_after_ms
        found = await self._pending(limit, idle=idle_ms)
        if not found:
            self._look_at = self._monotonic() + idle_ms / 1000 / _LOOKS_PER_CLAIM
        taken = await self._take_over(found, min_idle_ms=idle_ms)
        if not taken:
            self._end_turn()
        return taken

    def _end_turn(self) -> None:
        if self._turn.holder is self:
            self._turn.holder = None

    async def _pending(self, limit: int, **whose: object) -> list[dict[str, Any]]:
        """What is pending, without what we know that we hold."""
        found = await self._redis.xpending_range(self._key, GROUP, "-", "+", limit + len(self._held), **whose)
        return [one for one in found if one["message_id"] not in self._held]

    async def _take_over(self, found: Sequence[Mapping[str, Any]], *, min_idle_ms: int) -> list[DeliveredRecord]:
        """Claim those that were tried once, together; if there are none, one of the others, alone.

        By hand, not by XAUTOCLAIM: that raises the count of all it passes over, and a worker that dies five times
        would bury its neighbours with it. The count is raised last, when the messages are here: an answer that is lost
        on the way is no try. `min_idle_ms` decides between two workers that want the same.
        """
        chosen = [one for one in found if one["times_delivered"] < 2] or found[:1]
        if not chosen:
            return []
        tickets: list[bytes] = [one["message_id"] for one in chosen]
        tries = max(one["times_delivered"] for one in chosen)
        answer = await self._redis.xclaim(self._key, GROUP, self._consumer, min_idle_ms, tickets, retrycount=tries)
        claimed: dict[bytes, dict[bytes, bytes]] = {ticket: fields for ticket, fields in answer if ticket is not None}
        await self._forget_deleted([ticket for ticket in tickets if ticket not in claimed])
        await self._claim(list(claimed), tries=tries + 1)
        return [_delivery(ticket, fields, tries + 1) for ticket, fields in claimed.items()]

    async def _claim(self, tickets: list[bytes], *, tries: int | None = None) -> None:
        """Be their holder from now on, and say how often they were tried, if that has changed."""
        if tickets:
            await self._redis.xclaim(self._key, GROUP, self._consumer, 0, tickets, retrycount=tries, justid=True)

    async def _acknowledge(self) -> None:
        """Delete what is settled, then say that it is: if only the first half arrives, its claim finds nothing. The
        other way round it would stay in the stream, nobody's, for ever."""
        owed, self._owed = self._owed, []
        if not owed:
            return
        try:
            await pipelined(self._redis, [("XDEL", self._key, *owed), ("XACK", self._key, GROUP, *owed)])
        except BaseException:
            self._owed += owed
            raise

    async def _forget_deleted(self, tickets: Sequence[bytes]) -> None:
        """Of those that could not be claimed, some are in no stream any more: they are pending for nothing. (Redis 7
        and Valkey forget them by themselves.)"""
        if gone := await self._missing(tickets):
            await self._redis.xack(self._key, GROUP, *gone)

    async def _missing(self, tickets: Sequence[bytes]) -> list[bytes]:
        missing: list[bytes] = []
        for start in range(0, len(tickets), _LOOKS_AT_ONCE):
            part = tickets[start : start + _LOOKS_AT_ONCE]
            found = await pipelined(self._redis, [("XRANGE", self._key, one, one) for one in part])
            missing += [ticket for ticket, entries in zip(part, found, strict=True) if not entries]
        return missing

    async def _make_group(self) -> None:
        """From the first message on: whatever is in the stream is not settled."""
        try:
            await self._redis.xgroup_create(self._key, GROUP, id="0", mkstream=True)
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):  # another worker was faster
                raise

    async def _find_strays(self) -> None:
        """Take on what was delivered and is pending with nobody: its holder's name was removed from the group."""
        groups = await self._redis.xinfo_groups(self._key)
        last = next((one["last-delivered-id"] for one in groups if one["name"] == GROUP.encode()), b"0-0")
        entries: list[_Entry] = await self._redis.xrange(self._key, max=last, count=_STRAYS_AT_ONCE)
        tickets = [ticket for ticket, _ in entries]
        if not tickets:
            return
        pending = await self._redis.xpending_range(self._key, GROUP, tickets[0], tickets[-1], 2 * _STRAYS_AT_ONCE)
        held = {one["message_id"] for one in pending}
        if strays := [ticket for ticket in tickets if ticket not in held]:
            await self._redis.xclaim(
                self._key, GROUP, self._consumer, self._claim_after_ms, strays, retrycount=1, force=True, justid=True
            )
            self._unsure = True

    async def _remove_dead_consumers(self) -> None:
        """Each start of a worker is a new name; those of long ago that hold nothing are removed."""
        for one in await self._redis.xinfo_consumers(self._key, GROUP):
            if one["pending"] == 0 and one["idle"] > _GONE_AFTER_CLAIMS * self._claim_after_ms:
                await self._redis.xgroup_delconsumer(self._key, GROUP, one["name"])


def _delivery(ticket: bytes, fields: Mapping[bytes, bytes], deliveries: int) -> DeliveredRecord:
    """A message, whatever is in it: one that we cannot read goes on as it is, to be laid aside with its receipt."""
    seq = fields.get(b"s", b"")
    known = seq.isdigit() and len(seq) < 20 and int(seq) < _SEQ_MAX
    payload = fields.get(b"r") if fields.get(b"v") == _VERSION and known else None
    if payload is None:
        words = {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, value in fields.items()}
        payload = msgspec.json.encode(words)
    node = fields.get(b"n", b"").decode("ascii", "replace") if known else ""
    return DeliveredRecord(node, int(seq) if known else 0, payload, deliveries, ticket)
