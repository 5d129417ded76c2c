"""An immutable entry of the ledger.

Invariants: The same record gives the same entry, byte for byte, wherever and however often it is settled. Corrections
are new entries.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from operator import attrgetter
from typing import Any, Protocol
from uuid import UUID

import msgspec

from proxy.billing.details import EntryDetails
from proxy.billing.money import Nusd
from proxy.metering.usage import Usage, UsageSource

ENTRIES = UUID("5b0a4b52-6d0e-5a39-9c39-2f7a1c0b7d11")
"""namespace of entry ids; a change would charge every record again"""
_ENTRIES_BYTES = ENTRIES.bytes


class EntryKind(StrEnum):
    """Every kind of ledger entry, by its stored value."""

    USAGE = "usage"
    """the one terminal entry of an exchange"""
    ADJUSTMENT = "adjustment"
    """a correction of an exchange: the differences to its previous sum"""
    ATTEMPT = "attempt"
    """a provider that failed before another one served the exchange"""
    CREDIT = "credit"
    """a top-up, under a new exchange id"""


class LedgerEntry(msgspec.Struct, frozen=True):
    """One row of `ledger_entries`. Tokens: integers or None (not reported). Money: nUSD or None (no price known)."""

    entry_id: str
    """Id of the entry."""
    exchange_id: str
    """Id of the exchange, as the client gets it in `x-tokenweir-exchange`; a UUIDv7, which sorts by time."""
    kind: str
    """`usage`, or another kind of the list below; any other text is tampering, which `reconcile` reports."""
    key_id: str
    """Id of the key that pays, or of the account that gets credit."""
    key_alias: str
    """Name of the key at the time of the request."""
    provider: str
    """Name of the provider in the configuration."""
    model: str
    """Name of the model in the client's request."""
    upstream_model: str
    """Name of the model at the provider."""
    endpoint: str
    """Path of the request, without its query."""
    streamed: bool
    """The answer was a stream."""
    outcome: str
    """How the exchange ended."""
    finish_reason: str | None
    """Why the provider stopped to generate, in its own word."""
    usage_source: str
    """`reported` by the provider, `estimated`, or `none`."""
    estimator: str | None
    """Version of the estimator, if a count is estimated."""
    prompt_tokens: int | None
    """Tokens of the prompt, those from the cache included."""
    cached_tokens: int | None
    """The part of `prompt_tokens` that the provider read from its cache."""
    completion_tokens: int | None
    """Generated tokens, reasoning included."""
    reasoning_tokens: int | None
    """The part of `completion_tokens` that is reasoning."""
    total_tokens: int | None
    """The provider's total, or the sum of prompt and completion."""
    events: int
    """Events of the stream that were sent to the client."""
    bytes: int
    """Bytes of the body that were sent to the client."""
    cost_nusd: Nusd | None = msgspec.field(name="cost_usd")
    """The provider's price; null: not known. A decimal string of USD in JSON, NUMERIC in SQL."""
    charge_nusd: Nusd | None = msgspec.field(name="charge_usd")
    """The amount billed to the owner of the key; null: the model has no price. Below 0: credit."""
    price_version: str | None
    """Version of the price list of the charge."""
    provider_response_id: str | None
    """The provider's id of the response."""
    started_at: float
    """When the request arrived: ISO 8601 in JSON, a timestamp in SQL."""
    first_token_ms: float | None
    """Milliseconds from the request to the first event of the answer."""
    duration_ms: float
    """Milliseconds from the request to the end of the exchange."""
    details: Mapping[str, Any]
    """Further facts: the [details](flags.md#details-of-an-entry)."""
    seq: int = 0
    """Number within exchange and kind: 0 is the first."""


ENTRY_FIELDS: tuple[str, ...] = LedgerEntry.__struct_fields__
STORED_NAMES: Mapping[str, str] = dict(zip(ENTRY_FIELDS, LedgerEntry.__struct_encode_fields__, strict=True))
"""field → name of its column, and of its member in JSON"""
_FIELDS_BY_STORED_NAME = {stored: field for field, stored in STORED_NAMES.items()}
COUNTS: tuple[str, ...] = Usage.__struct_fields__
TOKENS = tuple(name for name in COUNTS if name in ENTRY_FIELDS)
"""counts that are fields of an entry, summed for dashboards"""
UNITS = tuple(name for name in COUNTS if name not in ENTRY_FIELDS)
"""the other counts: stored in the detail `units` unless 0 (a reported 0 is in the detail `usage`)"""

NOTHING_USED: Mapping[str, Any] = {
    "finish_reason": None,
    "usage_source": UsageSource.NONE.value,
    "estimator": None,
    **dict.fromkeys(TOKENS),
    "events": 0,
    "bytes": 0,
    "price_version": None,
    "provider_response_id": None,
    "first_token_ms": None,
}
"""the fields of an entry without usage: a top-up, a failed attempt"""

_TOKENS_OF = attrgetter(*TOKENS)


class CountedEntry(Protocol):
    """The fields of an entry that have its counts; the members of TOKENS, too."""

    @property
    def details(self) -> Mapping[str, Any]: ...


def usage_of(entry: CountedEntry) -> Usage:
    """The counts of an entry; of an adjustment, the differences. Raises ValueError, TypeError for invalid counts."""
    units = EntryDetails.of(entry.details).units
    return Usage(*_TOKENS_OF(entry), **({} if units is None else units_from(units)))


def units_from(units: object) -> dict[str, int]:
    """The counts in the detail `units`. Raises ValueError."""
    counts = msgspec.convert(units, dict[str, int])
    if not counts.keys() <= set(UNITS):
        raise ValueError(f"details.units: unknown units {sorted(counts.keys() - set(UNITS))}")
    return counts


def stored_name(field: str) -> str:
    """The name of a field or count of an entry in SQL and JSON."""
    return STORED_NAMES.get(field, field)


def field_named(stored: str) -> str:
    """The field or count with this stored name."""
    return _FIELDS_BY_STORED_NAME.get(stored, stored)


def entry_id(exchange_id: str, kind: str, seq: int) -> str:
    """`str(uuid5(ENTRIES, f"{exchange_id}/{kind}/{seq}"))`, in a quarter of the time: no UUID object is made."""
    name = f"{exchange_id}/{kind}/{seq}".encode()
    digest = hashlib.sha1(_ENTRIES_BYTES + name, usedforsecurity=False).hexdigest()
    variant = "89ab"[int(digest[16], 16) & 3]
    return f"{digest[:8]}-{digest[8:12]}-5{digest[13:16]}-{variant}{digest[17:20]}-{digest[20:32]}"
