"""Polls batches until they have ended, and searches for batches whose creation was interrupted.

Invariants: a batch is polled until it is settled or lost: its provider does not have it, or its results, any more. A
batch whose creation was interrupted gets its owner if it is found at the provider, and else was not made. Batches of
other users of the provider are never shown.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from proxy.billing.batch import BatchState, StoredBatch
from proxy.billing.record import Outcome
from proxy.foundation.outage import Outage, OutageLog
from proxy.gateway.batches.asking import asked, object_in, request_to
from proxy.gateway.batches.ports import BatchPorts
from proxy.gateway.batches.settling import BatchSettler, NotReadableError, api_of
from proxy.gateway.upstream.client import UpstreamClient
from proxy.gateway.upstream.provider import Provider
from proxy.http.errors import ApiError
from proxy.metering.stored_objects.api import BatchStatus

# Batches that are polled at once, each with a request to its provider.
LOOK_BATCHES = 16
# Longer than a poll takes; later, another process polls the batch.
CLAIM_S = 120.0
# OpenAI and Anthropic end a batch after a day. One that the provider does not have then was deleted there.
MISSING_S = 2 * 86_400.0
# They keep results for 30 and 29 days.
LOST_S = 31 * 86_400.0
# Results are gone by then; before, the batch is shown to its owner.
FORGOTTEN_S = 90 * 86_400.0
TIDY_S = 86_400.0
# A provider lists a batch within seconds after it was made.
FOUND_S = 600.0
# Clocks may differ.
SKEW_S = 60.0
# Pages of a provider's list, of 100 batches each.
PAGES_MAX = 20

_log = logging.getLogger(__name__)


class Intervals(NamedTuple):
    """Seconds between two polls."""

    look_s: float = 5.0
    """between two checks of the batches of this process"""
    first_s: float = 10.0
    """between polls of a young batch: most batches take minutes"""
    longest_s: float = 300.0
    """between polls of an old batch"""

    def next_s(self, age_s: float) -> float:
        """The interval for a batch of this age: a twentieth of the age."""
        return min(max(age_s / 20, self.first_s), self.longest_s)


INTERVALS = Intervals()


class _Page(msgspec.Struct):
    data: list[msgspec.Raw]
    has_more: bool = False
    last_id: str | None = None


_page = msgspec.json.Decoder(_Page).decode


class Watcher:
    """Call `run` as long as the process serves."""

    def __init__(
        self,
        ports: BatchPorts,
        settler: BatchSettler,
        *,
        providers: Mapping[str, Provider],
        client: UpstreamClient,
        intervals: Intervals = INTERVALS,
        unix_time: Callable[[], float] = time.time,
    ) -> None:
        self._ports = ports
        self._settler = settler
        self._providers = providers
        self._client = client
        self._intervals = intervals
        self._unix_time = unix_time
        self._held: set[str] = set()
        """exchange ids of the batches that this process has reserved for"""
        self._tidy_at = 0.0
        self._outage = Outage(OutageLog("looking for batches"))
        self._bugs = Outage(OutageLog("settling batches"))
        self._unreadable: dict[str, Outage] = {}  # by exchange id

    def admitted(self, exchange_id: str) -> None:
        """This process has admitted the batch, and has reserved for it."""
        self._held.add(exchange_id)

    async def run(self) -> None:
        """Poll batches until cancelled."""
        while True:
            try:
                while await self.look() == LOOK_BATCHES:
                    pass
                await self._tidy()
            except Exception as error:  # noqa: BLE001  the ledger is away, or a bug: the next look tries again
                self._outage.began(error)
            else:
                self._outage.over()
            await asyncio.sleep(self._intervals.look_s)

    async def look(self) -> int:
        """Poll the batches that are due; returns their number. Raises OSError if none could be polled."""
        ports = self._ports
        due: list[StoredBatch] = await ports.in_thread(self._claim)
        if new := [batch for batch in due if batch.exchange_id not in self._held]:
            await ports.reserve_again(new)
            self._held.update(batch.exchange_id for batch in new)
        outcomes = await asyncio.gather(*map(self._ask, due), return_exceptions=True)
        if failures := [one for one in outcomes if isinstance(one, Exception)]:
            self._bugs.began(failures[0])  # it delays no other batch, and is polled again when its claim expires
        elif due:
            self._bugs.over()
        return len(due)

    def _claim(self) -> list[StoredBatch]:
        return self._ports.batches.claim(self._ports.node, now=self._unix_time(), for_s=CLAIM_S, limit=LOOK_BATCHES)

    async def _ask(self, batch: StoredBatch) -> None:
        """Poll one batch. Raises OSError: it is polled again later."""
        outage = self._unreadable.get(batch.exchange_id)
        if outage is None:
            what = f"asking {batch.provider} for the batch {batch.batch_id or 'of exchange ' + batch.exchange_id}"
            outage = self._unreadable[batch.exchange_id] = Outage(OutageLog(what))
        age_s = self._unix_time() - batch.created_at
        try:
            done = await (self._find(batch) if batch.state is BatchState.CREATING else self._settler.settle(batch))
        except NotReadableError as why:
            outage.began(why)
            done = age_s > (MISSING_S if why.missing else LOST_S)
            if done:
                _log.error("batch %s of %s is lost: %s", batch.batch_id, batch.provider, why)
                await self._settler.close(batch, Outcome.UPSTREAM_FAILED, BatchState.LOST)
        else:
            outage.over()
        if not outage.lasts or done:
            del self._unreadable[batch.exchange_id]
        if done:
            self._held.discard(batch.exchange_id)
        else:
            at = self._unix_time() + self._intervals.next_s(age_s)
            await self._ports.in_thread(self._ports.batches.postpone, batch.exchange_id, at)

    async def _tidy(self) -> None:
        now = self._unix_time()
        if now >= self._tidy_at:
            self._tidy_at = now + TIDY_S
            await self._ports.in_thread(self._ports.batches.forget_older, now - FORGOTTEN_S)

    # -- batches whose creation was interrupted

    async def _find(self, batch: StoredBatch) -> bool:
        """Search for the batch at its provider. True: it was not made. Raises NotReadableError, OSError."""
        candidates = [status for status in await self._listed(batch) if _may_be(batch, status)]
        known = await self._ports.in_thread(self._ports.batches.known, [one.batch_id for one in candidates])
        candidates = [status for status in candidates if status.batch_id not in known]
        found = candidates
        if batch.input_file is None:  # only the names of its lines identify it, and they are in the results
            found = [one for one in candidates if one.ended and await self._settler.names(batch, one) == batch.names]
            if len(found) > 1:
                raise NotReadableError("several batches may be the one whose creation was interrupted", missing=True)
        if found:
            made, now = (batch.exchange_id, found[0].batch_id), self._unix_time()
            if await self._ports.in_thread(lambda: self._ports.batches.made(*made, next_at=now)):
                _log.warning(
                    "batch %s of %s was found: its creation was interrupted", found[0].batch_id, batch.provider
                )
            return False
        if self._unix_time() - batch.created_at < FOUND_S or not all(one.ended for one in candidates):
            return False
        await self._settler.close(batch, Outcome.UPSTREAM_FAILED, None)
        return True

    async def _listed(self, batch: StoredBatch) -> Sequence[BatchStatus]:
        """The batches in the provider's list since this one was admitted."""
        provider, api = self._providers.get(batch.provider), api_of(batch)
        if provider is None:
            raise NotReadableError("its provider is not configured any more")
        found: list[BatchStatus] = []
        after = ""
        for _ in range(PAGES_MAX):
            request = request_to(provider, api, "GET", f"?limit=100{after}", credential=batch.credential)
            page = await self._page_of(provider, request)
            statuses = [status for raw in page.data if (status := api.status(bytes(raw))) is not None]
            found += statuses
            if not page.has_more or not statuses or statuses[-1].created_at < batch.created_at - SKEW_S:
                return found
            after = f"&{api.cursor}={statuses[-1].batch_id}"
        raise NotReadableError("the provider's list of batches is too long")

    async def _page_of(self, provider: Provider, request: bytes) -> _Page:
        try:
            answer = await asked(self._client, provider, request)
            if answer.status != 200:
                answer.close()
                raise NotReadableError(f"the provider answered {answer.status}")
            return _page(await object_in(answer, provider))
        except ApiError as failure:
            raise NotReadableError(failure.message) from None
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise NotReadableError("the provider's answer is no list") from None


def _may_be(batch: StoredBatch, status: BatchStatus) -> bool:
    """True if `status` can be the batch whose creation was interrupted."""
    if not -SKEW_S <= status.created_at - batch.created_at <= FOUND_S + SKEW_S:
        return False
    if batch.input_file is not None:
        return status.input_file == batch.input_file
    return status.lines == batch.lines
