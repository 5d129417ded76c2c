"""Traces through a real proxy to a real collector of this test's own: one that takes them, one that never answers."""

from __future__ import annotations

import gzip
import socket
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from email.message import Message
from typing import Any

import pytest

from proxy.demo.script import Shape
from tests.crash.stage import PATIENCE_S, quick_key
from tests.support.http_server import answering
from tests.support.net import ask, chat_request, connect
from tests.support.provider import ScriptedProvider, error_script
from tests.support.tokenweir import COST, PRICE, Tokenweir, provider_section
from tests.telemetry.traces.spans import RECORD, SPAN, TRACE

pytest.importorskip(
    "opentelemetry.exporter.otlp.proto.http", reason="the extra tokenweir[otlp] is not installed: renew the venv"
)

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from proxy.telemetry.traces import export
from proxy.telemetry.traces.export import DROPPED, EXPORT_S, SENT, Traces

pytestmark = pytest.mark.io

TOKEN = "canary-of-the-collector"


class Collector:
    """Takes what is posted to it, by the book."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[ExportTraceServiceRequest] = []
        self.raw: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200

    def answer(self, _path: str, headers: Message, body: bytes) -> tuple[int, bytes]:
        self.headers.append({name.lower(): value for name, value in headers.items()})
        self.raw.append(gzip.decompress(body) if headers.get("Content-Encoding") == "gzip" else body)
        self.requests.append(ExportTraceServiceRequest.FromString(self.raw[-1]))
        return self.status, b""

    @property
    def spans(self) -> list[Any]:
        scopes = (s for r in self.requests for of in r.resource_spans for s in of.scope_spans)
        return [span for scope in scopes for span in scope.spans]


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    with answering(made.answer) as url:
        made.url = f"{url}/v1/traces"
        yield made


@pytest.fixture
def mute() -> Iterator[str]:
    """The address of a collector that is connected to, and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/v1/traces"


def plain(attributes: Any) -> dict[str, Any]:
    """Name → value, of OTLP's list."""

    def value(any_value: Any) -> Any:
        kind = any_value.WhichOneof("value")
        found = getattr(any_value, kind)
        return [value(one) for one in found.values] if kind == "array_value" else found

    return {one.key: value(one.value) for one in attributes}


async def stream(tokenweir: Tokenweir, key: str, model: str, traceparent: str | None) -> str:
    """One stream to its end; its exchange."""
    headers = {} if traceparent is None else {"traceparent": traceparent}
    async with await connect(tokenweir.url) as client:
        await client.send(chat_request(ask(model), key=key, headers=headers))
        response = await client.read(PATIENCE_S)
    assert (response.status, response.ended) == (200, "complete")
    return response.header("x-tokenweir-exchange") or ""


async def test_one_stream_is_one_span_with_the_ledgers_numbers_and_the_clients_parent(
    tokenweir: Callable[..., Tokenweir], provider: ScriptedProvider, collector: Collector
) -> None:
    provider.script("busy", error_script(503, "Too busy."))
    provider.script("tale", Shape("openai", tokens=7))
    targets = [
        {"provider": "first", "upstream_model": "busy"},
        {"provider": "second", "upstream_model": "tale", "cost": COST},
    ]
    headers = {"Authorization": "Bearer ${TEST_TOKEN}"}
    deployment = tokenweir(
        start=False,
        providers={name: provider_section(provider.base_url) for name in ("first", "second")},
        models={"tale": {"providers": targets, "price": PRICE}},
        traces={"endpoint": collector.url, "headers": headers, "service_name": "edge"},
    )
    deployment.environment["TEST_TOKEN"] = TOKEN
    key = quick_key(deployment)
    deployment.start()
    exchange = await stream(deployment, key, "tale", f"00-{TRACE}-{SPAN}-01")
    await stream(deployment, key, "tale", f"00-{TRACE}-{SPAN}-00")  # whose client wants no trace
    line = next(one for one in deployment.entries(4) if one["exchange_id"] == exchange and one["kind"] == "usage")
    assert deployment.stop() == 0  # what waits is sent

    (span,) = collector.spans
    told = plain(span.attributes)
    assert (span.name, span.kind, span.status.code) == ("chat tale", span.SPAN_KIND_SERVER, 0)
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, SPAN)
    assert span.span_id not in (b"\0" * 8, bytes.fromhex(SPAN))
    assert (told["tokenweir.exchange_id"], told["tokenweir.key_id"]) == (exchange, line["key_id"])
    assert (told["gen_ai.provider.name"], told["tokenweir.upstream_model"]) == ("second", "tale")
    assert told["gen_ai.usage.input_tokens"] == line["prompt_tokens"] > 0
    assert told["gen_ai.usage.output_tokens"] == line["completion_tokens"] == 7
    assert told["tokenweir.charge_usd"] == float(Decimal(line["charge_usd"])) > 0
    assert told["tokenweir.cost_usd"] == float(Decimal(line["cost_usd"])) > 0
    assert told["gen_ai.response.finish_reasons"] == [line["finish_reason"]]
    assert abs(span.end_time_unix_nano - span.start_time_unix_nano - line["duration_ms"] * 1e6) < 1e6
    (attempt,) = span.events
    assert (attempt.name, plain(attempt.attributes)["gen_ai.provider.name"]) == ("tokenweir.attempt", "first")
    (of,) = collector.requests[0].resource_spans
    assert plain(of.resource.attributes)["service.name"] == "edge"
    assert collector.headers[0]["authorization"] == f"Bearer {TOKEN}"
    sent = b"".join(collector.raw)
    for never in (line["key_alias"], key, Tokenweir.PROVIDER_KEY, TOKEN, "weir?", "127.0.0.1"):
        assert never.encode() not in sent.replace(b"tokenweir", b"")
    assert TOKEN.encode() not in deployment.outputs()


