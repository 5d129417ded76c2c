"""The one way from the end of an exchange to its record."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from msgspec import structs

from proxy.billing.details import EntryDetails
from proxy.billing.ending import Ending, record_of
from proxy.billing.pricing.prices import configured
from proxy.billing.pricing.rules import NO_LIST
from proxy.billing.record import BillableParts, Outcome, Price, PricedUsage, Rates
from proxy.billing.settlement import entry
from proxy.metering.metered import Metered
from proxy.metering.usage import Evidence, ModelUsage, Reading, Usage, UsageSource
from tests.billing.records import OPENED

SEEN = {"text_events": 3, "chars_latin": 12, "blanks": 2}
HALF = {"prompt_tokens": 9}
OTHER = configured(Rates(input=1, cached_input=1, output=1))


def metered(raw: dict[str, Any] | None = None, **changes: Any) -> Metered:
    usage = Usage(**raw) if raw else None
    base = Metered(usage, raw, Evidence(**SEEN), "stop", "response-1", True, None, 3, (), {})
    return structs.replace(base, **changes)


def ending(**changes: Any) -> Ending:
    members = {"outcome": Outcome.SERVED, "accepted": True, "delivered": True, **changes}
    return Ending(**members)


@pytest.mark.parametrize(
    ("raw", "source", "explained"),
    [
        (None, UsageSource.ESTIMATED, {"evidence": SEEN}),
        (HALF, UsageSource.ESTIMATED, {"usage": HALF, "evidence": SEEN}),  # half of it was estimated from that
        (HALF, UsageSource.REPORTED, {"usage": HALF}),
        (None, UsageSource.NONE, {"evidence": SEEN}),
    ],
)
def test_an_estimate_keeps_its_evidence(
    raw: dict[str, Any] | None, source: UsageSource, explained: dict[str, Any]
) -> None:
    record = record_of(OPENED, ending(reading=Reading(Usage(), source), metered=metered(raw)))
    assert record.details == explained | {"situation": "served"}


def test_the_serving_model_and_other_models_have_their_own_prices() -> None:
    lists: dict[str, tuple[Price | None, Price | None]] = {"served": (OTHER, None), "advisor": (None, OTHER)}
    answer = metered(HALF, served_model="served", other_models=(ModelUsage("advisor", Usage(prompt_tokens=3)),))
    record = record_of(OPENED, ending(metered=answer), lists.__getitem__)
    assert (record.opened.upstream_model, record.opened.price, record.opened.cost) == ("served", OTHER, OPENED.cost)
    assert record.others == (PricedUsage("advisor", Usage(prompt_tokens=3), None, OTHER),)
    assert record.details["served_instead_of"] == OPENED.upstream_model
    assert record.details["cost_unpriced_units"] == ["model:served"]
    assert "unpriced_units" not in record.details


LISTED = structs.replace(OPENED.price, stated=("1",))
UNLISTED = structs.replace(NO_LIST, stated=("1",))


@pytest.mark.parametrize(
    ("list_", "stated", "final", "charged", "flagged"),
    [
        (LISTED, "0.005", True, 5_000_000, False),
        (LISTED, "0.005", False, 260_000, True),  # 1000 × 0.1 + 400 × 0.4 µUSD: by the list
        (LISTED, "0", False, 260_000, True),
        (LISTED, "0", True, 0, False),
        (UNLISTED, "0.005", True, 5_000_000, False),
        (UNLISTED, "0.005", False, 5_000_000, True),  # the least that it costs
        (UNLISTED, "0", False, None, True),
        (OPENED.price, "0.005", False, 260_000, False),  # the stated cost is no price
    ],
)
def test_a_cost_that_is_stated_before_the_end_of_the_answer_is_not_its_price(
    list_: Price, stated: str, final: bool, charged: int | None, flagged: bool
) -> None:
    """Perplexity states 0 in every chunk but the last: who left before it paid nothing."""
    usage = {"prompt_tokens": 1000, "completion_tokens": 400}
    answer = metered(usage, stated_usd=Decimal(stated), usage_final=final)
    reading = Reading(Usage(**usage), UsageSource.REPORTED)
    asked = structs.replace(OPENED, price=list_, cost=list_)
    settled = entry(record_of(asked, ending(outcome=Outcome.CLIENT_LEFT, reading=reading, metered=answer)))
    assert (settled.charge_nusd, settled.cost_nusd) == (charged, charged)
    assert ("interim_cost" in (settled.details.get("flags") or ())) == flagged


def test_a_failure_is_named_once_and_that_of_the_proxy_comes_first() -> None:
    assert record_of(OPENED, ending(metered=metered(failed="error_event"))).details["failed"] == "error_event"
    of_ours = EntryDetails(failed="proxy_bug")
    record = record_of(OPENED, ending(metered=metered(failed="error_event"), details=of_ours))
    assert record.details["failed"] == "proxy_bug"
    assert of_ours == EntryDetails(failed="proxy_bug"), "the details given stay as they are"


def test_the_billed_parts_are_those_of_the_policy_unless_given() -> None:
    failed = ending(outcome=Outcome.UPSTREAM_FAILED)
    assert record_of(OPENED, failed).bills is BillableParts.OUTPUT
    assert record_of(OPENED, ending(bills=BillableParts.NOTHING)).bills is BillableParts.NOTHING


def test_numbers_that_the_provider_does_not_bill_are_not_unread() -> None:
    from proxy.metering.unknown_fields import UnknownFields

    unknown = UnknownFields(paths=("usage.a", "usage.b"), values={})
    answer = metered(HALF, unknown_usage_fields=unknown)
    assert record_of(OPENED, ending(metered=answer, not_billed=frozenset({"usage.a"}))).details["unread"] == ["usage.b"]
