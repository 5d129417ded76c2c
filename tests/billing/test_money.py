"""Money: exact in and out, and one rounding whose direction is in its name."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.billing.money import (
    PARTS_PER_NUSD,
    PER_HOUR_OF_MS,
    PER_MILLION,
    PER_THOUSAND,
    nusd_from_usd,
    nusd_from_usd_rounded_half_up,
    nusd_rounded_half_up,
    usd_text,
)


@given(st.integers(-(10**18), 10**18))
def test_text_and_back_is_the_same_amount(nusd: int) -> None:
    assert nusd_from_usd(usd_text(nusd)) == nusd


@pytest.mark.parametrize(
    ("nusd", "text"),
    [(0, "0"), (1, "0.000000001"), (1_500_000, "0.0015"), (-1_500_000_000, "-1.5"), (7_000_000_000, "7")],
)
def test_text_has_no_exponent_and_no_trailing_zeros(nusd: int, text: str) -> None:
    assert usd_text(nusd) == text


# The last ones would take minutes, or all memory, if they were calculated with.
@pytest.mark.parametrize("usd", ["0.0000000001", "NaN", "Infinity", "ten", "", "1e999990", "-1e999999", "0e999999"])
def test_what_is_no_exact_amount_is_refused(usd: str) -> None:
    with pytest.raises(ValueError):
        nusd_from_usd(usd)


@given(st.integers(0, 10**24))
def test_rounding_is_to_the_nearest_and_halves_go_up(parts: int) -> None:
    exact = Fraction(parts, PARTS_PER_NUSD)
    assert -Fraction(1, 2) < nusd_rounded_half_up(parts) - exact <= Fraction(1, 2)


def test_every_unit_that_is_priced_is_whole_in_parts() -> None:
    assert [Fraction(PARTS_PER_NUSD, scale) for scale in (PER_MILLION, PER_THOUSAND, PER_HOUR_OF_MS)] == [
        1_000_000, 1_000, 3_600_000,
    ]  # fmt: skip


def test_noise_of_binary_fractions_is_rounded_away() -> None:
    assert nusd_from_usd_rounded_half_up(Decimal("0.13999999999999999")) == 140_000_000
    assert nusd_from_usd_rounded_half_up(Decimal("0.0000000005")) == 1
