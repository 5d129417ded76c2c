"""The billed units of an exchange with their prices, from its terminal entry.

Invariant: the amounts of `charged_units` add up to the entry's exact charge. A charge is rounded once, for all units of
an exchange; each unit has what the rounded sum grows by, so it is less than 1 nUSD from quantity × price.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import msgspec

from proxy.billing.details import EntryDetails
from proxy.billing.entries import CountedEntry, usage_of
from proxy.billing.money import PARTS_PER_NUSD, Nusd, nusd_rounded_half_up
from proxy.billing.pricing.prices import SIDES, before_rules, by_rule, pinned
from proxy.billing.record import BillableParts, Rates
from proxy.billing.settlement import other_models
from proxy.billing.units import BILLED_UNITS, BY_PRICE, numbers, rate_of
from proxy.metering.usage import Usage

WHOLE = "exchange"
"""the unit of a whole charge, where the units do not explain it"""


class ChargedEntry(CountedEntry, Protocol):
    """The fields of a terminal entry that explain its charge."""

    @property
    def model(self) -> str: ...
    @property
    def charge_nusd(self) -> Nusd | None: ...
    @property
    def price_version(self) -> str | None: ...


class UsedUnit(NamedTuple):
    """A unit that a model used, and its price. Prices: nUSD."""

    price: str
    """the unit's price in the configuration, or WHOLE"""
    model: str
    number: int
    billed: int
    """the number, or 0"""
    list_rate: int
    rate: int
    is_unpriced: bool
    """the price list has no price for this unit"""
    terms: Mapping[str, Any]
    """the facts that select the list price, such as the prompt's length"""

    @property
    def parts(self) -> int:
        """The billed amount, in PARTS_PER_NUSD."""
        scale = PARTS_PER_NUSD if self.price == WHOLE else BY_PRICE[self.price].scale
        return self.billed * self.rate * scale


def charged_units(entry: ChargedEntry) -> Iterator[tuple[UsedUnit, int]]:
    """The units of a terminal entry, each with its part of the charge in nUSD. If they do not add up to the charge (a
    cost that the provider stated, an entry without prices), a unit WHOLE has all of it."""
    parts = booked = 0
    for used in _used_units(entry):
        parts += used.parts
        nusd = nusd_rounded_half_up(parts) - booked
        booked += nusd
        yield used, nusd


def _used_units(entry: ChargedEntry) -> list[UsedUnit]:
    """The units whose rounded sum is the charge."""
    charge_nusd = entry.charge_nusd or 0
    try:
        units = list(_units_of_models(entry))
    except (ValueError, TypeError):  # unreadable details
        units = []
    if units and nusd_rounded_half_up(sum(used.parts for used in units)) == charge_nusd:
        return units
    terms = {} if entry.price_version is None else {"x_version": entry.price_version}
    is_unpriced = entry.charge_nusd is None
    whole = UsedUnit(WHOLE, entry.model, 1, 1, charge_nusd, charge_nusd, is_unpriced, terms)
    return [*(used._replace(billed=0) for used in units), whole]


def _units_of_models(entry: ChargedEntry) -> Iterator[UsedUnit]:
    """The units of the exchange's own model, and of other models that it used. Raises ValueError, TypeError."""
    details = EntryDetails.of(entry.details)
    bills, missing = BillableParts(details.billed or ""), details.unpriced_units or ()
    is_charged = entry.charge_nusd is not None
    yield from _units_of(entry.model, usage_of(entry), details.price if is_charged else None, bills, missing)
    for other, listed in zip(other_models(details.other_models), details.other_models or (), strict=True):
        price = listed.get("price") if is_charged else None
        yield from _units_of(other.model, other.usage, price, bills, ())


class PinnedList(NamedTuple):
    """The price list in an entry. Prices: nUSD by unit."""

    rates: Rates
    charged: Mapping[str, int]
    listed: Mapping[str, int]
    """before price rules"""
    terms: Mapping[str, Any]


_NO_LIST = PinnedList(Rates(0, 0, 0), {}, {}, {})


@lru_cache(maxsize=4_096)
def _pinned(price: bytes) -> PinnedList:
    """`price`: the detail as JSON. Raises ValueError."""
    text = msgspec.json.decode(price)
    tiers = pinned(text).tiers
    if not tiers:
        return _NO_LIST
    by = msgspec.convert(text.get("multipliers") or {}, dict[str, str])
    charged = {unit.price: rate for unit in BILLED_UNITS if (rate := rate_of(unit, tiers[0])) is not None}
    listed = {name: before_rules(rate, name, by) for name, rate in charged.items()}
    return PinnedList(tiers[0], charged, listed, _terms(text, by))


def _terms(text: Mapping[str, Any], by: Mapping[str, str]) -> dict[str, Any]:
    """The facts that select the list price: the version of the list, the tier of the prompt's length, and how the
    answer was served. Custom names begin with `x_`, as FOCUS requires."""
    terms = {f"x_{name}": text[name] for name in ("version", "above_prompt_tokens", "service_tier") if name in text}
    return terms | {f"x_{reason}": factor for reason, factor in by.items() if not by_rule(reason)}


def _units_of(
    model: str, usage: Usage, price: object, bills: BillableParts, missing: Collection[str]
) -> Iterator[UsedUnit]:
    """`price`: as pinned in the entry; None: there is none. `missing`: the counts that the list has no price for."""
    list_ = _NO_LIST if price is None else _pinned(msgspec.json.encode(price, order="sorted"))
    used = numbers(usage, list_.rates)
    if "request" in list_.charged:
        used["request"] = 1
    for unit in BILLED_UNITS:
        if not (number := used.get(unit.price)):
            continue
        yield UsedUnit(
            unit.price,
            model,
            number,
            billed=number if unit.side in SIDES[bills] else 0,
            list_rate=list_.listed.get(unit.price, 0),
            rate=list_.charged.get(unit.price, 0),
            is_unpriced=unit.price not in list_.charged or unit.count in missing,
            terms=list_.terms,
        )
