"""Settles batches: reads their results from the provider, and writes an entry for each line.

Invariants: the ledger has an entry for every answered line, and then the entry of the batch, before the state is
`settled`. After an interruption there is nothing to repair: settling again adds only missing entries. In one process, a
batch is settled by one task, for all that wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial

from proxy.billing.batch import BatchState, Results, StoredBatch, StoredFile, Terms, names_digest
from proxy.billing.pricing.rules import Payer
from proxy.billing.record import Outcome, Price, UsageRecord
from proxy.gateway.batches.asking import after_of, asked, lines_in, object_in, request_to
from proxy.gateway.batches.lines_in import name_digest
from proxy.gateway.batches.ports import BatchPorts
from proxy.gateway.batches.records import LinePrices, LineRecords, batch_record
from proxy.gateway.upstream.client import UpstreamClient
from proxy.gateway.upstream.failures import UpstreamFailedError
from proxy.gateway.upstream.provider import Provider
from proxy.gateway.upstream.routing import Models, Route, only_at
from proxy.http.errors import ApiError
from proxy.metering.estimator.estimate import Estimator
from proxy.metering.stored_objects import BATCH_APIS, files_of
from proxy.metering.stored_objects.api import CONTENT, BatchApi, BatchStatus, ObjectApi, ResultLine
from proxy.settings.providers import Refuted

# Records of one transaction, as in the settler: it takes some tens of milliseconds.
RECORDS_MAX = 250
# Reading and metering results takes time of the event loop from streams.
AT_ONCE = 2

# An object is some kilobytes, and nothing is generated for it.
OBJECT_S = 30.0

_APIS = {api.name: api for api in BATCH_APIS}


class NotReadableError(Exception):
    """The provider does not return the batch or its results now; a later try may succeed. `missing`: it does not have
    the batch."""

    def __init__(self, why: str, *, missing: bool = False) -> None:
        super().__init__(why)
        self.missing = missing


def api_of(batch: StoredBatch) -> BatchApi:
    """The API with which the batch was made."""
    return _APIS[batch.api]


class BatchSettler:
    """Settles batches of all providers."""

    def __init__(
        self,
        ports: BatchPorts,
        *,
        providers: Mapping[str, Provider],
        client: UpstreamClient,
        models: Models,
        estimator: Estimator,
    ) -> None:
        self._ports = ports
        self._providers = providers
        self._client = client
        self._models = models
        self._estimator = estimator
        self._running: dict[str, asyncio.Task[bool]] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def settle(self, batch: StoredBatch) -> bool:
        """Poll the batch, and settle it if it has ended; False: it has not. Raises NotReadableError, OSError."""
        return await asyncio.shield(self.begin(batch))

    def begin(self, batch: StoredBatch) -> asyncio.Task[bool]:
        """Settle the batch in the background."""
        running = self._running.get(batch.exchange_id)
        if running is None:
            running = asyncio.get_running_loop().create_task(self._settle(batch), name="settling a batch")
            self._running[batch.exchange_id] = running
            running.add_done_callback(lambda _: self._running.pop(batch.exchange_id, None))
            running.add_done_callback(_seen)
        return running

    async def ended(self, batch: StoredBatch, status: BatchStatus) -> None:
        """Store the owners of the files with the results. Raises OSError."""
        files = [
            StoredFile(
                api=files_of(api_of(batch)).name,
                provider=batch.provider,
                credential=batch.credential,
                key_id=batch.key_id,
                project_id=batch.project_id,
                created_at=status.ended_at or batch.created_at,
                file_id=file_id,
                purpose="batch_output",
                made_by=batch.exchange_id,
            )
            for file_id in status.files
        ]
        await self._ports.in_thread(self._ports.batches.ended, batch, files)

    async def close(self, batch: StoredBatch, outcome: Outcome, state: BatchState | None) -> None:
        """Write the entry of a batch without billed lines, which ends its reservation. `state`: the final one; None:
        the batch is deleted. Raises OSError."""
        terms = await self._ports.in_thread(self._ports.batches.terms, batch.exchange_id)
        if terms:  # else another process has forgotten it
            await self._write([batch_record(batch, api_of(batch).path, terms, outcome, Results(), None)])
            await self._finish(batch, state)

    async def names(self, batch: StoredBatch, status: BatchStatus) -> str:
        """The digest of the names of the results' lines. `status`: a batch at the provider of `batch`. Raises
        NotReadableError."""
        digests = 0
        async for line, _ in self._lines(batch, status):
            digests += name_digest(line.custom_id or "")
        return names_digest(digests)

    async def aclose(self) -> None:
        """Stop all settling; the next process continues it."""
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    # -- one batch

    async def _settle(self, batch: StoredBatch) -> bool:
        status = await self._status(batch)
        if not status.ended:
            return False
        await self.ended(batch, status)
        async with self._slots:
            terms: tuple[Terms, ...] = await self._ports.in_thread(self._ports.batches.terms, batch.exchange_id)
            results = await self._settle_lines(batch, status, terms)
            outcome = Outcome.SERVED if status.word != "failed" else Outcome.REFUSED_UPSTREAM
            await self._write([batch_record(batch, api_of(batch).path, terms, outcome, results, status)])
            await self._finish(batch, BatchState.SETTLED)
            return True

    async def _status(self, batch: StoredBatch) -> BatchStatus:
        provider, api = self._provider(batch), api_of(batch)
        assert batch.batch_id is not None
        body = await self._object(provider, api, batch, after_of(batch.batch_id))
        status = api.status(body)
        if status is None:
            raise NotReadableError("the provider's answer is no batch")
        return status

    async def _object(self, provider: Provider, api: BatchApi, batch: StoredBatch, after: str) -> bytes:
        request = request_to(provider, api, "GET", after, credential=batch.credential)
        try:
            async with asyncio.timeout(OBJECT_S):
                answer = await asked(self._client, provider, request)
                if answer.status != 200:
                    answer.close()
                    raise NotReadableError(f"the provider answered {answer.status}", missing=answer.status == 404)
                return await object_in(answer, provider)
        except ApiError as failure:
            raise NotReadableError(failure.message) from None
        except TimeoutError:
            raise NotReadableError("the provider did not answer in time") from None

    def _provider(self, batch: StoredBatch) -> Provider:
        provider = self._providers.get(batch.provider)
        if provider is None:
            raise NotReadableError("its provider is not configured any more")
        return provider

    async def _settle_lines(self, batch: StoredBatch, status: BatchStatus, terms: Sequence[Terms]) -> Results:
        prices = await self._prices(batch, terms)
        records = LineRecords(batch, api_of(batch).endpoints[batch.endpoint], prices, status, self._estimator)
        waiting: list[UsageRecord] = []
        succeeded = failed = 0
        async for line, size in self._lines(batch, status):
            record = await records.record(line, f"#{succeeded + failed + 1}", size)
            if record is None:
                failed += 1
            else:
                succeeded += 1
                waiting.append(record)
            if len(waiting) >= RECORDS_MAX:
                await self._write(waiting)
                waiting = []
        if waiting:
            await self._write(waiting)
        return Results(succeeded, failed)

    async def _prices(self, batch: StoredBatch, terms: Sequence[Terms]) -> list[LinePrices]:
        payer = await self._ports.payer(batch.key_id)
        settings = self._provider(batch).settings
        return [
            LinePrices(
                one,
                partial(_prices_of, self._route(one.model, batch.provider), batch.created_at, payer),
                settings.bill,
                settings.not_billed,
                settings.usage.refuted is Refuted.ESTIMATE,
            )
            for one in terms
        ]

    def _route(self, model: str, provider: str) -> Route | None:
        route = self._models.route(model)
        return None if route is None else only_at(route, provider)

    async def _lines(self, batch: StoredBatch, status: BatchStatus) -> AsyncIterator[tuple[ResultLine, int]]:
        """All lines of the results, and their lengths. `status`: a batch at the provider of `batch`."""
        provider, api = self._provider(batch), api_of(batch)
        places: list[tuple[ObjectApi, str]]
        if api.results_after is not None:
            places = [(api, after_of(status.batch_id, api.results_after))]
        else:
            places = [(files_of(api), after_of(file_id, CONTENT.after)) for file_id in status.files]
        requests = [request_to(provider, one, "GET", after, credential=batch.credential) for one, after in places]
        for request in requests:
            try:
                answer = await asked(self._client, provider, request)
                try:
                    if answer.status != 200:
                        raise NotReadableError(f"the provider answered {answer.status} for results")
                    async for line, size in lines_in(answer, idle_s=provider.limits.idle_s):
                        yield api.line(line), size
                finally:
                    answer.close()
            except ApiError as failure:
                raise NotReadableError(failure.message) from None
            except (UpstreamFailedError, TimeoutError) as failure:
                raise NotReadableError(f"results broke off: {failure}") from None

    async def _write(self, records: Sequence[UsageRecord]) -> None:
        """Write the records that the ledger does not have."""
        there = await self._ports.recorded([record.opened.exchange_id for record in records])
        new = [record for record in records if record.opened.exchange_id not in there]
        if new:
            await self._ports.settle(new)

    async def _finish(self, batch: StoredBatch, state: BatchState | None) -> None:
        batches = self._ports.batches
        if state is None:
            await self._ports.in_thread(batches.forget, batch.exchange_id)
        else:
            await self._ports.in_thread(batches.close, batch.exchange_id, state)


def _prices_of(route: Route | None, at: float, payer: Payer, model: str) -> tuple[Price | None, Price | None]:
    """The prices of a model that served instead of the requested one; None if the route is not configured any more."""
    return (None, None) if route is None else route.prices(at, payer, model)


def _seen(task: asyncio.Task[bool]) -> None:
    """Retrieve the error of the task, which asyncio would log if nothing waits for it."""
    if not task.cancelled():
        task.exception()
