"""Sends spans to an OTLP collector by OpenTelemetry's SDK. The only module that imports the SDK: it needs the extra
`otlp`.

Invariants: the event loop puts an ended exchange into a bounded queue and never waits; the SDK's thread does the rest.
Spans that do not fit or are not accepted are lost and counted. Nothing is registered globally.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import getrandbits, random
from threading import Thread
from time import monotonic
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from proxy import __version__
from proxy.billing.record import UsageRecord
from proxy.telemetry.traces.span import Parent, parent_of, span_of

# Ended exchanges that wait for the collector: a few KB each, about 10 MB in all, and four seconds of a busy process.
QUEUE_MAX = 4096
BATCH_MAX = 512
# Longest delay of a span; a full batch is sent at once.
DELAY_S = 2.0
# A batch is retried for this long, with the SDK's pauses, and then lost.
EXPORT_S = 10.0
# Shortest interval between two log lines about failed exports.
LOG_S = 60.0

SENT, DROPPED = "sent", "dropped"
_SDK_LOG = "opentelemetry.exporter.otlp.proto.http.trace_exporter"

Counted = Callable[[str, int], None]
"""called with SENT or DROPPED, and the number of spans; from two threads"""


@dataclass(frozen=True, slots=True)
class Ended:
    """An ended exchange for the SDK's thread, which makes its span; the SDK's processor reads `context`."""

    record: UsageRecord
    context: SpanContext
    parent: SpanContext | None


class Traces:
    """Receives ended exchanges from the gateway. `close` it after the last one."""

    def __init__(
        self, *, endpoint: str, headers: Mapping[str, str], service_name: str, sample: float, counted: Counted
    ) -> None:
        """`endpoint`: the complete URL. `sample`: share of exchanges with a span, among those without a traceparent."""
        _limit_sdk_log()
        session = requests.Session()
        session.trust_env = False  # no password from .netrc, no proxy from the environment
        otlp = OTLPSpanExporter(endpoint=endpoint, headers=dict(headers), timeout=EXPORT_S, session=session)
        resource = Resource.create({"service.name": service_name, "service.version": __version__})
        self._sample = sample
        self._counted = counted
        self._put = 0
        self._sender = _Sender(otlp, resource, counted)
        self._processor = BatchSpanProcessor(
            self._sender, max_queue_size=QUEUE_MAX, max_export_batch_size=BATCH_MAX,
            schedule_delay_millis=DELAY_S * 1000,
        )  # fmt: skip

    def ended(self, record: UsageRecord, traceparent: str | None) -> None:
        """Queue the span of an ended exchange. `traceparent`: the header of its request. Never waits, never raises."""
        parent = parent_of(traceparent)
        if not (random() < self._sample if parent is None else parent.sampled):  # noqa: S311  not a secret
            return
        if self._put - self._sender.taken >= QUEUE_MAX:
            self._counted(DROPPED, 1)
            return
        self._put += 1
        trace_id = getrandbits(128) or 1 if parent is None else parent.trace_id
        self._processor.on_end(Ended(record, _context(trace_id, getrandbits(64) or 1), _remote(parent)))

    def close(self, within_s: float) -> None:
        """Send the waiting spans for at most `within_s` seconds; blocks. The remaining spans are lost."""
        closing = Thread(target=self._processor.shutdown, name="traces-close", daemon=True)
        closing.start()
        closing.join(within_s)
        self._sender.shutdown()


class _Sender:
    """The processor's exporter: makes spans of ended exchanges and sends them. On the processor's thread."""

    def __init__(self, otlp: OTLPSpanExporter, resource: Resource, counted: Counted) -> None:
        self._otlp = otlp
        self._resource = resource
        self._counted = counted
        self._closed = False
        self.taken = 0
        """number of exchanges taken from the queue"""

    def export(self, batch: Sequence[Ended]) -> SpanExportResult:
        """Send one batch and count its spans."""
        result = SpanExportResult.FAILURE
        try:
            if not self._closed:
                result = self._otlp.export([_span(ended, self._resource) for ended in batch])
        finally:
            self.taken += len(batch)
            self._counted(SENT if result is SpanExportResult.SUCCESS else DROPPED, len(batch))
        return result

    def shutdown(self) -> None:
        """Stop sending and retrying. Idempotent."""
        if not self._closed:
            self._closed = True
            self._otlp.shutdown()


def _span(ended: Ended, resource: Resource) -> ReadableSpan:
    span = span_of(ended.record)
    return ReadableSpan(
        name=span.name,
        context=ended.context,
        parent=ended.parent,
        resource=resource,
        attributes=span.attributes,
        events=[Event(one.name, one.attributes, one.at_ns) for one in span.events],
        kind=SpanKind.SERVER,
        status=Status(StatusCode.UNSET if span.error is None else StatusCode.ERROR),
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=InstrumentationScope("tokenweir", __version__),
    )


def _context(trace_id: int, span_id: int, *, is_remote: bool = False) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote=is_remote, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _remote(parent: Parent | None) -> SpanContext | None:
    return None if parent is None else _context(parent.trace_id, parent.span_id, is_remote=True)


class _RateLimit(logging.Filter):
    """Passes the first log line, then at most one line every LOG_S."""

    def __init__(self) -> None:
        super().__init__()
        self._next_at = 0.0

    def filter(self, _line: Any) -> bool:
        """True if the line is logged."""
        now = monotonic()
        if now < self._next_at:
            return False
        self._next_at = now + LOG_S
        return True


def _limit_sdk_log() -> None:
    """Limit the rate of the SDK's log, which has a line for every failed try."""
    log = logging.getLogger(_SDK_LOG)
    if not any(isinstance(one, _RateLimit) for one in log.filters):
        log.addFilter(_RateLimit())
