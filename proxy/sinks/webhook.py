"""Webhook to any server: one POST with all fields of an entry, signed like alerts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from proxy.foundation.times import iso_utc
from proxy.reports.entry_reader import entry_json
from proxy.reports.export import ExportedEntry
from proxy.settings.sinks import SinkSettings
from proxy.sinks.format import BaseFormat, SinkEvent, SinkKind, SinkRequest
from proxy.sinks.signing import signed

TYPE = "ledger.entry"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings(SinkSettings):
    """A webhook has only the settings that every sink has."""


class WebhookFormat(BaseFormat[WebhookSettings]):
    """One event with all fields of each entry, including top-ups and entries without usage."""

    batch_max = 1

    def events(self, source: ExportedEntry) -> list[SinkEvent]:
        """One event."""
        owner = source.owner
        return [SinkEvent(source.entry.entry_id, {
            "id": source.entry.entry_id,
            "type": TYPE,
            "settled_at": iso_utc(source.settled_at),
            "project_id": owner and owner.project_id,
            "organization_id": owner and owner.organization_id,
            "customer": self._customer(source),
            "entry": entry_json(source.entry),
        })]  # fmt: skip

    def request(self, events: Sequence[SinkEvent], unix_s: float) -> SinkRequest:
        """A signed POST of the event."""
        (event,) = events
        assert self._settings.secret is not None
        body = msgspec.json.encode(event.fields)
        return SinkRequest(self._settings.url, body, signed(self._settings.secret, event.event_id, body, unix_s))


WEBHOOK = SinkKind("webhook", WebhookSettings, WebhookFormat)
