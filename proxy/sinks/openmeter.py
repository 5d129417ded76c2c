"""OpenMeter: `POST /api/v1/events`, a batch of CloudEvents 1.0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from proxy.foundation.secret import Secret
from proxy.foundation.times import iso_utc
from proxy.reports.export import ExportedEntry
from proxy.reports.focus import booked_at
from proxy.settings.kinds import about, secret
from proxy.settings.sinks import SinkSettings, event_name
from proxy.sinks.format import MeterFormat, SinkEvent, SinkKind, SinkRequest

CLOUD_EVENTS = "application/cloudevents-batch+json"
_SOURCE = "tokenweir"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenMeterSettings(SinkSettings):
    """One of OpenMeter's meters."""

    secret: Secret | None = field(
        default=None, metadata=about(secret(), "the API's key; a server of your own may need none", default="none")
    )
    event: str = field(default="llm_usage", metadata=about(event_name(), "the events' `type`"))


class OpenMeterFormat(MeterFormat[OpenMeterSettings]):
    """Batches of CloudEvents."""

    def request(self, events: Sequence[SinkEvent], _unix_s: float) -> SinkRequest:
        """One request with a batch. OpenMeter ignores an event whose source and id it has already."""
        body = msgspec.json.encode([event.fields for event in events])
        headers = {**self._bearer(), "Content-Type": CLOUD_EVENTS}
        return SinkRequest(f"{self._settings.url}/api/v1/events", body, headers)

    def _fields(self, source: ExportedEntry, properties: dict[str, Any]) -> dict[str, Any]:
        return {
            "specversion": "1.0",
            "id": source.entry.entry_id,
            "source": _SOURCE,
            "type": self._settings.event,
            "subject": self._subject(source),
            "time": iso_utc(booked_at(source)),
            "datacontenttype": "application/json",
            "data": properties,
        }


OPENMETER = SinkKind("openmeter", OpenMeterSettings, OpenMeterFormat)
