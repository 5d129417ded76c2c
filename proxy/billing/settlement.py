"""The billing policy, and the conversion of a usage record to a ledger entry.

Invariants: The same record gives the same entry, wherever and however often. The policy is one table, `POLICY`; a
provider's configuration overrides single lines. Counts stay as measured, whatever part of them is billed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Any, assert_never

import msgspec
from msgspec import UNSET
from msgspec.structs import asdict

from proxy.billing.byok import list_price
from proxy.billing.details import EntryDetails
from proxy.billing.entries import UNITS, LedgerEntry, entry_id
from proxy.billing.money import Nusd, usd_text
from proxy.billing.pricing.prices import (
    as_stated,
    can_charge,
    charge,
    pinned_or_none,
    price_text,
    rates_for,
    stated_charge,
    unpriced,
)
from proxy.billing.record import BillableParts, Outcome, Price, PricedUsage, UsageRecord
from proxy.metering.usage import FROM_PROVIDER, NOT_SAID, Reading, ServedAs, Usage, UsageSource

# Those of 0.1. A later field is not hashed: ledgers have hashes without it.
HASHED_FIELDS = (
    "entry_id", "exchange_id", "kind", "key_id", "key_alias", "provider", "model", "upstream_model", "endpoint",
    "streamed", "outcome", "finish_reason", "usage_source", "estimator", "prompt_tokens", "cached_tokens",
    "completion_tokens", "reasoning_tokens", "total_tokens", "events", "bytes", "cost_nusd", "charge_nusd",
    "price_version", "provider_response_id", "started_at", "first_token_ms", "duration_ms", "details", "seq",
)  # fmt: skip
_FIELDS_OF = attrgetter(*HASHED_FIELDS)
_UNITS_OF = attrgetter(*UNITS)


class Situation(StrEnum):
    """The cases that billing distinguishes. The values are the keys of `bill:` in settings."""

    SERVED = "served"
    CLIENT_LEFT = "client_left"
    BUDGET_CUT = "budget_cut"
    SHUT_DOWN = "shut_down"
    NOT_ACCEPTED = "not_accepted"
    FAILED_REPORTED = "failed_reported"
    FAILED_REPORTED_EMPTY = "failed_reported_empty"
    FAILED_AFTER_CONTENT = "failed_after_content"
    FAILED_EMPTY = "failed_empty"
    REFUSED_UPSTREAM = "refused_upstream"
    CRASHED = "crashed"
    CRASHED_EMPTY = "crashed_empty"


@dataclass(frozen=True, slots=True)
class SituationPolicy:
    """One line of the policy."""

    bills: BillableParts
    when: str


POLICY: Mapping[Situation, SituationPolicy] = {
    Situation.SERVED: SituationPolicy(
        BillableParts.EVERYTHING, "The provider finished and the client was there to the end."
    ),
    Situation.CLIENT_LEFT: SituationPolicy(
        BillableParts.EVERYTHING,
        "The client left after the provider accepted: the prompt, and what was generated for it.",
    ),
    Situation.BUDGET_CUT: SituationPolicy(
        BillableParts.EVERYTHING,
        "The budget ran out in mid-stream, or an operator stopped the stream: what was used up to then.",
    ),
    Situation.SHUT_DOWN: SituationPolicy(
        BillableParts.EVERYTHING, "This proxy stopped in mid-stream: what was used up to then."
    ),
    Situation.NOT_ACCEPTED: SituationPolicy(
        BillableParts.NOTHING,
        "The client left, the budget ran out or this proxy stopped before the provider accepted.",
    ),
    Situation.FAILED_REPORTED: SituationPolicy(
        BillableParts.EVERYTHING, "The provider failed or stalled after content, and its usage is known."
    ),
    Situation.FAILED_REPORTED_EMPTY: SituationPolicy(
        BillableParts.PROMPT, "The provider failed or stalled and reported usage, but the client got no content."
    ),
    Situation.FAILED_AFTER_CONTENT: SituationPolicy(
        BillableParts.OUTPUT,
        "The provider failed or stalled after content and never reported: what was delivered, flagged.",
    ),
    Situation.FAILED_EMPTY: SituationPolicy(
        BillableParts.NOTHING, "The provider failed or stalled with no usage and no content."
    ),
    Situation.REFUSED_UPSTREAM: SituationPolicy(
        BillableParts.NOTHING, "The provider refused the request: nothing was generated."
    ),
    Situation.CRASHED: SituationPolicy(
        BillableParts.EVERYTHING,
        "This proxy died after something was delivered: settled from its last recorded progress.",
    ),
    Situation.CRASHED_EMPTY: SituationPolicy(BillableParts.NOTHING, "This proxy died before anything was delivered."),
}


def situation(outcome: Outcome, *, source: UsageSource, accepted: bool, delivered: bool) -> Situation:
    """The policy line that applies to an ended exchange.

    `accepted`: the provider answered with a success status. `delivered`: generated text or tool calls were sent to the
    client, or may have been.
    """
    match outcome:
        case Outcome.SERVED:
            return Situation.SERVED
        case Outcome.CLIENT_LEFT:
            return Situation.CLIENT_LEFT if accepted else Situation.NOT_ACCEPTED
        case Outcome.BUDGET_CUT:
            return Situation.BUDGET_CUT if accepted else Situation.NOT_ACCEPTED
        case Outcome.SHUT_DOWN:
            return Situation.SHUT_DOWN if accepted else Situation.NOT_ACCEPTED
        case Outcome.UPSTREAM_FAILED | Outcome.UPSTREAM_STALLED:
            return _failed(reported=source in FROM_PROVIDER, delivered=delivered)
        case Outcome.CRASHED:
            return Situation.CRASHED if delivered else Situation.CRASHED_EMPTY
        case Outcome.REFUSED_UPSTREAM:
            return Situation.REFUSED_UPSTREAM
        case _:
            assert_never(outcome)


def _failed(*, reported: bool, delivered: bool) -> Situation:
    if reported:
        return Situation.FAILED_REPORTED if delivered else Situation.FAILED_REPORTED_EMPTY
    return Situation.FAILED_AFTER_CONTENT if delivered else Situation.FAILED_EMPTY


def bills(case: Situation, overrides: Mapping[str, str]) -> BillableParts:
    """The billable parts: the provider's override (`Opened.bill`, validated with the settings), or `POLICY`."""
    override = overrides.get(case)
    return POLICY[case].bills if override is None else BillableParts(override)


