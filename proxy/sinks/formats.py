"""What each kind of sink is sent, and what its answers mean. Law: an event's id is the entry's (behind it, the type of
token where an entry is several events), at every try: a server that keeps ids counts nothing twice.

Meters get usage and its corrections, not top-ups, and nothing of exchanges that come to nothing; a webhook gets every
entry whole. No meter gets what the provider charges us. Shapes are those of Stripe's `POST /v1/billing/meter_events`,
Lago's `POST /api/v1/events/batch`, OpenMeter's `POST /api/v1/events` (a batch of CloudEvents 1.0).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import urlencode

import msgspec

from proxy.billing.entries import COUNTS, EntryKind, usage_of
from proxy.billing.money import usd_text
from proxy.foundation.times import iso_utc
from proxy.reports.entry_reader import entry_json
from proxy.reports.export import ExportedEntry
from proxy.reports.focus import booked_at
from proxy.settings.sinks import CustomerSource, MeteredQuantity, SinkKind, SinkSettings
from proxy.sinks.posting import PostResult, signed

CLOUD_EVENTS = "application/cloudevents-batch+json"
TYPE = "ledger.entry"
_SOURCE = "tokenweir"


class Unsendable(Exception):  # noqa: N818  it is the entry's fault
    """This entry cannot be sent; the words are for the operator."""


class Event(msgspec.Struct, frozen=True):
    """One thing that a server is told."""

    event_id: str
    fields: Mapping[str, Any]


class Request(msgspec.Struct, frozen=True):
    """One POST."""

    url: str
    body: bytes
    headers: Mapping[str, str]


class SinkFormat(Protocol):
    """A kind of sink."""

    batch_max: int
    """events in one request"""

    def events(self, source: ExportedEntry) -> list[Event]:
        """What is to be told of an entry; it may be nothing. Raises Unsendable."""

    def request(self, events: Sequence[Event], unix_s: float) -> Request:
        """As this server wants it."""

    def known(self, answer: PostResult, count: int) -> frozenset[int]:
        """Which of the `count` events of a refused request it has already, by their places."""


def format_of(settings: SinkSettings) -> SinkFormat:
    """The one that the settings name."""
    kinds: dict[SinkKind, type[_Stripe | _Lago | _OpenMeter | _Webhook]] = {
        SinkKind.STRIPE: _Stripe,
        SinkKind.LAGO: _Lago,
        SinkKind.OPENMETER: _OpenMeter,
        SinkKind.WEBHOOK: _Webhook,
    }
    return kinds[settings.kind](settings)


class _Sink:
    """What they have in common."""

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings

    def known(self, _answer: PostResult, _count: int) -> frozenset[int]:
        """A server that takes what it has already does not refuse it."""
        return frozenset()

    def _customer(self, source: ExportedEntry) -> str | None:
        """The customer's id there, or else ours; None: there is no such level above it."""
        ours = {
            CustomerSource.KEY: (source.entry.key_id, source.entry.key_alias),
            CustomerSource.PROJECT: (source.owner.project_id, source.owner.project) if source.owner else (None, None),
            CustomerSource.ORGANIZATION: (source.owner.organization_id, source.owner.organization)
            if source.owner
            else (None, None),
        }[self._settings.subject]
        named = (self._settings.customers.get(one) for one in ours if one is not None)
        return next((one for one in named if one is not None), ours[0])

    def _subject(self, source: ExportedEntry) -> str:
        found = self._customer(source)
        if found is None:
            raise Unsendable(f"no {self._settings.subject} is known of key {source.entry.key_id}")
        return found

    def _bearer(self) -> dict[str, str]:
        secret = self._settings.secret
        return {} if secret is None else {"Authorization": f"Bearer {secret.reveal()}"}


