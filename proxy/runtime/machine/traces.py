"""Traces, if they are configured. Invariant: without the setting the SDK is not imported; with the setting but without
the extra `otlp`, the proxy does not start."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from proxy.settings import SettingsError
from proxy.settings.traces import TracesSettings
from proxy.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from proxy.telemetry.traces.export import Traces

# The time for the last spans: less than that of the last settling, which runs at the same time.
FLUSH_S = 5.0


def open_traces(settings: TracesSettings | None, metrics: Metrics) -> Traces | None:
    """Start the traces; None: not configured. Raises SettingsError if the packages are not installed."""
    if settings is None:
        return None
    try:
        from proxy.telemetry.traces.export import Traces
    except ImportError as missing:
        raise SettingsError(
            f"traces: needs packages that are not installed ({missing.name}): pip install 'tokenweir[otlp]'"
        ) from missing
    return Traces(
        endpoint=settings.endpoint,
        headers={name: value.reveal() for name, value in settings.headers.items()},
        service_name=settings.service_name,
        sample=settings.sample,
        counted=lambda result, spans: metrics.spans.labels(result).inc(spans),
    )


async def close_traces(traces: Traces | None, within_s: float) -> None:
    """Send the remaining spans, for at most `within_s`. Idempotent."""
    if traces is not None:
        await asyncio.to_thread(traces.close, min(FLUSH_S, within_s))
