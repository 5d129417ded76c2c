"""Stripe: `POST /v1/billing/meter_events`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlencode

from proxy.billing.entries import EntryKind
from proxy.reports.export import ExportedEntry
from proxy.reports.focus import booked_at
from proxy.settings.kinds import about, choice
from proxy.settings.sinks import SinkSettings, event_name
from proxy.sinks.format import (
    BaseFormat,
    PostResult,
    SinkEvent,
    SinkKind,
    SinkRequest,
    Unsendable,
    counts_of,
    json_object,
)


class MeteredQuantity(StrEnum):
    """The quantity that a Stripe meter counts."""

    TOKENS = "tokens"
    CHARGE = "charge"


@dataclass(frozen=True, slots=True, kw_only=True)
class StripeSettings(SinkSettings):
    """One of Stripe's meters."""

    event: str = field(default="llm_usage", metadata=about(event_name(), "the meter's `event_name`"))
    metered: MeteredQuantity = field(
        default=MeteredQuantity.TOKENS,
        metadata=about(choice(MeteredQuantity), "the values sent: tokens by type, or the charge in nano-dollars"),
    )


class StripeFormat(BaseFormat[StripeSettings]):
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
