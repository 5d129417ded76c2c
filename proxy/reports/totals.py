"""Sums per key and account: balances, daily usage, spend and credit.

Invariant: only aggregate tables are read, never entries, so the time does not grow with traffic.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, Select, Table, or_, select

from proxy.ledger.amounts import nusd_sum
from proxy.ledger.schema.tables import accounts, api_keys, balances, usage_daily
from proxy.storage.database import reading


@dataclass(frozen=True, slots=True)
class SpendAndCredit:
    """Lifetime spend and credit of one key, project or organization. Money: nUSD."""

    used_usd: int
    """charges of the key, or of all keys below the account"""
    credit_usd: int
    """top-ups of this key or account itself, less refunds"""

    @property
    def left_usd(self) -> int:
        """Credit less spend; negative if more was used than paid in."""
        return self.credit_usd - self.used_usd


def read_paid(engine: Engine, scope_ids: Collection[str]) -> dict[str, SpendAndCredit]:
    """Spend and credit of each of these keys and accounts (one page of ids). Raises LedgerUnavailable.

    The time grows with keys, days and models, not with the number of entries.
    """
    ids = sorted(scope_ids)
    used = dict.fromkeys(ids, 0)
    with reading(engine) as connection:
        levels = [tuple(row) for row in connection.execute(_levels(ids))]
        charged = _charged(connection, usage_daily, _levels(ids).with_only_columns(api_keys.c.key_id))
        itself = _charged(connection, usage_daily, ids)
        balance = _charged(connection, balances, ids)
    for level in levels:
        for scope_id in used.keys() & set(level):
            used[scope_id] += charged.get(level[0], 0)
    return {one: SpendAndCredit(used[one], itself.get(one, 0) - balance.get(one, 0)) for one in ids}


def read_balances(connection: Connection) -> dict[str, tuple[int, int]]:
    """(charged less credits, cost) of each key and account with entries, nUSD."""
    return {row.key_id: (row.charged_usd, row.cost_usd) for row in connection.execute(select(balances))}


def keys_below(scope_id: str) -> Select[Any]:
    """Selects the ids of the keys of an organization or a project; for a key, its own id."""
    projects = select(accounts.c.account_id).where(accounts.c.parent_id == scope_id)
    columns = api_keys.c
    of_it = or_(columns.key_id == scope_id, columns.project_id == scope_id, columns.project_id.in_(projects))
    return select(columns.key_id).where(of_it)


def _levels(scope_ids: Collection[str]) -> Select[Any]:
    """Selects (key, project, organization) of every key that is one of these scopes or below one of them."""
    key, project = api_keys.c, accounts.c
    found = or_(key.key_id.in_(scope_ids), key.project_id.in_(scope_ids), project.parent_id.in_(scope_ids))
    query = select(key.key_id, key.project_id, project.parent_id)
    return query.select_from(api_keys.outerjoin(accounts, project.account_id == key.project_id)).where(found)


def _charged(connection: Connection, table: Table, ids: Any) -> dict[str, int]:
    """Id → sum of `charged_usd` in `table`, nUSD; ids without a row are left out."""
    query = select(table.c.key_id, nusd_sum("charged_usd", connection.dialect)).group_by(table.c.key_id)
    return {row[0]: int(row[1]) for row in connection.execute(query.where(table.c.key_id.in_(ids)))}
