"""OpenMeter's events: CloudEvents 1.0, in batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from proxy.foundation.times import iso_utc
from proxy.reports.export import ExportedEntry
from proxy.reports.focus import booked_at
from proxy.sinks.format import Event, MeterFormat, Request, SinkKind
from proxy.sinks.openmeter.settings import OpenMeterSettings

CLOUD_EVENTS = "application/cloudevents-batch+json"
_SOURCE = "tokenweir"


class OpenMeterFormat(MeterFormat[OpenMeterSettings]):
    """Batches of CloudEvents."""

    def request(self, events: Sequence[Event], _unix_s: float) -> Request:
        """OpenMeter drops an event that it has already, by source and id."""
        body = msgspec.json.encode([one.fields for one in events])
        headers = {**self._bearer(), "Content-Type": CLOUD_EVENTS}
        return Request(f"{self._settings.url}/api/v1/events", body, headers)

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
