"""OpenAI's exports: `GET /v1/organization/usage/completions` (and the similar `…/embeddings`, `…/images`, …) and
`GET /v1/organization/costs`, as in the API reference (Administration, Usage and Costs) and in openai/openai-openapi.

Invariants: `input_tokens` includes the cached tokens, as our prompt tokens do; both include audio and image tokens, and
what was written to a cache. A part is compared if the export has it. `service_tier` and other groups are added up.
Usage has a model if it was exported with `group_by=model`, money a line item with `group_by=line_item`. In a line item
such as "gpt-4o-2024-08-06, cached input" the model precedes the last comma; one without a comma ("web search tool
calls") is used as a name. Money is in dollars, a number or a decimal text.

Images, speech and transcriptions are counted in images, characters and seconds, our ledger counts most of their models
in tokens: of these, only requests are compared. Web searches are requests of models that `completions` has counted, so
only the searches are. File searches have no model; they are in the costs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial

from proxy.reconciliation.provider_bill.bill import (
    TOKENS,
    BillBucket,
    BillEndpoint,
    BillKind,
    BillResult,
    BillSubject,
    JsonPath,
)

_REQUESTS = (BillKind.REQUESTS,)
_INPUT = (*_REQUESTS, BillKind.PROMPT)
_ALL = (*_INPUT, BillKind.CACHED, BillKind.COMPLETION)

ENDPOINTS = (
    BillEndpoint("organization/usage/completions", BillSubject.USAGE, _ALL, ("model", "service_tier")),
    BillEndpoint("organization/usage/embeddings", BillSubject.USAGE, _INPUT, ("model",)),
    BillEndpoint("organization/usage/moderations", BillSubject.USAGE, _INPUT, ("model",)),
    BillEndpoint("organization/usage/images", BillSubject.USAGE, _REQUESTS, ("model",)),
    BillEndpoint("organization/usage/audio_speeches", BillSubject.USAGE, _REQUESTS, ("model",)),
    BillEndpoint("organization/usage/audio_transcriptions", BillSubject.USAGE, _REQUESTS, ("model",)),
    BillEndpoint("organization/usage/web_search_calls", BillSubject.USAGE, (BillKind.SEARCHES,), ("model",)),
    BillEndpoint("organization/costs", BillSubject.COST, (BillKind.COST,), ("line_item",)),
)
"""the compared endpoints; `…/file_search_calls` and others are left out because they name no models"""

# Parts of the counted tokens; audio and image tokens of the input are counted with and without the cached ones.
_PARTS: Mapping[BillKind, tuple[str, ...]] = {
    BillKind.CACHE_WRITE: ("input_cache_write_tokens",),
    BillKind.AUDIO_PROMPT: ("input_audio_tokens", "input_cached_audio_tokens"),
    BillKind.AUDIO_COMPLETION: ("output_audio_tokens",),
    BillKind.IMAGE_PROMPT: ("input_image_tokens", "input_cached_image_tokens"),
    BillKind.IMAGE_COMPLETION: ("output_image_tokens",),
}
# Not compared, but checked, because a malformed one means an unknown format.
_CHECKED = ("input_uncached_tokens", "input_text_tokens", "input_cached_text_tokens", "output_text_tokens")


def is_bucket(place: JsonPath) -> bool:
    """True if the value looks like a bucket of OpenAI's."""
    return place.has("start_time")


def bucket(place: JsonPath) -> BillBucket:
    """One bucket. Raises BillError."""
    end = place.field("end_time")
    times = end.day_of(place.field("start_time").count(), end.count())
    results = place.field("result" if place.has("result") else "results")
    return BillBucket(*times, tuple(map(_result, results.items())))


def _result(place: JsonPath) -> BillResult:
    kind = place.field("object")
    read = _READERS.get(kind.value) if isinstance(kind.value, str) else None
    if read is None:
        raise kind.wrong(f"is not supported: export {', '.join(reader.split('.')[-2] for reader in _READERS)}")
    return read(place)


def _usage(place: JsonPath, *, has_output: bool = True) -> BillResult:
    for name in _CHECKED:
        place.count_or_zero(name)
    amounts: dict[BillKind, Decimal | int] = {
        BillKind.REQUESTS: place.field("num_model_requests").count(),
        BillKind.PROMPT: place.field("input_tokens").count(),
    }
    if has_output:
        amounts[BillKind.CACHED] = place.count_or_zero("input_cached_tokens")
        amounts[BillKind.COMPLETION] = place.field("output_tokens").count()
    for kind, names in _PARTS.items():
        if any(map(place.has, names)):
            amounts[kind] = sum(map(place.count_or_zero, names))
    return BillResult(BillSubject.USAGE, place.text_or_none("model"), amounts)


def _requests(place: JsonPath, *, unit: str) -> BillResult:
    place.field(unit).count()
    amounts = {BillKind.REQUESTS: place.field("num_model_requests").count()}
    return BillResult(BillSubject.USAGE, place.text_or_none("model"), amounts, not_counted=TOKENS)


def _searches(place: JsonPath) -> BillResult:
    amounts = {BillKind.SEARCHES: place.field("num_requests").count()}
    return BillResult(BillSubject.USAGE, place.text_or_none("model"), amounts)


def _cost(place: JsonPath) -> BillResult:
    amount = place.field("amount")
    currency = amount.field("currency")
    if currency.text().lower() != "usd":
        raise currency.wrong("must be usd")
    item = place.text_or_none("line_item")
    model = item if item is None else item.rpartition(", ")[0] or item
    return BillResult(BillSubject.COST, model, {BillKind.COST: amount.field("value").amount()})


_READERS: Mapping[str, Callable[[JsonPath], BillResult]] = {
    "organization.usage.completions.result": _usage,
    "organization.usage.embeddings.result": partial(_usage, has_output=False),
    "organization.usage.moderations.result": partial(_usage, has_output=False),
    "organization.usage.images.result": partial(_requests, unit="images"),
    "organization.usage.audio_speeches.result": partial(_requests, unit="characters"),
    "organization.usage.audio_transcriptions.result": partial(_requests, unit="seconds"),
    "organization.usage.web_searches.result": _searches,
    "organization.costs.result": _cost,
}
