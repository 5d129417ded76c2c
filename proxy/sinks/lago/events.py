"""Lago's events, in batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from proxy.reports.export import ExportedEntry
from proxy.reports.focus import booked_at
from proxy.sinks.format import Event, MeterFormat, PostResult, Request, SinkKind, json_object
from proxy.sinks.lago.settings import LagoSettings


class LagoFormat(MeterFormat[LagoSettings]):
    """Batches of events."""

    def request(self, events: Sequence[Event], _unix_s: float) -> Request:
        """Lago takes a batch whole or not at all."""
        body = msgspec.json.encode({"events": [one.fields for one in events]})
        return Request(f"{self._settings.url}/api/v1/events/batch", body, self._bearer())

    def known(self, answer: PostResult, count: int) -> frozenset[int]:
        """`{"error_details": {"3": {"transaction_id": ["value_already_exist"]}}}`; of one event, without its place."""
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
