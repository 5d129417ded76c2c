"""Carries what the journal has into the queue. Law: the journal forgets a record only when the ledger says that it has
it. What the queue has lost, and what may not have arrived, is sent again; the ledger takes each record once.

Nothing here waits for Redis or the ledger on the event loop, and neither of them waits for the other: one task sends
what is new, one asks what has arrived.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from heapq import heappop, heappush
from itertools import islice
from typing import Any, Protocol

from proxy.foundation.outage import Listener, Outage
from proxy.journal.journal import Journal, Pending
from proxy.journal.replay import COUNT_BITS

# One message's share of a round trip is small from here on; packing so many holds the loop for a millisecond.
SEND_MAX = 100
# A few milliseconds more on the way to a ledger that is tens of them away, for fewer round trips.
LINGER_S = 0.005
# How often to look at the journal by itself, should a wake-up ever be missing.
LOOK_S = 1.0
# Sent and not confirmed: 200 bytes each here, two kilobytes in the queue. More of them wait in the journal.
UNCONFIRMED_MAX = 500_000

# One question to the ledger is about so many seqs, a few milliseconds of its time.
ASK_MAX = 1_000
# Forgetting so many costs the journal a millisecond or two; streams get their turn in between.
FORGET_MAX = 250
# So many of the oldest are asked about in one go.
ASK_ROUND_MAX = 20_000
ASK_S_MIN, ASK_S_MAX = 1.0, 5.0
# A record that is not confirmed by then may be lost: settling takes well under a second where all is well.
OVERDUE_S = 10.0
# At the end: what was sent is safe in the queue, and better still confirmed.
LAST_ASK_S = 2.0

# Redis comes back within seconds of a restart or a failover; asking more often than this helps nobody.
RETRY_S_MIN, RETRY_S_MAX = 0.05, 5.0


class Queue(Protocol):
    """The proxy's end of a queue. Every method raises OSError if it cannot be reached."""

    async def add(self, records: Sequence[Pending], node: str) -> list[bytes]:
        """Send; a ticket for each. If it raises, none, some or all were added."""

    async def missing(self, tickets: Sequence[bytes]) -> list[bytes]:
        """Those that are not in the queue any more."""


class ReceiptSource(Protocol):
    """The ledger, as far as it says what it has. Called in a thread."""

    def receipts(self, node: str, low: int, high: int) -> set[int]:
        """The seqs from `low` to `high` of this journal that it has, as entries or dead letters. Raises OSError."""


class Observer(Listener, Protocol):
    """Who wants to know how it goes: metrics and the log. Of outages of the queue and of the ledger, too.
    Called on the event loop's thread."""

    def sent(self, records: int, *, again: int) -> None:
        """So many are in the queue now; `again`: how many of them were sent before, in this run or the last."""

    def confirmed(self, records: int) -> None:
        """The ledger has so many more."""


