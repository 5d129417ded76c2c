"""What OpenAI exports: `GET /v1/organization/usage/completions` (and `…/embeddings`, `…/moderations`, which are alike)
and `GET /v1/organization/costs`. The shape is that of the API reference (Administration, Usage and Costs).

Law: `input_tokens` has the cached tokens in it, and so have our prompt tokens; audio and image tokens are part of both.
Usage comes under a model if it was asked for with `group_by=model`; money under a line item (`group_by=line_item`),
which reads "gpt-4o-2024-08-06, cached input": the model is what stands before the last comma. A line item without one
("web search tool calls") is a name of its own. Money is in dollars, a number or a text of many digits.
"""

from __future__ import annotations

from decimal import Decimal

from proxy.reconciliation.provider_bill.bill import BillKind, BillSubject, Bucket, JsonPath, Result

_COST = "organization.costs.result"
_COMPLETIONS = "organization.usage.completions.result"
_INPUT_ONLY = ("organization.usage.embeddings.result", "organization.usage.moderations.result")

# Parts of what is counted already: not added, but if they are no counts, the file is not what it seems.
_PARTS = ("input_audio_tokens", "output_audio_tokens")


def is_bucket(place: JsonPath) -> bool:
    """True if it looks like one of these."""
    return place.has("start_time")


def bucket(place: JsonPath) -> Bucket:
    """One bucket. Raises BillError."""
    end = place.field("end_time")
    times = end.day_of(place.field("start_time").count(), end.count())
    results = place.field("result" if place.has("result") else "results")
    return Bucket(*times, tuple(map(_result, results.items())))


def _result(place: JsonPath) -> Result:
    said = place.field("object")
    if said.value == _COST:
        return _cost(place)
    if said.value == _COMPLETIONS:
        return _usage(place, completes=True)
    if said.value in _INPUT_ONLY:
        return _usage(place, completes=False)
    raise said.wrong("is not counted in tokens or money: leave it out (known are completions, embeddings, costs)")


def _usage(place: JsonPath, *, completes: bool) -> Result:
    for name in _PARTS:
        place.count_or_zero(name)
    amounts: dict[BillKind, Decimal | int] = {
        BillKind.REQUESTS: place.field("num_model_requests").count(),
        BillKind.PROMPT: place.field("input_tokens").count(),
    }
    if completes:
        amounts[BillKind.CACHED] = place.count_or_zero("input_cached_tokens")
        amounts[BillKind.COMPLETION] = place.field("output_tokens").count()
    return Result(BillSubject.USAGE, place.text_or_none("model"), amounts)


def _cost(place: JsonPath) -> Result:
    amount = place.field("amount")
    currency = amount.field("currency")
    if currency.text().lower() != "usd":
        raise currency.wrong("must be usd")
    item = place.text_or_none("line_item")
    model = item if item is None else item.rpartition(", ")[0] or item
    return Result(BillSubject.COST, model, {BillKind.COST: amount.field("value").amount()})
