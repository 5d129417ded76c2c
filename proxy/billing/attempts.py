"""Ledger entries of failed attempts: one for each provider that failed before another one served the exchange.

Invariants: The terminal entry lists its attempts, and every attempt entry is derived from that list alone, so it can be
checked against it. An attempt is never charged and has no tokens. Its cost is 0 where the provider cannot have billed
it (not reached, or 4xx), and unknown where the provider failed (5xx): it reported no usage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import structs

from proxy.billing.entries import NOTHING_USED, EntryKind, LedgerEntry, entry_id
from proxy.billing.record import Attempt, Outcome

ATTEMPTS_DETAIL = "attempts"
"""the detail of a terminal entry that lists its attempts"""


def attempt_details(attempts: Sequence[Attempt]) -> list[dict[str, Any]]:
    """The value of `ATTEMPTS_DETAIL`."""
    return [structs.asdict(attempt) for attempt in attempts]


def listed_attempts(entry: LedgerEntry) -> list[Attempt]:
    """The attempts that a terminal entry lists. Raises ValueError if they cannot be decoded."""
    details = entry.details.get(ATTEMPTS_DETAIL) if isinstance(entry.details, Mapping) else None
    return [] if details is None else msgspec.convert(details, list[Attempt])


def attempt_entries(entry: LedgerEntry) -> list[LedgerEntry]:
    """One entry for each listed attempt, `seq` from 1. Raises ValueError."""
    return [_attempt_entry(entry, attempt, seq) for seq, attempt in enumerate(listed_attempts(entry), 1)]


def _attempt_entry(entry: LedgerEntry, attempt: Attempt, seq: int) -> LedgerEntry:
    cost_known = attempt.status is None or attempt.status < 500
    details: dict[str, Any] = {"failed": attempt.failed}
    if attempt.status is not None:
        details["upstream_status"] = attempt.status
    if not cost_known:
        details["cost_unknown"] = True
    refused = attempt.status is not None and cost_known
    return structs.replace(
        entry,
        entry_id=entry_id(f"{entry.exchange_id}/{EntryKind.ATTEMPT}/{seq}"),
        kind=EntryKind.ATTEMPT,
        seq=seq,
        provider=attempt.provider,
        upstream_model=attempt.upstream_model,
        outcome=(Outcome.REFUSED_UPSTREAM if refused else Outcome.UPSTREAM_FAILED).value,
        cost_nusd=0 if cost_known else None,
        charge_nusd=0,
        started_at=attempt.started_at,
        duration_ms=attempt.duration_ms,
        details=details,
        **NOTHING_USED,
    )
