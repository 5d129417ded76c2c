"""Spans → an OTLP collector, by OpenTelemetry's SDK. The one module that imports it: without the extra `otlp` this
import fails.

Law: the event loop puts an ended exchange into a bounded queue and never waits; everything else is done on the SDK's
own thread. What does not fit, or is not taken, is lost and counted. Nothing is registered globally.
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

# Ended exchanges that wait for the collector: a few KB each, so some 10 MB, and four seconds of a busy process.
QUEUE_MAX = 4096
BATCH_MAX = 512
# A span is seen this much later; a batch goes as soon as it is full.
DELAY_S = 2.0
# A batch is tried again for as long, with the SDK's pauses; a collector that takes longer has no use for it.
EXPORT_S = 10.0
# How often it is said why spans do not arrive.
SAY_S = 60.0

SENT, DROPPED = "sent", "dropped"
_SDK_LOG = "opentelemetry.exporter.otlp.proto.http.trace_exporter"

Counted = Callable[[str, int], None]
"""SENT or DROPPED, how many spans more. Called from two threads"""


@dataclass(frozen=True, slots=True)
class Ended:
    """An exchange on its way to the SDK's thread, which makes a span of it; the SDK's processor asks for `context`."""

    record: UsageRecord
    context: SpanContext
    parent: SpanContext | None


class Traces:
    """What the gateway tells of ended exchanges. `close` it after the last one."""

    def __init__(
        self, *, endpoint: str, headers: Mapping[str, str], service_name: str, sample: float, counted: Counted
    ) -> None:
        """`endpoint`: the whole URL. `sample`: of exchanges whose client does not say, this share gets a span."""
        _say_seldom()
        session = requests.Session()
        session.trust_env = False  # neither a password from .netrc nor a proxy that the settings do not name
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
        """One exchange has ended; its request came with this header. Never waits, never raises."""
        parent = parent_of(traceparent)
        if not (random() < self._sample if parent is None else parent.sampled):  # noqa: S311  nobody gains by guessing it
            return
        if self._put - self._sender.taken >= QUEUE_MAX:
            self._counted(DROPPED, 1)
            return
        self._put += 1
        trace_id = getrandbits(128) or 1 if parent is None else parent.trace_id
        self._processor.on_end(Ended(record, _context(trace_id, getrandbits(64) or 1), _remote(parent)))

    def close(self, within_s: float) -> None:
        """Send what waits, for at most so long; blocks. What is left then is lost."""
        closing = Thread(target=self._processor.shutdown, name="traces-close", daemon=True)
        closing.start()
        closing.join(within_s)
        self._sender.shutdown()


class _Sender:
    """The processor's exporter: ended exchanges → spans → the collector. On the processor's thread."""

    def __init__(self, otlp: OTLPSpanExporter, resource: Resource, counted: Counted) -> None:
        self._otlp = otlp
        self._resource = resource
        self._counted = counted
        self._closed = False
        self.taken = 0
        """of those that were put into the queue, so many wait no more"""

    def export(self, batch: Sequence[Ended]) -> SpanExportResult:
        """One batch, sent or lost."""
        result = SpanExportResult.FAILURE
        try:
            if not self._closed:
                result = self._otlp.export([_span(ended, self._resource) for ended in batch])
        finally:
            self.taken += len(batch)
            self._counted(SENT if result is SpanExportResult.SUCCESS else DROPPED, len(batch))
        return result

    def shutdown(self) -> None:
        """Nothing more is sent, and what is tried is not tried again. A second time is nothing."""
        if not self._closed:
            self._closed = True
            self._otlp.shutdown()


def _span(ended: Ended, resource: Resource) -> ReadableSpan:
    told = span_of(ended.record)
    return ReadableSpan(
        name=told.name,
        context=ended.context,
        parent=ended.parent,
        resource=resource,
        attributes=told.attributes,
        events=[Event(one.name, one.attributes, one.at_ns) for one in told.events],
        kind=SpanKind.SERVER,
        status=Status(StatusCode.UNSET if told.error is None else StatusCode.ERROR),
        start_time=told.start_ns,
        end_time=told.end_ns,
        instrumentation_scope=InstrumentationScope("tokenweir", __version__),
    )


def _context(trace_id: int, span_id: int, *, is_remote: bool = False) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote=is_remote, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _remote(parent: Parent | None) -> SpanContext | None:
    return None if parent is None else _context(parent.trace_id, parent.span_id, is_remote=True)


class _Seldom(logging.Filter):
    """Lets the first of many lines through, and then one in each SAY_S."""

    def __init__(self) -> None:
        super().__init__()
        self._next_at = 0.0

    def filter(self, _line: Any) -> bool:
        """Whether it is logged."""
        now = monotonic()
        if now < self._next_at:
            return False
        self._next_at = now + SAY_S
        return True


def _say_seldom() -> None:
    """The SDK says with every try why it failed: the reason is worth a line, each try is not."""
    log = logging.getLogger(_SDK_LOG)
    if not any(isinstance(one, _Seldom) for one in log.filters):
        log.addFilter(_Seldom())
