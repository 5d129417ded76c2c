"""Closes an opened exchange: makes its record from the meter's result and the outcome.

Invariant: `close` is called exactly once for every opened exchange; a second call is a bug.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec import UNSET, UnsetType, json, structs

from proxy.billing.details import EntryDetails
from proxy.billing.ending import FREE, Ending, compared, record_of
from proxy.billing.limits import Scope, counted
from proxy.billing.money import usd_text
from proxy.billing.pricing.rules import Payer
from proxy.billing.record import Attempt, BackgroundRun, BillableParts, Opened, Outcome, Price, UsageRecord
from proxy.billing.settlement import charged
from proxy.budgets.admission import OpenReservation
from proxy.gateway.exchange.lifecycle import End
from proxy.gateway.outbox import OutboxFullError
from proxy.gateway.ports import Ports
from proxy.gateway.upstream.client import Answer
from proxy.gateway.upstream.routing import Route
from proxy.http.errors import JSON_TYPE
from proxy.journal.progress import Slot
from proxy.metering.answer_cost.edit import Cost
from proxy.metering.estimator.estimate import REFERENCED, TOKENIZED, Estimator, is_estimated, reading
from proxy.metering.estimator.silence import with_silence
from proxy.metering.generation import ID_STARTS
from proxy.metering.metered import Metered
from proxy.metering.plausibility import REFUTED
from proxy.metering.profile import Counted, Profile
from proxy.metering.request import RequestFacts
from proxy.metering.usage import NO_USAGE, NOTHING, Evidence, Reading, Silence, Usage, UsageSource
from proxy.settings.providers import LaterUsage, Refuted

_log = logging.getLogger(__name__)

_UNSEEN = Evidence()


def prompt_tokens(estimator: Estimator, route: Route, facts: RequestFacts) -> int:
    """The estimate of the prompt at this provider."""
    return estimator.prompt_tokens(route.model_key, facts.prompt) + (facts.context_tokens or 0)


def silence_of(estimator: Estimator, route: Route, limit: int | None, facts: RequestFacts) -> Silence | UnsetType:
    """The rate at which a silence of this exchange is converted to hidden reasoning tokens; UNSET: none is learned."""
    if not facts.streamed:
        return UNSET
    found = estimator.silence(route.model_key, limit, billed=route.hidden_by_time)
    return UNSET if found is None else found


def outcome_of(end: End, metered: Metered | None, *, status: int | None = None) -> Outcome:
    """The outcome of an exchange. `status`: of an answer that is not a success, if that is its end."""
    if end is End.COMPLETE:
        served = metered is not None and metered.failed is None and (metered.complete or metered.usage_final)
        return Outcome.SERVED if served else Outcome.UPSTREAM_FAILED
    if end is End.REFUSED and status is not None and 400 <= status < 500:
        return Outcome.REFUSED_UPSTREAM
    return _OUTCOMES[end]


_OUTCOMES: Mapping[End, Outcome] = {
    End.BROKEN: Outcome.UPSTREAM_FAILED,
    End.REFUSED: Outcome.UPSTREAM_FAILED,
    End.UNREACHABLE: Outcome.UPSTREAM_FAILED,
    End.STALLED: Outcome.UPSTREAM_STALLED,
    End.CLIENT_LEFT: Outcome.CLIENT_LEFT,
    End.SHUT_DOWN: Outcome.SHUT_DOWN,
    End.BUDGET_CUT: Outcome.BUDGET_CUT,
    End.BUG: Outcome.CRASHED,
}


class OpenExchange:
    """An opened exchange that is not closed yet."""

    handed_over = False
    """the background poller closes the exchange: the provider makes its answer in the background"""
    scopes: Sequence[Scope] = ()
    """the levels that it counts against"""

    def __init__(
        self,
        opened: Opened,
        slot: Slot,
        ports: Ports,
        *,
        facts: RequestFacts,
        started_at: float,
        reservation: OpenReservation,
        durable: asyncio.Future[None] | None,
        route: Route,
        payer: Payer,
    ) -> None:
        """`durable`: done when `opened` is durable."""
        self.opened = opened
        self.durable = durable
        self.reservation = reservation
        self.bills: BillableParts | None = None
        """the billed parts of the exchange; None: it has no record yet"""
        self.silent_s = 0.0
        """seconds from the request to the provider that answered until the first word, or until the end without one"""
        self.tokens = 0
        """the tokens of its usage, once the exchange is closed"""
        self.keeps = 0
        """maximum size of a stored JSON answer, in bytes"""
        self.kept: bytes | None = None
        """the stored answer"""
        self.traceparent: str | None = None
        """the header of the request, if traces are on"""
        self.slot = slot
        self.accepted = False  # the provider answered 2xx: it works, and is to be paid
        self._ports = ports
        self._facts = facts
        self._route = route
        self._payer = payer
        self._started_at = started_at  # by time.monotonic
        counts = route.counter is not None and facts.context_tokens is None  # else it is a part of the prompt
        facts.prompt.text.hold(route.counter.room if counts and route.counter is not None else None)
        self.model_key = route.model_key
        """the estimator's key of the current provider and model"""

    def reassign(self, route: Route, attempt: Attempt) -> bool:
        """Move it to another provider after this failed attempt. The price of the charge stays as admitted; the
        price of the cost and the estimator's key change. Returns False, changing nothing, if that cannot be recorded.
        """
        opened = self._reassigned(route, attempt)
        try:
            self.durable = self._ports.outbox.reassign(opened)
        except OutboxFullError:
            return False
        self.opened, self.model_key, self._route = opened, route.model_key, route
        self._ports.meters.attempted(attempt)
        return True

    def runs_in_background(self, run: BackgroundRun) -> None:
        """Record how to poll for the answer. If the record cannot be written, a crash loses it."""
        self.opened = structs.replace(self.opened, background=run)
        with suppress(OutboxFullError):
            self.durable = self._ports.outbox.reassign(self.opened)

    def hand_over(self) -> None:
        """Hand over: from now on the background poller closes this exchange."""
        self.handed_over = True
        self._facts.prompt.text.drop()

    @property
    def billed(self) -> bool:
        """Whether the exchange was billed, or will be."""
        return self.handed_over or self.bills not in (None, BillableParts.NOTHING)

    def _reassigned(self, route: Route, attempt: Attempt) -> Opened:
        free = self.opened.price is FREE
        return structs.replace(
            self.opened,
            provider=route.provider.settings.name,
            upstream_model=route.upstream_model,
            cost=FREE if free else route.prices(self.opened.started_at, self._payer)[1],
            prompt_tokens_estimate=0 if free else prompt_tokens(self._ports.estimator, route, self._facts),
            bill=route.provider.settings.bill,
            attempts=(*self.opened.attempts, attempt),
            silence=silence_of(self._ports.estimator, route, self.opened.completion_tokens_max, self._facts),
        )

    def cost_to_tell(self, metered: Metered) -> Cost | None:
        """The charge if the answer ended now, by the code that settles it. None: unpriced, or estimated."""
        outcome = outcome_of(End.COMPLETE, metered)
        read = self._read(outcome, metered, 1)
        if read.source is not UsageSource.REPORTED:
            return None
        nusd = charged(self._record(outcome, read, metered, now=self._started_at, size=1))
        if nusd is None:
            return None
        opened = self.opened
        said = {
            "currency": "USD",
            "exchange_id": opened.exchange_id,
            "price_version": None if opened.price is None else opened.price.version,
        }
        return Cost(usd_text(nusd).encode(), json.encode(said))

    def close(
        self,
        outcome: Outcome,
        *,
        now: float,
        metered: Metered | None = None,
        events: int = 0,
        size: int = 0,
        read: int = 0,
        first_token_at: float | None = None,
        details: EntryDetails | None = None,
        counted: Counted | None = None,
        prompt: Profile | None = None,
    ) -> None:
        """Write the record, and free the slot and the reservation. Never raises: a bug of ours in one step is logged,
        and the other steps are done. Times by `time.monotonic`; `events` and `size`: as sent to the client; `read`:
        bytes that the meter has received; `counted` and `prompt`: the counts of the texts, see `count`.
        """
        assert self.bills is None, "an exchange ends once"
        self.bills = BillableParts.NOTHING  # until its record is made
        record_as = partial(self._record, now=now, first_token_at=first_token_at, events=events, size=size)
        try:
            details = details or EntryDetails()
            if metered is not None and outcome is not Outcome.REFUSED_UPSTREAM and self.opened.price is not FREE:
                is_text = self._facts.completion_tokens_max != 0  # else a vector, say
                estimates = self._route.provider.settings.usage.refuted is Refuted.ESTIMATE
                bound = partial(self._ports.estimator.broken_bound, self.model_key)
                metered = compared(metered, self._facts.prompt, details, bound, is_text=is_text, estimates=estimates)
            reading = self._read(outcome, metered, max(size, read), counted, prompt)
            tokens = counted.tokens if counted is not None and reading.estimator in (REFERENCED, TOKENIZED) else None
            record = record_as(outcome, reading, metered, tokens_counted=tokens, details=details)
        except Exception as bug:  # noqa: BLE001  logged
            self._log_bug(bug)
            record = record_as(Outcome.CRASHED, NOTHING, None, details=EntryDetails(failed="proxy_bug"))
        self.bills = record.bills
        for step in (self._finish, self._release, self._tell):
            try:
                step(record, metered)
            except Exception as bug:  # noqa: BLE001  logged
                self._log_bug(bug)

    def _log_bug(self, bug: Exception) -> None:
        """Log the traceback of `bug` without its message, which may quote a prompt."""
        where = "".join(traceback.format_tb(bug.__traceback__))
        exchange_id = self.opened.exchange_id
        _log.error("exchange %s could not be closed as it should: %s\n%s", exchange_id, type(bug).__name__, where)

    def _record(
        self,
        outcome: Outcome,
        read: Reading,
        metered: Metered | None,
        *,
        now: float,
        first_token_at: float | None = None,
        size: int,
        **further: Any,
    ) -> UsageRecord:
        """`further`: members of `Ending`."""
        ending = Ending(
            outcome=outcome,
            reading=read,
            metered=metered,
            accepted=self.accepted,
            delivered=size > 0 and metered is not None and metered.generated,
            size=size,
            duration_ms=round((now - self._started_at) * 1000, 3),
            first_token_ms=None if first_token_at is None else round((first_token_at - self._started_at) * 1000, 3),
            doubts=self._facts.doubts,
            not_billed=self._route.provider.settings.not_billed,
            asked_later=None if read.source is not UsageSource.ESTIMATED else self._asked_later(metered),
            **further,
        )
        return record_of(self.opened, ending, self._prices)

    def _asked_later(self, metered: Metered | None) -> str | None:
        """How the provider is asked for the usage of this answer afterwards; None: not at all."""
        later, name = self._route.provider.later, None if metered is None else metered.response_id
        if name is None or later is LaterUsage.OFF or self.opened.byok is not UNSET:
            return None
        known = name.startswith(ID_STARTS) if later is LaterUsage.GENERATION else self._facts.is_stored
        return later.value if known else None

    def _prices(self, other: str) -> tuple[Price | None, Price | None]:
        return self._route.prices(self.opened.started_at, self._payer, other)

    def _finish(self, record: UsageRecord, _metered: Metered | None) -> None:
        self._ports.outbox.finish(record, self.slot)

    def _release(self, record: UsageRecord, _metered: Metered | None) -> None:
        usage, reservation = record.reading.usage, self.reservation
        self.tokens = _tokens(usage)
        nusd = charged(record) if reservation.spends else None
        if reservation.reserved.amounts:
            reservation.close(nusd or 0, self.tokens, counted(usage))
        else:
            reservation.close(nusd or 0, self.tokens)

    def _tell(self, record: UsageRecord, metered: Metered | None) -> None:
        error = None if metered is None or REFUTED in record.details else self._learn(metered)
        self._ports.meters.ended(record, estimate_error=error)
        if self._ports.traces is not None:
            self._ports.traces.ended(record, self.traceparent)

    def keep(self, body: bytearray, answer: Answer) -> None:
        """Store a whole JSON answer for a repeated request."""
        if len(body) <= self.keeps and answer.content_type == JSON_TYPE:
            self.kept = bytes(body)

    def count(self, outcome: Outcome, metered: Metered | None, on_counted: Callable[..., None]) -> bool:
        """Count the tokens of the texts whose usage the provider did not report, then call `on_counted` with the
        counts, which passes them to `close`. Returns False, and does not call it, if there is nothing to count, or the
        counter is full."""
        counter, prompt = self._route.counter, self._facts.prompt.text
        if counter is None or metered is None or outcome is Outcome.REFUSED_UPSTREAM or not is_estimated(metered):
            return False
        usage = metered.usage or NO_USAGE
        if usage.reported_nothing and metered.evidence.empty and not self.accepted:
            return False
        so_far = metered.completion_so_far and not metered.usage_behind
        held = metered.held if metered.reported_completion is None and not so_far else None
        asked = prompt if prompt.text and usage.prompt_tokens is None else None
        if not held and asked is None:
            return False
        return counter.count(held, asked, on_counted, urgent=True)

    def _read(
        self,
        outcome: Outcome,
        metered: Metered | None,
        bytes_seen: int,
        counted: Counted | None = None,
        prompt: Profile | None = None,
    ) -> Reading:
        if metered is None or outcome is Outcome.REFUSED_UPSTREAM:
            return NOTHING
        estimator, facts = self._ports.estimator, self._facts
        failed = outcome in (Outcome.UPSTREAM_FAILED, Outcome.UPSTREAM_STALLED)
        found = reading(
            metered,
            estimator=estimator,
            model_key=self.model_key,
            prompt_tokens_estimate=self.opened.prompt_tokens_estimate,
            completion_tokens_max=self.opened.completion_tokens_max,
            bytes_seen=bytes_seen,
            accepted=self.accepted and not failed,
            asked=facts.asked,
            counted=counted,
            prompt_counted=None if prompt is None else estimator.prompt_counted(self.model_key, facts.prompt, prompt),
            echoes=facts.echoes,
        )
        silence = self.opened.silence
        return found if silence is UNSET else with_silence(found, metered, silence, self.silent_s)

    def _learn(self, metered: Metered) -> float | None:
        """Teach the estimator the reported usage, or a sample of it. Returns the error of its estimate, unless that is
        known only later. An unstreamed answer teaches only prompts, since its text does not come in events."""
        usage = metered.usage
        if usage is None or metered.failed is not None or not metered.complete or self.handed_over:
            return None  # of an answer that was asked for later, the request is not known any more
        estimator = self._ports.estimator
        if not estimator.learns(self.model_key):
            return None
        if spoken := usage.audio_completion_tokens:  # audio is counted by its length, not by its text
            usage = structs.replace(usage, completion_tokens=max(0, (usage.completion_tokens or 0) - spoken))
        evidence, counter = metered.evidence, self._route.counter
        if not self.opened.streamed:
            evidence = _UNSEEN
        prompt = self._facts.prompt if self._facts.context_tokens is None else None
        error = estimator.learn(self.model_key, evidence=evidence, prompt=prompt, usage=usage, silent_s=self.silent_s)
        held = metered.held
        if error is None or counter is None or held is None or not estimator.learns_counts(self.model_key):
            return error
        on_counted = partial(self._learn_counted, evidence, usage, error)
        return None if counter.count(held, self._facts.prompt.text, on_counted, urgent=False) else error

    def _learn_counted(
        self, evidence: Evidence, usage: Usage, error: float, counted: Counted | None, prompt: Profile | None
    ) -> None:
        """Teach the estimator the counts of the texts. `error`: that of the estimate without them."""
        estimator, key = self._ports.estimator, self.model_key
        if counted is not None:
            learned = estimator.learn_counted(key, evidence=evidence, usage=usage, counted=counted)
            error = error if learned is None else learned
        if prompt is not None and usage.prompt_tokens:
            estimator.learn_prompt(key, self._facts.prompt, prompt, usage.prompt_tokens)
        self._ports.meters.estimated(self.opened, error)


def _tokens(usage: Usage) -> int:
    return (usage.prompt_tokens or 0) + (usage.completion_tokens or 0)
