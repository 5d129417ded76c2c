"""Exports as providers make them, in our own numbers."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from typing import Any

from proxy.reconciliation.provider_bill.bill import DAY_S, ProviderBill
from proxy.reconciliation.provider_bill.file import read_bill

MIDNIGHT = int(datetime(2026, 11, 1, tzinfo=UTC).timestamp())


def completions(model: str | None = "gpt-4o-2024-08-06", **differences: Any) -> dict[str, Any]:
    """A result of OpenAI's usage."""
    return {
        "object": "organization.usage.completions.result",
        "input_tokens": 1_000, "input_cached_tokens": 300, "output_tokens": 70, "num_model_requests": 5,
        "input_audio_tokens": 0, "output_audio_tokens": 0,
        "model": model, "project_id": None, "batch": False, "something_new": {"a": [1]},
        **differences,
    }  # fmt: skip


def costs(value: Any, line_item: str | None = None, currency: str = "usd") -> dict[str, Any]:
    """A result of OpenAI's costs."""
    amount = {"value": value, "currency": currency}
    return {"object": "organization.costs.result", "amount": amount, "line_item": line_item, "project_id": None}


def messages(model: str | None = "claude-sonnet-4-20250514", **differences: Any) -> dict[str, Any]:
    """A result of Anthropic's usage report."""
    return {
        "uncached_input_tokens": 500, "cache_read_input_tokens": 300, "output_tokens": 70, "model": model,
        "cache_creation": {"ephemeral_1h_input_tokens": 150, "ephemeral_5m_input_tokens": 50},
        "server_tool_use": {"web_search_requests": 2}, "service_tier": "standard", "context_window": None,
        **differences,
    }  # fmt: skip


def cents(amount: Any, model: str | None = "claude-sonnet-4-20250514", **differences: Any) -> dict[str, Any]:
    """A result of Anthropic's cost report."""
    return {
        "currency": "USD",
        "amount": amount,
        "model": model,
        "description": "input",
        "cost_type": "tokens",
        **differences,
    }


def openai(*results: dict[str, Any], day: int = 0, begin: int = 0, end: int = DAY_S) -> dict[str, Any]:
    """A bucket of that day, from second `begin` to `end` of it."""
    first = MIDNIGHT + day * DAY_S
    return {"object": "bucket", "start_time": first + begin, "end_time": first + end, "results": list(results)}


def anthropic(*results: dict[str, Any], day: int = 0) -> dict[str, Any]:
    """A bucket of that day."""
    moments = (datetime.fromtimestamp(MIDNIGHT + (day + n) * DAY_S, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") for n in (0, 1))
    return {"starting_at": next(moments), "ending_at": next(moments), "results": list(results)}


def page(*buckets: Any, **differences: Any) -> dict[str, Any]:
    return {"object": "page", "data": list(buckets), "has_more": False, "next_page": None, **differences}


def read(document: Any, **options: Any) -> ProviderBill:
    """What the file says in which this stands: a value of JSON, or the bytes themselves."""
    content = document if isinstance(document, bytes) else json.dumps(document).encode()
    return read_bill(io.BytesIO(content), **options)
