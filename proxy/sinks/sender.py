"""Pushes ledger entries to external billing systems.

Invariants:
- Every entry is sent at least once, in the order of settlement.
- An entry that the server rejects as invalid becomes a dead letter and does not block later entries.
- Any other failure stops the sink. It is retried without limit, with exponential backoff or after `Retry-After`.
- Only the process that holds the claim of a sink sends; it moves the cursor after each chunk.
- A sink with other settings continues at the cursor, after the chunk that is sent with the earlier ones.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

import aiohttp
from sqlalchemy import Engine

from proxy.foundation.outage import Outage, OutageLog
from proxy.foundation.tasks import Steps
from proxy.ledger.accounts.owners import owners_of
from proxy.ledger.settling.spend import batches
from proxy.reports.export import ExportedEntry
from proxy.settings.sinks import SinkSettings
from proxy.sinks import progress
from proxy.sinks.format import PostResult, SinkEvent, Unsendable
from proxy.sinks.kinds import format_of
from proxy.sinks.posting import open_session, post
from proxy.sinks.progress import Settled, SinkState, SinkStatus
from proxy.storage.executor import InThread
from proxy.telemetry.sink_metrics import SinkMetrics

# Poll interval, and requests at once for formats with one event in a request.
POLL_S = 2.0
AT_ONCE = 10
# Entries between two moves of the cursor; up to one chunk is sent again after a crash. Smaller for formats that need a
# request for each event.
CHUNK, CHUNK_OF_SINGLES = 100, 20
# Less than CLAIM_S for a whole chunk, so that no other process claims the sink in the meantime.
ANSWER_S, CHUNK_S = 10.0, 45.0
RETRY_S_MIN, RETRY_S_MAX = 1.0, 600.0

# The entry is invalid. All other statuses mean a server failure or a wrong configuration (key, URL).
REFUSED = frozenset({400, 409, 413, 422})

_log = logging.getLogger(__name__)


class RetryLater(Exception):  # noqa: N818  a state of the server, no bug
    """The server accepts nothing now."""

    def __init__(self, why: str, wait_s: float | None) -> None:
        super().__init__(why)
        self.why = why
        self.wait_s = wait_s


class SinkObserver(OutageLog):
    """Metrics and log lines of one sink."""

    def __init__(self, metrics: SinkMetrics, name: str) -> None:
        super().__init__(f"sink {name}")
        self._metrics = metrics
        self._server = Outage(self)
        """outage of the sink's server; the sender reports outages of the ledger by `failed` and `healed`"""

    def sent(self, name: str, entries: int) -> None:
        """Counts accepted entries."""
        self._metrics.entries.labels(name, "sent").inc(entries)
        self._server.over()

    def refused(self, name: str, entry_id: str, why: str) -> None:
        """Counts and logs a rejected entry."""
        self._metrics.entries.labels(name, "rejected").inc()
        _log.error(
            "sink %s: entry %s rejected: %s; correct the cause, then: tokenweir sinks retry %s",
            name,
            entry_id,
            why,
            name,
        )

    def unsent(self, name: str, why: str, wait_s: float) -> None:
        """Counts a failed attempt; logs the first of an outage."""
        self._metrics.failures.labels(name).inc()
        self._server.began(OSError(f"{why}; next attempt in {wait_s:.0f} s, retried until it succeeds"))

    def status(self, name: str, status: SinkStatus, lag_s: float) -> None:
        """Updates the gauges."""
        self._metrics.lag.labels(name).set(lag_s)
        self._metrics.pending.labels(name).set(status.waiting)
        self._metrics.rejected.labels(name).set(status.dead_letters)


