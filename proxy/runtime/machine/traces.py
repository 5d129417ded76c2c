"""Traces, if they are wanted. Law: without the setting nothing of the SDK is imported; with it, and without the extra
that brings the SDK, the proxy does not start."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from proxy.settings import SettingsError
from proxy.settings.traces import TracesSettings
from proxy.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from proxy.telemetry.traces.export import Traces

# The collector gets as long at the end for what still waits: less than the ledger gets, beside which it is done.
FLUSH_S = 5.0


def open_traces(settings: TracesSettings | None, metrics: Metrics) -> Traces | None:
    """From now on. Raises SettingsError: the packages are not there."""
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
    """Send what waits; never longer than so."""
    if traces is not None:
        await asyncio.to_thread(traces.close, min(FLUSH_S, within_s))
