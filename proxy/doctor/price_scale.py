"""Finds configured prices that were written for another unit: per thousand tokens, per token, in cents.

Invariant: a price is compared with that of the built-in book for the same model and unit. A price that the book does
not have is not checked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from proxy.billing.money import usd_text
from proxy.billing.record import Price, Rates
from proxy.billing.units import BILLED_UNITS, Unit
from proxy.doctor.finding import CheckedDeployment, Finding, warning
from proxy.runtime.machine.price_file import PriceFileError, price_book
from proxy.runtime.proxy.model_table import price_lookup
from proxy.settings import ModelSettings, ProviderSettings, Settings
from proxy.settings.prices import PriceLists

# No reseller charges so much more, and no contract gives so much off: it is another unit.
FACTOR = 100

_Lookup = Callable[[ProviderSettings, str], Price | None]


def price_scale(case: CheckedDeployment) -> list[Finding]:
    """A warning for each price that differs from the book's by FACTOR or more."""
    try:
        lookup = price_lookup(price_book(case.settings.data_dir))
    except PriceFileError:
        return []  # reported by the check of prices
    return [found for model in case.settings.models.values() for found in _of_model(model, case.settings, lookup)]


def _of_model(model: ModelSettings, settings: Settings, lookup: _Lookup) -> Iterator[Finding]:
    for number, target in enumerate(model.providers):
        listed = lookup(settings.providers[target.provider], target.upstream_model)
        if listed is None or not listed.tiers:
            continue
        place = f"models.{model.name}"
        if number == 0:
            yield from _differing(f"{place}.price", model.price, listed.tiers[0])
        several = "" if len(model.providers) == 1 else f".providers.{number}"
        yield from _differing(f"{place}{several}.cost", target.cost, listed.tiers[0])


def _differing(place: str, given: PriceLists | None, listed: Rates) -> Iterator[Finding]:
    tiers = () if given is None else given.at(time.time()).tiers
    for unit in BILLED_UNITS if tiers else ():
        ours, theirs = getattr(tiers[0], unit.price), getattr(listed, unit.price)
        if unit.of and ours == getattr(tiers[0], unit.of):
            continue  # the default; the price that it comes from is compared
        if ours and theirs and (ours >= theirs * FACTOR or theirs >= ours * FACTOR):
            yield _warning(f"{place}.{unit.price}", ours, theirs, unit)


def _warning(place: str, ours: int, theirs: int, unit: Unit) -> Finding:
    factor = f"{ours // theirs:,} times" if ours > theirs else f"1/{theirs // ours:,} of"
    message = f"{place}: {usd_text(ours)} USD is {factor} the {usd_text(theirs)} USD of the price book"
    return warning(
        "prices", message, f"prices are per {unit.sold_by or 'million tokens'}: correct it, unless it is meant so"
    )
