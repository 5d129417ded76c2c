"""The amount that a statement asks for.

Invariants:
- Net amount + rounding + tax = amount due. Only the net amount, to cents, and the tax, to cents, are rounded (half up).
- A statement asks for no charge of an earlier month: payments settle the oldest charges first, so what is still owed of
  earlier months is on their statements.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

from proxy.billing.money import NUSD_PER_USD, Nusd

NUSD_PER_CENT = NUSD_PER_USD // 100


@dataclass(frozen=True, slots=True)
class AmountDue:
    """Money: nUSD."""

    charges_nusd: Nusd
    """usage and adjustments of the month; below 0 if adjustments exceed the usage"""
    net_nusd: Nusd
    """the part of the charges that the balance does not cover"""
    rounding_nusd: Nusd
    """what makes the net amount whole cents"""
    tax_nusd: Nusd
    """on the rounded net amount, in whole cents"""
    earlier_nusd: Nusd
    """the unpaid amount of earlier months"""

    @property
    def total_nusd(self) -> Nusd:
        """The amount due, in whole cents."""
        return Nusd(self.net_nusd + self.rounding_nusd + self.tax_nusd)

    @property
    def covered_nusd(self) -> Nusd:
        """The part of the charges that is paid from the balance; below 0 if the charges are."""
        return Nusd(self.charges_nusd - self.net_nusd)


def amount_due(charges_nusd: Nusd, closing_nusd: Nusd, tax_percent: str | None) -> AmountDue:
    """The amount due of a month with these charges, after which the balance is `closing_nusd`. `tax_percent`: a decimal
    text; None: no tax."""
    owed = max(0, -closing_nusd)
    net = min(owed, max(0, charges_nusd))
    rounded = _cents(Decimal(net)) * NUSD_PER_CENT
    tax = 0 if tax_percent is None else _cents(rounded * Decimal(tax_percent) / 100) * NUSD_PER_CENT
    return AmountDue(charges_nusd, Nusd(net), Nusd(rounded - net), Nusd(tax), Nusd(owed - net))


def _cents(nusd: Decimal) -> int:
    return int((nusd / NUSD_PER_CENT).to_integral_value(rounding=ROUND_HALF_UP))
