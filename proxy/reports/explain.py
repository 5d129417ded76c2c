"""The items that add up to an entry's charge.

Invariant: the items are computed from the entry alone, by the code that computed the charge; those of a correction from
the entries of its exchange.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import UNSET

from proxy.billing.correction import ExchangeTotals, exchange_totals
from proxy.billing.details import EntryDetails
from proxy.billing.entries import EntryKind, LedgerEntry, usage_of
from proxy.billing.money import PARTS_PER_NUSD, usd_text
from proxy.billing.pricing.prices import Addend, addends, pinned
from proxy.billing.record import BillableParts
from proxy.billing.settlement import other_models
from proxy.billing.units import BY_PRICE

# Price → the counted unit, if it differs from the name of the price.
_UNITS = {"audio_hour": " ms of audio"}
_STATED = "stated"


def addends_of(entry: LedgerEntry) -> Sequence[Addend]:
    """The items of a terminal entry with a price; empty for other entries and for unreadable details."""
    details = EntryDetails.of(entry.details)
    price = details.price
    if entry.kind != EntryKind.USAGE or not isinstance(price, Mapping) or entry.charge_nusd is None:
        return ()
    try:
        bills, list_ = BillableParts(details.billed or ""), pinned(price)
        if list_.stated and details.stated_usd is not None and bills is BillableParts.EVERYTHING:
            return (Addend(_STATED, 1, entry.charge_nusd, PARTS_PER_NUSD),)
        items = addends(list_.tiers[0], usage_of(entry), bills) if list_.tiers else []
        for other_model in other_models(details.other_models):
            if other_model.price is not None and other_model.price.tiers:
                items += [
                    item._replace(model=other_model.model)
                    for item in addends(other_model.price.tiers[0], other_model.usage, bills)
                ]
    except (ValueError, TypeError):
        return ()
    return items


def sum_text(entry: LedgerEntry) -> str:
    """`0.00018 = 600 input × 0.1 per million + …`; empty without items."""
    items = addends_of(entry)
    if not items or entry.charge_nusd is None:
        return ""
    details = EntryDetails.of(entry.details)
    price = details.price or {}
    tier, by = price.get("service_tier"), price.get("multipliers") or {}
    if items[0].name == _STATED:
        return " × ".join([f"{usd_text(entry.charge_nusd)} = {details.stated_usd} stated", *price["stated"]])
    why = [] if tier is None else [f"served as {tier}"]
    why += [multiplier_text(reason, factor) for reason, factor in by.items()]
    return ", ".join([f"{usd_text(entry.charge_nusd)} = " + " + ".join(map(_text, items)), *why])


class PriceChange(NamedTuple):
    """A price of the used units before and after a correction; USD as text. None: no price."""

    name: str
    old: str | None
    new: str | None


def price_changes(entries: Sequence[LedgerEntry]) -> list[PriceChange]:
    """The prices that the last of an exchange's entries changed; empty if it has no price, and for unreadable details.

    `entries`: of one exchange, as settled, up to a correction.
    """
    if EntryDetails.of(entries[-1].details).price is None:
        return []
    try:
        before, now = exchange_totals(entries[:-1]), exchange_totals(entries)
        old, new = _rates(before.price, now), _rates(now.price, now)
    except (ValueError, TypeError):
        return []
    names = [name for name in BY_PRICE if old.get(name) != new.get(name)]
    return [PriceChange(name, old.get(name), new.get(name)) for name in names]


def _rates(price: Mapping[str, Any] | None, totals: ExchangeTotals) -> dict[str, str]:
    """The prices of the used units."""
    tiers = pinned(price).tiers if price else ()
    return {item.name: usd_text(item.rate) for item in addends(tiers[0], totals.usage, totals.bills)} if tiers else {}


def correction_text(entries: Sequence[LedgerEntry]) -> str:
    """`by root: goodwill; input 1.4 → 1.2 per million; new total 0.0026304`, of the last of these entries;
    empty without one.

    `entries`: of one exchange, as settled, up to a correction.
    """
    if not entries:
        return ""
    details = EntryDetails.of(entries[-1].details)
    by, why = details.actor or details.by, details.why
    changes = [
        f"{one.name} {one.old or 'no price'} → {one.new or 'no price'}{BY_PRICE[one.name].per}"
        for one in price_changes(entries)
    ]
    return "; ".join(
        [
            *([f"by {by}{f': {why}' if why else ''}"] if by else []),
            *changes,
            f"new total {_total_text(entries) or 'unpriced'}",
        ]
    )


def correction_json(entries: Sequence[LedgerEntry]) -> dict[str, Any]:
    """The changed prices and the new total after the last of these entries, for `--json`; empty without one.

    `entries`: of one exchange, as settled, up to a correction.
    """
    if not entries:
        return {}
    prices = [
        {"price": name, "old_usd": old, "new_usd": new, "per": per_text(name)}
        for name, old, new in price_changes(entries)
    ]
    return {"prices": prices, "total_usd": _total_text(entries)}


def _total_text(entries: Sequence[LedgerEntry]) -> str | None:
    """The sum of the charges; None if none of these entries has a price."""
    known = [entry.charge_nusd for entry in entries if entry.charge_nusd is not None]
    return usd_text(sum(known)) if known else None


def multiplier_text(reason: str, factor: str) -> str:
    """A multiplier of the price list with its reason, as text."""
    kind, _, name = reason.partition(":")
    return (
        f"all prices × {factor} by the rule {name}" if kind == "rule" else f"prices of tokens × {factor} for {reason}"
    )


def stated_text(entry: LedgerEntry) -> str:
    """`the provider states 0.0012 USD; cost by its price list: 0.0011`; empty if the provider states no amount."""
    stated_usd = EntryDetails.of(entry.details).stated_usd
    if stated_usd is None:
        return ""
    ours = "unknown" if entry.cost_nusd is None else usd_text(entry.cost_nusd)
    return f"the provider states {stated_usd} USD; cost by its price list: {ours}"


def batch_text(entry: LedgerEntry) -> str:
    """`line a of the batch batch_1`; for the batch itself, the results of its lines; empty for other entries."""
    details = EntryDetails.of(entry.details)
    batch_id, batch = details.batch_id or "without an id", details.batch
    if isinstance(batch, Mapping):
        status = batch.get("status", "not settled")
        return f"batch {batch_id}: {status}, {batch.get('succeeded')} of {batch.get('lines')} lines answered"
    if details.custom_id is UNSET:
        return ""
    return f"line {details.custom_id or '(without a name)'} of the batch {batch_id}"


def addends_json(entry: LedgerEntry) -> list[dict[str, str | int]]:
    """The items for `--json`: name of the price, units, price in USD, and the quantity that it is for."""
    return [item_json(one) for one in addends_of(entry)]


def item_json(addend: Addend) -> dict[str, str | int]:
    """One item for `--json`, with its model if that differs from the entry's."""
    of: dict[str, str | int] = {"model": addend.model} if addend.model else {}
    of["per"] = per_text(addend.name)
    return {"price": addend.name, "units": addend.units, "rate_usd": usd_text(addend.rate), **of}


def per_text(price: str) -> str:
    """The quantity that a price is for: `per million`, `each`."""
    return _STATED if price == _STATED else BY_PRICE[price].per.strip() or "each"


def _text(addend: Addend) -> str:
    price = f"{usd_text(addend.rate)}{BY_PRICE[addend.name].per}"
    if addend.name == "request":
        return f"{price} request"
    of = f" of {addend.model}" if addend.model else ""
    return f"{addend.units}{_UNITS.get(addend.name, f' {addend.name}')}{of} × {price}"
