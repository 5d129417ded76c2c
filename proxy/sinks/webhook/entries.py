"""A webhook for each entry, signed."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from proxy.foundation.times import iso_utc
from proxy.reports.entry_reader import entry_json
from proxy.reports.export import ExportedEntry
from proxy.sinks.format import BaseFormat, Event, Request, SinkKind
from proxy.sinks.signing import signed
from proxy.sinks.webhook.settings import WebhookSettings

TYPE = "ledger.entry"


class WebhookFormat(BaseFormat[WebhookSettings]):
    """Every entry whole, top-ups and entries without usage too."""

    batch_max = 1

    def events(self, source: ExportedEntry) -> list[Event]:
        """One event."""
        owner = source.owner
        return [Event(source.entry.entry_id, {
            "id": source.entry.entry_id,
            "type": TYPE,
            "settled_at": iso_utc(source.settled_at),
            "project_id": owner and owner.project_id,
            "organization_id": owner and owner.organization_id,
            "customer": self._customer(source),
            "entry": entry_json(source.entry),
        })]  # fmt: skip

    def request(self, events: Sequence[Event], unix_s: float) -> Request:
        """A signed POST of the event."""
        (event,) = events
        assert self._settings.secret is not None
        body = msgspec.json.encode(event.fields)
        return Request(self._settings.url, body, signed(self._settings.secret, event.event_id, body, unix_s))


WEBHOOK = SinkKind("webhook", WebhookSettings, WebhookFormat)