def entry(record: UsageRecord) -> LedgerEntry:
    """The ledger entry of an ended exchange. Never fails: every record has one."""
    opened, reading = record.opened, record.reading
    usage = reading.usage
    charge_nusd, cost_nusd = amounts(record)
    return LedgerEntry(
        entry_id=entry_id(opened.exchange_id, record.kind, record.seq),
        exchange_id=opened.exchange_id,
        kind=record.kind,
        key_id=opened.key_id,
        key_alias=opened.key_alias,
        provider=opened.provider,
        model=opened.model,
        upstream_model=opened.upstream_model,
        endpoint=opened.endpoint,
        streamed=opened.streamed,
        outcome=str(record.outcome),
        finish_reason=record.finish_reason,
        usage_source=str(reading.source),
        estimator=reading.estimator,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        total_tokens=usage.total_tokens,
        events=record.events,
        bytes=record.bytes,
        cost_nusd=cost_nusd,
        charge_nusd=charge_nusd,
        price_version=opened.price.version if opened.price else None,
        provider_response_id=record.provider_response_id,
        started_at=float(opened.started_at),
        first_token_ms=None if record.first_token_ms is None else float(record.first_token_ms),
        duration_ms=float(record.duration_ms),
        details=_details(record, charge_nusd, cost_nusd),
        seq=record.seq,
    )


def amounts(record: UsageRecord) -> tuple[Nusd | None, Nusd | None]:
    """The charge and the cost of the record. None: unknown, see `amount`."""
    opened, incurs = record.opened, incurred(record.reading.source, record.bills)
    charge_nusd = charged(record)
    if incurs is record.bills and opened.cost == opened.price and record.other_models is UNSET:  # as most do
        return charge_nusd, charge_nusd
    return charge_nusd, _amount_of(record, opened.cost, incurs, _COST_OF)


