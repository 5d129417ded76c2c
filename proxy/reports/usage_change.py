"""The reasons for a change of charges between two periods, as signed amounts. Pure.

Invariants, of each model and in total, to the nano-dollar:
- volume + mix + price + adjustments = the charge of the second period less that of the first.
- `price` is 0 if every unit that both periods have costs the same; `volume` is 0 if the number of requests is the same.

Volume is the change of the number of all requests, at the charge of each model in the first period. Price is the change
of the average prices of units, for the units of the second period. Adjustments are the change of their sums. Mix is the
rest: other models, more or fewer tokens for each request, and units whose prices do not show in daily sums, such as
images.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from proxy.billing.money import ZERO_NUSD, Nusd, total_nusd


@dataclass(frozen=True, slots=True)
class UnitCharges:
    """The units of one kind that a model was charged for."""

    units: int
    nusd: Fraction
    """the exact charge, in nUSD"""


@dataclass(slots=True)
class ModelCharges:
    """The charges of one model in a period."""

    requests: int = 0
    charge_nusd: Nusd = ZERO_NUSD
    """charges of the exchanges as they ended, without adjustments"""
    adjusted_nusd: Nusd = ZERO_NUSD
    units: dict[str, UnitCharges] = field(default_factory=dict)
    """name of the price → units. Charges that no unit explains are not included"""

    def add_units(self, name: str, units: int, nusd: Fraction) -> None:
        """Adds units of one kind."""
        before = self.units.get(name, UnitCharges(0, Fraction(0)))
        self.units[name] = UnitCharges(before.units + units, before.nusd + nusd)


Period = Mapping[str, ModelCharges]
"""model → its charges"""
_NONE = ModelCharges()


@dataclass(frozen=True, slots=True)
class Change:
    """The reasons for a difference of charges; nUSD, each below 0 if it lowered the charge."""

    volume_nusd: Nusd
    mix_nusd: Nusd
    price_nusd: Nusd
    adjustments_nusd: Nusd

    @property
    def total_nusd(self) -> Nusd:
        """The difference."""
        return total_nusd((self.volume_nusd, self.mix_nusd, self.price_nusd, self.adjustments_nusd))


def explain_change(before: Period, after: Period) -> dict[str, Change]:
    """Model → the reasons for the change of its charges."""
    requests = sum(one.requests for one in before.values()), sum(one.requests for one in after.values())
    models = sorted({*before, *after})
    return {one: _of_model(before.get(one, _NONE), after.get(one, _NONE), *requests) for one in models}


def total_change(changes: Mapping[str, Change]) -> Change:
    """The sum over all models."""
    every = changes.values()
    return Change(
        total_nusd(one.volume_nusd for one in every),
        total_nusd(one.mix_nusd for one in every),
        total_nusd(one.price_nusd for one in every),
        total_nusd(one.adjustments_nusd for one in every),
    )


def _of_model(before: ModelCharges, after: ModelCharges, requests_before: int, requests_after: int) -> Change:
    difference = after.charge_nusd - before.charge_nusd
    volume = _volume(before, after, requests_before, requests_after)
    price = round(sum((_price(before, after, name) for name in after.units), Fraction(0)))
    return Change(
        volume_nusd=Nusd(volume),
        mix_nusd=Nusd(difference - volume - price),
        price_nusd=Nusd(price),
        adjustments_nusd=Nusd(after.adjusted_nusd - before.adjusted_nusd),
    )


def _volume(before: ModelCharges, after: ModelCharges, requests_before: int, requests_after: int) -> int:
    if not requests_before:  # all of it is new
        return after.charge_nusd - before.charge_nusd
    return round(before.charge_nusd * (Fraction(requests_after, requests_before) - 1))


def _price(before: ModelCharges, after: ModelCharges, name: str) -> Fraction:
    """The change of the average price, for the units of the second period."""
    old, new = before.units.get(name), after.units[name]
    if old is None or not old.units or not new.units:
        return Fraction(0)
    return new.nusd - new.units * old.nusd / old.units