class Shipper:
    """Two tasks. `run` it, `wake` it, `close` it; all on the journal's thread."""

    def __init__(
        self,
        journal: Journal,
        queue: Queue,
        judge: ReceiptSource,
        *,
        node: str,
        observer: Observer,
        monotonic: Callable[[], float],
        in_thread: Callable[..., Awaitable[Any]],
        on_sent: Callable[[Sequence[Pending]], None] = lambda _: None,
    ) -> None:
        """`in_thread`: runs a function that blocks. `on_sent`: these are in the queue, or beyond it already."""
        self._journal = journal
        self._queue = queue
        self._judge = judge
        self._node = node
        self._observer = observer
        self._monotonic = monotonic
        self._in_thread = in_thread
        self._on_sent = on_sent
        self._sent_up_to = journal.node.epoch << COUNT_BITS
        """the last new record that was sent; below the first of this run is what the last one left"""
        self._tickets: dict[int, bytes] = {}
        """seq → ticket of what was sent and is not confirmed, oldest first; empty while its outcome is unknown"""
        self._overdue: deque[tuple[float, list[int]]] = deque()
        """when to look for which of them"""
        self._again: list[int] = []
        """a heap of seqs that must be sent, though they are not new"""
        self._resumed = False
        self._sending, self._looking, self._asking = Outage(observer), Outage(observer), Outage(observer)
        self._woken = asyncio.Event()
        self._all_sent = asyncio.Event()
        self._ended = asyncio.Event()
        self._closing = False

    def wake(self) -> None:
        """Something is pending. Cheap; only on the event loop's thread."""
        self._woken.set()

    @property
    def unconfirmed(self) -> int:
        """Records that were sent, and of which the ledger has not said that it has them."""
        return len(self._tickets)

    async def run(self) -> None:
        """Send until `close`, and then until nothing is left. Cancel it to stop at once: nothing is lost."""
        try:
            async with asyncio.TaskGroup() as tasks:
                confirming = tasks.create_task(self._confirm_for_ever(), name="confirm")
                await self._send_until_closed()
                confirming.cancel()
            self._all_sent.set()
            await self._last_questions()
        finally:
            self._ended.set()

    async def close(self, deadline_s: float) -> bool:
        """Send what is pending; True if all of it is in the queue within `deadline_s`. A moment of that is spent on
        letting the ledger confirm it.

        If not, cancel `run`: the rest stays where it is, for the next start.
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
                    async with asyncio.timeout(LINGER_S if self._closing else LOOK_S):
                        await self._woken.wait()
            if len(batch) < SEND_MAX and not self._closing:
                await asyncio.sleep(LINGER_S)

    def _next(self) -> list[Pending]:
        """The next records to send, repetitions first."""
        limit = min(SEND_MAX, UNCONFIRMED_MAX - len(self._tickets))
        if limit <= 0:
            return []
        while self._again:
            page = self._journal.pending(limit, self._again[0] - 1)
            wanted: set[int] = set()
            while self._again and (not page or self._again[0] <= page[-1].seq):
                wanted.add(heappop(self._again))
            if found := [one for one in page if one.seq in wanted]:  # the others are settled
                return found
        return self._journal.pending(limit, self._sent_up_to)

    async def _send(self, batch: Sequence[Pending]) -> None:
        """Try until all are in the queue, or known to be in the ledger."""
        again = sum(one.seq <= self._sent_up_to for one in batch)
        self._sent_up_to = max(self._sent_up_to, batch[-1].seq)
        self._tickets.update((one.seq, b"") for one in batch)
        left, retry_s = batch, RETRY_S_MIN
        while left:
            # After a failure one goes ahead: what may have arrived is not copied again and again.
            part = left if retry_s == RETRY_S_MIN else left[:1]
            try:
                tickets = await self._queue.add(part, self._node)
            except Exception as error:  # noqa: BLE001  Redis is away, or a bug: to be seen, not to end all shipping
                self._sending.began(error)
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, RETRY_S_MAX)
                left = [one for one in left if one.seq in self._tickets]
            else:
                self._sending.over()
                self._arrived(part, tickets)
                left, retry_s = left[len(part) :], RETRY_S_MIN
        self._observer.sent(len(batch), again=again)
        self._on_sent(batch)

    def _arrived(self, records: Sequence[Pending], tickets: Sequence[bytes]) -> None:
        """They are in the queue; some may be confirmed already."""
        for one, ticket in zip(records, tickets, strict=True):
            if one.seq in self._tickets:
                self._tickets[one.seq] = ticket
        self._overdue.append((self._monotonic() + OVERDUE_S, [one.seq for one in records]))

    # -- confirming ----------------------------------------------------------------------------------------------

    async def _confirm_for_ever(self) -> None:
        pause_s = ASK_S_MIN
        while True:
            confirmed = 0
            try:
                if not self._resumed:
                    await self._resume()
                confirmed = await self._confirm(islice(self._tickets, ASK_ROUND_MAX))
                await self._look_for_overdue()
            except Exception as error:  # noqa: BLE001  the ledger is away, or a bug: as above
                self._asking.began(error)
            pause_s = ASK_S_MIN if confirmed or not self._tickets else min(2 * pause_s, ASK_S_MAX)
            await asyncio.sleep(pause_s)

    async def _resume(self) -> None:
        """What the last run left: whether it was sent is forgotten, so the ledger is asked before it is sent."""
        after, first = 0, self._journal.node.epoch << COUNT_BITS
        while page := [one.seq for one in self._journal.pending(SEND_MAX, after) if one.seq <= first]:
            for seq in await self._lacking(page):
                heappush(self._again, seq)
            self._woken.set()
            after = page[-1]
        self._resumed = True
        self._woken.set()

    async def _confirm(self, seqs: Iterable[int]) -> int:
        """Let the journal forget those that the ledger has; how many these are."""
        asked = list(seqs)
        return len(asked) - len(await self._lacking(asked))

    async def _lacking(self, seqs: list[int]) -> list[int]:
        """Those that the ledger does not have; the journal forgets the others. Raises what the judge raises."""
        lacking: list[int] = []
        for part in _parts(sorted(seqs)):
            found = await self._in_thread(self._judge.receipts, self._node, part[0], part[-1])
            self._asking.over()
            confirmed = [seq for seq in part if seq in found]
            lacking += [seq for seq in part if seq not in found]
            for start in range(0, len(confirmed), FORGET_MAX):
                self._forget(confirmed[start : start + FORGET_MAX])
                await asyncio.sleep(0)
        return lacking

    def _forget(self, seqs: Sequence[int]) -> None:
        """The ledger has these."""
        self._journal.settled(seqs)
        for seq in seqs:
            self._tickets.pop(seq, None)
        self._observer.confirmed(len(seqs))
        self._woken.set()

    async def _look_for_overdue(self) -> None:
        """What is overdue, and in neither the queue nor the ledger is sent again. Raises what the judge raises."""
        now, seqs = self._monotonic(), list[int]()
        while self._overdue and self._overdue[0][0] <= now and len(seqs) < ASK_MAX:
            seqs += self._overdue.popleft()[1]
        tickets = {seq: ticket for seq in seqs if (ticket := self._tickets.get(seq))}
        if not tickets:
            return
        try:
            gone = await self._gone(list(tickets.values()))
            # A worker deletes a message once the ledger has its record: ask again, after looking.
            for seq in await self._lacking([seq for seq, ticket in tickets.items() if ticket in gone]):
                del self._tickets[seq]
                heappush(self._again, seq)
            self._woken.set()
        finally:
            self._overdue.append((now + OVERDUE_S, [seq for seq in tickets if seq in self._tickets]))

    async def _gone(self, tickets: Sequence[bytes]) -> set[bytes]:
        """Those that the queue has lost; none that we know of while it is away."""
        try:
            gone = set(await self._queue.missing(tickets))
        except Exception as error:  # noqa: BLE001  as above
            self._looking.began(error)
            return set()
        self._looking.over()
        return gone

    async def _last_questions(self) -> None:
        with suppress(OSError):
            async with asyncio.timeout(LAST_ASK_S):
                while self._tickets:
                    await self._confirm(self._tickets)
                    await asyncio.sleep(RETRY_S_MIN)


def _parts(seqs: Sequence[int]) -> Iterator[list[int]]:
    """Rising seqs in parts that each lie within ASK_MAX of one another."""
    part: list[int] = []
    for seq in seqs:
        if part and seq - part[0] >= ASK_MAX:
            yield part
            part = []
        part.append(seq)
    if part:
        yield part
