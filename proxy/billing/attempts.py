"""Providers that were asked in vain, as lines of the ledger: each is an entry of its own beside its exchange's.

Law: the terminal entry names its attempts, and every line is made of that and nothing else, so it can be checked
against it. A line is never charged, and has no tokens. Its cost is 0 where the provider cannot have billed it (it was
not reached, or it refused), and unknown where it failed: nothing was reported, and whoever wants to know asks it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import structs

from proxy.billing.entries import NOTHING_USED, EntryKind, LedgerEntry, entry_id
from proxy.billing.record import Attempt, Outcome

NAMED = "attempts"
"""the detail of a terminal entry that names them"""


def shown(attempts: Sequence[Attempt]) -> list[dict[str, Any]]:
    """As a terminal entry names them."""
    return [structs.asdict(attempt) for attempt in attempts]


def named(entry: LedgerEntry) -> list[Attempt]:
    """Those that it names. Raises ValueError if they cannot be read."""
    found = entry.details.get(NAMED) if isinstance(entry.details, Mapping) else None
    return [] if found is None else msgspec.convert(found, list[Attempt])


def lines(entry: LedgerEntry) -> list[LedgerEntry]:
    """The line of each attempt that an entry names, numbered from 1. Raises ValueError."""
    return [_line(entry, attempt, seq) for seq, attempt in enumerate(named(entry), 1)]


def _line(entry: LedgerEntry, attempt: Attempt, seq: int) -> LedgerEntry:
    known = attempt.status is None or attempt.status < 500
    details: dict[str, Any] = {"failed": attempt.failed}
    if attempt.status is not None:
        details["upstream_status"] = attempt.status
    if not known:
        details["cost_unknown"] = True
    refused = attempt.status is not None and known
    return structs.replace(
        entry,
        entry_id=entry_id(f"{entry.exchange_id}/{EntryKind.ATTEMPT}/{seq}"),
        kind=EntryKind.ATTEMPT,
        seq=seq,
        provider=attempt.provider,
        upstream_model=attempt.upstream_model,
        outcome=(Outcome.REFUSED_UPSTREAM if refused else Outcome.UPSTREAM_FAILED).value,
        cost_usd=0 if known else None,
        charge_usd=0,
        started_at=attempt.started_at,
        duration_ms=attempt.duration_ms,
        details=details,
        **NOTHING_USED,
    )
