"""What an entry's charge is the sum of. Law: it is worked out from the entry alone, by the rule that made it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from proxy.billing.entries import EntryKind, LedgerEntry, usage_of
from proxy.billing.money import usd_text
from proxy.billing.prices import Addend, addends, pinned
from proxy.billing.record import BillableParts

# Price → what it is written for, where that is not a million.
_PER = {"audio_hour": " an hour", "searches": " a thousand", "image": " each", "request": ""}
# What is counted otherwise than its price says.
_UNITS = {"audio_hour": " ms of audio"}


def addends_of(entry: LedgerEntry) -> Sequence[Addend]:
    """Of a terminal entry with a price; none for others, and for what cannot be read."""
    shown = entry.details.get("price")
    if entry.kind != EntryKind.USAGE or not isinstance(shown, Mapping) or entry.charge_usd is None:
        return ()
    try:
        bills = BillableParts(entry.details.get("billed", ""))
        return addends(pinned(shown).tiers[0], usage_of(entry), bills)
    except (ValueError, TypeError):
        return ()


def sum_text(entry: LedgerEntry) -> str:
    """`0.00018 = 600 input × 0.1 a million + …`; empty where there is nothing to add up."""
    found = addends_of(entry)
    if not found or entry.charge_usd is None:
        return ""
    tier = entry.details["price"].get("service_tier")
    served = "" if tier is None else f", served as {tier}"
    return f"{usd_text(entry.charge_usd)} = " + " + ".join(map(_text, found)) + served


def addends_json(entry: LedgerEntry) -> list[dict[str, str | int]]:
    """As `--json` has them: price by its name, USD for as many units as it is for."""
    return [{"price": one.name, "units": one.units, "rate_usd": usd_text(one.rate)} for one in addends_of(entry)]


def _text(one: Addend) -> str:
    price = f"{usd_text(one.rate)}{_PER.get(one.name, ' a million')}"
    return (
        f"{price} request" if one.name == "request" else f"{one.units}{_UNITS.get(one.name, f' {one.name}')} × {price}"
    )
