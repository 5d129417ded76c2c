"""Why charges changed: the reasons add up, whatever the numbers are, and mean what they say."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.billing.money import Nusd
from proxy.reports.usage_change import Change, ModelCharges, UnitCharges, explain_change, total_change

USD = 10**9
PER_MILLION = USD // 10**6


def charges(requests: int, adjusted: int = 0, **units: tuple[int, int]) -> ModelCharges:
    """`units`: of each, how many, and their price in USD per million."""
    found = {name: UnitCharges(count, Fraction(count * price * PER_MILLION)) for name, (count, price) in units.items()}
    charge = round(sum((one.nusd for one in found.values()), Fraction(0)))
    return ModelCharges(requests, Nusd(charge), Nusd(adjusted), found)


COUNTS = st.integers(0, 10**12)
MONEY = st.integers(-(10**15), 10**15).map(Nusd)
UNITS = st.dictionaries(
    st.sampled_from(["input", "output", "images"]),
    st.builds(UnitCharges, COUNTS, st.fractions(-(10**15), 10**15, max_denominator=10**7)),
)
PERIODS = st.dictionaries(
    st.sampled_from(["large", "small", "other"]), st.builds(ModelCharges, st.integers(0, 10**9), MONEY, MONEY, UNITS)
)


@given(before=PERIODS, after=PERIODS)
def test_the_reasons_add_up_to_the_nano_dollar(before: dict[str, ModelCharges], after: dict[str, ModelCharges]) -> None:
    changes = explain_change(before, after)
    assert changes.keys() == before.keys() | after.keys()
    nothing = ModelCharges()
    for model, change in changes.items():
        old, new = before.get(model, nothing), after.get(model, nothing)
        assert change.total_nusd == new.charge_nusd + new.adjusted_nusd - old.charge_nusd - old.adjusted_nusd
        assert change.adjustments_nusd == new.adjusted_nusd - old.adjusted_nusd
    total = total_change(changes)
    assert total.total_nusd == sum(one.total_nusd for one in changes.values())
    assert set(explain_change(after, after).values()) <= {Change(*[Nusd(0)] * 4)}
    back = explain_change(after, before)
    assert {model: -one.total_nusd for model, one in back.items()} == {
        model: one.total_nusd for model, one in changes.items()
    }


@given(before=PERIODS, after=PERIODS, times=st.integers(1, 9))
def test_a_price_that_stays_changes_nothing(
    before: dict[str, ModelCharges], after: dict[str, ModelCharges], times: int
) -> None:
    """Units of the same average price, however many; and as many requests."""
    for model, one in after.items():
        old = before.get(model)
        for name, unit in one.units.items():
            if old is not None and (known := old.units.get(name)) is not None:
                one.units[name] = UnitCharges(known.units * times, known.nusd * times)
                assert unit is not None
    assert all(one.price_nusd == 0 for one in explain_change(before, after).values())
    if sum(one.requests for one in before.values()) == sum(one.requests for one in after.values()) > 0:
        assert all(one.volume_nusd == 0 for one in explain_change(before, after).values())


CASES: dict[str, tuple[dict[str, ModelCharges], dict[str, ModelCharges], tuple[int, int, int, int]]] = {
    "more requests": (
        {"a": charges(10, input=(10_000, 3))}, {"a": charges(30, input=(30_000, 3))}, (60_000, 0, 0, 0),
    ),
    "a higher price": (
        {"a": charges(10, input=(10_000, 3))}, {"a": charges(10, input=(10_000, 4))}, (0, 0, 10_000, 0),
    ),
    "both": (
        {"a": charges(10, input=(10_000, 3))}, {"a": charges(20, input=(20_000, 4))}, (30_000, 0, 20_000, 0),
    ),
    "longer answers": (
        {"a": charges(10, output=(1_000, 10))}, {"a": charges(10, output=(3_000, 10))}, (0, 20_000, 0, 0),
    ),
    "a dearer model instead": (
        {"a": charges(10, input=(10_000, 1))}, {"b": charges(10, input=(10_000, 5))}, (0, 40_000, 0, 0),
    ),
    "nothing before": ({}, {"a": charges(10, input=(10_000, 3))}, (30_000, 0, 0, 0)),
    "nothing any more": ({"a": charges(10, input=(10_000, 3))}, {}, (-30_000, 0, 0, 0)),
    "a correction": ({"a": charges(1, -500)}, {"a": charges(1, 0)}, (0, 0, 0, 500)),
    "units with other prices": (
        {"a": ModelCharges(2, Nusd(1_000))}, {"a": ModelCharges(2, Nusd(1_700))}, (0, 700, 0, 0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_the_reasons_mean(name: str) -> None:
    before, after, (volume, mix, price, adjustments) = CASES[name]
    scale = PER_MILLION if name not in ("a correction", "units with other prices") else 1
    expected = Change(*(Nusd(one * scale) for one in (volume, mix, price)), Nusd(adjustments))
    assert total_change(explain_change(before, after)) == expected
