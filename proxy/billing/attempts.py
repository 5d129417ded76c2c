"""Ledger entries of failed attempts: one for each provider that failed before another one served the exchange.

Invariants: The terminal entry lists its attempts, and every attempt entry is derived from that list alone, so it can be
checked against it. An attempt is never charged and has no tokens. Its cost is 0 where the provider cannot have billed
it (not reached, or 4xx), and unknown where the provider failed (5xx): it reported no usage.
"""

from __future__ import annotations

import msgspec
from msgspec import structs

from proxy.billing.details import EntryDetails
from proxy.billing.entries import NOTHING_USED, EntryKind, LedgerEntry, entry_id
from proxy.billing.record import Attempt, Outcome


def listed_attempts(entry: LedgerEntry) -> list[Attempt]:
    """The attempts that a terminal entry lists. Raises ValueError if they cannot be decoded."""
    listed = EntryDetails.of(entry.details).attempts
    return [] if listed is None else msgspec.convert(listed, list[Attempt])


def attempt_entries(entry: LedgerEntry) -> list[LedgerEntry]:
    """One entry for each listed attempt, `seq` from 1. Raises ValueError."""
    return [_attempt_entry(entry, attempt, seq) for seq, attempt in enumerate(listed_attempts(entry), 1)]


def _attempt_entry(entry: LedgerEntry, attempt: Attempt, seq: int) -> LedgerEntry:
    cost_known = attempt.status is None or attempt.status < 500
    details = EntryDetails(
        failed=attempt.failed, upstream_status=attempt.status, cost_unknown=None if cost_known else True
    )
    refused = attempt.status is not None and cost_known
    return structs.replace(
        entry,
        entry_id=entry_id(entry.exchange_id, EntryKind.ATTEMPT, seq),
        kind=EntryKind.ATTEMPT,
        seq=seq,
        provider=attempt.provider,
        upstream_model=attempt.upstream_model,
        outcome=(Outcome.REFUSED_UPSTREAM if refused else Outcome.UPSTREAM_FAILED).value,
        cost_nusd=0 if cost_known else None,
        charge_nusd=0,
        started_at=attempt.started_at,
        duration_ms=attempt.duration_ms,
        details=details.stored(),
        **NOTHING_USED,
    )
