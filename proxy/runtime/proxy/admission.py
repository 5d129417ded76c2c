"""What decides whether a proxy process lets a request in: the store of budgets, who follows the ledger, and claims.

Law: before the first request is let in, this node holds what its journal says, and nothing that a crash left held.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from sqlalchemy import Engine

from proxy.billing.limits import limit_counters
from proxy.billing.record import UsageRecord
from proxy.billing.reservation import Hold
from proxy.billing.settlement import amount
from proxy.budgets.admission import Admission
from proxy.budgets.alerting import Thresholds
from proxy.budgets.followed_ledger import FollowedLedger
from proxy.budgets.follower import Follower
from proxy.budgets.observers import AdmissionObserver, FollowerObserver, ThresholdObserver, WebhookObserver
from proxy.budgets.open_budgets import open_budgets
from proxy.budgets.store import BudgetStore
from proxy.foundation.tasks import Tasks
from proxy.journal.frames import UndecodableError, decode_record
from proxy.journal.journal import Journal
from proxy.keys.claims_local import LocalClaims
from proxy.keys.claims_redis import RedisClaims
from proxy.keys.idempotency import Claims, ClaimStore
from proxy.keys.keyring import Keyring
from proxy.runtime.machine.data_folder import key_pepper
from proxy.runtime.machine.queue import Queue
from proxy.settings import Settings
from proxy.sinks.alert_webhook import Webhook
from proxy.storage.executor import InThread
from proxy.telemetry.metrics import Metrics

_log = logging.getLogger(__name__)


class LedgerFollowing:
    """One process's part in keeping budgets at what the ledger says, and in telling when they are spent."""

    def __init__(
        self,
        settings: Settings,
        store: BudgetStore,
        engine: Engine,
        metrics: Metrics,
        in_thread: InThread,
        *,
        on_settled: Callable[[Iterable[str]], None] | None = None,
    ) -> None:
        """`on_settled`: the ledger has these exchanges."""
        thresholds = Thresholds(
            engine, unix_time=time.time, observer=ThresholdObserver(metrics.budgets), in_thread=in_thread
        )
        seen = FollowerObserver(metrics.budgets)
        self.follower = Follower(
            store, FollowedLedger(engine, in_thread), on_spent=thresholds.look, on_settled=on_settled, observer=seen
        )
        self._webhook = None
        if settings.alerts.url is not None and settings.alerts.secret is not None:
            self._webhook = Webhook(
                engine, url=settings.alerts.url, secret=settings.alerts.secret, unix_time=time.time,
                observer=WebhookObserver(metrics.budgets), in_thread=in_thread,
            )  # fmt: skip

    def start(self, tasks: Tasks) -> None:
        """From now on."""
        tasks.start(self.follower.run(), name="follower")
        if self._webhook is not None:
            tasks.start(self._webhook.run(), name="webhook")


class AdmissionService:
    """Of one proxy process. `start` it before the first request, `close` it after the last."""

    def __init__(
        self,
        settings: Settings,
        node: str,
        engine: Engine,
        queue: Queue | None,
        keyring: Keyring,
        metrics: Metrics,
        in_thread: InThread,
    ) -> None:
        """Raises ClaimsUnavailable, OSError: a file that cannot be used."""
        self._keyring = keyring
        pepper = key_pepper(settings)
        claims = _open_claims(settings, queue)
        self._follows = queue is None  # with a queue, workers do
        self.store = open_budgets(settings, node)
        self._following = LedgerFollowing(
            settings, self.store, engine, metrics, in_thread, on_settled=lambda settled: self.admission.forget(settled)
        )
        seen = AdmissionObserver(metrics.budgets)
        self.admission = Admission(
            self.store, seed=self._following.follower.seed, settled=FollowedLedger(engine, in_thread).settled,
            tidy=partial(self._following.follower.tidy, 0.0), unix_time=time.time,
            when_down=settings.budgets.when_down, allowance_nusd=settings.budgets.allowance_usd, observer=seen,
        )  # fmt: skip
        self.claims = Claims(
            claims, pepper=pepper,
            answer_bytes_max=settings.idempotency.replay_bytes_max, on_failure=seen.claim_failed,
        )  # fmt: skip
        metrics.budgets.outstanding(lambda: self.admission.held_nusd)

    async def start(self, tasks: Tasks, journal: Journal) -> None:
        """Let requests in from now on."""
        self.admission.remember(self._unsettled(journal))
        try:
            await self.admission.announce()
        except OSError as error:  # as long as that lasts, admission goes by each key's policy
            _log.error("budgets: %s", error)
        tasks.start(self.admission.run(), name="admission")
        if self._follows:
            self._following.start(tasks)

    async def close(self) -> None:
        """Tell what is left to tell, and let go."""
        await self._following.follower.aclose()
        await self.admission.aclose()
        await self.claims.aclose()

    async def abandoned(self, journal: Journal) -> None:
        """Another process's journal was taken over: what that held is let go, but for what is on its way from there."""
        on_its_way = [record.opened.exchange_id for record in _records(journal)]
        try:
            await self.store.abandon(journal.node.node_id, on_its_way)
        except OSError as error:
            _log.error("budgets: %s", error)

    def _unsettled(self, journal: Journal) -> Iterator[Hold]:
        """What earlier runs closed, and the ledger may not have."""
        now = time.time()
        for record in _records(journal):
            key = self._keyring.known(record.opened.key_id)
            passing = () if key is None else tuple(g for s in self._keyring.scopes(key) for g in limit_counters(s, now))
            charge = amount(record.opened.price, record.reading.usage, record.bills)
            if charge and any(gate.nusd_max is not None for gate in passing):
                yield Hold(record.opened.exchange_id, passing, charge, 0, record.opened.started_at)


def _records(journal: Journal) -> Iterator[UsageRecord]:
    """Those that the ledger is not known to have."""
    after = 0
    while page := journal.pending(1_000, after):
        after = page[-1].seq
        for one in page:
            try:
                yield decode_record(one.payload)
            except UndecodableError:  # of another version: it is carried as it is
                continue


def _open_claims(settings: Settings, queue: Queue | None) -> ClaimStore:
    remember_s = settings.idempotency.remember_s
    if queue is not None:
        return RedisClaims(queue.redis, remember_s=remember_s)
    return LocalClaims(settings.data_dir / "claims.db", remember_s=remember_s, unix_time=time.time)
