"""What a better statement of an exchange changes. Law: in whatever order they come, the entries of an exchange add up
to the best that was said of it; what is in the ledger stays, so the better one becomes the difference.

A silent machine's exchanges are settled by a sweeper, from the last that the machine had said. It may have been only
asleep: then it says more, and may be swept again; or it comes back for good, and its own record is the last word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from uuid import uuid5

from msgspec import structs

from proxy.billing.entries import ENTRIES, UNITS, EntryKind, LedgerEntry, usage_of

LATE, SWEPT_AGAIN = "late record", "swept again"
"""why an exchange was restated"""

# What is added up, beside the units among the details. Everything else of an adjustment is as the better statement
# says it.
NUMBERS = (
    "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "total_tokens",
    "events", "bytes", "cost_usd", "charge_usd",
)  # fmt: skip
_RESTATES = "restates"
"""the detail of an adjustment that names the statement it was made of, by its content"""


class ContradictionError(ValueError):
    """Two records that both claim to be the last word on an exchange."""


def is_swept(entry: LedgerEntry) -> bool:
    """True if it says what a sweeper made of the last that a silent machine had said."""
    return bool(entry.details.get("swept"))


def is_statement(entry: LedgerEntry) -> bool:
    """True if it says what an exchange was (its terminal entry, or what restates that), False for a correction and for
    a provider that was asked in vain."""
    return entry.kind not in (EntryKind.ADJUSTMENT, EntryKind.ATTEMPT) or _RESTATES in entry.details


def restated(
    there: Iterable[LedgerEntry], said: LedgerEntry, content_hash: Callable[[LedgerEntry], str]
) -> LedgerEntry | None:
    """The entry that makes of `there`, all that the ledger has of an exchange, what `said` says of it: every number is
    the difference. None if that is known already, or better. An adjustment even where nothing differs: it is a receipt.

    `content_hash`: equal for equal entries and for no others. Raises ContradictionError.
    """
    changes = [entry for entry in there if entry.kind == EntryKind.ADJUSTMENT]
    statements = [entry for entry in there if is_statement(entry)]
    mark = content_hash(said)
    if any(entry.details.get(_RESTATES) == mark for entry in statements):
        return None
    final = not all(map(is_swept, statements))
    if is_swept(said):
        if final or said.events <= sum(entry.events for entry in statements):
            return None
    elif final:
        raise ContradictionError
    first = next(entry for entry in statements if entry.kind != EntryKind.ADJUSTMENT)
    seq = 1 + max((entry.seq for entry in changes), default=0)
    why = SWEPT_AGAIN if is_swept(said) else LATE
    details = {**said.details, "adjusts": first.entry_id, "why": why, _RESTATES: mark}
    if units := _units(statements, said):
        details["units"] = units
    return structs.replace(
        said,
        entry_id=str(uuid5(ENTRIES, f"{said.exchange_id}/{EntryKind.ADJUSTMENT}/{seq}")),
        kind=EntryKind.ADJUSTMENT,
        seq=seq,
        details=details,
        **{name: _difference((getattr(one, name) for one in statements), getattr(said, name)) for name in NUMBERS},
    )


def _units(there: Iterable[LedgerEntry], said: LedgerEntry) -> dict[str, int]:
    """The differences of what stands among the details; none where neither side counts it."""
    old, new = [usage_of(one) for one in there], usage_of(said)
    found = {name: _difference((getattr(one, name) for one in old), getattr(new, name)) for name in UNITS}
    return {name: count for name, count in found.items() if count is not None}


def _difference(old: Iterable[int | None], new: int | None) -> int | None:
    """None only if neither is known; what one of them does not know counts as nothing, as in every sum."""
    known = [number for number in old if number is not None]
    return None if not known and new is None else (new or 0) - sum(known)
