"""One exchange, as settlement and correction see it."""

from __future__ import annotations

from proxy.billing.pricing.prices import configured
from proxy.billing.record import BillableParts, Opened, Outcome, Rates, UsageRecord
from proxy.metering.usage import Reading, Usage, UsageSource

PRICE = configured(Rates(input=100_000_000, cached_input=50_000_000, output=400_000_000))

COST = configured(Rates(input=80_000_000, cached_input=40_000_000, output=320_000_000))

OPENED = Opened(
    exchange_id="01936d2e-0000-7000-8000-000000000001",
    key_id="k1",
    key_alias="team",
    provider="electron",
    model="electron",
    upstream_model="electron-2",
    endpoint="/v1/chat/completions",
    streamed=True,
    started_at=1_795_000_000.25,
    price=PRICE,
    cost=COST,
    prompt_tokens_estimate=900,
    completion_tokens_max=None,
    slot=3,
)

REPORTED = Reading(Usage(1000, 400, 250, 50, 1250), UsageSource.REPORTED)

ESTIMATED = Reading(Usage(1000, None, 250, None, 1250), UsageSource.ESTIMATED, "chars-1", 0.12)

RECORD = UsageRecord(
    opened=OPENED,
    outcome=Outcome.SERVED,
    reading=REPORTED,
    bills=BillableParts.EVERYTHING,
    events=12,
    bytes=3456,
    duration_ms=812.5,
    first_token_ms=120.25,
    finish_reason="stop",
    provider_response_id="chatcmpl-1",
    details={"service_tier": "default"},
)
