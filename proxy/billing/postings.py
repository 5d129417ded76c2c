"""Double entry: each ledger entry as a transaction between accounts.

Invariants: the postings of an entry add up to zero, and every posting belongs to an entry. So the accounts add up to
zero, and the balance of an account is the sum of its postings. Unknown amounts are not posted.

| account | is | its balance |
|---|---|---|
| `CUSTOMER`, by key or account | an asset | what is owed to us; below zero: credit |
| `REVENUE` | income | charges, below zero as every income |
| `ADJUSTMENTS` | income | corrections of charges |
| `PAYMENTS` | an asset | what was paid in, less refunds |
| `COST` | an expense | what providers charge |
| `PAYABLE`, by provider | a liability | the same, owed to each |
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from proxy.billing.entries import EntryKind, LedgerEntry


class Account(StrEnum):
    """The kinds of accounts."""

    CUSTOMER = "customer"
    REVENUE = "revenue"
    ADJUSTMENTS = "adjustments"
    PAYMENTS = "payments"
    COST = "cost of revenue"
    PAYABLE = "payable"


class Posting(NamedTuple):
    """One side of a transaction."""

    account: Account
    of: str | None
    """the id of the customer, the name of the provider; None: there is one such account"""
    nusd: int
    """above zero: a debit"""


_COUNTERPARTS: Mapping[str, Account] = {EntryKind.ADJUSTMENT: Account.ADJUSTMENTS, EntryKind.CREDIT: Account.PAYMENTS}


def postings(entry: LedgerEntry) -> list[Posting]:
    """The postings of an entry; none if it moves no money."""
    found: list[Posting] = []
    if entry.charge_nusd:
        counterpart = _COUNTERPARTS.get(entry.kind, Account.REVENUE)
        found += _moved(Posting(Account.CUSTOMER, entry.key_id, entry.charge_nusd), counterpart, None)
    if entry.cost_nusd:
        found += _moved(Posting(Account.COST, None, entry.cost_nusd), Account.PAYABLE, entry.provider)
    return found


def _moved(debit: Posting, account: Account, of: str | None) -> tuple[Posting, Posting]:
    return debit, Posting(account, of, -debit.nusd)
