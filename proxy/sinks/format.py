"""Formats of sinks: from a ledger entry to the requests for a server.

Invariants: an event has the id of its entry, at every attempt (with a suffix where an entry is several events), so that
a server that deduplicates by id counts no usage twice. Meters get usage and corrections, not top-ups, and no exchanges
without usage and charge; no meter gets the provider's cost.

Headers of a signed request (https://www.standardwebhooks.com):

    webhook-id             id of the event; the same for every attempt
    webhook-timestamp      Unix seconds of this attempt
    webhook-signature      v1,base64(HMAC-SHA256(key, id + "." + timestamp + "." + body)); `key`: the secret, or what
                           stands in base64 after `whsec_`

and those of 0.1, until 0.3: X-Tokenweir-Id, X-Tokenweir-Timestamp, and

    X-Tokenweir-Signature  v1=hex(HMAC-SHA256(secret, timestamp + "." + body))

To add a kind: a module with its settings and its format, and one line in `kinds.py`.
"""

from __future__ import annotations

import hashlib
import hmac
from abc import ABC, abstractmethod
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from proxy.billing.entries import COUNTS, EntryKind, usage_of
from proxy.billing.money import usd_text
from proxy.foundation.secret import Secret
from proxy.reports.export import ExportedEntry
from proxy.settings.sinks import CustomerSource, SinkSettings

# Of a secret in base64.
_ENCODED = "whsec_"

_S = TypeVar("_S", bound=SinkSettings)


class Unsendable(Exception):  # noqa: N818  it is the entry's fault
    """An entry that cannot be sent; the message is for the operator."""


class SinkEvent(msgspec.Struct, frozen=True):
    """One event for a server."""

    event_id: str
    fields: Mapping[str, Any]


class SinkRequest(msgspec.Struct, frozen=True):
    """One POST."""

    url: str
    body: bytes
    headers: Mapping[str, str]


class PostResult(msgspec.Struct, frozen=True):
    """The outcome of one POST."""

    status: int | None
    """None without an answer"""
    why: str
    """`HTTP 503`, or the class of the network error"""
    body: bytes = b""
    retry_after_s: float | None = None

    @property
    def arrived(self) -> bool:
        """True for any 2xx."""
        return self.status is not None and 200 <= self.status < 300


class SinkFormat(ABC, Generic[_S]):
    """Makes the requests of one sink. Knows the customer and the server's key, for all kinds of sinks."""

    batch_max: int
    """largest number of events in one request"""
    sends_details = False
    """whether an event has the details of its entry"""

    def __init__(self, settings: _S) -> None:
        self._settings = settings

    @abstractmethod
    def events(self, source: ExportedEntry) -> list[SinkEvent]:
        """The events of an entry, possibly none. Raises Unsendable."""

    @abstractmethod
    def request(self, events: Sequence[SinkEvent], unix_s: float) -> SinkRequest:
        """The request for these events."""

    def known(self, _answer: PostResult, _count: int) -> frozenset[int]:
        """The positions of the events in a refused request of `count` events that the server has already. Empty: the
        server accepts an event that it has already."""
        return frozenset()

    def _customer(self, source: ExportedEntry) -> str | None:
        """The customer's id on the server, or else our id; None: the key has no such account above it."""
        ours = {
            CustomerSource.KEY: (source.entry.key_id, source.entry.key_alias),
            CustomerSource.PROJECT: (source.owner.project_id, source.owner.project) if source.owner else (None, None),
            CustomerSource.ORGANIZATION: (source.owner.organization_id, source.owner.organization)
            if source.owner
            else (None, None),
        }[self._settings.subject]
        named = (self._settings.customers.get(our) for our in ours if our is not None)
        return next((one for one in named if one is not None), ours[0])

    def _subject(self, source: ExportedEntry) -> str:
        found = self._customer(source)
        if found is None:
            raise Unsendable(f"no {self._settings.subject} is known of key {source.entry.key_id}")
        return found

    def _bearer(self) -> dict[str, str]:
        secret = self._settings.secret
        return {} if secret is None else {"Authorization": f"Bearer {secret.reveal()}"}


class SinkKind(NamedTuple):
    """A kind of sink."""

    name: str
    settings: type[SinkSettings]
    format: type[SinkFormat[Any]]


class MeterFormat(SinkFormat[_S]):
    """Formats for servers that count usage."""

    batch_max = 100

    def events(self, source: ExportedEntry) -> list[SinkEvent]:
        """One event, or none if there is nothing to count."""
        entry = source.entry
        counts = counts_of(source)
        if entry.kind == EntryKind.CREDIT or (not any(counts.values()) and not entry.charge_nusd):
            return []
        properties = {
            "model": entry.model, "provider": entry.provider, "kind": entry.kind, "exchange_id": entry.exchange_id,
            "key_id": entry.key_id, "usage_source": entry.usage_source, **counts, "requests": _requests(source),
            "charge_usd": usd_text(entry.charge_nusd or 0),
        }  # fmt: skip
        return [SinkEvent(entry.entry_id, self._fields(source, properties))]

    @abstractmethod
    def _fields(self, source: ExportedEntry, properties: dict[str, Any]) -> dict[str, Any]:
        """The fields of the event in the server's format."""


def counts_of(source: ExportedEntry) -> dict[str, int]:
    """The reported or estimated counts of the entry, by name."""
    usage = usage_of(source.entry)
    return {name: count for name in COUNTS if (count := getattr(usage, name)) is not None}


def _requests(source: ExportedEntry) -> int:
    """1 for usage; 0 for a correction, which is no request."""
    return int(source.entry.kind == EntryKind.USAGE)


def json_object(body: bytes) -> dict[str, Any]:
    """An answer's body; empty if it is no JSON object."""
    try:
        found = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def signed(secret: Secret, event_id: str, body: bytes, unix_s: float) -> dict[str, str]:
    """The headers of a signed request."""
    timestamp, text = str(int(unix_s)), secret.reveal()
    of_all = _mac(_webhook_key(text), f"{event_id}.{timestamp}.".encode() + body)
    return {
        "webhook-id": event_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": f"v1,{b64encode(of_all).decode()}",
        "X-Tokenweir-Id": event_id,
        "X-Tokenweir-Timestamp": timestamp,
        "X-Tokenweir-Signature": f"v1={_mac(text.encode(), timestamp.encode() + b'.' + body).hex()}",
    }


def _webhook_key(secret: str) -> bytes:
    if secret.startswith(_ENCODED):
        with suppress(ValueError):
            return b64decode(secret.removeprefix(_ENCODED), validate=True)
    return secret.encode()


def _mac(key: bytes, signed_bytes: bytes) -> bytes:
    return hmac.digest(key, signed_bytes, hashlib.sha256)
