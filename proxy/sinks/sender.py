"""Pushes entries to others' servers. Law: every entry at least once, in the order in which they were settled; what a
server refuses for what it says is put aside and said, and holds up nothing; any other failure holds up all, and is
tried again for ever, at longer and longer intervals, or when the server says (`Retry-After`).

Any number of processes run this: the one that has claimed a sink sends, and moves its cursor after each chunk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Protocol
from uuid import uuid4

import aiohttp
from sqlalchemy import Engine

from proxy.foundation.outage import Listener, Outage
from proxy.ledger.accounts.owners import owners_of
from proxy.reports.export import ExportedEntry
from proxy.settings.sinks import SinkSettings
from proxy.sinks import progress as kept
from proxy.sinks.format import Event, Unsendable
from proxy.sinks.kinds import format_of
from proxy.sinks.posting import PostResult, open_session, post
from proxy.sinks.progress import Settled, Sink, SinkStatus
from proxy.storage.executor import InThread

# How often it is looked for entries, and how many requests are under way at once where one holds one event.
LOOK_S = 2.0
AT_ONCE = 10
# Entries after which the cursor moves: as many are sent again after a crash. Fewer where each is a request or three.
CHUNK, CHUNK_OF_SINGLES = 100, 20
# All of a chunk takes less than CLAIM_S, so that nobody else takes the sink meanwhile.
ANSWER_S, CHUNK_S = 10.0, 45.0
RETRY_S_MIN, RETRY_S_MAX = 1.0, 600.0

# The entry's fault. Anything else is the server's, or the configuration's: a wrong key, a wrong URL.
REFUSED = frozenset({400, 409, 413, 422})


class RetryLater(Exception):  # noqa: N818  it is the server's fault
    """It takes nothing now."""

    def __init__(self, why: str, wait_s: float | None) -> None:
        super().__init__(why)
        self.why = why
        self.wait_s = wait_s


class Observer(Listener, Protocol):
    """Who wants to know: metrics, and the log. Of outages of the ledger, too."""

    def sent(self, name: str, entries: int) -> None:
        """So many more are there."""

    def refused(self, name: str, entry_id: str, why: str) -> None:
        """One will never be there, unless somebody does something."""

    def unsent(self, name: str, why: str, wait_s: float) -> None:
        """A try failed; there will be another."""

    def stands(self, name: str, standing: SinkStatus, lag_s: float) -> None:
        """How it stands."""


class SinkSender:
    """Of one sink. `run` it, in any number of processes."""

    def __init__(
        self,
        engine: Engine,
        settings: SinkSettings,
        *,
        unix_time: Callable[[], float],
        observer: Observer,
        in_thread: InThread = asyncio.to_thread,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._engine = engine
        self._name = settings.name
        self._since = settings.since
        self._shape = format_of(settings)
        self._chunk = CHUNK if self._shape.batch_max > 1 else CHUNK_OF_SINGLES
        self._begun = False
        self._unix_time = unix_time
        self._observer = observer
        self._outage = Outage(observer)
        self._in_thread = in_thread
        self._answer_s = answer_s
        self._me = uuid4().hex
        self._at_once = asyncio.Semaphore(AT_ONCE)

    async def run(self) -> None:
        """For ever. Ends by being cancelled: what was under way is sent again."""
        try:
            while True:
                try:
                    moved = await self.look()
                except Exception as error:  # noqa: BLE001  the ledger is away, or a bug: there will be another look
                    self._outage.began(error)
                    moved = False
                else:
                    self._outage.over()
                if not moved:
                    await asyncio.sleep(LOOK_S)
        finally:
            with suppress(OSError):  # then the next one waits a minute
                await self._in_thread(kept.release, self._engine, self._name, self._me)

    async def look(self) -> bool:
        """Send what there is, some hundreds at most; True: there may be more. Raises LedgerUnavailable."""
        if not self._begun:
            await self._in_thread(kept.begin, self._engine, self._name, self._since)
            self._begun = True
        sink = await self._in_thread(kept.claim, self._engine, self._name, self._me, self._unix_time())
        moved = sink is not None and await self._push(sink)
        standing = await self._in_thread(kept.sink_status, self._engine, self._name)
        self._observer.stands(self._name, standing, standing.lag_s(self._unix_time()))
        return moved

    async def _push(self, sink: Sink) -> bool:
        once_more = await self._in_thread(kept.again, self._engine, self._name, self._chunk)
        found = await self._in_thread(kept.pending, self._engine, sink)
        async with open_session(self._answer_s) as session:
            for chunk in [*_chunks(once_more, self._chunk), *_chunks(found, self._chunk)]:
                try:
                    async with asyncio.timeout(CHUNK_S):
                        refused = await self._send(session, chunk)
                except (RetryLater, TimeoutError) as error:
                    await self._failed(sink, error)
                    return False
                now = self._unix_time()
                if not await self._in_thread(kept.advance, self._engine, sink, chunk, refused, now):
                    return False
                self._say(chunk, refused)
        return True

    def _say(self, chunk: Sequence[Settled], refused: dict[str, str]) -> None:
        self._observer.sent(self._name, len(chunk) - len(refused))
        for entry_id, why in refused.items():
            self._observer.refused(self._name, entry_id, why)

    async def _failed(self, sink: Sink, error: RetryLater | TimeoutError) -> None:
        later = error if isinstance(error, RetryLater) else RetryLater("answers too slowly", None)
        wait_s = min(RETRY_S_MIN * 2.0 ** min(sink.failures, 20), RETRY_S_MAX)
        wait_s = max(wait_s, later.wait_s or 0.0)
        await self._in_thread(kept.failed, self._engine, sink, later.why, wait_s, self._unix_time())
        self._observer.unsent(self._name, later.why, wait_s)

    async def _send(self, session: aiohttp.ClientSession, chunk: Sequence[Settled]) -> dict[str, str]:
        """What is refused of it: entry id → why. Raises Later."""
        owners = await self._in_thread(owners_of, self._engine, {entry.key_id for entry, _ in chunk})
        refused: dict[str, str] = {}
        events: list[Event] = []
        of_events: dict[str, str] = {}
        for entry, settled_at in chunk:
            try:
                made = self._shape.events(ExportedEntry(entry, settled_at, owners.get(entry.key_id)))
            except (Unsendable, ValueError, TypeError) as why:  # what is in the ledger may be anything
                refused[entry.entry_id] = str(why) or type(why).__name__
            else:
                events += made
                of_events |= {one.event_id: entry.entry_id for one in made}
        size = self._shape.batch_max
        batches = (self._deliver(session, events[at : at + size]) for at in range(0, len(events), size))
        for result in await asyncio.gather(*batches, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
            refused |= {of_events[event_id]: why for event_id, why in result.items()}
        return refused

    async def _deliver(self, session: aiohttp.ClientSession, events: Sequence[Event]) -> dict[str, str]:
        """One request; if something in it is refused, as many as it takes to find out what. → event id → why."""
        if not events:
            return {}
        answer = await self._post(session, events)
        if answer.arrived:
            return {}
        if answer.status not in REFUSED:
            raise RetryLater(answer.why, answer.retry_after_s)
        known = self._shape.known(answer, len(events))
        if known:
            return await self._deliver(session, [one for at, one in enumerate(events) if at not in known])
        if len(events) == 1:
            return {events[0].event_id: answer.why}
        half = len(events) // 2
        return {
            **await self._deliver(session, events[:half]),
            **await self._deliver(session, events[half:]),
        }  # fmt: skip

    async def _post(self, session: aiohttp.ClientSession, events: Sequence[Event]) -> PostResult:
        async with self._at_once:
            now = self._unix_time()
            request = self._shape.request(events, now)
            return await post(session, request.url, request.body, request.headers, unix_s=now)


def _chunks(settled: Sequence[Settled], size: int) -> Iterator[Sequence[Settled]]:
    return (settled[at : at + size] for at in range(0, len(settled), size))
