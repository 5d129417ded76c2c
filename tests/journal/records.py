"""Exchanges and records for the tests of this room."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from msgspec.structs import replace

from proxy.billing.record import Opened, Price, Rates, UsageRecord
from proxy.metering.usage import Reading, Usage, UsageSource
from tests.billing import records

PRICE = Price("config-12345678", (Rates(100, 50, 400), Rates(200, 100, 800, above_prompt_tokens=128_000)))
ROOMY = 1 << 30


def exchange_id(number: int) -> str:
    return str(UUID(int=(0x019AA0B0_0000_7000 << 64) | (0x8000 << 48) | number))


OPENED = replace(
    records.OPENED, key_id="key-1", key_alias="häuser", endpoint="chat.completions", started_at=1_790_000_000.25,
    price=PRICE, cost=None, prompt_tokens_estimate=17, bill={"client_left": "prompt"},
)  # fmt: skip
RECORD = replace(
    records.RECORD, reading=Reading(Usage(11, 3, 29, None, 40), UsageSource.REPORTED), events=31, bytes=8_765,
    duration_ms=1234.567, first_token_ms=0.1,
    details={"flags": ["a", "b"], "usage": {"total_tokens": 40, "x": None}, "ratio": 0.1},
)  # fmt: skip


def opened(number: int, *, slot: int = 0, **changes: Any) -> Opened:
    return replace(OPENED, **{"exchange_id": exchange_id(number), "slot": slot, **changes})


def record(of: Opened, **changes: Any) -> UsageRecord:
    return replace(RECORD, opened=of, **changes)
