"""The end of an exchange, and the one way from it to a usage record. Pure.

Invariants: the same exchange and end give the same record. The record contains the serving model, its prices and the
billed parts, so that a record of an older version still gives its original entry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from msgspec import UNSET, Struct, UnsetType, field, structs

from proxy.billing.details import EntryDetails
from proxy.billing.money import Nusd
from proxy.billing.money import nusd_from_usd_rounded_half_up as _nusd
from proxy.billing.pricing.prices import as_stated, special_terms, unpriced_service
from proxy.billing.record import BillableParts, Opened, Outcome, Price, PricedUsage, Rates, UsageRecord
from proxy.billing.settlement import bills, situation
from proxy.metering.metered import Metered
from proxy.metering.plausibility import IMPLAUSIBLE, REFUTED, BrokenBound, contradictions, without
from proxy.metering.unknown_fields import NO_UNKNOWN_FIELDS
from proxy.metering.usage import NOTHING, Evidence, PromptEvidence, Reading, UsageSource

FREE = Price("free", (Rates(0, 0, 0),))
"""the price of requests that providers do not bill"""

PricesOf: TypeAlias = Callable[[str], tuple[Price | None, Price | None]]
"""another model at this provider → its price and its cost; None: unknown"""


class Ending(Struct, frozen=True, kw_only=True):
    """The end of an exchange."""

    outcome: Outcome
    reading: Reading = NOTHING
    """the usage to bill"""
    metered: Metered | None = None
    """the answer; None: no answer had begun"""
    accepted: bool
    """the provider answered with a success status"""
    delivered: bool
    """generated output was sent to the client, or may have been"""
    events: int = 0
    """SSE events sent to the client"""
    size: int = 0
    """body bytes sent to the client"""
    duration_ms: float = 0.0
    first_token_ms: float | None = None
    tokens_counted: int | None = None
    """tokens of the answer's text, if the estimate is by count"""
    doubts: tuple[str, ...] = ()
    """further flags of an estimate"""
    not_billed: frozenset[str] = frozenset()
    """paths of reported numbers that the provider does not bill"""
    bills: BillableParts | None = None
    """None: by the policy"""
    asked_later: str | None = None
    """how the provider can be asked afterwards for usage that is estimated; None: it cannot"""
    details: EntryDetails = field(default_factory=EntryDetails)
    """further details"""


def compared(
    metered: Metered,
    prompt: PromptEvidence,
    details: EntryDetails,
    broken_bound: BrokenBound,
    *,
    is_text: bool = True,
    estimates: bool = False,
) -> Metered:
    """Compare the reported counts with the answer, and add contradictions to `details`. Returns `metered`, without its
    refuted counts if the operator `estimates` them."""
    found = contradictions(metered, prompt, broken_bound, is_text=is_text)
    if not found:
        return metered
    details.refuted, details.implausible = found.get(REFUTED), found.get(IMPLAUSIBLE)
    return without(metered, found[REFUTED]) if estimates and REFUTED in found else metered


def record_of(asked: Opened, ending: Ending, prices_of: PricesOf = lambda model: (None, None)) -> UsageRecord:
    """The record of an exchange. `asked`: as admitted."""
    metered, reading = ending.metered, ending.reading
    case = situation(ending.outcome, source=reading.source, accepted=ending.accepted, delivered=ending.delivered)
    opened, stated_nusd = asked, None
    others: tuple[PricedUsage, ...] | UnsetType = UNSET
    details = structs.replace(ending.details, situation=str(case))
    if metered is not None:
        if metered.served_model is not None:
            opened = _as_served(asked, metered.served_model, prices_of)
        if metered.other_models:
            others = tuple(
                PricedUsage(other.model, other.usage, *prices_of(other.model)) for other in metered.other_models
            )
        _explain_answer(details, metered, ending)
        stated_nusd = _stated_nusd(details, metered, asked)
    if opened is not asked or special_terms(reading.served_as):
        _name_unpriced(details, asked, opened, reading, stated_nusd)
    return UsageRecord(
        opened=opened,
        outcome=ending.outcome,
        reading=reading,
        bills=bills(case, asked.bill) if ending.bills is None else ending.bills,
        events=ending.events,
        bytes=ending.size,
        duration_ms=ending.duration_ms,
        first_token_ms=ending.first_token_ms,
        finish_reason=None if metered is None else metered.finish_reason,
        provider_response_id=None if metered is None else metered.response_id,
        details=details.stored(),
        other_models=others,
        stated_nusd_or_unset=UNSET if stated_nusd is None else stated_nusd,
    )


def _stated_nusd(details: EntryDetails, metered: Metered, opened: Opened) -> Nusd | None:
    """The cost that the provider states for the whole answer. Before the end of an answer, some providers state 0, or
    the cost so far: then the list applies, with a flag; only without a list, the stated cost is the least to charge."""
    if metered.stated_usd is None:
        return None
    stated, lists = _nusd(metered.stated_usd), [one for one in (opened.price, opened.cost) if one is not None]
    if metered.usage_final or not any(one.stated for one in lists):
        return stated
    details.flags = [*(details.flags or ()), "interim_cost"]
    return None if not stated or (opened.price is not None and opened.price.tiers) else stated


def _as_served(opened: Opened, served: str, prices_of: PricesOf) -> Opened:
    """`opened` with the serving model, if that is another one, and with its price lists, if it has any."""
    if served == opened.upstream_model or opened.price is FREE:
        return opened
    price, cost = prices_of(served)
    return structs.replace(opened, upstream_model=served, price=price or opened.price, cost=cost or opened.cost)


def _explain_answer(details: EntryDetails, metered: Metered, ending: Ending) -> None:
    """Add the meter's details: flags, the provider's timings, the raw usage, the evidence of an estimate."""
    is_estimated = ending.reading.source is UsageSource.ESTIMATED
    details.flags = [*metered.flags, *(ending.doubts if is_estimated else ())] or None
    details.asked_later = ending.asked_later
    details.failed = details.failed or metered.failed
    details.provider_timings = metered.timings or None
    details.usage = metered.usage_raw
    if (unknown := metered.unknown_usage_fields) is not NO_UNKNOWN_FIELDS:
        details.unread = [path for path in unknown.paths if path not in ending.not_billed] or None
        details.beside_usage = unknown.values or None
    if metered.usage is None or is_estimated:
        seen, counted = metered.evidence, ending.tokens_counted
        counts = {name: count for name in Evidence.__slots__ if (count := getattr(seen, name))}
        details.evidence = counts if counted is None else {**counts, "tokens_counted": counted}
    if metered.usage is not None and metered.usage_behind and is_estimated:
        details.interim_usage = True


def _name_unpriced(
    details: EntryDetails, asked: Opened, opened: Opened, reading: Reading, stated_nusd: Nusd | None
) -> None:
    """Name the serving model or service, if it has no prices. `opened`: as served."""
    if opened is not asked:
        details.served_instead_of = asked.upstream_model

    def unpriced(price: Price | None, before: Price | None) -> list[str] | None:
        if as_stated(price, stated_nusd):
            return None
        words = [f"model:{opened.upstream_model}"] if opened is not asked and price is before else []
        return words + unpriced_service(price, reading.served_as) or None

    details.unpriced_units = unpriced(opened.price, asked.price)
    details.cost_unpriced_units = unpriced(opened.cost, asked.cost)
