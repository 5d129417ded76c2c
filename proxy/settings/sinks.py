"""The settings that all kinds of sinks share. Invariants: those of values.py.

The settings of one kind are declared with its format, in `proxy/sinks`; the reader of a file passes them in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum

from proxy.foundation.secret import Secret
from proxy.settings.fields import FieldPath, FieldType, names, read_section, setting, settings_section
from proxy.settings.kinds import choice, secret, text
from proxy.settings.urls import url

SINK_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}", re.ASCII)
_NAME_WORDS = "name of a-z 0-9 _ . -, up to 64"
_EVENT = re.compile(r"[A-Za-z0-9_.:-]{1,100}", re.ASCII)


class CustomerSource(StrEnum):
    """The level of an entry's owner that is the sink's customer."""

    KEY = "key"
    PROJECT = "project"
    ORGANIZATION = "organization"


def event_name() -> FieldType:
    """The name of an event or of a meter."""
    return text(_EVENT, "a name of A-Z a-z 0-9 _ . : -")


def _customers() -> FieldType:
    """Our id, name or alias → the customer's id on the server."""
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


def _kind() -> FieldType:
    """One of the kinds of sinks that were passed in."""

    def read(raw: object, at: FieldPath) -> str:
        value = at.filled(raw) if isinstance(raw, str) else ""
        if value not in at.sinks:
            raise at.wrong(f"must be {' or '.join(f'`{kind}`' for kind in at.sinks)}")
        return value

    return FieldType("", read)


@settings_section
class SinkSettings:
    """The settings of any sink: a server that receives every entry."""

    name: str
    kind: str = setting(_kind(), "the API that receives the entries")
    url: str = setting(
        url(),
        "the server, without the API's path: `https://api.stripe.com`, `https://api.getlago.com`, "
        "`https://openmeter.cloud`; of a webhook, the whole URL",
    )
    secret: Secret | None = setting(secret(), "the API's key; of a webhook, the key of its signatures")
    subject: CustomerSource = setting(
        choice(CustomerSource),
        "the customer of an entry: its key, or the project or organization above the key",
        default=CustomerSource.KEY,
    )
    customers: Mapping[str, str] = setting(
        _customers(),
        "the customer's id on the server: Stripe's `cus_…`, Lago's external subscription. Others are "
        "sent by our id, except to Stripe, which refuses them",
        default_factory=dict,
        shown="{}",
    )
    since: float | None = setting(
        _moment(),
        "send entries settled at or after this time; applies only when the sink is new",
        default=None,
        shown="the sink's first start",
    )
    """Unix seconds"""


def sinks() -> FieldType:
    """Sinks by name, each read with the settings of its kind."""

    def read(raw: object, at: FieldPath) -> dict[str, SinkSettings]:
        named = names(raw, at, SINK_NAME, _NAME_WORDS)
        return {name: _sink(below, at.under(name), name) for name, below in named.items()}

    return FieldType(_NAME_WORDS, read, SinkSettings, suffix=".<name>")


def _sink(raw: object, at: FieldPath, name: str) -> SinkSettings:
    if not isinstance(raw, dict):
        raise at.wrong("must be a mapping of fields")
    if raw.get("kind") is None:
        raise at.under("kind").wrong("is missing")
    sink: SinkSettings = read_section(at.sinks[_kind().read(raw["kind"], at.under("kind"))], raw, at, name=name)
    return sink
