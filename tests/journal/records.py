"""Exchanges and records for the tests of this room."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from proxy.billing.record import BillableParts, Opened, Outcome, Price, Rates, UsageRecord
from proxy.metering.usage import Reading, Usage, UsageSource

PRICE = Price("config-12345678", (Rates(100, 50, 400), Rates(200, 100, 800, above_prompt_tokens=128_000)))
ROOMY = 1 << 30


def exchange_id(number: int) -> str:
    return str(UUID(int=(0x019AA0B0_0000_7000 << 64) | (0x8000 << 48) | number))


def opened(number: int, *, slot: int = 0, **changes: Any) -> Opened:
    fields: dict[str, Any] = {
        "exchange_id": exchange_id(number),
        "key_id": "key-1",
        "key_alias": "häuser",
        "provider": "electron",
        "model": "electron",
        "upstream_model": "electron-2",
        "endpoint": "chat.completions",
        "streamed": True,
        "started_at": 1_790_000_000.25,
        "price": PRICE,
        "cost": None,
        "prompt_tokens_estimate": 17,
        "completion_tokens_max": None,
        "slot": slot,
        "bill": {"client_left": "prompt"},
    }
    return Opened(**{**fields, **changes})


def record(of: Opened, **changes: Any) -> UsageRecord:
    fields: dict[str, Any] = {
        "opened": of,
        "outcome": Outcome.SERVED,
        "reading": Reading(Usage(11, 3, 29, None, 40), UsageSource.REPORTED),
        "bills": BillableParts.EVERYTHING,
        "events": 31,
        "bytes": 8_765,
        "duration_ms": 1234.567,
        "first_token_ms": 0.1,
        "finish_reason": "stop",
        "provider_response_id": "chatcmpl-1",
        "details": {"flags": ["a", "b"], "usage": {"total_tokens": 40, "x": None}, "ratio": 0.1},
    }
    return UsageRecord(**{**fields, **changes})
