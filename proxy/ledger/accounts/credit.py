"""What was paid in. Law: a top-up is an entry like any other, settled once, changed never; a refund is one with the
other sign. It moves the balance of the key or account that it names, and is no usage of any day.
"""

from __future__ import annotations

import time
from uuid import uuid5

from proxy.billing.correction import BY_OPERATOR, REASON_CHARS_MAX
from proxy.billing.entries import ENTRIES, NOTHING_USED, EntryKind, LedgerEntry
from proxy.billing.limits import BUDGET_NUSD_MAX
from proxy.billing.money import usd_text
from proxy.ledger.settling.store import Arrival, LedgerStore


class CreditError(ValueError):
    """A top-up that cannot be made; its words are for the operator."""


def add_credit(
    store: LedgerStore, *, exchange_id: str, scope_id: str, name: str, nusd: int, why: str, at: float | None = None
) -> LedgerEntry:
    """Pay `nusd` in for a key or an account; its entry. Negative: pay it out again. `exchange_id`: a new UUIDv7; the
    same one again, for the same amount, pays nothing more. `at`: Unix seconds, None: now.

    Raises CreditError, LedgerUnavailable (then it is in the ledger or not: the same again is safe).
    """
    entry = credit_entry(exchange_id, scope_id, name, nusd, why, time.time() if at is None else at)
    with store.settling() as settling:
        there = [one.entry for one in settling.stored([exchange_id]).values()]
        if not there:
            settling.insert([Arrival(entry)])
            return entry
    if [(one.kind, one.key_id, one.charge_usd) for one in there] != [(EntryKind.CREDIT, scope_id, -nusd)]:
        raise CreditError("id: something else was settled under it")
    return there[0]


def credit_entry(exchange_id: str, scope_id: str, name: str, nusd: int, why: str, at: float) -> LedgerEntry:
    """The entry of a top-up. Raises CreditError."""
    if nusd == 0 or abs(nusd) > BUDGET_NUSD_MAX:
        raise CreditError(f"usd: up to {usd_text(BUDGET_NUSD_MAX)} either way and not 0, not {usd_text(nusd)}")
    if not why.strip() or len(why) > REASON_CHARS_MAX or not why.isprintable():
        raise CreditError(f"reason: 1 to {REASON_CHARS_MAX} printable characters")
    return LedgerEntry(
        entry_id=str(uuid5(ENTRIES, f"{exchange_id}/{EntryKind.CREDIT}/0")),
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
        cost_usd=0,
        charge_usd=-nusd,
        started_at=round(at, 6),  # as exact as the column, so that what is read has the hash of what was written
        duration_ms=0.0,
        details={"why": why.strip(), "by": BY_OPERATOR},
        **NOTHING_USED,
    )
