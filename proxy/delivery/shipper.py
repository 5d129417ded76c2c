"""Sends the journal's records to the queue and confirms them against the ledger.

Invariants: the journal forgets a record only when the ledger has confirmed its number and its exchange. The number
alone is not enough: a copy of this data folder, started on another machine, gives equal numbers to other exchanges.
Records that the queue has lost or may not have received are sent again; the ledger takes each record once. Sending and
confirming are separate tasks: an outage of the queue does not delay the ledger's confirmations, and an outage of the
ledger does not delay sending.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import heappop, heappush
from itertools import islice
from typing import Any, Protocol

from proxy.delivery.observers import ShipperObserver
from proxy.foundation.outage import Outage
from proxy.journal.journal import Journal, Pending
from proxy.journal.replay import COUNT_BITS

# Larger batches save little of the round trip; packing this many blocks the event loop for a millisecond.
SEND_MAX = 100
# Wait a few milliseconds for more records, for fewer round trips; settling takes tens of milliseconds anyway.
LINGER_S = 0.005
# Polling interval of the journal, in case a wake-up is lost.
POLL_S = 1.0
# Sent and not confirmed: 200 bytes each here, and two kilobytes in the queue, whose memory budgets and rates need, too.
# More than are settled between two confirmations; in an outage of the ledger, further records wait in the journal.
UNCONFIRMED_MAX = 20_000

# Range of seqs of one query to the ledger, which takes a few milliseconds.
ASK_MAX = 1_000
# The journal forgets this many in a millisecond or two; running streams proceed in between.
FORGET_MAX = 250
# The oldest unconfirmed records that one round queries.
ASK_ROUND_MAX = 20_000
ASK_S_MIN, ASK_S_MAX = 1.0, 5.0
# A record that is not confirmed after this time may be lost: settling usually takes well under a second.
OVERDUE_S = 10.0
# Time for confirmations at shutdown. Unconfirmed records are safe in the queue.
LAST_ASK_S = 2.0

# Redis returns within seconds after a restart or a failover.
RETRY_S_MIN, RETRY_S_MAX = 0.05, 5.0


class Queue(Protocol):
    """The proxy's end of a queue. Every method raises OSError if it cannot be reached."""

    async def add(self, records: Sequence[Pending], node: str) -> list[bytes]:
        """Send records; return their message ids, in order. If it raises, none, some or all were added."""

    async def missing(self, message_ids: Sequence[bytes]) -> list[bytes]:
        """The ids among these that are no longer in the queue."""


class ReceiptSource(Protocol):
    """The ledger's receipts. Called in a thread."""

    def receipts(self, node: str, low: int, high: int) -> set[tuple[int, str | None]]:
        """(seq, exchange id) of the records from `low` to `high` of this journal that are entries or dead letters. None
        as exchange: the record could not be read. Raises OSError."""


