"""Files and batches in one proxy process. Invariant: before requests are admitted, this process has reserved again for
the batches that it polls."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

from proxy.billing.batch import BatchState, StoredBatch
from proxy.billing.keys import ApiKey
from proxy.billing.pricing.rules import NOBODY, Payer
from proxy.billing.record import UsageRecord
from proxy.billing.settlement import entry, record_hash
from proxy.foundation.tasks import Tasks
from proxy.gateway.authentication import Accepting
from proxy.gateway.batches.access import Access
from proxy.gateway.batches.batches import BatchesHandler
from proxy.gateway.batches.creating import BatchMaker
from proxy.gateway.batches.files import FilesHandler
from proxy.gateway.batches.ports import BatchPorts
from proxy.gateway.batches.routes import add_to
from proxy.gateway.batches.settling import BatchSettler
from proxy.gateway.batches.watcher import Watcher
from proxy.gateway.dimensions.requests import RequestDimensions
from proxy.gateway.exchange.uploads import Uploads
from proxy.gateway.ports import RequestLimits
from proxy.gateway.upstream.client import UpstreamClient
from proxy.gateway.upstream.provider import Provider
from proxy.gateway.upstream.routing import Models
from proxy.http.server import Routes, Serve
from proxy.journal.frames import decode_record, record_payload
from proxy.keys.keyring import Keyring
from proxy.ledger.settling.store import Arrival, Settled
from proxy.metering.estimator.estimate import Estimator
from proxy.metering.stored_objects import BATCH_APIS
from proxy.metering.stored_objects.api import ObjectApi, Operation
from proxy.runtime.machine.ledger_stores import LedgerStores
from proxy.runtime.proxy.admission import AdmissionService
from proxy.storage.executor import InThread
from proxy.telemetry.metrics import Metrics


class BatchService:
    """`reserve` before the first request, `start` after it; `close` after the last one."""

    def __init__(
        self,
        *,
        node: str,
        stores: LedgerStores,
        in_thread: InThread,
        keyring: Keyring,
        admission: AdmissionService,
        models: Models,
        providers: Mapping[str, Provider],
        client: UpstreamClient,
        estimator: Estimator,
        limits: RequestLimits,
        uploads: Uploads,
        metrics: Metrics,
        dimensions: RequestDimensions,
        accepting: Accepting,
    ) -> None:
        """`node`: the name of this process."""
        self._ledger, self._batches, self._in_thread = stores.ledger, stores.batches, in_thread
        self._keyring, self._admission, self._metrics = keyring, admission, metrics
        self._serves = any(provider.supports(api) for provider in providers.values() for api in BATCH_APIS)
        self._node = node
        ports = BatchPorts(
            stores.files, stores.batches, in_thread, node,
            settle=self._settle, recorded=self._recorded, reserve_again=admission.reserve_batches, payer=self._payer,
        )  # fmt: skip
        self._settler = BatchSettler(ports, providers=providers, client=client, models=models, estimator=estimator)
        self._watcher = Watcher(ports, self._settler, providers=providers, client=client)
        access = Access(ports, keys=keyring, providers=providers, accepting=accepting)
        self._maker = BatchMaker(
            access, self._settler, self._watcher, client=client, models=models, admission=admission.admission,
            limits=limits, access_of=keyring.access, dimensions=dimensions, unix_time=time.time,
        )  # fmt: skip
        of_batches = BatchesHandler(
            access, self._maker, self._settler, client=client, models=models, estimator=estimator, limits=limits,
            uploads=uploads, scopes=keyring.scopes,
        )  # fmt: skip
        of_files = FilesHandler(
            access, providers=providers, client=client, models=models, estimator=estimator, limits=limits,
            uploads=uploads, scopes=keyring.scopes, settled=of_batches.settled,
        )  # fmt: skip
        self._access = access
        self._handlers = {"files": of_files.handlers(), "batches": of_batches.handlers()}

    async def reserve(self) -> None:
        """Reserve for the batches that the last run of this process polled. Raises OSError."""
        left: list[StoredBatch] = await self._in_thread(self._batches.of_node, self._node)
        await self._admission.reserve_batches(left)
        for batch in left:
            self._watcher.admitted(batch.exchange_id)
            if batch.state is BatchState.CREATING:  # no process creates it any more
                await self._in_thread(self._batches.postpone, batch.exchange_id, time.time())

    def start(self, tasks: Tasks) -> None:
        """Start to poll batches, if any provider supports them."""
        if self._serves:
            tasks.start(self._watcher.run(), name="batches")

    async def close(self) -> None:
        """Stop at once; the next run continues."""
        await self._maker.aclose()
        await self._settler.aclose()

    def add_to(self, routes: Routes) -> None:
        """Add the routes. Add the routes of exchanges first, because some of their paths have the same beginning."""

        def serving(apis: Sequence[ObjectApi], operation: Operation, object_id: str | None) -> Serve:
            kind = apis[0].name.partition(".")[2]
            return self._access.serving(apis, operation, object_id, self._handlers[kind][operation])

        add_to(routes, serving)

    async def check_files(self, key: ApiKey, file_ids: Collection[str]) -> set[str]:
        """The providers of the files that a request names. Raises ApiError if a file does not belong to the key."""
        found = await self._access.files_at(key, file_ids, None)
        return {file.provider for file in found.values()}

    async def _settle(self, records: Sequence[UsageRecord]) -> None:
        def settle() -> Settled:
            payloads = [record_payload(record) for record in records]
            entries = [entry(decode_record(payload)) for payload in payloads]
            hashes = map(record_hash, payloads)
            return self._ledger.settle(
                [Arrival(line, record_hash=one) for line, one in zip(entries, hashes, strict=True)]
            )

        began = time.perf_counter()
        settled: Settled = await self._in_thread(settle)
        results = {
            "inserted": len(settled.inserted), "repeated": settled.repeated, "adjusted": len(settled.adjusted),
            "conflict": settled.conflicts, "dead_letter": settled.rejected,
        }  # fmt: skip
        self._metrics.ledger.committed(results, settled.inserted, time.perf_counter() - began)

    async def _recorded(self, exchange_ids: Collection[str]) -> set[str]:
        found: set[str] = await self._in_thread(self._ledger.recorded, exchange_ids)
        return found

    async def _payer(self, key_id: str) -> Payer:
        await self._keyring.remember({key_id})
        key = self._keyring.known(key_id)
        return NOBODY if key is None else self._keyring.payer(key)
