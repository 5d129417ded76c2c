"""What a span says of an exchange, and what it never says."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from proxy.billing.money import NUSD_PER_USD
from proxy.billing.record import BillableParts, Outcome, UsageRecord
from proxy.billing.settlement import entry
from proxy.metering.dialects import DIALECTS
from proxy.metering.usage import NOTHING
from proxy.telemetry.traces.span import CHARS_MAX, Parent, SpanEvent, operation, parent_of, span_of
from tests.telemetry.traces.spans import OPENED, RECORD, SPAN, TRACE


def test_a_span_has_the_numbers_of_the_ledger_and_the_names_of_the_conventions() -> None:
    line, span = entry(RECORD), span_of(RECORD)
    assert line.charge_nusd is not None
    assert line.cost_nusd is not None
    assert (span.name, span.error) == ("chat large", None)
    assert (span.start_ns, span.end_ns) == (1_700_000_000_500_000_000, 1_700_000_002_000_000_000)
    assert span.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "mistral",
        "gen_ai.request.model": "large",
        "gen_ai.request.stream": True,
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 20,
        "gen_ai.usage.output_tokens": 10,
        "gen_ai.usage.cache_read.input_tokens": 5,
        "gen_ai.usage.cache_write.input_tokens": 3,
        "gen_ai.usage.reasoning.output_tokens": 4,
        "tokenweir.exchange_id": "0199-e",
        "tokenweir.key_id": "key_1",
        "tokenweir.upstream_model": "large-2",
        "tokenweir.outcome": "served",
        "tokenweir.usage_source": "reported",
        "tokenweir.charge_usd": line.charge_nusd / NUSD_PER_USD,
        "tokenweir.cost_usd": line.cost_nusd / NUSD_PER_USD,
        "tokenweir.price_version": "v7",
        "tokenweir.time_to_first_token_s": 0.3,
    }
    whole = span_of(structs.replace(RECORD, opened=structs.replace(OPENED, streamed=False)))
    assert span.attributes.keys() - whole.attributes.keys() == {"tokenweir.time_to_first_token_s"}
    told = {"gen_ai.provider.name": "first", "tokenweir.upstream_model": "large-1", "tokenweir.failed": "refused"}
    told |= {"tokenweir.duration_s": 0.04, "tokenweir.upstream_status": 429}
    assert span.events == (SpanEvent("tokenweir.attempt", 1_700_000_000_750_000_000, told),)


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_has_a_span_and_a_failure_says_which(outcome: Outcome) -> None:
    opened = structs.replace(OPENED, price=None, cost=None, attempts=())
    details = {"upstream_status": 503, "failed": "broke off", "limit": "idle_s"}
    span = span_of(UsageRecord(opened, outcome, NOTHING, BillableParts.NOTHING, 0, 0, 2.0, details=details))
    fails = outcome not in (Outcome.SERVED, Outcome.CLIENT_LEFT)
    assert span.error == (outcome.value if fails else None) == span.attributes.get("error.type")
    assert span.attributes["tokenweir.outcome"] == outcome.value
    assert {name: span.attributes[f"tokenweir.{name}"] for name in details} == details
    assert not [name for name in span.attributes if name.startswith("gen_ai.usage")], "what is unknown is not told as 0"
    assert "tokenweir.price_version" not in span.attributes


def test_what_others_said_is_cut_and_can_be_written() -> None:
    opened = structs.replace(OPENED, model="m\ud800" + "x" * 1000)
    span = span_of(structs.replace(RECORD, opened=opened, finish_reason="\udfff"))
    assert span.attributes["gen_ai.request.model"] == "m?" + "x" * (CHARS_MAX - 2)
    assert span.attributes["gen_ai.response.finish_reasons"] == ("?",)
    assert len(span.name) == CHARS_MAX


def test_every_language_has_an_operation() -> None:
    named = {operation(dialect.endpoint) for dialect in DIALECTS}
    assert named == {
        "chat", "text_completion", "generate_content", "embeddings", "count_tokens", "moderation", "rerank",
        "image_generation", "speech", "transcription", "translation", "ocr", "realtime",
    }  # fmt: skip
    assert operation("/v1/fim/completions") == operation("/v1/completions") == "text_completion"
    assert operation("/openai/deployments/{model}/chat/completions") == "chat"
    assert operation("/v1/of-an-older-version") == "of-an-older-version"


@pytest.mark.parametrize(
    ("header", "parent"),
    [
        (f"00-{TRACE}-{SPAN}-01", Parent(int(TRACE, 16), int(SPAN, 16), sampled=True)),
        (f" 00-{TRACE}-{SPAN}-00 ", Parent(int(TRACE, 16), int(SPAN, 16), sampled=False)),
        (f"01-{TRACE}-{SPAN}-03-more", Parent(int(TRACE, 16), int(SPAN, 16), sampled=True)),
        (None, None),
        ("", None),
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{TRACE.upper()}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE}-{SPAN}", None),
        (f"00-{TRACE}-{SPAN}-01,00-{TRACE}-{SPAN}-01", None),
    ],
)
def test_a_parent_is_what_a_valid_header_says(header: Any, parent: Parent | None) -> None:
    assert parent_of(header) == parent
