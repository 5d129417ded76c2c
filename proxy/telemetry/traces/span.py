"""Makes a record's span, with the attribute names of OpenTelemetry's GenAI conventions and the prefix `tokenweir.`.

Invariants: attributes are ids, configured or requested names, counts, times and closed sets of values; never a prompt,
a completion, a header, an address or a secret. A key appears by its id, not by its alias: an alias is free text, and
traces have more readers than the ledger. Money is a float for charts; the exact amount is in the ledger.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from proxy.billing.details import EntryDetails, detail_name
from proxy.billing.money import NUSD_PER_USD, Nusd
from proxy.billing.record import Attempt, Outcome, UsageRecord
from proxy.billing.settlement import amounts
from proxy.metering.dialects import DIALECTS
from proxy.metering.usage import Usage

Value = str | bool | int | float | tuple[str, ...]

# Longer than any known id or finish reason of a provider; longer texts are cut.
CHARS_MAX = 256

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII | re.DOTALL)

_OPERATIONS = {dialect.endpoint: dialect.operation for dialect in DIALECTS}

# A client's disconnect is not an error; a refusal by the provider is.
_NO_ERROR = (Outcome.SERVED, Outcome.CLIENT_LEFT)


# Details of a failed exchange: reason, limit, HTTP status. Their values are numbers or from closed sets.
_WHY = tuple(map(detail_name, (EntryDetails.failed, EntryDetails.limit, EntryDetails.upstream_status)))


@dataclass(frozen=True, slots=True)
class Parent:
    """The client's span from a valid `traceparent` header."""

    trace_id: int
    span_id: int
    sampled: bool


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """An event within a span."""

    name: str
    at_ns: int
    attributes: dict[str, Value]


@dataclass(frozen=True, slots=True)
class Span:
    """The span of one exchange. Times: Unix, in nanoseconds."""

    name: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Value]
    events: tuple[SpanEvent, ...]
    error: str | None
    """the attribute `error.type`; None: no error"""


def parent_of(traceparent: str | None) -> Parent | None:
    """The parsed header, by W3C's Trace Context; None if it is missing or invalid."""
    match = None if traceparent is None else _PARENT.fullmatch(traceparent.strip())
    if match is None:
        return None
    version, trace_id, span_id = match[1], int(match[2], 16), int(match[3], 16)
    if version == "ff" or (version == "00" and match[5] is not None) or not trace_id or not span_id:
        return None
    return Parent(trace_id, span_id, sampled=bool(int(match[4], 16) & 1))


def operation(endpoint: str) -> str:
    """`gen_ai.operation.name` of a dialect's endpoint; of an unknown endpoint, its last path segment."""
    return _OPERATIONS.get(endpoint) or endpoint.rpartition("/")[2]


def span_of(record: UsageRecord) -> Span:
    """The record's span. Never raises: every record has one."""
    opened = record.opened
    failed = record.outcome not in _NO_ERROR
    attributes = {name: value for name, value in _attributes(record) if value is not None}
    if failed:
        attributes["error.type"] = record.outcome.value
    return Span(
        name=_text(f"{operation(opened.endpoint)} {opened.model}"),
        start_ns=_ns(opened.started_at),
        end_ns=_ns(opened.started_at + record.duration_ms / 1000),
        attributes=attributes,
        events=tuple(map(_event, opened.attempts)),
        error=record.outcome.value if failed else None,
    )


def _attributes(record: UsageRecord) -> Iterator[tuple[str, Value | None]]:
    opened, reading = record.opened, record.reading
    yield "gen_ai.operation.name", operation(opened.endpoint)
    yield "gen_ai.provider.name", opened.provider
    yield "gen_ai.request.model", _text(opened.model)
    yield "gen_ai.request.stream", opened.streamed
    yield "gen_ai.response.id", _text_or_none(record.provider_response_id)
    yield "gen_ai.response.finish_reasons", None if record.finish_reason is None else (_text(record.finish_reason),)
    yield from _counts(reading.usage)
    yield "tokenweir.exchange_id", opened.exchange_id
    yield "tokenweir.key_id", opened.key_id
    yield "tokenweir.upstream_model", _text(opened.upstream_model)
    yield "tokenweir.outcome", record.outcome.value
    yield "tokenweir.usage_source", reading.source.value
    charge_nusd, cost_nusd = amounts(record)
    yield "tokenweir.charge_usd", _usd(charge_nusd)
    yield "tokenweir.cost_usd", _usd(cost_nusd)
    yield "tokenweir.price_version", opened.price.version if opened.price else None
    if record.first_token_ms is not None and opened.streamed:
        yield "tokenweir.time_to_first_token_s", record.first_token_ms / 1000
    for name in _WHY:
        yield f"tokenweir.{name}", record.details.get(name)


def _counts(usage: Usage) -> Iterator[tuple[str, int | None]]:
    """The span's token counts. Cached, cache-write and audio tokens are parts of the input; reasoning and audio tokens,
    of the output."""
    yield "gen_ai.usage.input_tokens", usage.prompt_tokens
    yield "gen_ai.usage.output_tokens", usage.completion_tokens
    yield "gen_ai.usage.cache_read.input_tokens", usage.cached_tokens
    yield "gen_ai.usage.cache_write.input_tokens", usage.cache_write_tokens
    yield "gen_ai.usage.reasoning.output_tokens", usage.reasoning_tokens
    yield "gen_ai.usage.audio.input_tokens", usage.audio_prompt_tokens
    yield "gen_ai.usage.audio.output_tokens", usage.audio_completion_tokens


def _event(attempt: Attempt) -> SpanEvent:
    """The event of a failed attempt."""
    attributes: dict[str, Value] = {
        "gen_ai.provider.name": attempt.provider,
        "tokenweir.upstream_model": _text(attempt.upstream_model),
        "tokenweir.failed": attempt.failed,
        "tokenweir.duration_s": attempt.duration_ms / 1000,
    }
    if attempt.status is not None:
        attributes["tokenweir.upstream_status"] = attempt.status
    return SpanEvent("tokenweir.attempt", _ns(attempt.started_at), attributes)


def _text(text: str) -> str:
    """A client's or provider's text, cut, as valid UTF-8: a lone surrogate would lose the whole batch."""
    return text[:CHARS_MAX].encode("utf-8", "replace").decode("utf-8")


def _text_or_none(text: str | None) -> str | None:
    return None if text is None else _text(text)


def _usd(nusd: Nusd | None) -> float | None:
    return None if nusd is None else nusd / NUSD_PER_USD


def _ns(seconds: float) -> int:
    """Nanoseconds, rounded to microseconds: the precision of a current Unix time as a float."""
    return round(seconds * 1_000_000) * 1000
