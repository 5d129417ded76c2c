"""Adjustments by a better record of an exchange that is already settled.

Invariant: in whatever order its records arrive, the entries of an exchange add up to the best of them. Entries are
never changed, so a better record is booked as the difference.

The sweeper settles the exchanges of a machine whose lease expired, from their last announced progress. If the machine
was only paused, it announces more progress, and may be swept again; or it sends its own record, which is final.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from uuid import uuid5

from msgspec import structs

from proxy.billing.entries import ENTRIES, UNITS, EntryKind, LedgerEntry, usage_of

LATE, SWEPT_AGAIN = "late record", "swept again"
"""the reason of an adjustment, as stored"""

# The fields that are differences, beside the detail `units`. All other fields are those of the better record.
NUMBERS = (
    "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "total_tokens",
    "events", "bytes", "cost_usd", "charge_usd",
)  # fmt: skip
_RESTATES = "restates"
"""the detail of an adjustment with the content hash of the entry it was made from"""


class ContradictionError(ValueError):
    """Two different final records of one exchange."""


def is_swept(entry: LedgerEntry) -> bool:
    """True for an entry of the sweeper: made from announced progress, not final."""
    return bool(entry.details.get("swept"))


def is_statement(entry: LedgerEntry) -> bool:
    """True for an entry made from a record of the whole exchange: the terminal entry, or an adjustment by a later
    record. False for an operator's correction and for a failed attempt."""
    return entry.kind not in (EntryKind.ADJUSTMENT, EntryKind.ATTEMPT) or _RESTATES in entry.details


def restated(
    booked: Iterable[LedgerEntry], update: LedgerEntry, content_hash: Callable[[LedgerEntry], str]
) -> LedgerEntry | None:
    """The adjustment between `booked`, all ledger entries of an exchange, and `update`, the entry of another record.

    None if `update` is booked already, or is worse. Otherwise an adjustment even without differences: it is the receipt
    of `update`. `content_hash`: equal for equal entries only. Raises ContradictionError.
    """
    changes = [entry for entry in booked if entry.kind == EntryKind.ADJUSTMENT]
    statements = [entry for entry in booked if is_statement(entry)]
    update_hash = content_hash(update)
    if any(entry.details.get(_RESTATES) == update_hash for entry in statements):
        return None
    final = not all(map(is_swept, statements))
    if is_swept(update):
        if final or update.events <= sum(entry.events for entry in statements):
            return None
    elif final:
        raise ContradictionError
    first = next(entry for entry in statements if entry.kind != EntryKind.ADJUSTMENT)
    seq = 1 + max((entry.seq for entry in changes), default=0)
    why = SWEPT_AGAIN if is_swept(update) else LATE
    details = {**update.details, "adjusts": first.entry_id, "why": why, _RESTATES: update_hash}
    if units := _unit_differences(statements, update):
        details["units"] = units
    return structs.replace(
        update,
        entry_id=str(uuid5(ENTRIES, f"{update.exchange_id}/{EntryKind.ADJUSTMENT}/{seq}")),
        kind=EntryKind.ADJUSTMENT,
        seq=seq,
        details=details,
        **{name: _difference((getattr(one, name) for one in statements), getattr(update, name)) for name in NUMBERS},
    )


def _unit_differences(statements: Iterable[LedgerEntry], update: LedgerEntry) -> dict[str, int]:
    """The differences of the counts in the detail `units`; without those that neither side has."""
    old, new = [usage_of(one) for one in statements], usage_of(update)
    differences = {name: _difference((getattr(one, name) for one in old), getattr(new, name)) for name in UNITS}
    return {name: count for name, count in differences.items() if count is not None}


def _difference(old: Iterable[int | None], new: int | None) -> int | None:
    """None only if neither side is known; an unknown count is 0, as in every sum."""
    known = [number for number in old if number is not None]
    return None if not known and new is None else (new or 0) - sum(known)
