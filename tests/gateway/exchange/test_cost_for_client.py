"""The cost that an answer tells is the charge of the entry that its exchange gets, whatever is counted and priced."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from proxy.billing.pricing.prices import configured
from proxy.billing.record import Opened, Price, Rates
from proxy.billing.settlement import entry
from proxy.gateway.exchange.lifecycle import End
from proxy.gateway.exchange.open_exchange import outcome_of
from proxy.metering.estimator.estimate import Estimator
from proxy.metering.metered import Metered
from proxy.metering.usage import NOT_SAID, Evidence, ModelUsage, ServedAs, Usage, UsageSource
from tests.gateway.exchange.alone import Ended, exchange_alone

COUNTS = st.none() | st.integers(0, 200_000)
RATES = st.builds(
    Rates, st.integers(0, 10**12), st.integers(0, 10**12), st.integers(0, 10**12),
    cache_write=COUNTS, reasoning=COUNTS, image=COUNTS, searches=COUNTS, request=COUNTS,
)  # fmt: skip
PRICES = st.none() | st.builds(
    lambda rates, fast, multipliers, stated: configured(
        rates, service_tiers={"priority": (fast,)}, multipliers=multipliers, stated=stated
    ),
    RATES, RATES,
    st.sampled_from([{}, {"rule:acme": "7/9"}, {"tier:flex": "0.5", "rule:markup": "1.1"}]),
    st.sampled_from([(), ("1.05",)]),
)  # fmt: skip
USAGES = st.builds(
    Usage, COUNTS, cached_tokens=COUNTS, completion_tokens=COUNTS, reasoning_tokens=COUNTS,
    images=st.none() | st.just(2), searches=st.none() | st.just(3), unbilled_completion_tokens=st.none() | st.just(5),
)  # fmt: skip
METERED = st.builds(
    lambda usage, failed, final, served_as, stated, others, served: Metered(
        usage, {}, Evidence(text_events=1, chars_latin=9), "stop", "r", True, failed, 3, (), {}, served_as=served_as,
        usage_final=final, stated_usd=stated, other_models=others, served_model=served,
    ),
    st.none() | USAGES,
    st.sampled_from([None, None, "error_event"]),
    st.booleans(),
    st.sampled_from([NOT_SAID, ServedAs("priority"), ServedAs("flex")]),
    st.sampled_from([None, Decimal("0.0000123456")]),
    st.sampled_from([(), (ModelUsage("other", Usage(11, completion_tokens=7)),)]),
    st.sampled_from([None, "served"]),
)  # fmt: skip
BILL = st.sampled_from([{}, {"served": "output"}, {"failed_reported": "prompt"}])


@given(metered=METERED, price=PRICES, bill=BILL)
def test_the_cost_told_is_the_charge_of_the_entry(metered: Metered, price: Price | None, bill: dict[str, str]) -> None:
    opened = Opened("x", "k", "k", "p", "m", "m", "/v1", True, 0.0, price, None, 50, None, 0, bill=bill)
    ended = Ended()
    prices = lambda _at, _payer, name: (price if name == "served" else None, None)  # noqa: E731
    open_exchange = exchange_alone(opened, ended, Estimator(), prices=prices)
    told = open_exchange.cost_to_tell(metered)
    open_exchange.close(outcome_of(End.COMPLETE, metered), now=1.0, metered=metered, events=3, size=400)
    (record,) = ended.records
    booked = entry(record).charge_nusd
    if record.reading.source is UsageSource.REPORTED and booked is not None:
        assert told is not None
        assert Decimal(told.cost.decode()) * 10**9 == booked
        assert round(float(told.cost) * 10**9) == booked, "a client's number has it, too"
    else:
        assert told is None
