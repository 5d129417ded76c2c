"""Admission in one proxy process: the budget store, the follower of the ledger, idempotency claims, and the owners of
responses.

Invariant: before the first request with a limit is admitted, this node has reservations for the unsettled records in
its journal: the reservations of its last process, if the store has them all, or newly announced ones.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from msgspec import UNSET, UnsetType
from sqlalchemy import Engine

from proxy.billing.batch import StoredBatch, Terms
from proxy.billing.dimensions import NO_DIMENSIONS, Dimensions
from proxy.billing.limit_rules import CLIENT_RULES, cap_scope
from proxy.billing.limits import BUDGET_NUSD_MAX, LimitCounter, Measured, amounts_at, counted, limit_counters, measured
from proxy.billing.money import Nusd
from proxy.billing.record import Opened, UsageRecord
from proxy.billing.reservation import CounterState, Reservation
from proxy.billing.settlement import charged
from proxy.budgets.admission import ANSWER_S, Admission, ClosedReservations, OpenReservation
from proxy.budgets.alerting import Thresholds
from proxy.budgets.followed_ledger import FollowedLedger
from proxy.budgets.follower import Follower
from proxy.budgets.low_balance import LowBalances
from proxy.budgets.next_grants import NextGrants
from proxy.budgets.observers import AdmissionObserver, FollowerObserver, ThresholdObserver
from proxy.budgets.open_budgets import open_budgets
from proxy.budgets.store import BudgetStore
from proxy.foundation.outage import Outage, OutageLog
from proxy.foundation.tasks import Tasks
from proxy.journal.frames import UndecodableError, decode_record
from proxy.journal.journal import Journal, Pending
from proxy.keys.claims_local import LocalClaims
from proxy.keys.idempotency import Claims
from proxy.keys.keyring import Keyring
from proxy.keys.response_owners import ResponseOwners
from proxy.ledger.dimensions import sums as dimension_sums
from proxy.ledger.grants.burning import burn
from proxy.ledger.settling import account_sums
from proxy.ledger.settling.clock import level_clocks
from proxy.ledger.stored_objects.batches import BatchStore
from proxy.runtime.machine.data_folder import DataFolder, key_pepper
from proxy.settings import Settings
from proxy.storage.executor import InThread
from proxy.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from proxy.keys.claims_redis import RedisClaims
    from proxy.runtime.machine.queue import Queue

# A backlog that is read within 50 ms is read before the first request.
BACKLOG_MAX = 2_000
# Reading so many takes 2 ms of the event loop's time.
PAGE_RECORDS = 100
# The entries since are read by every seed of an account's counter, and by every report of dimensions.
ADD_UP_S = 10.0
# An entry of an idle shard counts about this long after its settlement.
LEVEL_S = 0.5
_SUMS = {"accounts": account_sums.add_up, "dimensions": dimension_sums.add_up, "grants": burn}

_log = logging.getLogger(__name__)


class LedgerFollowing:
    """Adds settled spend to the budget counters, and records alerts."""

    def __init__(
        self,
        store: BudgetStore,
        engine: Engine,
        metrics: Metrics,
        in_thread: InThread,
        *,
        low_nusd: Nusd | None = None,
        on_settled: Callable[[Iterable[str]], None] | None = None,
    ) -> None:
        """`low_nusd`: prepaid balances below this amount are low. `on_settled`: called with exchanges that are in all
        spend totals."""
        self._engine, self._in_thread = engine, in_thread
        observer = ThresholdObserver(metrics.budgets)
        self._thresholds = Thresholds(engine, unix_time=time.time, observer=observer, in_thread=in_thread)
        self.low_balances = LowBalances(
            engine, low_nusd=low_nusd, unix_time=time.time, observer=observer, in_thread=in_thread
        )
        self.follower = Follower(
            store,
            FollowedLedger(engine, in_thread),
            on_spent=self._check,
            on_settled=on_settled,
            observer=FollowerObserver(metrics.budgets),
        )

    def start(self, tasks: Tasks) -> None:
        """Start the tasks that follow the ledger."""
        tasks.start(self.follower.run(), name="follower")
        for name, add_up in _SUMS.items():
            adding = Outage(OutageLog(f"updating the sums of {name}"))
            tasks.start(self._repeat(partial(self._add_up, add_up), ADD_UP_S, adding), name=f"sums of {name}")
        leveling = Outage(OutageLog("advancing the ledger's clocks"))
        level = partial(self._in_thread, level_clocks, self._engine)
        tasks.start(self._repeat(level, LEVEL_S, leveling), name="clocks")

    async def _check(self, states: Sequence[CounterState]) -> None:
        await self._thresholds.check(states)
        await self.low_balances.check(states)

    async def _add_up(self, add_up: Callable[[Engine], bool]) -> None:
        """Add all settled entries to the sums."""
        while await self._in_thread(add_up, self._engine):
            pass

    async def _repeat(self, step: Callable[[], Awaitable[None]], pause_s: float, outage: Outage) -> None:
        """Repeat until cancelled."""
        while True:
            try:
                await step()
            except OSError as error:
                outage.began(error)
            else:
                outage.over()
            await asyncio.sleep(pause_s)


class AdmissionService:
    """`start` it before the first request, `close` it after the last."""

    def __init__(
        self,
        settings: Settings,
        folder: DataFolder,
        node: str,
        engine: Engine,
        queue: Queue | None,
        keyring: Keyring,
        metrics: Metrics,
        in_thread: InThread,
    ) -> None:
        """Open the stores. Raises ClaimsUnavailable, OSError: a file cannot be used."""
        self._keyring = keyring
        self._batches, self._in_thread = BatchStore(engine), in_thread
        pepper = key_pepper(settings)
        claims = _open_claims(settings, queue)
        self._follows = queue is None  # with a queue, workers do
        self.store = open_budgets(settings, node, folder.known_nodes)
        closed, observer = ClosedReservations(), AdmissionObserver(metrics.budgets)
        self._following = LedgerFollowing(
            self.store, engine, metrics, in_thread, low_nusd=settings.alerts.balance_low_nusd, on_settled=closed.forget
        )
        follower = self._following.follower
        self.admission = Admission(
            self.store, closed, seed=follower.seed, settled=follower.counted, tidy=partial(follower.tidy, 0.0),
            on_store_outage=settings.budgets.on_store_outage,
            allowance_nusd=settings.budgets.outage_allowance_nusd, observer=observer,
            next_grant=NextGrants(engine, in_thread).begin,
        )  # fmt: skip
        self.claims = Claims(
            claims, pepper=pepper,
            answer_bytes_max=settings.idempotency.replay_bytes_max, on_failure=observer.claim_failed,
        )  # fmt: skip
        self.owners = ResponseOwners(
            claims, Outage(OutageLog("storing the owner of a response (other processes answer 404)"))
        )
        metrics.budgets.outstanding(lambda: self.admission.reserved_nusd)

    async def start(self, tasks: Tasks, journal: Journal) -> None:
        """Start to admit requests. A long backlog in the journal is read while requests are served."""
        await self.admission.resume()
        announcing = self._announce(journal)
        if journal.depth <= BACKLOG_MAX:
            await announcing
            tasks.start(self.admission.run(), name="admission")
        else:
            tasks.start(self._run_after(announcing), name="admission")
        if self._follows:
            self._following.start(tasks)

    def use(self, settings: Settings) -> None:
        """Apply reloaded settings."""
        self._following.low_balances.use(settings.alerts.balance_low_nusd)

    async def _run_after(self, announcing: Awaitable[None]) -> None:
        await announcing
        await self.admission.run()

    async def _announce(self, journal: Journal) -> None:
        """Reserve for the records of earlier runs."""
        async for records in _pages(journal):
            await self._keyring.remember({record.opened.key_id for record in records})
            self.admission.remember(self._reservations(records))
        # The settler runs already: what it has settled before it was read here counts before it is released.
        with suppress(OSError):
            async with asyncio.timeout(ANSWER_S):
                await self._following.follower.follow()
        try:
            await self.admission.announce()
        except OSError as error:  # until it works, admission follows each key's policy for outages
            _log.error("budgets: %s", error)

    def reserve_resumed(self, opened: Opened) -> OpenReservation:
        """Restore the reservation of an exchange of an earlier process that still runs. Without its key in memory, the
        reservation has no counters."""
        counters = _counters_of(self._keyring, opened.key_id, opened.model, opened.provider, opened.dimensions)
        counts = measured(1, opened.prompt_tokens_estimate, opened.completion_tokens_max or 0)
        reserved = Reservation(
            opened.exchange_id, counters, opened.reserved_nusd or 0, 0, opened.started_at, amounts_at(counters, counts)
        )
        return self.admission.reserve_resumed(reserved, spends=opened.reserved_nusd is not None)

    def reserve_again(self, lost: Iterable[Pending]) -> None:
        """Reserve again for records that the ledger has lost: they count against budgets until they are settled
        again."""
        self.admission.reserve_again(self._reservations(_decoded(lost)))

    async def reserve_batches(self, batches: Sequence[StoredBatch]) -> None:
        """Reserve for batches that another process or an earlier run admitted. Raises OSError."""
        await self._keyring.remember({batch.key_id for batch in batches})
        owed = []
        for batch in batches:
            terms = await self._in_thread(self._batches.terms, batch.exchange_id)
            counters = _counters_of_batch(self._keyring, batch, terms)
            counts = measured(batch.lines, batch.lines * max((one.prompt_tokens for one in terms), default=0), 0)
            nusd = batch.reserved_nusd or 0
            owed.append(_reservation(counters, batch.exchange_id, nusd, batch.created_at, counts))
        if reservations := [reserved for reserved in owed if reserved is not None]:
            self.admission.reserve_again(reservations)

    async def close(self) -> None:
        """Release the reservations of ended exchanges, and close the stores."""
        await self._following.follower.aclose()
        await self.admission.aclose()
        await self.owners.aclose()
        await self.claims.aclose()

    async def abandoned(self, journal: Journal) -> None:
        """Release the reservations of another process, whose journal this process settles, except those of its
        unsettled records and of its batches."""
        unsettled = [record.opened.exchange_id async for records in _pages(journal) for record in records]
        try:
            batches = await self._in_thread(self._batches.of_node, journal.node.node_id)
            await self.store.abandon(journal.node.node_id, [*unsettled, *(one.exchange_id for one in batches)])
        except OSError as error:
            _log.error("budgets: %s", error)

    def _reservations(self, records: Iterable[UsageRecord]) -> Iterator[Reservation]:
        """The reservations for records that the ledger may not have."""
        for record in records:
            opened = record.opened
            counters = _counters_of(self._keyring, opened.key_id, opened.model, opened.provider, opened.dimensions)
            counts = counted(record.reading.usage)
            reserved = _reservation(counters, opened.exchange_id, charged(record) or 0, opened.started_at, counts)
            if reserved is not None:
                yield reserved


def _reservation(
    counters: tuple[LimitCounter, ...], exchange_id: str, nusd: int, started_at: float, counts: Measured
) -> Reservation | None:
    """The reservation of an exchange; None: no limit of money and no quota applies, or nothing counts there."""
    if not any(counter.nusd_max is not None for counter in counters):
        return None
    reserved = Reservation(exchange_id, counters, nusd, 0, started_at, amounts_at(counters, counts))
    return None if reserved.is_free else reserved


def _counters_of_batch(keyring: Keyring, batch: StoredBatch, terms: Iterable[Terms]) -> tuple[LimitCounter, ...]:
    """The limit counters of a batch, as at its admission: a rule for one of its models counts the whole batch."""
    of_models = (_counters_of(keyring, batch.key_id, one.model, batch.provider, one.dimensions) for one in terms)
    return tuple({counter.counter_id: counter for counters in of_models for counter in counters}.values())


def _counters_of(
    keyring: Keyring, key_id: str, model: str, provider: str, sent: Dimensions | UnsetType
) -> tuple[LimitCounter, ...]:
    """The limit counters of an exchange, by today's limits; without its key in memory, those of caps alone."""
    dimensions = NO_DIMENSIONS if sent is UNSET else sent
    key, now = keyring.known(key_id), time.time()
    scopes = () if key is None else keyring.access(key).levels(model, dimensions, (provider,))
    # Whatever a cap is: what is reserved again is not checked.
    capped = (
        cap_scope(rule, key_id, dimensions[name], Nusd(BUDGET_NUSD_MAX))
        for rule in CLIENT_RULES.values()
        for name in rule.split_by
        if name in dimensions
    )
    return tuple(counter for scope in (*scopes, *capped) for counter in limit_counters(scope, now))


async def _pages(journal: Journal) -> AsyncIterator[list[UsageRecord]]:
    """Pages of the records that the ledger may not have; records that are settled meanwhile may be left out."""
    after = 0
    while page := journal.pending(PAGE_RECORDS, after):
        after = page[-1].seq
        yield list(_decoded(page))
        await asyncio.sleep(0)  # streams continue


def _decoded(records: Iterable[Pending]) -> Iterator[UsageRecord]:
    for one in records:
        try:
            yield decode_record(one.payload)
        except UndecodableError:  # of another version: it is settled or shipped as it is
            continue


def _open_claims(settings: Settings, queue: Queue | None) -> LocalClaims | RedisClaims:
    retention_s = settings.idempotency.retention_s
    if queue is not None:
        from proxy.keys.claims_redis import RedisClaims

        return RedisClaims(queue.redis, retention_s=retention_s)
    return LocalClaims(settings.data_dir / "claims.db", retention_s=retention_s, unix_time=time.time)
