"""Money as integer nano-USD (1 USD = 1,000,000,000 nUSD; a signed 64-bit integer reaches 9.2 billion USD).

Invariant: only this module rounds, and the names of its functions state how.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import NewType

Nusd = NewType("Nusd", int)
"""An amount in nano-USD: mypy keeps a count, or an amount of another unit, from taking its place. Arithmetic gives an
int, whose unit the caller confirms by `Nusd(…)`."""
ZERO_NUSD = Nusd(0)

NUSD_PER_USD = 1_000_000_000

# Digits of an amount in USD before its point, less one.
_DIGITS_MAX = 17

# The coarsest unit in which one token at 1 nUSD per million (18) and one ms at 1 nUSD per hour (5) are both whole.
PARTS_PER_NUSD = 18_000_000
PER_MILLION = PARTS_PER_NUSD // 1_000_000
PER_THOUSAND = PARTS_PER_NUSD // 1_000
PER_HOUR_OF_MS = PARTS_PER_NUSD // 3_600_000
# Of a femto-USD: one token at 1 nUSD per million.
_PARTS_PER_FUSD = PARTS_PER_NUSD // 1_000_000


def nusd_from_usd(usd: Decimal | str | int) -> Nusd:
    """USD → nUSD, exact. Raises ValueError if `usd` is no finite number, too large, or finer than 1 nUSD."""
    try:
        amount = Decimal(usd)
    except InvalidOperation:
        raise ValueError(f"not an amount of money: {usd!r}") from None
    if not amount.is_finite():
        raise ValueError(f"not a finite amount of money: {usd!r}")
    if amount.adjusted() > _DIGITS_MAX:  # before any arithmetic: a short text can name a number of a million digits
        raise ValueError(f"too large an amount of money: {usd!r}")
    nusd = amount * NUSD_PER_USD
    if nusd != nusd.to_integral_value():
        raise ValueError(f"finer than a nano-USD: {usd!r}")
    return Nusd(int(nusd))


def usd_text(nusd: int) -> str:
    """nUSD → decimal string of USD with no exponent and no trailing zeros: 1_500_000 → "0.0015"."""
    sign = "-" if nusd < 0 else ""
    whole, part = divmod(abs(nusd), NUSD_PER_USD)
    return f"{sign}{whole}.{part:09d}".rstrip("0") if part else f"{sign}{whole}"


def total_nusd(amounts: Iterable[Nusd | None]) -> Nusd:
    """The sum. An unknown amount adds nothing."""
    return Nusd(sum(amount for amount in amounts if amount is not None))


def nusd_rounded_half_up(parts: int) -> Nusd:
    """Σ counts × prices, all ≥ 0, in PARTS_PER_NUSD → nUSD. Rounded once, for the whole sum, half up."""
    return Nusd((2 * parts + PARTS_PER_NUSD) // (2 * PARTS_PER_NUSD))


def usd_rounded_half_up(parts: int) -> Decimal:
    """A count × its price, ≥ 0, in PARTS_PER_NUSD → USD of 15 places: exact, but for times at a price per hour."""
    return Decimal((parts + _PARTS_PER_FUSD // 2) // _PARTS_PER_FUSD).scaleb(-15)


def nusd_from_usd_rounded_half_up(usd: Decimal) -> Nusd:
    """USD ≥ 0 → nUSD. For price lists with binary rounding noise (0.13999999999999999)."""
    return Nusd(int((usd * NUSD_PER_USD).to_integral_value(rounding=ROUND_HALF_UP)))
