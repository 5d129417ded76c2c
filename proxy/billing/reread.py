"""Reads the usage that is stored with an entry again, by the rules of this version.

Invariants: only data of the entry is read: the usage object, and its unknown usage fields. A count that cannot be read
again, such as a search that was an item of the output, does not change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import structs

from proxy.billing.details import EntryDetails
from proxy.billing.entries import LedgerEntry
from proxy.billing.record import PricedUsage
from proxy.metering.dialects import DIALECTS
from proxy.metering.usage import ModelUsage, ServedAs, Usage, UsageSource


class ReadAgain(msgspec.Struct, frozen=True):
    """A usage as read by this version. A count or service term that is None does not change."""

    usage: Usage
    served_as: ServedAs
    other_models: tuple[ModelUsage | PricedUsage, ...]


def read_again(entry: LedgerEntry) -> ReadAgain | None:
    """The usage of a terminal entry, read again; None: it has none, or its dialect is unknown."""
    details, dialect = EntryDetails.of(entry.details), _BY_ENDPOINT.get(entry.endpoint)
    usage = details.usage
    if entry.usage_source != UsageSource.REPORTED or not isinstance(usage, Mapping) or dialect is None:
        return None
    answer = _nested(details.beside_usage)
    usage = _cache_within_input(usage)
    answer |= {dialect.usage_member: usage} if dialect.usage_member else usage
    meter = dialect.plain_meter()
    meter.feed(msgspec.json.encode(answer))
    metered = meter.close()
    if metered.usage is None:
        return None
    found = metered.usage
    if _REASONING_ADDED in (details.flags or ()) and _REASONING_ADDED not in metered.flags:
        found = structs.replace(found, completion_tokens=None, total_tokens=None)  # by its output, which is not kept
    return ReadAgain(found, metered.served_as, metered.other_models)


def _cache_within_input(usage: Mapping[str, Any]) -> Mapping[str, Any]:
    """A usage of Claude's, whose events were merged, without an input that is the cached prompt once more: the two were
    counted by the host at different moments, and differ by less than a hundredth."""
    began, cached = usage.get("input_tokens"), usage.get("cache_read_input_tokens")
    if type(began) is not int or type(cached) is not int or "total_tokens" in usage:
        return usage
    is_same = cached >= _CACHED_MIN and abs(began - cached) * _WITHIN <= cached
    return {**usage, "input_tokens": max(0, began - cached)} if is_same else usage


# No provider caches less than this.
_CACHED_MIN, _WITHIN = 1_024, 100
_REASONING_ADDED = "reasoning_added"
_BY_ENDPOINT = {dialect.endpoint: dialect for dialect in DIALECTS}


def _nested(beside: object) -> dict[str, Any]:
    """`{"a.b": 1}` → `{"a": {"b": 1}}`. A word stands after the name: `a.b=word`."""
    top: dict[str, Any] = {}
    for path, value in beside.items() if isinstance(beside, Mapping) else ():
        *holders, name = str(path).split("=")[0].split(".")
        place = top
        for holder in holders:
            place = place.setdefault(holder, {})
            if not isinstance(place, dict):
                break
        else:
            place.setdefault(name, value)
    return top
