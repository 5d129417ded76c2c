"""The usage that a provider reports after an exchange has ended with an estimate. Pure.

Invariants: an exchange gets one such adjustment at most. Then its counts are the provider's, and its amounts are those
that its entry would have, at the latest prices of the exchange. A total that an operator has set stays. If the
provider does not report the usage in time, the adjustment changes nothing, and has the flag UNANSWERED.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import structs

from proxy.billing.adjustment import BY_PROVIDER, MONEY, standing, stated_totals
from proxy.billing.correction import ExchangeTotals, adjustment
from proxy.billing.details import EntryDetails
from proxy.billing.ending import Ending, record_of
from proxy.billing.entries import COUNTS, LedgerEntry, usage_of
from proxy.billing.pricing.prices import pinned, price_text
from proxy.billing.record import Opened, Outcome, Price
from proxy.billing.settlement import Situation, entry, situation
from proxy.metering.estimator.estimate import is_estimated
from proxy.metering.metered import Metered
from proxy.metering.plausibility import REFUTED, contradictions
from proxy.metering.usage import Evidence, PromptEvidence, Reading, UsageSource

UNANSWERED = "usage_unanswered"
"""a flag: the provider did not report the usage within a day, and the estimate stands"""
WHY = "usage asked for afterwards"
"""the reason of the adjustment"""

ListsOf = Callable[[LedgerEntry, str | None], tuple[Price | None, Price | None]]
"""(terminal entry, another model that the answer used, or None) → the configured lists of the charge and the cost"""

_EMPTY = (Situation.FAILED_EMPTY, Situation.CRASHED_EMPTY)


def is_answer(metered: Metered) -> bool:
    """True if the provider has reported every count of an ended answer."""
    return metered.answer_ended and metered.usage_final and not is_estimated(metered)


def was_asked(entries: Iterable[LedgerEntry]) -> bool:
    """True if one of the entries of an exchange is such an adjustment."""
    return any(EntryDetails.of(one.details).by == BY_PROVIDER for one in entries)


def unanswered(now: ExchangeTotals, refuted: Mapping[str, Mapping[str, int]] | None = None) -> LedgerEntry:
    """The adjustment of an exchange whose estimate stands. `refuted`: counts that were reported, and that its text
    contradicts."""
    details = EntryDetails(by=BY_PROVIDER, why=WHY, flags=[UNANSWERED], refuted=refuted)
    return adjustment(now, now.usage, now.charge_nusd, now.cost_nusd, details, None)


def answered(
    now: ExchangeTotals,
    metered: Metered,
    lists_of: ListsOf,
    bill: Mapping[str, str],
    not_billed: frozenset[str] = frozenset(),
    *,
    estimates: bool = False,
) -> LedgerEntry:
    """The adjustment to the usage that the provider reports. `metered`: an answer, see `is_answer`. `bill`,
    `not_billed`: of the provider's settings. `estimates`: a count that the text contradicts is not taken."""
    refuted = _refuted(now.terminal, metered)
    if refuted is not None and estimates:
        return unanswered(now, refuted)
    terminal = now.terminal
    before = EntryDetails.of(terminal.details)
    price, cost = lists_of(terminal, None)
    opened = _opened(terminal, _whole(price, now, now.price), _whole(cost, now, now.cost), bill)
    assert metered.usage is not None, "it is an answer"
    served_as = structs.asdict(metered.served_as)
    reading = Reading(metered.usage.filled_from(now.usage), UsageSource.PROVIDER_LATER, **served_as)
    outcome = Outcome(terminal.outcome)
    accepted, delivered = before.situation != Situation.NOT_ACCEPTED, before.situation not in _EMPTY
    case = situation(outcome, source=reading.source, accepted=accepted, delivered=delivered)
    ending = Ending(
        outcome=outcome,
        reading=reading,
        metered=metered,
        not_billed=not_billed,
        bills=now.bills if case == before.situation else None,
        details=EntryDetails(by=BY_PROVIDER, why=WHY, refuted=refuted),
        accepted=accepted,
        delivered=delivered,
    )
    return _settled(now, entry(record_of(opened, ending, lambda model: lists_of(terminal, model))))


def _settled(now: ExchangeTotals, update: LedgerEntry) -> LedgerEntry:
    """The adjustment to the totals of `update`, apart from those that an operator has set."""
    details, stands = EntryDetails.of(update.details), standing(now.by_hand)
    details.stands = stated_totals(update, stands) or None
    usage = usage_of(update) if stands.isdisjoint(COUNTS) else now.usage
    charge_nusd, cost_nusd = (
        getattr(now if name in stands or getattr(update, name) is None else update, name) for name in MONEY
    )
    return adjustment(now, usage, charge_nusd, cost_nusd, details, UsageSource.PROVIDER_LATER.value)


def _refuted(terminal: LedgerEntry, metered: Metered) -> dict[str, dict[str, int]] | None:
    """The reported counts that are too low for the text. An answer may have more than was seen of it."""
    seen = metered.evidence
    if seen.empty:
        counts = EntryDetails.of(terminal.details).evidence or {}
        seen = Evidence(**{name: count for name, count in counts.items() if name in Evidence.__slots__})
    found = contradictions(structs.replace(metered, evidence=seen), PromptEvidence(), lambda *_: {}).get(REFUTED, {})
    return {count: doubt for count, doubt in found.items() if "at_least" in doubt} or None


def _whole(listed: Price | None, now: ExchangeTotals, applied: Mapping[str, Any] | None) -> Price | None:
    """The list of which `applied` is the tier: the configured one, unless that has changed; else the tier alone. None:
    the exchange has no price. Raises ValueError."""
    if applied is None:
        return None
    unchanged = listed is not None and price_text(listed, now.usage.prompt_tokens, now.served_as) == applied
    return listed if unchanged else pinned(applied)


def _opened(terminal: LedgerEntry, price: Price | None, cost: Price | None, bill: Mapping[str, str]) -> Opened:
    """The exchange at admission, as far as its entry has it."""
    return Opened(
        exchange_id=terminal.exchange_id,
        key_id=terminal.key_id,
        key_alias=terminal.key_alias,
        provider=terminal.provider,
        model=terminal.model,
        upstream_model=terminal.upstream_model,
        endpoint=terminal.endpoint,
        streamed=terminal.streamed,
        started_at=terminal.started_at,
        price=price,
        cost=cost,
        prompt_tokens_estimate=terminal.prompt_tokens or 0,
        completion_tokens_max=None,
        slot=0,
        bill=bill,
    )
