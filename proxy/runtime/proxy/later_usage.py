"""Asks providers afterwards for the usage that this proxy has estimated, and settles their reports.

Invariant: an answer is settled at the configured prices of its exchange, by the ledger's own transaction.
"""

from __future__ import annotations

import logging
import time
from functools import partial

from proxy.billing.correction import ExchangeTotals
from proxy.billing.entries import LedgerEntry
from proxy.billing.later import answered, may_change, unanswered
from proxy.foundation.tasks import Tasks
from proxy.gateway.background.later_usage import LaterUsageAsker
from proxy.gateway.upstream.client import UpstreamClient
from proxy.ledger.accounts.owners import payer_of
from proxy.ledger.settling.later import Question, Questions, questions, settle_later
from proxy.metering.metered import Metered
from proxy.runtime.machine.price_lookup import PriceLookup
from proxy.runtime.proxy.configuration import Configuration
from proxy.runtime.proxy.resources import Resources
from proxy.settings.providers import Refuted

_log = logging.getLogger(__name__)


class LaterUsageService:
    """Call `start` once."""

    def __init__(self, resources: Resources, configuration: Configuration, client: UpstreamClient) -> None:
        self._resources = resources
        self._configuration = configuration
        self._asker = LaterUsageAsker(
            read=self._read,
            settle=self._settle,
            providers=configuration.providers,
            client=client,
            node=resources.node.node_id,
            unix_time=time.time,
        )

    def start(self, tasks: Tasks) -> None:
        """Ask until the tasks are stopped."""
        tasks.start(self._asker.run(), name="later usage")

    async def _read(self, after: tuple[float, str]) -> Questions:
        found: Questions = await self._resources.in_thread(questions, self._resources.store.engine, after)
        return found

    async def _settle(self, question: Question, answer: Metered | None, is_last: bool) -> bool:
        ledger, metrics = self._resources.store.ledger, self._resources.metrics
        adjustment_of = unanswered if answer is None else partial(self._adjustment, answer, question.provider, is_last)
        began = time.perf_counter()
        try:
            settled = await self._resources.in_thread(settle_later, ledger, question.exchange_id, adjustment_of)
        except ValueError as malformed:
            _log.error("exchange %s cannot be adjusted: its entries are malformed: %s", question.exchange_id, malformed)
            return True
        if settled is None:
            return True
        before, line = settled
        if line is None:
            return False
        metrics.ledger.committed({"adjusted": 1}, (), time.perf_counter() - began)
        metrics.later.settled(line, before.usage.completion_tokens)
        return True

    def _adjustment(self, answer: Metered, provider: str, is_last: bool, now: ExchangeTotals) -> LedgerEntry | None:
        """None: the answer may change."""
        if not is_last and may_change(now, answer):
            return None
        resources = self._resources
        settings = self._configuration.settings
        of_provider = settings.providers.get(provider)
        if of_provider is None:  # the configuration has it no longer
            return None
        return answered(
            now,
            answer,
            PriceLookup(settings, self._configuration.book, payer_of(resources.store.engine)),
            of_provider.bill,
            of_provider.not_billed,
            estimates=of_provider.usage.refuted is Refuted.ESTIMATE,
        )