class SinkSender:
    """Sends to one sink. `run` may run in any number of processes."""

    def __init__(
        self,
        engine: Engine,
        settings: SinkSettings,
        *,
        unix_time: Callable[[], float],
        observer: SinkObserver,
        in_thread: InThread = asyncio.to_thread,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._engine = engine
        self._name = settings.name
        self._since = settings.since
        self._format = format_of(settings)
        self._chunk = CHUNK if self._format.batch_max > 1 else CHUNK_OF_SINGLES
        self._registered = False
        self._unix_time = unix_time
        self._observer = observer
        self._outage = Outage(observer)
        self._in_thread = in_thread
        self._answer_s = answer_s
        self._me = uuid4().hex
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self._steps = Steps()

    async def run(self) -> None:
        """Runs until `finish`, or until cancelled; a chunk under way is then sent again."""
        try:
            while not self._steps.finished:
                if not await self._outage.attempt(self.poll, otherwise=False):
                    await self._steps.pause(POLL_S)
        finally:
            with suppress(OSError):  # the claim then expires by itself
                await self._in_thread(progress.release, self._engine, self._name, self._me)

    def finish(self) -> None:
        """Ends `run` after the chunk under way."""
        self._steps.finish()

    async def poll(self) -> bool:
        """Sends up to one page of entries. True if there may be more. Raises LedgerUnavailable."""
        if not self._registered:
            await self._in_thread(progress.register, self._engine, self._name, self._since)
            self._registered = True
        sink: SinkState | None = await self._changed(progress.claim, self._name, self._me, self._unix_time())
        moved = sink is not None and await self._push(sink)
        status = await self._in_thread(progress.sink_status, self._engine, self._name)
        self._observer.status(self._name, status, status.lag_s(self._unix_time()))
        return moved

    async def _changed(self, change: Callable[..., Any], *arguments: object) -> Any:
        """Take or prolong the claim in a thread. If this is cancelled, the change ends first: one that ends after the
        release would keep the sink claimed."""

        async def changed() -> Any:
            return await self._in_thread(change, self._engine, *arguments)

        changing = asyncio.get_running_loop().create_task(changed())
        try:
            return await asyncio.shield(changing)
        except asyncio.CancelledError:
            await asyncio.wait([changing])
            raise

    async def _push(self, sink: SinkState) -> bool:
        resent = await self._in_thread(progress.to_resend, self._engine, self._name, self._chunk)
        pending = await self._in_thread(progress.pending, self._engine, sink)
        async with open_session(self._answer_s) as session:
            for chunk in [*batches(resent, self._chunk), *batches(pending, self._chunk)]:
                if self._steps.finished:
                    return False
                try:
                    async with asyncio.timeout(CHUNK_S):
                        refused = await self._send(session, chunk)
                except (RetryLater, TimeoutError) as error:
                    await self._failed(sink, error)
                    return False
                now = self._unix_time()
                if not await self._changed(progress.advance, sink, chunk, refused, now):
                    return False
                self._report(chunk, refused)
        return True

    def _report(self, chunk: Sequence[Settled], refused: dict[str, str]) -> None:
        self._observer.sent(self._name, len(chunk) - len(refused))
        for entry_id, why in refused.items():
            self._observer.refused(self._name, entry_id, why)

    async def _failed(self, sink: SinkState, error: RetryLater | TimeoutError) -> None:
        later = error if isinstance(error, RetryLater) else RetryLater("timeout", None)
        wait_s = min(RETRY_S_MIN * 2.0 ** min(sink.failures, 20), RETRY_S_MAX)
        wait_s = max(wait_s, later.wait_s or 0.0)
        await self._in_thread(progress.record_failure, self._engine, sink, later.why, wait_s, self._unix_time())
        self._observer.unsent(self._name, later.why, wait_s)

    async def _send(self, session: aiohttp.ClientSession, chunk: Sequence[Settled]) -> dict[str, str]:
        """Sends a chunk. Returns the rejected entries (entry id → reason). Raises RetryLater."""
        owners = await self._in_thread(owners_of, self._engine, {entry.key_id for entry, _ in chunk})
        refused: dict[str, str] = {}
        events: list[SinkEvent] = []
        entry_ids: dict[str, str] = {}
        for entry, settled_at in chunk:
            try:
                made = self._format.events(ExportedEntry(entry, settled_at, owners.get(entry.key_id)))
            except (Unsendable, ValueError, TypeError) as error:  # an entry's details may hold anything
                refused[entry.entry_id] = str(error) or type(error).__name__
            else:
                events += made
                entry_ids |= {one.event_id: entry.entry_id for one in made}
        sending = (self._deliver(session, some) for some in batches(events, self._format.batch_max))
        for result in await asyncio.gather(*sending, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
            refused |= {entry_ids[event_id]: why for event_id, why in result.items()}
        return refused

    async def _deliver(self, session: aiohttp.ClientSession, events: Sequence[SinkEvent]) -> dict[str, str]:
        """Sends one request; on rejection, bisects to find the invalid events. Returns event id → reason."""
        if not events:
            return {}
        answer = await self._post(session, events)
        if answer.arrived:
            return {}
        if answer.status not in REFUSED:
            raise RetryLater(answer.why, answer.retry_after_s)
        known = self._format.known(answer, len(events))
        if known:
            return await self._deliver(session, [one for at, one in enumerate(events) if at not in known])
        if len(events) == 1:
            return {events[0].event_id: answer.why}
        half = len(events) // 2
        return {
            **await self._deliver(session, events[:half]),
            **await self._deliver(session, events[half:]),
        }  # fmt: skip

    async def _post(self, session: aiohttp.ClientSession, events: Sequence[SinkEvent]) -> PostResult:
        async with self._at_once:
            now = self._unix_time()
            request = self._format.request(events, now)
            return await post(session, request.url, request.body, request.headers, unix_s=now)
