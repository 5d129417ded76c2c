"""Anthropic's exports: `GET /v1/organizations/usage_report/messages` and `GET /v1/organizations/cost_report`, as in the
Admin API's reference (Usage and Cost).

Invariants: tokens read from the cache, written to it and neither are counted separately; our prompt tokens are the sum
of all three, our cached tokens those read. Requests are not counted; web searches are, if the export has them. Money is
a decimal text in the currency's smallest unit: "123.45" in USD is 1.2345 dollars. Costs without a model (searches,
code) are listed under their description.
"""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

from proxy.reconciliation.provider_bill.bill import (
    BillBucket,
    BillEndpoint,
    BillKind,
    BillResult,
    BillSubject,
    JsonPath,
)

_TOKENS = (BillKind.PROMPT, BillKind.CACHED, BillKind.COMPLETION, BillKind.CACHE_WRITE)

ENDPOINTS = (
    BillEndpoint(
        "organizations/usage_report/messages", BillSubject.USAGE, _TOKENS,
        ("model", "service_tier", "context_window", "inference_geo", "speed"),
    ),
    BillEndpoint("organizations/cost_report", BillSubject.COST, (BillKind.COST,), ("description",)),
)  # fmt: skip

_CENTS_PER_USD = Decimal(100)


def is_bucket(place: JsonPath) -> bool:
    """True if the value looks like a bucket of Anthropic's."""
    return place.has("starting_at")


def bucket(place: JsonPath) -> BillBucket:
    """One bucket. Raises BillError."""
    end = place.field("ending_at")
    times = end.day_of(_moment(place.field("starting_at")), _moment(end))
    return BillBucket(*times, tuple(map(_result, place.field("results").items())))


def _moment(place: JsonPath) -> int:
    """An RFC 3339 time, to the second → Unix seconds."""
    try:
        moment = datetime.fromisoformat(place.text())
        return int(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp())
    except (ValueError, OverflowError):
        raise place.wrong("must be a time such as 2026-11-01T00:00:00Z") from None


def _result(place: JsonPath) -> BillResult:
    return _cost(place) if place.has("amount") else _usage(place)


def _usage(place: JsonPath) -> BillResult:
    read = place.field("cache_read_input_tokens").count()
    prompt = place.field("uncached_input_tokens").count() + read
    written = 0
    if place.has("cache_creation"):
        creation = place.field("cache_creation")
        written = sum(map(creation.count_or_zero, ("ephemeral_1h_input_tokens", "ephemeral_5m_input_tokens")))
    amounts: dict[BillKind, Decimal | int] = {
        BillKind.CACHE_WRITE: written,
        BillKind.PROMPT: prompt + written,
        BillKind.CACHED: read,
        BillKind.COMPLETION: place.field("output_tokens").count(),
    }
    if place.has("server_tool_use"):
        amounts[BillKind.SEARCHES] = place.field("server_tool_use").count_or_zero("web_search_requests")
    return BillResult(BillSubject.USAGE, place.text_or_none("model"), amounts)


def _cost(place: JsonPath) -> BillResult:
    currency = place.field("currency")
    if currency.text().lower() != "usd":
        raise currency.wrong("must be USD")
    name = place.text_or_none("model") or place.text_or_none("description") or place.text_or_none("cost_type")
    return BillResult(BillSubject.COST, name, {BillKind.COST: place.field("amount").amount() / _CENTS_PER_USD})
