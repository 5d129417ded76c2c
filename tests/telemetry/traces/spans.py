"""A record of an exchange, and the span and trace that its client named."""

from __future__ import annotations

from proxy.billing.record import Attempt, BillableParts, Opened, Outcome, Price, Rates, UsageRecord
from proxy.metering.usage import Reading, Usage, UsageSource

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"

PRICE = Price("v7", (Rates(130_000_000, 70_000_000, 410_000_000),))

COST = Price("v7", (Rates(110_000_000, 50_000_000, 370_000_000),))

OPENED = Opened(
    "0199-e", "key_1", "ada@customer.example", "mistral", "large", "large-2", "/v1/chat/completions", True,
    1_700_000_000.5, PRICE, COST, 20, None, 0,
    attempts=(Attempt("first", "large-1", "refused", 429, 1_700_000_000.75, 40.0),),
)  # fmt: skip

USAGE = Usage(20, 5, 10, 4, cache_write_tokens=3)

RECORD = UsageRecord(
    OPENED, Outcome.SERVED, Reading(USAGE, UsageSource.REPORTED), BillableParts.EVERYTHING, 12, 900, 1500.0, 300.0,
    finish_reason="stop", provider_response_id="chatcmpl-1", details={"usage": {"prompt_tokens": 20}},
)  # fmt: skip