def charged(record: UsageRecord) -> Nusd | None:
    """The charge to the owner of the key."""
    return _amount_of(record, record.opened.price, record.bills, _PRICE_OF)


_PRICE_OF, _COST_OF = attrgetter("price"), attrgetter("cost")


def _amount_of(
    record: UsageRecord, list_: Price | None, bills: BillableParts, list_of: Callable[[PricedUsage], Price | None]
) -> Nusd | None:
    reading = record.reading
    if record.stated_nusd_or_unset is UNSET and record.other_models is UNSET:  # nearly every record
        return amount(list_, reading.usage, bills, reading.served_as)
    others = [(list_of(one), one.usage) for one in record.others]
    stated = record.stated_nusd
    return amount(list_, reading.usage, bills, reading.served_as, stated_nusd=stated, others=others)


def amount(
    price: Price | None,
    usage: Usage,
    billed: BillableParts,
    served_as: ServedAs = NOT_SAID,
    *,
    stated_nusd: Nusd | None = None,
    others: Iterable[tuple[Price | None, Usage]] = (),
) -> Nusd | None:
    """nUSD; None: something is billed, but there is no price list, or it has no price for any of the used units.

    `stated_nusd`: cost of the whole exchange that the provider states. `others`: usage of other models, with their
    price lists; without a list it adds nothing.
    """
    if billed is BillableParts.NOTHING:
        return Nusd(0)
    if price is None:
        return None
    if stated_nusd is not None and as_stated(price, stated_nusd) and billed is BillableParts.EVERYTHING:
        return stated_charge(price, stated_nusd)
    if not can_charge(price, usage, billed, served_as):
        return None
    return charge(price, usage, billed, served_as, others)


def incurred(source: str, billed: BillableParts) -> BillableParts:
    """The parts that the provider bills: everything if it reported usage; otherwise assumed equal to `billed`."""
    return BillableParts.EVERYTHING if source in FROM_PROVIDER else billed


def _details(record: UsageRecord, charge_nusd: Nusd | None, cost_nusd: Nusd | None) -> dict[str, Any]:
    """The details of the entry: those of the record, and the prices behind its amounts."""
    opened, reading, usage = record.opened, record.reading, record.reading.usage
    served_as = reading.served_as
    details = _reading_details(reading, served_as)
    details.billed = str(record.bills)
    if opened.price is not None:
        details.price = price_text(opened.price, usage.prompt_tokens, served_as)
    if opened.cost is not None:
        same = opened.cost == opened.price
        details.cost = details.price if same else price_text(opened.cost, usage.prompt_tokens, served_as)
    _name_unpriced(details, record, served_as)
    if record.other_models is not UNSET:
        details.other_models = other_models_detail(record.other_models) or None
    if record.stated_nusd_or_unset is not UNSET:
        details.stated_usd = usd_text(record.stated_nusd_or_unset)
    if opened.attempts:
        details.attempts = [asdict(attempt) for attempt in opened.attempts]
    if opened.dimensions is not UNSET:
        details.dimensions = opened.dimensions
    if opened.fallback is not UNSET:
        details.fallback = asdict(opened.fallback)
    if opened.reserved_nusd is not None:
        details.reserved_usd = usd_text(opened.reserved_nusd)
    if opened.byok is not UNSET:
        details.byok = _byok_detail(record, opened.byok)
    details.unpriced = charge_nusd is None or None
    details.cost_unknown = cost_nusd is None or None
    details.uncounted = (record.bills is not BillableParts.NOTHING and usage.reported_nothing) or None
    details.delivered_only = (
        record.bills is BillableParts.OUTPUT
        and reading.source not in FROM_PROVIDER
        and record.outcome in (Outcome.UPSTREAM_FAILED, Outcome.UPSTREAM_STALLED)
    ) or None
    return {**record.details, **details.stored()}


def _byok_detail(record: UsageRecord, terms: str) -> dict[str, Any]:
    """The terms, and the amount at list price, if the model has one."""
    listed, reading = list_price(record.opened.cost), record.reading
    incurs = incurred(reading.source, record.bills)
    nusd = _amount_of(record, listed, incurs, lambda one: list_price(one.cost))
    if listed is None or nusd is None:
        return {"terms": terms}
    text = price_text(listed, reading.usage.prompt_tokens, reading.served_as)
    return {"terms": terms, "list_usd": usd_text(nusd), "list": text}