class _Meter(_Sink):
    """Counts usage."""

    batch_max = 100

    def events(self, source: ExportedEntry) -> list[Event]:
        """One, unless there is nothing to count."""
        entry = source.entry
        counts = _counts(source)
        if entry.kind == EntryKind.CREDIT or (not any(counts.values()) and not entry.charge_usd):
            return []
        told = {
            "model": entry.model, "provider": entry.provider, "kind": entry.kind, "exchange_id": entry.exchange_id,
            "key_id": entry.key_id, "usage_source": entry.usage_source, **counts, "requests": _requests(source),
            "charge_usd": usd_text(entry.charge_usd or 0),
        }  # fmt: skip
        return [Event(entry.entry_id, self._fields(source, told))]

    def _fields(self, source: ExportedEntry, told: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError


class _Lago(_Meter):
    def request(self, events: Sequence[Event], _unix_s: float) -> Request:
        """A batch is taken whole or not at all."""
        body = msgspec.json.encode({"events": [one.fields for one in events]})
        return Request(f"{self._settings.url}/api/v1/events/batch", body, self._bearer())

    def known(self, answer: PostResult, count: int) -> frozenset[int]:
        """`{"error_details": {"3": {"transaction_id": ["value_already_exist"]}}}`; of one event, without its place."""
        details = _json(answer.body).get("error_details")
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

    def _fields(self, source: ExportedEntry, told: dict[str, Any]) -> dict[str, Any]:
        return {
            "transaction_id": source.entry.entry_id,
            "external_subscription_id": self._subject(source),
            "code": self._settings.event,
            "timestamp": f"{booked_at(source):.3f}",
            "properties": told,
        }


class _OpenMeter(_Meter):
    def request(self, events: Sequence[Event], _unix_s: float) -> Request:
        """It drops what it has already, by source and id."""
        body = msgspec.json.encode([one.fields for one in events])
        headers = {**self._bearer(), "Content-Type": CLOUD_EVENTS}
        return Request(f"{self._settings.url}/api/v1/events", body, headers)

    def _fields(self, source: ExportedEntry, told: dict[str, Any]) -> dict[str, Any]:
        return {
            "specversion": "1.0",
            "id": source.entry.entry_id,
            "source": _SOURCE,
            "type": self._settings.event,
            "subject": self._subject(source),
            "time": iso_utc(booked_at(source)),
            "datacontenttype": "application/json",
            "data": told,
        }


class _Stripe(_Sink):
    batch_max = 1

    def events(self, source: ExportedEntry) -> list[Event]:
        """One for each type of token, or one for the charge. Values are whole numbers; of a correction, below zero."""
        entry = source.entry
        if entry.kind == EntryKind.CREDIT:
            return []
        if self._settings.metered is MeteredQuantity.CHARGE:
            values = {"": entry.charge_usd or 0}
        else:
            counts = _counts(source)
            cached, prompt = counts.get("cached_tokens", 0), counts.get("prompt_tokens", 0)
            values = {"input": prompt - cached, "cached_input": cached, "output": counts.get("completion_tokens", 0)}
        made = [self._event(source, kind, value) for kind, value in values.items() if value]
        if made and self._customer(source) not in self._settings.customers.values():
            raise Unsendable(f"customers: names nobody for the {self._settings.subject} of key {entry.key_id}")
        return made

    def request(self, events: Sequence[Event], _unix_s: float) -> Request:
        """A form. No Idempotency-Key: with one, Stripe would repeat a failure for a day; `identifier` is enough."""
        (event,) = events
        headers = {**self._bearer(), "Content-Type": "application/x-www-form-urlencoded"}
        return Request(f"{self._settings.url}/v1/billing/meter_events", urlencode(event.fields).encode(), headers)

    def known(self, answer: PostResult, _count: int) -> frozenset[int]:
        """It has an event with this identifier."""
        error = _json(answer.body).get("error")
        said = str(error.get("message", "")) if isinstance(error, dict) else ""
        return frozenset({0}) if "already exists with identifier" in said else frozenset()

    def _event(self, source: ExportedEntry, kind: str, value: int) -> Event:
        entry = source.entry
        event_id = f"{entry.entry_id}:{kind}" if kind else entry.entry_id
        payload = {"stripe_customer_id": self._customer(source), "value": value, "model": entry.model}
        return Event(event_id, {
            "event_name": self._settings.event,
            "identifier": event_id,
            "timestamp": int(booked_at(source)),
            **{f"payload[{name}]": told for name, told in payload.items()},
            **({"payload[token_type]": kind} if kind else {}),
        })  # fmt: skip


class _Webhook(_Sink):
    batch_max = 1

    def events(self, source: ExportedEntry) -> list[Event]:
        """Every entry, whole."""
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
        """Signed."""
        (event,) = events
        assert self._settings.secret is not None
        body = msgspec.json.encode(event.fields)
        return Request(self._settings.url, body, signed(self._settings.secret, event.event_id, body, unix_s))


def _counts(source: ExportedEntry) -> dict[str, int]:
    usage = usage_of(source.entry)
    return {name: count for name in COUNTS if (count := getattr(usage, name)) is not None}


def _requests(source: ExportedEntry) -> int:
    """A correction is no request."""
    return int(source.entry.kind == EntryKind.USAGE)


def _json(body: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}
