"""Lago: `POST /api/v1/events/batch`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from proxy.reports.export import ExportedEntry
from proxy.reports.focus import booked_at
from proxy.settings.kinds import about
from proxy.settings.sinks import SinkSettings, event_name
from proxy.sinks.format import MeterFormat, PostResult, SinkEvent, SinkKind, SinkRequest, json_object


@dataclass(frozen=True, slots=True, kw_only=True)
class LagoSettings(SinkSettings):
    """One of Lago's billable metrics."""

    event: str = field(default="llm_usage", metadata=about(event_name(), "the billable metric's `code`"))


class LagoFormat(MeterFormat[LagoSettings]):
    """Batches of events."""

    def request(self, events: Sequence[SinkEvent], _unix_s: float) -> SinkRequest:
        """One request with a batch, which Lago accepts or rejects as a whole."""
        body = msgspec.json.encode({"events": [event.fields for event in events]})
        return SinkRequest(f"{self._settings.url}/api/v1/events/batch", body, self._bearer())

    def known(self, answer: PostResult, count: int) -> frozenset[int]:
        """`{"error_details": {"3": {"transaction_id": ["value_already_exist"]}}}`; for a single event, without its
        position."""
        details = json_object(answer.body).get("error_details")
        if not isinstance(details, dict):
            return frozenset()
        if count == 1 and "0" not in details:
            details = {"0": details}
        places = {int(place): errors for place, errors in details.items() if place.isascii() and place.isdecimal()}
        return frozenset(
            place
            for place, errors in places.items()
            if place < count and isinstance(errors, dict) and "value_already_exist" in errors.get("transaction_id", ())
        )

    def _fields(self, source: ExportedEntry, properties: dict[str, Any]) -> dict[str, Any]:
        return {
            "transaction_id": source.entry.entry_id,
            "external_subscription_id": self._subject(source),
            "code": self._settings.event,
            "timestamp": f"{booked_at(source):.3f}",
            "properties": properties,
        }


LAGO = SinkKind("lago", LagoSettings, LagoFormat)
