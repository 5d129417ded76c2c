"""All kinds of sinks, and their list. Invariant: the settings, their reference and the senders are made of the list.

* Stripe: `POST /v1/billing/meter_events`.
* Lago: `POST /api/v1/events/batch`.
* OpenMeter: `POST /api/v1/events`, a batch of CloudEvents 1.0.
* Webhook to any server: one POST with all fields of an entry, signed like alerts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any
from urllib.parse import urlencode

import msgspec

from proxy.billing.entries import EntryKind
from proxy.foundation.secret import Secret
from proxy.foundation.times import iso_utc
from proxy.reports.entry_reader import entry_json
from proxy.reports.export import ExportedEntry
from proxy.reports.focus import booked_at
from proxy.settings.fields import setting, settings_section
from proxy.settings.kinds import choice, secret
from proxy.settings.sinks import SinkSettings, event_name
from proxy.sinks.format import (
    MeterFormat,
    PostResult,
    SinkEvent,
    SinkFormat,
    SinkKind,
    SinkRequest,
    Unsendable,
    counts_of,
    json_object,
    signed,
)


class MeteredQuantity(StrEnum):
    """The quantity that a Stripe meter counts."""

    TOKENS = "tokens"
    CHARGE = "charge"


@settings_section
class StripeSettings(SinkSettings):
    """One of Stripe's meters."""

    event: str = setting(event_name(), "the meter's `event_name`", default="llm_usage")
    metered: MeteredQuantity = setting(
        choice(MeteredQuantity),
        "the values sent: tokens by type, or the charge in nano-dollars",
        default=MeteredQuantity.TOKENS,
    )


class StripeFormat(SinkFormat[StripeSettings]):
    """Meter events. Stripe rejects an unknown customer, so `customers` must name each."""

    batch_max = 1

    def events(self, source: ExportedEntry) -> list[SinkEvent]:
        """One event for each type of token, or one for the charge. Values are integers, negative for a correction."""
        entry = source.entry
        if entry.kind == EntryKind.CREDIT:
            return []
        if self._settings.metered is MeteredQuantity.CHARGE:
            values = {"": entry.charge_nusd or 0}
        else:
            counts = counts_of(source)
            cached, prompt = counts.get("cached_tokens", 0), counts.get("prompt_tokens", 0)
            values = {"input": prompt - cached, "cached_input": cached, "output": counts.get("completion_tokens", 0)}
        made = [self._event(source, kind, value) for kind, value in values.items() if value]
        if made and self._customer(source) not in self._settings.customers.values():
            raise Unsendable(f"customers: has no id for the {self._settings.subject} of key {entry.key_id}")
        return made

    def request(self, events: Sequence[SinkEvent], _unix_s: float) -> SinkRequest:
        """A form. No Idempotency-Key: with one, Stripe would repeat a failure for a day; `identifier` is enough."""
        (event,) = events
        headers = {**self._bearer(), "Content-Type": "application/x-www-form-urlencoded"}
        return SinkRequest(f"{self._settings.url}/v1/billing/meter_events", urlencode(event.fields).encode(), headers)

    def known(self, answer: PostResult, _count: int) -> frozenset[int]:
        """Position 0 if Stripe has an event with this identifier already."""
        error = json_object(answer.body).get("error")
        message = str(error.get("message", "")) if isinstance(error, dict) else ""
        return frozenset({0}) if "already exists with identifier" in message else frozenset()

    def _event(self, source: ExportedEntry, kind: str, value: int) -> SinkEvent:
        entry = source.entry
        event_id = f"{entry.entry_id}:{kind}" if kind else entry.entry_id
        payload = {"stripe_customer_id": self._customer(source), "value": value, "model": entry.model}
        return SinkEvent(event_id, {
            "event_name": self._settings.event,
            "identifier": event_id,
            "timestamp": int(booked_at(source)),
            **{f"payload[{name}]": value for name, value in payload.items()},
            **({"payload[token_type]": kind} if kind else {}),
        })  # fmt: skip


STRIPE = SinkKind("stripe", StripeSettings, StripeFormat)


@settings_section
class LagoSettings(SinkSettings):
    """One of Lago's billable metrics."""

    event: str = setting(event_name(), "the billable metric's `code`", default="llm_usage")


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


CLOUD_EVENTS = "application/cloudevents-batch+json"
_SOURCE = "tokenweir"


@settings_section
class OpenMeterSettings(SinkSettings):
    """One of OpenMeter's meters."""

    secret: Secret | None = setting(secret(), "the API's key; a server of your own may need none", default=None)
    event: str = setting(event_name(), "the events' `type`", default="llm_usage")


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


_ENTRY_TYPE = "ledger.entry"


@settings_section
class WebhookSettings(SinkSettings):
    """A webhook has only the settings that every sink has."""


class WebhookFormat(SinkFormat[WebhookSettings]):
    """One event with all fields of each entry, including top-ups and entries without usage."""

    batch_max = 1
    sends_details = True

    def events(self, source: ExportedEntry) -> list[SinkEvent]:
        """One event."""
        owner = source.owner
        return [SinkEvent(source.entry.entry_id, {
            "id": source.entry.entry_id,
            "type": _ENTRY_TYPE,
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


KINDS: tuple[SinkKind, ...] = (
    STRIPE,
    LAGO,
    OPENMETER,
    WEBHOOK,
)

SINKS = {kind.name: kind.settings for kind in KINDS}
"""kind → settings class, for `settings.load`"""

_FORMATS = {kind.name: kind.format for kind in KINDS}


def format_of(settings: SinkSettings) -> SinkFormat[Any]:
    """The format of the kind that the settings name."""
    return _FORMATS[settings.kind](settings)


def receiving_details(names: Iterable[str], configured: Mapping[str, SinkSettings]) -> list[str]:
    """Keep the sinks that send the details of entries, and so value ids; and those that are not configured any more."""
    return [name for name in names if name not in configured or _FORMATS[configured[name].kind].sends_details]