def _name_unpriced(details: EntryDetails, record: UsageRecord, served_as: ServedAs) -> None:
    """Name the units and models without a price: units of the usage, the serving model or service, and other models."""
    price, cost = record.opened.price, record.opened.cost
    counts = [] if price is None else _unpriced_counts(price, record, served_as)
    models, models_cost = list[str](), list[str]()
    if record.other_models is not UNSET:
        models = _unpriced_models(record, price, _PRICE_OF)
        models_cost = _unpriced_models(record, cost, _COST_OF)
    if counts or models or models_cost:
        before = EntryDetails.of(record.details)
        details.unpriced_units = [*counts, *(before.unpriced_units or ()), *models] or None
        details.cost_unpriced_units = [*(before.cost_unpriced_units or ()), *models_cost] or None


def _unpriced_counts(price: Price, record: UsageRecord, served_as: ServedAs) -> list[str]:
    if not price.tiers or as_stated(price, record.stated_nusd):
        return []
    usage = record.reading.usage
    return unpriced(rates_for(price, usage.prompt_tokens, served_as), usage, price.lacking, record.bills)


def _unpriced_models(
    record: UsageRecord, list_: Price | None, list_of: Callable[[PricedUsage], Price | None]
) -> list[str]:
    if as_stated(list_, record.stated_nusd):
        return []
    return [f"model:{one.model}" for one in record.others if not _is_priced(list_of(one), one.usage)]


def _is_priced(list_: Price | None, usage: Usage) -> bool:
    return list_ is not None and can_charge(list_, usage, BillableParts.EVERYTHING)


def other_models_detail(others: Iterable[PricedUsage]) -> list[dict[str, Any]]:
    """The value of the detail `other_models`."""
    detail = []
    for one in others:
        lists = {name: list_ for name, list_ in (("price", one.price), ("cost", one.cost)) if list_ is not None}
        prices = {name: price_text(list_, one.usage.prompt_tokens) for name, list_ in lists.items()}
        detail.append({"model": one.model, "usage": msgspec.to_builtins(one.usage), **prices})
    return detail


def other_models(detail: object) -> list[PricedUsage]:
    """The usage of other models in that detail, at its pinned prices; None: the detail is absent. Raises ValueError."""
    listed = [] if detail is None else msgspec.convert(detail, list[_OtherModel])
    return [PricedUsage(one.model, one.usage, pinned_or_none(one.price), pinned_or_none(one.cost)) for one in listed]


class _OtherModel(msgspec.Struct):
    model: str
    usage: Usage
    price: dict[str, Any] | None = None
    cost: dict[str, Any] | None = None


def _reading_details(reading: Reading, served_as: ServedAs) -> EntryDetails:
    details = EntryDetails(
        expected_error=None if reading.expected_error is None else float(reading.expected_error),
        capped=reading.capped or None,
        hidden_by_time=reading.hidden_by_time,
        limit_exceeded=reading.limit_exceeded or None,
        hidden_reasoning=reading.hidden_tokens,
    )
    if any(counts := _UNITS_OF(reading.usage)):
        details.units = {name: count for name, count in zip(UNITS, counts, strict=True) if count}
    if served_as is not NOT_SAID:
        details.service_tier, details.speed = served_as.service_tier, served_as.speed
        details.geography, details.longest_prompt_tokens = served_as.geography, served_as.longest_prompt_tokens
    return details


def content_hash(line: LedgerEntry) -> str:
    """SHA-256 of the fields of an entry, 64 hex digits: for entries that no record was written for, and all of 0.1."""
    text = msgspec.json.encode(_FIELDS_OF(line), order="sorted")
    return hashlib.sha256(text).hexdigest()


def record_hash(payload: bytes) -> str:
    """The hash of a record as its proxy wrote it: equal in all versions, whatever entry each makes of it."""
    return f"2:{hashlib.sha256(payload).hexdigest()}"
