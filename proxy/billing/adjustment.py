"""Adjustments by a better record of an exchange that is already settled.

Invariants: the entries of an exchange add up to its best record, in any order of arrival. Entries are never changed: a
better record is booked as the difference. An amount that an operator has set does not change: a later record only adds
the detail `stands` with its own numbers.

The sweeper settles the exchanges of a machine whose lease expired, from their last announced progress. If the machine
was only paused, it announces more progress and may be swept again, or it sends its own record, which is final. A
machine that crashed makes a record of each exchange that is open in its journal. Such a record is worse than a final
one, which may have left the machine and been lost from its disk alone. Of two records of equal finality, the one with
more events counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any

from msgspec import structs

from proxy.billing.details import EntryDetails
from proxy.billing.entries import (
    COUNTS,
    TOKENS,
    UNITS,
    EntryKind,
    LedgerEntry,
    entry_id,
    field_named,
    stored_name,
    usage_of,
)
from proxy.billing.money import usd_text
from proxy.metering.usage import Usage

LATE, SWEPT_AGAIN = "late record", "swept again"
"""the reason of an adjustment, as stored"""

# The fields that are differences; so is the detail `units`. All other fields are those of the better record.
NUMBERS = (
    "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "total_tokens",
    "events", "bytes", "cost_nusd", "charge_nusd",
)  # fmt: skip
MONEY = ("charge_nusd", "cost_nusd")
BY_OPERATOR, BY_PROVIDER = "operator", "provider"


class ContradictionError(ValueError):
    """Two different final records of one exchange."""


class Finality(IntEnum):
    """The completeness of the record of an exchange."""

    SWEPT = 0
    """made by a sweeper, from announced progress"""
    RECOVERED = 1
    """made after a crash, from the machine's own progress"""
    FINAL = 2


def finality(entry: LedgerEntry) -> Finality:
    """The finality of the record from which the entry was made."""
    details = EntryDetails.of(entry.details)
    if details.swept:
        return Finality.SWEPT
    return Finality.RECOVERED if details.recovered else Finality.FINAL


def is_statement(entry: LedgerEntry) -> bool:
    """True for an entry made from a record of the whole exchange: the terminal entry, or an adjustment by a later
    record. False for an operator's correction and for a failed attempt."""
    if entry.kind not in (EntryKind.ADJUSTMENT, EntryKind.ATTEMPT):
        return True
    return EntryDetails.of(entry.details).restates is not None


def set_by_operator(entries: Iterable[LedgerEntry]) -> frozenset[str]:
    """The names of the totals that an operator has set, by any of these entries of an exchange."""
    corrections = (EntryDetails.of(one.details) for one in entries if not is_statement(one))
    return frozenset(field_named(name) for one in corrections if one.by == BY_OPERATOR for name in one.sets or ())


def standing(by_hand: frozenset[str]) -> frozenset[str]:
    """The totals that no later record changes. `by_hand`: those that an operator has set. With one count, all counts
    stay, and the money calculated from them."""
    return by_hand if by_hand.isdisjoint(COUNTS) else by_hand.union(TOKENS, UNITS, MONEY)


def stated_totals(update: LedgerEntry, stands: frozenset[str]) -> dict[str, Any]:
    """The value of the detail `stands`: the numbers of `update` for these totals."""
    return {stored_name(name): stored_total(name, getattr(update, name)) for name in NUMBERS if name in stands}


def restated(
    booked: Iterable[LedgerEntry],
    update: LedgerEntry,
    content_hash: Callable[[LedgerEntry], str],
    record_hash: str | None = None,
) -> LedgerEntry | None:
    """The adjustment between `booked`, all ledger entries of an exchange, and `update`, the entry of another record.

    None if `update` is booked already, or is worse. Otherwise an adjustment even without differences: it is the receipt
    of `update`. `content_hash`: equal for equal entries only. `record_hash`: of the record of `update`, if it has one;
    entries of 0.1 name the content hash instead. Raises ContradictionError.
    """
    booked = list(booked)
    changes = [entry for entry in booked if entry.kind == EntryKind.ADJUSTMENT]
    statements = [entry for entry in booked if is_statement(entry)]
    update_hash = record_hash or content_hash(update)
    if any(EntryDetails.of(entry.details).restates in (update_hash, content_hash(update)) for entry in statements):
        return None
    best, own = max(map(finality, statements)), finality(update)
    if own is best is Finality.FINAL:
        raise ContradictionError
    if own < best or (own is best and update.events <= sum(entry.events for entry in statements)):
        return None
    first = next(entry for entry in statements if entry.kind != EntryKind.ADJUSTMENT)
    seq = 1 + max((entry.seq for entry in changes), default=0)
    why = SWEPT_AGAIN if own is Finality.SWEPT else LATE
    stands = standing(set_by_operator(booked))
    details = EntryDetails(
        adjusts=first.entry_id, why=why, restates=update_hash, stands=stated_totals(update, stands) or None
    )
    differences = unit_differences(usage_total(statements), usage_of(update))
    units = {name: count for name, count in differences.items() if name not in stands}
    if units or EntryDetails.of(update.details).units:
        details.units = units
    numbers = {
        name: (None if total(booked, name) is None else 0)
        if name in stands
        else difference(total(statements, name), getattr(update, name))
        for name in NUMBERS
    }
    return structs.replace(
        update,
        entry_id=entry_id(update.exchange_id, EntryKind.ADJUSTMENT, seq),
        kind=EntryKind.ADJUSTMENT,
        seq=seq,
        details={**update.details, **details.stored()},
        **numbers,
    )


def total(entries: Iterable[LedgerEntry], name: str) -> int | None:
    """The sum of a number of these entries; None only if no entry has it."""
    return _sum(getattr(one, name) for one in entries)


def usage_total(entries: Iterable[LedgerEntry]) -> Usage:
    """The sum of the counts; None only if no entry has the count. Raises ValueError."""
    counted = (structs.astuple(usage_of(one)) for one in entries)
    return Usage(*map(_sum, zip(*counted, strict=True)))


def _sum(numbers: Iterable[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def unit_differences(old: Usage, new: Usage) -> dict[str, int]:
    """The differences of the counts in the detail `units`; without those that neither side has."""
    differences = {name: difference(getattr(old, name), getattr(new, name)) for name in UNITS}
    return {name: count for name, count in differences.items() if count is not None}


def difference(old: int | None, new: int | None) -> int | None:
    """None only if neither side is known; an unknown count is 0, as in every sum."""
    return None if old is None and new is None else (new or 0) - (old or 0)


def stored_total(name: str, value: int | None) -> int | str | None:
    """A total in the form of details: money as a decimal string of USD."""
    return usd_text(value) if name in MONEY and value is not None else value