@pytest.mark.thorough
async def test_a_collector_that_never_answers_delays_neither_a_stream_nor_the_end(
    tokenweir: Callable[..., Tokenweir], provider: ScriptedProvider, mute: str
) -> None:
    provider.script("tale", Shape("openai", tokens=7))
    deployment = tokenweir(start=False, traces={"endpoint": mute}, shutdown_grace_s=0.3)
    key = quick_key(deployment)
    deployment.start()
    for _ in range(3):
        await stream(deployment, key, "tale", None)
    deployment.entries(3)
    began_at = time.monotonic()
    assert deployment.stop() == 0
    assert time.monotonic() - began_at < EXPORT_S, "one try alone lasts as long"
    assert "Traceback" not in deployment.log.read_text()


class Counts:
    """What becomes of spans."""

    def __init__(self, endpoint: str, sample: float = 1.0) -> None:
        self.of = {SENT: 0, DROPPED: 0}
        self.traces = Traces(
            endpoint=endpoint, headers={}, service_name="tokenweir", sample=sample, counted=self._counted
        )

    def _counted(self, result: str, spans: int) -> None:
        self.of[result] += spans


def test_what_does_not_fit_into_the_queue_is_lost_and_counted(mute: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "QUEUE_MAX", 8)
    monkeypatch.setattr(export, "BATCH_MAX", 2)
    counts = Counts(mute)
    for _ in range(50):
        counts.traces.ended(RECORD, None)
    assert counts.of == {SENT: 0, DROPPED: 42}
    counts.traces.close(0.05)


def test_a_collector_that_refuses_costs_the_batch_and_is_said_once(
    collector: Collector, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "BATCH_MAX", 20)
    collector.status = 400
    counts = Counts(collector.url)
    caplog.clear()
    for _ in range(3 * export.BATCH_MAX):
        counts.traces.ended(RECORD, None)
    counts.traces.close(PATIENCE_S)
    assert counts.of == {SENT: 0, DROPPED: 3 * export.BATCH_MAX}
    assert len(collector.requests) >= 3
    assert len([one for one in caplog.records if one.name.startswith("opentelemetry")]) <= 1


@pytest.mark.parametrize(
    ("sample", "parent", "spans"), [(0.0, None, 0), (0.0, "01", 1), (1.0, "00", 0), (1.0, None, 1)]
)
def test_the_client_decides_about_its_trace_and_the_setting_about_all_others(
    collector: Collector, sample: float, parent: str | None, spans: int
) -> None:
    counts = Counts(collector.url, sample)
    counts.traces.ended(RECORD, parent and f"00-{TRACE}-{SPAN}-{parent}")
    counts.traces.close(PATIENCE_S)
    counts.traces.ended(RECORD, None)  # too late, and no harm
    assert (len(collector.spans), counts.of[SENT]) == (spans, spans)
    assert all(one.trace_id.strip(b"\0") and one.span_id.strip(b"\0") for one in collector.spans)