class Shipper:
    """Two tasks, which send and confirm. `run` it, `wake` it, `close` it; all on the journal's thread."""

    def __init__(
        self,
        journal: Journal,
        queue: Queue,
        receipts: ReceiptSource,
        *,
        node: str,
        observer: ShipperObserver,
        monotonic: Callable[[], float],
        in_thread: Callable[..., Awaitable[Any]],
        on_sent: Callable[[Mapping[int, str | None]], None] = lambda _: None,
    ) -> None:
        """`in_thread`: runs a blocking function. `on_sent`: called with the exchanges, by seq, whose records are
        in the queue or settled."""
        self._journal = journal
        self._queue = queue
        self._receipts = receipts
        self._node = node
        self._observer = observer
        self._monotonic = monotonic
        self._in_thread = in_thread
        self._on_sent = on_sent
        self._sent_up_to = journal.node.epoch << COUNT_BITS
        """the last seq of this run that was sent; records of lower epochs are left from earlier runs"""
        self._unconfirmed: dict[int, bytes] = {}
        """seq → message id of sent, unconfirmed records, oldest first; the id is empty while sending is unresolved"""
        self._exchanges: dict[int, str | None] = {}
        """seq → exchange id of the records in `_unconfirmed`"""
        self._overdue: deque[tuple[float, list[int]]] = deque()
        """checks of unconfirmed records: (time of the check, seqs to check)"""
        self._again: list[int] = []
        """a heap of seqs to send again"""
        self._resumed = False
        self._sending, self._checking, self._confirming = Outage(observer), Outage(observer), Outage(observer)
        self._woken = journal.woken
        self._all_sent = asyncio.Event()
        self._ended = asyncio.Event()
        self._closing = False

    def send_again(self, seqs: Iterable[int]) -> None:
        """Send records that are pending again. Only on the event loop's thread."""
        for seq in seqs:
            heappush(self._again, seq)
        self._woken.set()

    @property
    def unconfirmed(self) -> int:
        """The number of records that were sent and are not confirmed."""
        return len(self._unconfirmed)

    async def run(self) -> None:
        """Send until `close`, then until nothing is left. Cancel it to stop at once: nothing is lost."""
        try:
            async with asyncio.TaskGroup() as tasks:
                confirming = tasks.create_task(self._confirm_for_ever(), name="confirm")
                await self._send_until_closed()
                confirming.cancel()
            self._all_sent.set()
            await self._confirm_last()
        finally:
            self._ended.set()

    async def close(self, deadline_s: float) -> bool:
        """Send all pending records; True if all are in the queue within `deadline_s`.

        Includes up to LAST_ASK_S for confirmations. If False, cancel `run`: the journal keeps the rest.
        """
        self._closing = True
        self._woken.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                await self._ended.wait()
        return self._all_sent.is_set()

    # -- sending -------------------------------------------------------------------------------------------------

    async def _send_until_closed(self) -> None:
        while True:
            self._woken.clear()
            if batch := self._next():
                await self._send(batch)
            elif self._closing and self._resumed and not self._journal.pending(1, self._sent_up_to):
                return
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LINGER_S if self._closing else POLL_S):
                        await self._woken.wait()
            if len(batch) < SEND_MAX and not self._closing:
                await asyncio.sleep(LINGER_S)

    def _next(self) -> list[Pending]:
        """The next records to send, repetitions first."""
        limit = min(SEND_MAX, UNCONFIRMED_MAX - len(self._unconfirmed))
        if limit <= 0:
            return []
        while self._again:
            page = self._journal.pending(limit, self._again[0] - 1)
            seqs: set[int] = set()
            while self._again and (not page or self._again[0] <= page[-1].seq):
                seqs.add(heappop(self._again))
            if batch := [one for one in page if one.seq in seqs]:  # the others are settled
                return batch
        return self._journal.pending(limit, self._sent_up_to)

    async def _send(self, batch: Sequence[Pending]) -> None:
        """Retry until all are in the queue or confirmed."""
        again = sum(one.seq <= self._sent_up_to for one in batch)
        self._sent_up_to = max(self._sent_up_to, batch[-1].seq)
        self._unconfirmed.update((one.seq, b"") for one in batch)
        exchanges = {one.seq: one.exchange_id for one in batch}
        self._exchanges |= exchanges
        left, retry_s = batch, RETRY_S_MIN
        while left:
            # After a failure, retry with one record: the others may have arrived, and are not duplicated at each try.
            part = left if retry_s == RETRY_S_MIN else left[:1]
            try:
                message_ids = await self._queue.add(part, self._node)
            except Exception as error:  # noqa: BLE001  Redis is down, or a bug: report it, keep shipping
                self._sending.began(error)
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, RETRY_S_MAX)
                left = [one for one in left if one.seq in self._unconfirmed]
            else:
                self._sending.over()
                self._arrived(part, message_ids)
                left, retry_s = left[len(part) :], RETRY_S_MIN
        self._observer.sent(len(batch), again=again)
        self._on_sent(exchanges)

    def _arrived(self, records: Sequence[Pending], message_ids: Sequence[bytes]) -> None:
        """Record that the records are in the queue; some may be confirmed already."""
        for one, message_id in zip(records, message_ids, strict=True):
            if one.seq in self._unconfirmed:
                self._unconfirmed[one.seq] = message_id
        self._overdue.append((self._monotonic() + OVERDUE_S, [one.seq for one in records]))

    # -- confirming ----------------------------------------------------------------------------------------------

    async def _confirm_for_ever(self) -> None:
        pause_s = ASK_S_MIN
        while True:
            confirmed = 0
            try:
                if not self._resumed:
                    await self._resume()
                confirmed = await self._confirm(islice(self._unconfirmed, ASK_ROUND_MAX))
                await self._check_overdue()
            except Exception as error:  # noqa: BLE001  the ledger is down, or a bug: as above
                self._confirming.began(error)
            pause_s = ASK_S_MIN if confirmed or not self._unconfirmed else min(2 * pause_s, ASK_S_MAX)
            await asyncio.sleep(pause_s)

    async def _resume(self) -> None:
        """Send again the records of earlier runs that the ledger lacks: it is unknown whether the queue received
        them."""
        after, first = 0, self._journal.node.epoch << COUNT_BITS
        while page := {one.seq: one.exchange_id for one in self._journal.pending(SEND_MAX, after) if one.seq <= first}:
            self._exchanges |= page
            self.send_again(await self._lacking(list(page)))
            after = max(page)
        self._resumed = True
        self._woken.set()

    async def _confirm(self, seqs: Iterable[int]) -> int:
        """Make the journal forget the records that the ledger has, and return their number."""
        batch = list(seqs)
        return len(batch) - len(await self._lacking(batch))

    async def _lacking(self, seqs: list[int]) -> list[int]:
        """The records that the ledger lacks; the journal forgets the others. Raises the errors of `receipts`."""
        lacking: list[int] = []
        for part in parts(sorted(seqs)):
            receipts = await self._in_thread(self._receipts.receipts, self._node, part[0], part[-1])
            self._confirming.over()
            confirmed = [seq for seq in part if (seq, self._exchanges.get(seq)) in receipts or (seq, None) in receipts]
            lacking += sorted(set(part).difference(confirmed))
            for start in range(0, len(confirmed), FORGET_MAX):
                self._forget(confirmed[start : start + FORGET_MAX])
                await asyncio.sleep(0)
        return lacking

    def _forget(self, seqs: Sequence[int]) -> None:
        """Forget records that the ledger has."""
        self._journal.settled(seqs)
        for seq in seqs:
            self._unconfirmed.pop(seq, None)
            self._exchanges.pop(seq, None)
        self._observer.confirmed(len(seqs))
        self._woken.set()

    async def _check_overdue(self) -> None:
        """Send again overdue records that neither the queue nor the ledger has. Raises the errors of `receipts`."""
        now, seqs = self._monotonic(), list[int]()
        while self._overdue and self._overdue[0][0] <= now and len(seqs) < ASK_MAX:
            seqs += self._overdue.popleft()[1]
        message_ids = {seq: message_id for seq in seqs if (message_id := self._unconfirmed.get(seq))}
        if not message_ids:
            return
        try:
            gone = await self._gone(list(message_ids.values()))
            # A worker deletes a message after the ledger has its record: query the ledger once more.
            for seq in await self._lacking([seq for seq, message_id in message_ids.items() if message_id in gone]):
                del self._unconfirmed[seq]
                heappush(self._again, seq)
            self._woken.set()
        finally:
            self._overdue.append((now + OVERDUE_S, [seq for seq in message_ids if seq in self._unconfirmed]))

    async def _gone(self, message_ids: Sequence[bytes]) -> set[bytes]:
        """The messages that the queue has lost; an empty set while the queue is down."""
        try:
            gone = set(await self._queue.missing(message_ids))
        except Exception as error:  # noqa: BLE001  as above
            self._checking.began(error)
            return set()
        self._checking.over()
        return gone

    async def _confirm_last(self) -> None:
        with suppress(OSError):
            async with asyncio.timeout(LAST_ASK_S):
                while self._unconfirmed:
                    await self._confirm(self._unconfirmed)
                    await asyncio.sleep(RETRY_S_MIN)


def parts(seqs: Sequence[int]) -> Iterator[list[int]]:
    """Rising seqs, split into parts that each span less than ASK_MAX."""
    part: list[int] = []
    for seq in seqs:
        if part and seq - part[0] >= ASK_MAX:
            yield part
            part = []
        part.append(seq)
    if part:
        yield part
