"""The lifetime spend and the credit of every key and account, as parts of SQL queries.

Invariants: the spend of a key is its balance without its credits, and of an account that of its keys: each is read from
sums by key, never from entries of requests or from days.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Dialect, Engine, Select, Subquery, func, select, text, union_all

from proxy.billing.entries import EntryKind
from proxy.billing.money import Nusd
from proxy.ledger.amounts import nusd, nusd_sum
from proxy.ledger.schema.tables import archived_sums, balances, ledger_entries
from proxy.storage.database import reading

# A literal, not a parameter: only then does the planner use the partial index with this condition.
_IS_CREDIT = text(f"ledger_entries.kind = '{EntryKind.CREDIT}'")


def read_credits(engine: Engine, scope_ids: Collection[str]) -> dict[str, Nusd]:
    """Key or account id → its credits less refunds, of those that have some. Raises LedgerUnavailable."""
    with reading(engine) as connection:
        added = _credits(connection.dialect)
        rows = connection.execute(select(added.c.scope_id, added.c.charged))
        return {row.scope_id: Nusd(-int(row.charged)) for row in rows if row.scope_id in scope_ids}


def spend_by_key(dialect: Dialect) -> Subquery:
    """Selects `key_id` and `spent`, the lifetime charges in nUSD, of each key with entries. Credits of accounts are
    rows of 0."""
    added = _credits(dialect)
    spent = nusd("balances.charged_usd", dialect) - func.coalesce(added.c.charged, 0)
    every = balances.outerjoin(added, added.c.scope_id == balances.c.key_id)
    return select(balances.c.key_id, spent.label("spent")).select_from(every).subquery("spend_by_key")


def _credits(dialect: Dialect) -> Subquery:
    """Selects `scope_id` and `charged`, the sum of its credits in nUSD (below 0: an entry of a credit charges less than
    nothing)."""
    stored: Select[Any] = select(
        ledger_entries.c.key_id.label("scope_id"), nusd_sum("charge_usd", dialect).label("charged")
    )
    archived: Select[Any] = select(archived_sums.c.key_id, nusd_sum("charged_usd", dialect))
    both = union_all(
        stored.where(_IS_CREDIT).group_by(ledger_entries.c.key_id),
        archived.where(archived_sums.c.kind == EntryKind.CREDIT).group_by(archived_sums.c.key_id),
    ).subquery("credits_in_two_places")
    summed = select(both.c.scope_id, func.sum(both.c.charged).label("charged"))
    return summed.group_by(both.c.scope_id).subquery("credits")
