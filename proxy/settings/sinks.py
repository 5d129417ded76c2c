"""The settings of what pushes entries to others. Law: as of all settings; see values.py."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from proxy.foundation.secret import Secret
from proxy.settings.kinds import FieldPath, FieldType, about, choice, secret, text
from proxy.settings.urls import url

SINK_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}", re.ASCII)
_EVENT = re.compile(r"[A-Za-z0-9_.:-]{1,100}", re.ASCII)


class SinkKind(StrEnum):
    """Whose language it speaks."""

    STRIPE = "stripe"
    LAGO = "lago"
    OPENMETER = "openmeter"
    WEBHOOK = "webhook"


class CustomerSource(StrEnum):
    """Who is the customer there."""

    KEY = "key"
    PROJECT = "project"
    ORGANIZATION = "organization"


class MeteredQuantity(StrEnum):
    """What a Stripe meter counts."""

    TOKENS = "tokens"
    CHARGE = "charge"


def _customers() -> FieldType:
    """Our id or name → theirs."""
    words = "a mapping of ids, names or aliases to ids there"

    def read(raw: object, at: FieldPath) -> dict[str, str]:
        if not isinstance(raw, dict):
            raise at.wrong(f"must be {words}")
        for ours, theirs in raw.items():
            if not isinstance(ours, str) or not isinstance(theirs, str) or not ours or not theirs:
                raise at.under(str(ours)).wrong("must be a text")
        return dict(raw)

    return FieldType(words, read)


def _moment() -> FieldType:
    """A day or a time, in UTC → Unix seconds."""
    words = "a day or a time: 2026-11-01, 2026-11-01T12:00:00Z"

    def read(raw: object, at: FieldPath) -> float:
        try:
            moment = datetime.fromisoformat(str(raw))  # YAML may have made a date of it
        except ValueError:
            raise at.wrong(f"must be {words}") from None
        if not 1970 <= moment.year < 9999:
            raise at.wrong(f"must be {words}")
        return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()

    return FieldType(words, read)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """One server that every entry is pushed to."""

    name: str
    kind: SinkKind = field(metadata=about(choice(SinkKind), "whose language it speaks"))
    url: str = field(
        metadata=about(
            url(), "where it is, without the API's path: `https://api.stripe.com`, `https://api.getlago.com`, "
            "`https://openmeter.cloud`; of a webhook, all of it"
        )
    )  # fmt: skip
    secret: Secret | None = field(
        default=None,
        metadata=about(
            secret(), "the API's key; of a webhook, what it is signed with. Only an OpenMeter of your own needs none",
            default="none",
        ),
    )  # fmt: skip
    event: str = field(
        default="llm_usage",
        metadata=about(
            text(_EVENT, "a name of A-Z a-z 0-9 _ . : -"), "Stripe's `event_name`, Lago's `code`, OpenMeter's `type`"
        ),
    )
    subject: CustomerSource = field(
        default=CustomerSource.KEY,
        metadata=about(choice(CustomerSource), "who is the customer there: the key, or what is above it"),
    )
    customers: Mapping[str, str] = field(
        default_factory=dict,
        metadata=about(
            _customers(), "the customer's id there: Stripe's `cus_…`, Lago's external subscription; who is not named "
            "goes by our id, but to Stripe not at all", default="{}",
        ),
    )  # fmt: skip
    metered: MeteredQuantity = field(
        default=MeteredQuantity.TOKENS,
        metadata=about(
            choice(MeteredQuantity), "what Stripe's meter counts: tokens by type, or the charge in nano-dollars"
        ),
    )
    since: float | None = field(
        default=None,
        metadata=about(
            _moment(), "what is settled from then on goes there; counts when the sink is new", default="its first start"
        ),
    )
    """Unix seconds"""
