"""Spend and credit of keys and accounts."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, Select, func, or_, select

from proxy.billing.limits import credit_counter_id
from proxy.billing.money import Nusd
from proxy.ledger.schema.account_tables import accounts, api_keys
from proxy.ledger.schema.tables import balances, ledger_entries
from proxy.ledger.settling.clock import settled_until
from proxy.ledger.settling.spend import sums


@dataclass(frozen=True, slots=True)
class SpendAndCredit:
    """Lifetime spend and credit of one key, project or organization. Money: nUSD."""

    used_nusd: Nusd
    """charges of the key, or of all keys below the account"""
    credit_nusd: Nusd
    """top-ups of this key or account itself, less refunds"""

    @property
    def left_nusd(self) -> Nusd:
        """Credit less spend; negative if more was used than paid in."""
        return Nusd(self.credit_nusd - self.used_nusd)


def read_paid(engine: Engine, scope_ids: Collection[str]) -> dict[str, SpendAndCredit]:
    """Spend and credit of each of these keys and accounts (one page of ids). Raises LedgerUnavailable.

    The duration grows with days and models, not with keys or entries.
    """
    ids = sorted(scope_ids)
    wanted = [*ids, *map(credit_counter_id, ids)]
    spent = {one.counter_id: one.amount for one in sums(engine, [(counter_id, 0.0) for counter_id in wanted])}
    return {one: SpendAndCredit(Nusd(spent[one]), Nusd(spent[one] - spent[credit_counter_id(one)])) for one in ids}


def read_balances(connection: Connection) -> dict[str, tuple[int, int]]:
    """(charged less credits, cost) of each key and account with entries, up to the ledger's time; nUSD."""
    entries = ledger_entries.c
    later = (
        select(entries.key_id, func.sum(entries.charge_nusd), func.sum(entries.cost_nusd), func.count())
        .where(entries.settled_at > settled_until(connection))
        .group_by(entries.key_id)
    )
    early = {key_id: (charged or 0, cost or 0, number) for key_id, charged, cost, number in connection.execute(later)}
    totals = {}
    for row in connection.execute(select(balances)):
        charged, cost, number = early.get(row.key_id, (0, 0, 0))
        if row.entries > number:
            totals[row.key_id] = (row.charged_nusd - charged, row.cost_nusd - cost)
    return totals


def keys_below(scope_id: str) -> Select[Any]:
    """Selects the ids of the keys of an organization or a project; for a key, its own id."""
    projects = select(accounts.c.account_id).where(accounts.c.parent_id == scope_id)
    columns = api_keys.c
    of_it = or_(columns.key_id == scope_id, columns.project_id == scope_id, columns.project_id.in_(projects))
    return select(columns.key_id).where(of_it)
