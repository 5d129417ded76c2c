"""The usage that a provider reports after an exchange has ended with an estimate. Pure.

Invariants: an exchange gets one such adjustment at most. Then its counts are the provider's, and its amounts are those
that its entry would have, at the latest prices of the exchange. A total that an operator has set stays; if that is a
count, the adjustment only says what was reported. If the provider does not report the usage in time, the adjustment
changes nothing, and has the flag UNANSWERED.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from msgspec import structs

from proxy.billing.adjustment import BY_PROVIDER, MONEY, standing, stated_totals
from proxy.billing.correction import PARTS, ExchangeTotals, adjustment
from proxy.billing.details import EntryDetails
from proxy.billing.ending import Ending, record_of
from proxy.billing.entries import COUNTS, LedgerEntry, usage_of
from proxy.billing.pricing.prices import pinned, price_text, special_terms
from proxy.billing.record import Opened, Outcome, Price, PricedUsage
from proxy.billing.settlement import Situation, entry, situation
from proxy.metering.counts import with_total
from proxy.metering.estimator.estimate import is_estimated
from proxy.metering.generation import OTHER_TOKENIZER
from proxy.metering.metered import Metered
from proxy.metering.plausibility import REFUTED, contradictions
from proxy.metering.usage import (
    IN_PLACE,
    NO_USAGE,
    Evidence,
    ModelUsage,
    PromptEvidence,
    Reading,
    ServedAs,
    Usage,
    UsageSource,
    served_later,
)

UNANSWERED = "usage_unanswered"
"""a flag: the provider did not report the usage within a day, and the estimate stands"""
TIER_DOUBTFUL = "price_tier_doubtful"
"""a flag: the list has changed since, and the report may be of another of its tiers than the estimate, whose tier
applies"""
WHY = "usage asked for afterwards"
"""the reason of the adjustment"""

ListsOf = Callable[[LedgerEntry, str | None], tuple[Price | None, Price | None]]
"""(entry of the exchange, another model that the answer used, or None) → the configured lists of the charge and the
cost"""

_EMPTY = (Situation.FAILED_EMPTY, Situation.CRASHED_EMPTY)


def is_answer(metered: Metered) -> bool:
    """True if the provider has reported every count of an ended answer: both of tokens, or what is billed in their
    place."""
    usage = metered.usage
    if usage is None or not metered.answer_ended or not metered.usage_final or is_estimated(metered):
        return False
    in_tokens = usage.prompt_tokens is not None and usage.completion_tokens is not None
    return in_tokens or any(getattr(usage, name) for name in IN_PLACE)


def may_change(now: ExchangeTotals, metered: Metered) -> bool:
    """True if the provider is asked again as long as there is time: a record that is not complete yet has zeros, counts
    that the text contradicts, or those of another tokenizer. `metered`: an answer, see `is_answer`."""
    return OTHER_TOKENIZER in metered.flags or _refuted(now, metered) is not None


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
    `not_billed`: of the provider's settings of today; the policy at admission is not in the ledger, so that `bill`
    applies if the report changes the situation. `estimates`: a count that the text contradicts is not taken."""
    statement = now.statement
    before = EntryDetails.of(statement.details)
    refuted = _refuted(now, metered)
    if refuted is not None and (estimates or _were_estimated(refuted, now)):
        return unanswered(now, refuted)
    served_as = served_later(now.served_as, metered.served_as)
    usage = _usage(now, metered)
    listed = lists_of(statement, None)
    lists = _whole(listed[0], now, now.price), _whole(listed[1], now, now.cost)
    terms = _terms(now.usage, now.served_as), _terms(usage, served_as)
    if any(_is_doubtful(whole, one, *terms) for whole, one in zip(lists, listed, strict=True)):
        metered = structs.replace(metered, flags=(*metered.flags, TIER_DOUBTFUL))
    kept = _kept_models(now, metered)
    metered = structs.replace(metered, other_models=(*metered.other_models, *map(_model_usage, kept.values())))
    reading = Reading(usage, UsageSource.PROVIDER_LATER, **structs.asdict(served_as))
    outcome = Outcome(statement.outcome)
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

    def prices_of(model: str) -> tuple[Price | None, Price | None]:
        return (kept[model].price, kept[model].cost) if model in kept else lists_of(statement, model)

    return _settled(now, entry(record_of(_opened(statement, *lists, bill), ending, prices_of)))


def _settled(now: ExchangeTotals, update: LedgerEntry) -> LedgerEntry:
    """The adjustment to the totals of `update`, apart from those that an operator has set."""
    details, stands = EntryDetails.of(update.details), standing(now.by_hand)
    details.stands = stated_totals(update, stands) or None
    if not stands.isdisjoint(COUNTS):
        return adjustment(now, now.usage, now.charge_nusd, now.cost_nusd, _only_said(details), None)
    charge_nusd, cost_nusd = (
        getattr(now if name in stands or getattr(update, name) is None else update, name) for name in MONEY
    )
    return adjustment(now, usage_of(update), charge_nusd, cost_nusd, details, UsageSource.PROVIDER_LATER.value)


