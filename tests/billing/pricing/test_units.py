"""The table of billed units: charges, addends and settings follow from it, and give what version 0.1 gave."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxy.billing.correction import CorrectionRequest
from proxy.billing.money import nusd_rounded_half_up
from proxy.billing.pricing.prices import _charged, addends, parts_at_most, unpriced
from proxy.billing.record import BillableParts, Rates
from proxy.billing.units import BILLED_UNITS, BY_PRICE, numbers
from proxy.metering.usage import Usage
from proxy.settings.prices import RateSettings
from tests.billing.pricing.oracle import charged_parts

counts = st.none() | st.integers(0, 60) | st.integers(0, 10**6)
usages = st.builds(Usage, **dict.fromkeys(Usage.__struct_fields__, counts))
own, optional = st.integers(0, 10**9), st.none() | st.integers(0, 10**9)
rates = st.builds(
    Rates,
    **dict.fromkeys(Rates.__struct_fields__[4:], optional),
    **dict.fromkeys(("input", "cached_input", "output"), own),
)
parts = st.sampled_from(BillableParts)


@given(rates, usages, parts)
def test_a_charge_is_what_it_was(rates: Rates, usage: Usage, bills: BillableParts) -> None:
    assert _charged(rates, usage, bills) == charged_parts(rates, usage, bills)


@given(rates, usages, parts)
def test_the_addends_add_up_to_the_charge(rates: Rates, usage: Usage, bills: BillableParts) -> None:
    total = sum(addend.parts for addend in addends(rates, usage, bills))
    assert nusd_rounded_half_up(total) == nusd_rounded_half_up(charged_parts(rates, usage, bills))


@given(rates, usages)
def test_the_kinds_never_add_up_to_more_than_the_whole(rates: Rates, usage: Usage) -> None:
    used = numbers(usage, rates)
    assert all(number >= 0 for number in used.values())
    for whole in ("input", "output", "pages"):
        kinds = [unit for unit in BILLED_UNITS if unit.price == whole or _root(unit.price) == whole]
        assert sum(used.get(kind.price, 0) for kind in kinds) <= (getattr(usage, BY_PRICE[whole].count) or 0)


def _root(price: str) -> str:
    return _root(BY_PRICE[price].of) if BY_PRICE[price].of else price


@given(rates, st.integers(0, 10**6), st.integers(0, 10**6), usages)
def test_no_kind_of_a_token_costs_more_than_the_dearest(
    rates: Rates, prompt: int, completion: int, usage: Usage
) -> None:
    used = Usage(**{
        unit.count: getattr(usage, unit.count) for unit in BILLED_UNITS if unit.is_token
    } | {"prompt_tokens": prompt, "completion_tokens": completion})  # fmt: skip
    assert charged_parts(rates, used, BillableParts.EVERYTHING) <= parts_at_most(rates, prompt, completion, Usage())


def test_dear_kinds_of_tokens_need_a_price_of_their_own() -> None:
    used = Usage(9, completion_tokens=9, audio_prompt_tokens=3, audio_completion_tokens=2, image_completion_tokens=1)
    named = ["audio_prompt_tokens", "audio_completion_tokens", "image_completion_tokens"]
    assert unpriced(Rates(1, 1, 1), used) == named
    assert unpriced(Rates(1, 1, 1, audio_input=1, audio_output=0, image_output=7), used) == []
    assert unpriced(Rates(1, 1, 1), Usage(9, completion_tokens=9, reasoning_tokens=3, image_prompt_tokens=4)) == []


def test_each_unit_has_its_stored_count_its_price_its_setting_and_its_correction() -> None:
    assert {unit.price for unit in BILLED_UNITS} == {*Rates.__struct_fields__} - {"above_prompt_tokens"}
    assert {unit.price for unit in BILLED_UNITS} == {*RateSettings.__dataclass_fields__}
    stored = {unit.count for unit in BILLED_UNITS if unit.count} | {"timed_audio_tokens"}
    stored |= {unit.unbilled for unit in BILLED_UNITS if unit.unbilled}
    assert stored == {*Usage.__struct_fields__} - {"total_tokens"}
    assert {*CorrectionRequest.__struct_fields__} == {*Usage.__struct_fields__, "charge_nusd", "cost_nusd"}
