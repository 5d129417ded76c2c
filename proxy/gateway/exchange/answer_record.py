"""The parts of a record that come from the answer: the serving model, its prices, and the details. Pure.

Invariant: the record contains them, so that a record of an older version still gives its original entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any, TypeAlias

from msgspec import structs

from proxy.billing.money import nusd_from_usd_rounded_half_up as _nusd
from proxy.billing.pricing.prices import as_stated, unpriced_service
from proxy.billing.record import Opened, Price, PricedUsage, Rates
from proxy.billing.settlement import SERVED_INSTEAD_DETAIL
from proxy.metering.metered import Metered
from proxy.metering.usage import NOT_SAID, Evidence, ModelUsage, Reading, UsageSource

FREE = Price("free", (Rates(0, 0, 0),))
"""the price of requests that providers do not bill"""

PricesOf: TypeAlias = Callable[[str], tuple[Price | None, Price | None]]
"""another model at this provider → its price and its cost; None: unknown"""


def as_served(opened: Opened, served: str, prices: PricesOf) -> Opened:
    """`opened` with the serving model, if that is another one, and with its price lists, if it has any."""
    if served == opened.upstream_model or opened.price is FREE:
        return opened
    price, cost = prices(served)
    return structs.replace(opened, upstream_model=served, price=price or opened.price, cost=cost or opened.cost)


def priced(others: Iterable[ModelUsage], prices: PricesOf) -> tuple[PricedUsage, ...]:
    """The usage of other models, with their price lists."""
    return tuple([PricedUsage(other.model, other.usage, *prices(other.model)) for other in others])


def unpriced_details(asked: Opened, opened: Opened, read: Reading, stated_nusd: Decimal | None) -> dict[str, Any]:
    """Details about a serving model or service without prices. `asked`: as admitted. `opened`: as served."""
    if opened is asked and read.served_as is NOT_SAID:
        return {}
    details = dict[str, Any]()
    if opened is not asked:
        details[SERVED_INSTEAD_DETAIL] = asked.upstream_model
    stated = None if stated_nusd is None else _nusd(stated_nusd)
    lists = ("unpriced_units", opened.price, asked.price), ("cost_unpriced_units", opened.cost, asked.cost)
    for name, price, before in lists:
        if as_stated(price, stated):
            continue
        words = [f"model:{opened.upstream_model}"] if opened is not asked and price is before else []
        if words := words + unpriced_service(price, read.served_as):
            details[name] = words
    return details


def details_of(
    metered: Metered | None, read: Reading, not_billed: frozenset[str], doubts: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Details from the meter: flags, the provider's timings, the raw usage, the evidence of an estimate. `doubts`:
    further flags of an estimate."""
    if metered is None:
        return {}
    details: dict[str, Any] = {}
    if flags := [*metered.flags, *(doubts if read.source is UsageSource.ESTIMATED else ())]:
        details["flags"] = flags
    if metered.failed:
        details["failed"] = metered.failed
    if metered.timings:
        details["provider_timings"] = metered.timings
    if metered.usage_raw is not None:
        details["usage"] = metered.usage_raw
    if unread := [path for path in metered.unknown_usage_fields.paths if path not in not_billed]:
        details["unread"] = unread
    if metered.unknown_usage_fields.values:
        details["beside_usage"] = metered.unknown_usage_fields.values
    if metered.usage is None or read.source is UsageSource.ESTIMATED:
        details["evidence"] = seen(metered.evidence)
    if metered.usage is not None and metered.usage_behind and read.source is UsageSource.ESTIMATED:
        details["interim_usage"] = True
    return details


def seen(evidence: Evidence) -> dict[str, int]:
    """The counts that an estimate is made from."""
    return {name: count for name in Evidence.__slots__ if (count := getattr(evidence, name))}