def _only_said(details: EntryDetails) -> EntryDetails:
    """The report, without the facts that later corrections would be calculated from."""
    return EntryDetails(
        by=details.by,
        why=details.why,
        flags=details.flags,
        refuted=details.refuted,
        usage=details.usage,
        unread=details.unread,
        beside_usage=details.beside_usage,
        stands=details.stands,
    )


def _usage(now: ExchangeTotals, metered: Metered) -> Usage:
    """The reported counts, with those beside tokens that the answer itself has reported and the report has not, if they
    fit. No count is an estimate."""
    told = metered.usage
    assert told is not None, "it is an answer"
    if EntryDetails.of(now.statement.details).usage is None:
        usage = told
    else:
        tokens = {name: getattr(told, name) for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
        usage = structs.replace(told.filled_from(now.usage), **tokens)
        for part, whole in PARTS:
            if getattr(told, part) is None and (getattr(usage, part) or 0) > (getattr(usage, whole) or 0):
                usage = structs.replace(usage, **{part: None})
    return with_total(usage) if usage.total_tokens is None else usage


def _refuted(now: ExchangeTotals, metered: Metered) -> dict[str, dict[str, int]] | None:
    """The reported counts that the text contradicts, or that are still outside of the bounds of the entry. Of an answer
    whose end was not seen, there may be more than its entry knows."""
    before, usage = EntryDetails.of(now.statement.details), metered.usage or NO_USAGE
    seen, is_whole = metered.evidence, True
    if seen.empty:
        counts = before.evidence or {}
        seen = Evidence(**{name: count for name, count in counts.items() if name in Evidence.__slots__})
        is_whole = now.statement.outcome == Outcome.SERVED
    by_text = contradictions(structs.replace(metered, evidence=seen), PromptEvidence(), lambda *_: {}).get(REFUTED, {})
    found = {count: doubt for count, doubt in by_text.items() if is_whole or "at_least" in doubt}
    bounds = {count: _bounds(doubt) for count, doubt in (before.refuted or {}).items()}
    if now.usage.prompt_tokens:
        bounds.setdefault("prompt_tokens", {"at_least": 1})
    for count, bound in bounds.items():
        told = getattr(usage, count)
        if told is not None and not bound.get("at_least", told) <= told <= bound.get("at_most", told):
            found.setdefault(count, {"reported": told, **bound})
    return found or None


def _bounds(doubt: Mapping[str, int]) -> dict[str, int]:
    return {name: bound for name, bound in doubt.items() if name != "reported"}


def _were_estimated(refuted: Iterable[str], now: ExchangeTotals) -> bool:
    """True if the operator had one of these counts estimated when the answer ended, because its text refuted it."""
    before = EntryDetails.of(now.statement.details).refuted or {}
    return any(count in before and getattr(now.usage, count) != before[count]["reported"] for count in refuted)


def _kept_models(now: ExchangeTotals, metered: Metered) -> dict[str, PricedUsage]:
    """The other models that the answer itself has reported, and the report has not, by name."""
    told = {one.model for one in metered.other_models}
    return {one.model: one for one in now.other_models if one.model not in told}


def _model_usage(one: PricedUsage) -> ModelUsage:
    return ModelUsage(one.model, one.usage)


def _whole(listed: Price | None, now: ExchangeTotals, applied: Mapping[str, Any] | None) -> Price | None:
    """The list of which `applied` is the tier: the configured one, unless that has changed; else the tier alone. None:
    the exchange has no price. Raises ValueError."""
    if applied is None:
        return None
    unchanged = listed is not None and price_text(listed, now.usage.prompt_tokens, now.served_as) == applied
    return listed if unchanged else pinned(applied)


class _Terms(NamedTuple):
    """The facts of an exchange that select the price tier."""

    prompt_tokens: int
    service: tuple[str, ...]


def _terms(usage: Usage, served_as: ServedAs) -> _Terms:
    longest = served_as.longest_prompt_tokens
    return _Terms(longest if longest is not None else usage.prompt_tokens or 0, special_terms(served_as))


def _is_doubtful(whole: Price | None, listed: Price | None, before: _Terms, after: _Terms) -> bool:
    """True if `whole` is one tier alone, that of `before`, and another one may be that of `after`."""
    if whole is None or whole is listed:
        return False
    bounds = {tier.above_prompt_tokens for one in (whole, listed) if one is not None for tier in one.tiers}
    crossed = any((before.prompt_tokens > bound) is not (after.prompt_tokens > bound) for bound in bounds if bound)
    return crossed or before.service != after.service


def _opened(statement: LedgerEntry, price: Price | None, cost: Price | None, bill: Mapping[str, str]) -> Opened:
    """The exchange at admission, as far as its entry has it."""
    return Opened(
        exchange_id=statement.exchange_id,
        key_id=statement.key_id,
        key_alias=statement.key_alias,
        provider=statement.provider,
        model=statement.model,
        upstream_model=statement.upstream_model,
        endpoint=statement.endpoint,
        streamed=statement.streamed,
        started_at=statement.started_at,
        price=price,
        cost=cost,
        prompt_tokens_estimate=0,  # no count is missing
        completion_tokens_max=None,
        slot=0,
        bill=bill,
    )
