"""One exchange whose answer is made in the background: polls the provider until the answer has ended.

Invariants: the exchange is closed exactly once, by the ended answer or else by partial evidence. In the second case the
owner record is deleted, so that no client reads an answer whose usage is unknown. A cancelled task leaves the exchange
open.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic

from msgspec import structs

from proxy.billing.record import Outcome
from proxy.gateway.background.partial_result import PartialResult, decoded
from proxy.gateway.background.polling import Pace, Polling, PollResult, Step
from proxy.gateway.background.stored_answer import StoredAnswer, cancel, poll
from proxy.gateway.exchange.hand_over import HandOver, background_owner, run_of
from proxy.gateway.exchange.lifecycle import End
from proxy.gateway.exchange.open_exchange import outcome_of
from proxy.gateway.exchange.running import ExchangeSnapshot, snapshot
from proxy.gateway.ports import Ports
from proxy.metering.dialect import Dialect
from proxy.metering.metered import Metered
from proxy.metering.usage import Running, Usage

_log = logging.getLogger(__name__)

# Pauses differ by up to this share, so that exchanges that began together are not polled together.
JITTER = 0.2
# The outcome of an exchange that was served so far, if its answer is not found, or takes too long.
_OTHERWISE: Mapping[Step, Outcome] = {Step.NOT_FOUND: Outcome.UPSTREAM_FAILED, Step.TOO_LONG: Outcome.UPSTREAM_STALLED}
_REASONS: Mapping[Step, str] = {Step.NOT_FOUND: "background_not_found", Step.TOO_LONG: "background_too_long"}


class BackgroundExchange:
    """Call `run`, and `on_progress` for the counts of other readers."""

    def __init__(
        self,
        handed: HandOver,
        dialect: Dialect,
        ports: Ports,
        pace: Pace,
        polls: asyncio.Semaphore,
        on_closed: Callable[[BackgroundExchange], None],
    ) -> None:
        """`polls`: limits the polls of all exchanges. `on_closed`: called once, when the record is written."""
        self._handed = handed
        self._ports = ports
        self._polls = polls
        self._on_closed = on_closed
        run = run_of(handed.open_exchange.opened)
        self.exchange_id = handed.open_exchange.opened.exchange_id
        self.response_id = run.response_id
        self._stored = StoredAnswer(
            handed.provider, dialect, run.response_id, run.credential, query=run.query, headers=handed.headers
        )
        until = monotonic() + run.until - ports.unix_time()
        self._polling = Polling(until, pace, stopped=handed.stops)
        self._partial = PartialResult(handed.metered.evidence)
        self._progress = asyncio.Event()
        self._jitter = 1 + JITTER * int(self.exchange_id[-4:], 16) / 0xFFFF  # from a random part of the id

    @property
    def is_recorded(self) -> bool:
        """True if the record is written."""
        return self._handed.open_exchange.bills is not None

    def on_progress(self, seen: PartialResult) -> None:
        """Another reader reported progress."""
        if self.is_recorded:
            return
        self._partial = self._partial.merged(seen)
        metered = self._handed.metered
        running = Running(metered.completion_so_far, metered.usage_behind)
        self._handed.open_exchange.slot.note(
            self._partial.evidence, metered.usage, metered.events, running, metered.seen
        )
        if seen.ended is not None:
            self._progress.set()

    def running(self) -> ExchangeSnapshot:
        """The current snapshot of the exchange."""
        open_exchange, evidence = self._handed.open_exchange, self._partial.evidence
        opened = open_exchange.opened
        completion = self._ports.estimator.completion(
            open_exchange.model_key,
            evidence,
            completion_tokens_max=opened.completion_tokens_max,
            bytes_seen=evidence.chars,
        )
        return snapshot(
            opened,
            Usage(opened.prompt_tokens_estimate, completion_tokens=completion.tokens),
            reported=False,
            state="background",
            events=self._handed.events,
            size=self._handed.size,
        )

    async def run(self) -> None:
        """Poll until the exchange is closed. Never raises: after a bug of ours, it is settled by partial evidence."""
        try:
            await self._poll()
        except Exception as bug:  # noqa: BLE001  logged, without its message, which may quote an answer
            where = "".join(traceback.format_tb(bug.__traceback__))
            _log.error("%s: a bug in the background: %s\n%s", self.exchange_id, type(bug).__name__, where)
            await self._ports.owners.forget(self.response_id)
            self._close(Outcome.CRASHED, self._partial.ending(self._handed.metered), "proxy_bug")

    async def _poll(self) -> None:
        if self._handed.stops:
            await cancel(self._ports.upstream, self._stored, self._ports.unix_time())
        while True:
            await self._pause()
            step = self._polling.next(monotonic(), await self._result())
            ended = self._partial.ended
            if step is Step.STOP:
                found = await cancel(self._ports.upstream, self._stored, self._ports.unix_time())
                self._note(found)
            elif step is not Step.WAIT and ended is not None:
                return self._settle(ended)
            elif step is not Step.WAIT:
                return await self._give_up(step)

    async def _pause(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._polling.pause_s * self._jitter):
                await self._progress.wait()
        self._progress.clear()

    async def _result(self) -> PollResult:
        """The partial result if it has the usage, else the result of a poll."""
        with suppress(OSError):
            self._partial = self._partial.merged(decoded(await self._ports.owners.noted(self.response_id)))
        if self._partial.usage_known:
            return PollResult(self._partial.ended)
        async with self._polls:
            found = await poll(self._ports.upstream, self._stored, self._ports.unix_time())
        self._note(found)
        return found

    def _note(self, found: PollResult) -> None:
        """Add the result of a poll."""
        if found.metered is not None:
            ended = found.metered if found.metered.answer_ended else None
            self._partial = self._partial.merged(PartialResult(found.metered.evidence, ended))

    def _settle(self, ended: Metered) -> None:
        """Settle by the ended answer."""
        outcome, before = outcome_of(End.COMPLETE, ended), self._handed.outcome
        if outcome is Outcome.SERVED and before in (Outcome.CLIENT_LEFT, Outcome.BUDGET_CUT):
            outcome = before
        opened = self._handed.open_exchange.opened
        self._ports.owners.made(self.response_id, background_owner(opened, runs=False))
        self._close(outcome, self._partial.ending(ended))

    async def _give_up(self, step: Step) -> None:
        """Settle by partial evidence. The owner record is deleted first."""
        await self._ports.owners.forget(self.response_id)
        outcome = self._handed.outcome
        if outcome in (Outcome.SERVED, Outcome.UPSTREAM_FAILED):
            outcome = _OTHERWISE[step]
        _log.warning("background exchange %s is settled before its end: %s", self.exchange_id, _REASONS[step])
        self._close(outcome, self._partial.ending(self._handed.metered), failed=_REASONS[step])

    def _close(self, outcome: Outcome, metered: Metered, failed: str | None = None) -> None:
        if self.is_recorded:
            return
        handed = self._handed
        handed.open_exchange.close(
            outcome,
            now=monotonic(),
            metered=metered,
            details=structs.replace(handed.details, polls=self._polling.polls, failed=failed or handed.details.failed),
            events=handed.events,
            size=handed.size,
            # An estimate is bounded by what was received, at least a byte for each character.
            read=max(handed.read, metered.evidence.chars),
            first_token_at=handed.first_token_at,
        )
        self._on_closed(self)
