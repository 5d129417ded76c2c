"""Prices that refresh themselves: the price list in the ledger, which all proxies apply within seconds.

Invariants: one process at a time fetches a list, and decides which parts apply; all processes then apply the same
bytes. An exchange keeps the prices that it was admitted with. A failure changes nothing. `price-book.json` in the data
folder is a copy, for a start without the ledger and for commands; the first process of a machine writes it.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from proxy.billing.money import usd_text
from proxy.billing.pricing.book import PriceBook
from proxy.foundation.files import replace_whole
from proxy.foundation.outage import Outage, OutageLog
from proxy.gateway.upstream.client import UpstreamClient
from proxy.ledger.accounts.owners import payer_of
from proxy.ledger.price_list import PriceListState, claim, read_content, read_state, record_failure
from proxy.ledger.settling.corrections import CorrectionResult, Corrections, Cursor
from proxy.runtime.machine.price_acceptance import LOOK_BACK_S, Accepted
from proxy.runtime.machine.price_check import newest, record
from proxy.runtime.machine.price_file import PriceFileError, book_from
from proxy.runtime.machine.price_lookup import PriceLookup
from proxy.runtime.proxy.configuration import Configuration, Reloader
from proxy.runtime.proxy.resources import Resources
from proxy.settings import Settings, SettingsError
from proxy.settings.price_refresh import RefreshSettings

# Between two looks at the ledger: one row.
LOOK_S = 2.0
# Lines of the log for one list.
LINES_MAX = 200

_log = logging.getLogger(__name__)


class PriceRefresh:
    """Call `run` as long as the process serves."""

    def __init__(
        self,
        refresh: RefreshSettings,
        resources: Resources,
        reloader: Reloader,
        client: UpstreamClient,
        file: Path | None,
    ) -> None:
        """`file`: the copy to write; None: another process of this machine writes it, and makes the checks."""
        self._refresh = refresh
        self._resources = resources
        self._configuration: Configuration = resources.configuration
        self._reloader = reloader
        self._client = client
        self._file = file
        self._version: str | None = None
        """the version of the list that was last read from the ledger"""
        self._unusable_with: Settings | None = None
        """settings of a model that has no price in that list; None: it is in use"""
        self._rated: tuple[PriceBook, Settings] | None = None
        """the prices by which exchanges were rated last"""
        self._rate_at = 0.0
        self._outage = Outage(OutageLog("refreshing prices (the prices in use stay)"))

    async def run(self) -> None:
        """Follow the ledger until cancelled."""
        while True:
            await self._outage.attempt(self.look, None)
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Apply the list in the ledger; check for a newer one and rate exchanges, if that is due. Raises
        LedgerUnavailable, OSError."""
        state: PriceListState = await self._in_ledger(read_state)
        settings = self._configuration.settings
        was_read = state.version == self._version and self._unusable_with in (None, settings)
        if state.version is not None and not was_read:
            await self._follow(state.version, settings)
        if self._file is None:
            return
        self._measure(state)
        now, every_s = time.time(), self._refresh.every_s
        is_due = not now < state.next_at <= now + every_s
        if is_due and self._unusable_with is None and await self._in_ledger(claim, now, every_s):
            await self._check(state)
        if self._refresh.rate_unpriced:
            await self._rate()

    async def _in_ledger(self, call: Callable[..., Any], *arguments: object) -> Any:
        return await self._resources.in_thread(call, self._resources.store.engine, *arguments)

    def _measure(self, state: PriceListState) -> None:
        series = self._resources.metrics.prices
        series.checked_at.set(state.checked_at or 0.0)
        series.failed.set(state.error is not None or self._unusable_with is not None)
        series.refused.set(len(state.refused))

    async def _follow(self, version: str, settings: Settings) -> None:
        self._unusable_with = None
        if self._configuration.book.version != version:
            content: bytes | None = await self._in_ledger(read_content, version)
            book = PriceBook() if content is None else await asyncio.to_thread(book_from, content, "the price list")
            try:
                await self._reloader.use_book(book)
                gc.freeze()  # as at the start: with its objects, a full collection would stop all streams for 60 ms
                _log.info("price list %s applies", version)
            except SettingsError as wrong:
                self._unusable_with = settings
                _log.error("price list %s cannot be used, the previous one applies: %s", version, wrong)
            if self._file is not None and self._unusable_with is None:
                await asyncio.to_thread(_copy, self._file, content)
        self._version = version

    async def _check(self, state: PriceListState) -> None:
        """Fetch a list, and store the parts that apply in the ledger."""
        configuration = self._configuration
        try:
            accepted = await newest(self._client, self._refresh, configuration.settings, configuration.book)
        except PriceFileError as refused:
            if state.error is None:
                _log.error("prices were not refreshed, the previous list applies: %s", refused)
            await self._in_ledger(record_failure, str(refused))
            return
        if await self._in_ledger(record, state, accepted, self._refresh.every_s):
            _log_changes(accepted, state.refused)

    async def _rate(self) -> None:
        prices, now = (self._configuration.book, self._configuration.settings), time.time()
        if self._rated is not None and now < self._rate_at and all(map(_is, self._rated, prices)):
            return
        store, metrics = self._resources.store, self._resources.metrics
        book, settings = prices
        lookup = PriceLookup(settings, book, payer_of(store.engine))
        corrections, total = Corrections(store.engine, store.ledger, "prices.refresh"), CorrectionResult()
        after: Cursor | None = (now - LOOK_BACK_S, "")
        while after is not None:
            after = await self._resources.in_thread(corrections.rate_unpriced, lookup, after, now, total)
        self._rated, self._rate_at = prices, now + self._refresh.every_s
        if total.adjusted:
            metrics.ledger.entries.labels("adjusted").inc(total.adjusted)
            metrics.prices.rated.inc(total.adjusted)
            amounts = usd_text(total.charge_nusd), usd_text(total.cost_nusd)
            _log.info("%d exchanges without a price were rated: charge %s USD, cost %s USD", total.adjusted, *amounts)


def _is(one: object, other: object) -> bool:
    return one is other


def _copy(file: Path, content: bytes | None) -> None:
    if content is None:
        file.unlink(missing_ok=True)
    else:
        replace_whole(file, content)


def _log_changes(accepted: Accepted, known: Collection[str]) -> None:
    """A line for each model whose prices have changed, or whose new prices are refused and were not before."""
    changed = list(map(str, accepted.changes))
    refused = [line for line in map(str, accepted.refused) if line not in known]
    for level, lines in ((logging.INFO, changed), (logging.WARNING, refused)):
        for line in lines[:LINES_MAX]:
            _log.log(level, "prices: %s", line)
        if len(lines) > LINES_MAX:
            _log.log(level, "prices: the same for %d more models", len(lines) - LINES_MAX)
