"""Exchanges that ended with an estimate, and what their providers report afterwards."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from proxy.billing.ending import Ending, PricesOf, record_of
from proxy.billing.entries import LedgerEntry
from proxy.billing.record import Outcome
from proxy.billing.settlement import entry
from proxy.metering.metered import Metered
from proxy.metering.usage import Evidence, Reading, Usage, UsageSource
from tests.billing.records import COST, OPENED, PRICE

SEEN = Evidence(text_events=40, chars_latin=200, blanks=30)
ESTIMATE = Reading(Usage(900, None, 50, None, 950), UsageSource.ESTIMATED, "reference-3", 0.05)
TOLD = Usage(1000, 400, 250, 50, 1250)


def metered(usage: Usage | None = TOLD, **more: Any) -> Metered:
    """What the provider reports afterwards."""
    found = Metered(
        usage=usage, usage_raw=None if usage is None else {"told": 1}, evidence=Evidence(), finish_reason="stop",
        response_id="gen-1", complete=True, failed=None, events=0, flags=(), timings={}, usage_final=usage is not None,
    )  # fmt: skip
    return replace(found, **more)


def _ending(outcome: Outcome, reading: Reading, seen: Metered, **more: Any) -> Ending:
    how: dict[str, Any] = {"accepted": True, "delivered": True, "events": 40, "size": 900, **more}
    return Ending(outcome=outcome, reading=reading, metered=seen, **how)


def estimated(
    outcome: Outcome = Outcome.CLIENT_LEFT,
    lists: tuple[Any, Any] = (PRICE, COST),
    *,
    seen: Metered | None = None,
    reading: Reading = ESTIMATE,
    prices_of: PricesOf = lambda model: (None, None),
    **more: Any,
) -> LedgerEntry:
    """The entry of an exchange that ended without usage. `seen`: of the answer, besides its text."""
    opened = replace(OPENED, price=lists[0], cost=lists[1])
    seen = replace(seen or metered(None), evidence=SEEN)
    return entry(record_of(opened, _ending(outcome, reading, seen, asked_later="generation", **more), prices_of))


def in_time(outcome: Outcome, told: Metered, lists: tuple[Any, Any]) -> LedgerEntry:
    """The entry that it would have had with the usage."""
    assert told.usage is not None
    reading = Reading(told.usage, UsageSource.REPORTED)
    return entry(record_of(replace(OPENED, price=lists[0], cost=lists[1]), _ending(outcome, reading, told)))
