"""Credit: top-ups and refunds.

Invariants: a top-up is a ledger entry, settled once and never changed; a refund is one with the opposite sign; it
changes the balance of its key or account and is not part of daily usage.
"""

from __future__ import annotations

import time

from msgspec import structs

from proxy.billing.adjustment import BY_OPERATOR
from proxy.billing.correction import REASON_CHARS_MAX
from proxy.billing.details import EntryDetails
from proxy.billing.entries import NOTHING_USED, EntryKind, LedgerEntry, entry_id
from proxy.billing.limits import BUDGET_NUSD_MAX
from proxy.billing.money import Nusd, usd_text
from proxy.ledger.settling.store import Arrival, LedgerStore


class CreditError(ValueError):
    """An invalid top-up; the message is for the operator."""


def add_credit(
    store: LedgerStore, *, exchange_id: str, scope_id: str, name: str, nusd: Nusd, why: str, at: float | None = None
) -> LedgerEntry:
    """Add `nusd` of credit to a key or an account and return the entry; a negative amount is a refund. `exchange_id`: a
    new UUIDv7, which makes the call idempotent. `at`: Unix seconds, None: now.

    Raises CreditError, LedgerUnavailable (then the entry may have been written: retry with the same id).
    """
    entry = credit_entry(exchange_id, scope_id, name, nusd, why, time.time() if at is None else at)
    with store.settling() as settling:
        stored = [one.entry for one in settling.stored([exchange_id]).values()]
        if not stored:
            settling.insert([Arrival(entry)])
            return entry
    if [(one.kind, one.key_id, one.charge_nusd) for one in stored] != [(EntryKind.CREDIT, scope_id, -nusd)]:
        raise CreditError("id: the ledger has another entry with this id; use a new one")
    return stored[0]


def credit_entry(
    exchange_id: str, scope_id: str, name: str, nusd: Nusd, why: str, at: float, grant: EntryDetails | None = None
) -> LedgerEntry:
    """The entry of a top-up, or of a grant with these details. Raises CreditError."""
    if nusd == 0 or abs(nusd) > BUDGET_NUSD_MAX:
        raise CreditError(
            f"usd: must not be 0, and at most {usd_text(BUDGET_NUSD_MAX)} either way, not {usd_text(nusd)}"
        )
    if not why.strip() or len(why) > REASON_CHARS_MAX or not why.isprintable():
        raise CreditError(f"reason: must be 1 to {REASON_CHARS_MAX} printable characters")
    return LedgerEntry(
        entry_id=entry_id(exchange_id, EntryKind.CREDIT, 0),
        exchange_id=exchange_id,
        kind=EntryKind.CREDIT,
        key_id=scope_id,
        key_alias=name,
        provider="",
        model="",
        upstream_model="",
        endpoint="",
        streamed=False,
        outcome=EntryKind.CREDIT,
        cost_nusd=Nusd(0),
        charge_nusd=Nusd(-nusd),
        started_at=round(at, 6),  # the column's precision, so that the entry as read has the hash of the entry written
        duration_ms=0.0,
        details=structs.replace(EntryDetails() if grant is None else grant, why=why.strip(), by=BY_OPERATOR).stored(),
        **NOTHING_USED,
    )
