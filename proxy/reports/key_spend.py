"""The lifetime spend and the credit of every key and account, as parts of SQL queries.

Invariants: the spend of a key is its balance without its credits, and of an account that of its keys: each is read from
sums by key, never from entries of requests or from days.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, Dialect, Engine, Select, Subquery, func, select, text, union_all

from proxy.billing.entries import EntryKind
from proxy.billing.money import ZERO_NUSD, Nusd
from proxy.ledger.amounts import nusd, nusd_sum
from proxy.ledger.schema.account_tables import accounts, api_keys
from proxy.ledger.schema.tables import archived_sums, balances, ledger_entries
from proxy.reports.totals import SpendAndCredit
from proxy.storage.database import reading

_PROJECTS = accounts.alias("projects")
# A literal, not a parameter: only then does the planner use the partial index with this condition.
_IS_CREDIT = text(f"ledger_entries.kind = '{EntryKind.CREDIT}'")


def read_credits(engine: Engine, scope_ids: Collection[str]) -> dict[str, Nusd]:
    """Key or account id → its credits less refunds, of those that have some. Raises LedgerUnavailable."""
    with reading(engine) as connection:
        return _read_credits(connection, scope_ids)


def _read_credits(connection: Connection, scope_ids: Collection[str]) -> dict[str, Nusd]:
    added = _credits(connection.dialect)
    rows = connection.execute(select(added.c.scope_id, added.c.charged))
    return {row.scope_id: Nusd(-int(row.charged)) for row in rows if row.scope_id in scope_ids}


def read_paid_of_keys(engine: Engine, key_ids: Collection[str]) -> dict[str, SpendAndCredit]:
    """The lifetime spend and the credit of the keys of one page. Raises LedgerUnavailable."""
    with reading(engine) as connection:
        charged = nusd("balances.charged_usd", connection.dialect)
        rows = connection.execute(select(balances.c.key_id, charged).where(balances.c.key_id.in_(key_ids)))
        balance: dict[str, int] = {key_id: int(nusd) for key_id, nusd in rows}
        added = _read_credits(connection, key_ids) if balance else {}
    # A balance is the spend less the credits.
    return {
        one: SpendAndCredit(Nusd(balance.get(one, 0) + added.get(one, 0)), added.get(one, ZERO_NUSD)) for one in key_ids
    }


def read_paid_of_accounts(engine: Engine, account_ids: Collection[str]) -> dict[str, SpendAndCredit]:
    """The lifetime spend and the credit of the accounts of one page. Raises LedgerUnavailable."""
    with reading(engine) as connection:
        spend = spend_by_account(connection.dialect)
        rows = connection.execute(select(spend.c.account_id, spend.c.spent).where(spend.c.account_id.in_(account_ids)))
        spent: dict[str, int] = {account_id: int(nusd) for account_id, nusd in rows}
        added = _read_credits(connection, account_ids)
    return {one: SpendAndCredit(Nusd(spent.get(one, 0)), added.get(one, ZERO_NUSD)) for one in account_ids}


def spend_by_key(dialect: Dialect) -> Subquery:
    """Selects `key_id` and `spent`, the lifetime charges in nUSD, of each key with entries. Credits of accounts are
    rows of 0."""
    added = _credits(dialect)
    spent = nusd("balances.charged_usd", dialect) - func.coalesce(added.c.charged, 0)
    every = balances.outerjoin(added, added.c.scope_id == balances.c.key_id)
    return select(balances.c.key_id, spent.label("spent")).select_from(every).subquery("spend_by_key")


def spend_by_account(dialect: Dialect) -> Subquery:
    """Selects `account_id` and `spent`, in nUSD: that of the keys of a project, and of all projects of an
    organization."""
    spend, projects = spend_by_key(dialect), _PROJECTS.c
    keys = api_keys.join(spend, spend.c.key_id == api_keys.c.key_id)
    owned = keys.join(_PROJECTS, projects.account_id == api_keys.c.project_id)
    by_project = select(projects.account_id, projects.parent_id, func.sum(spend.c.spent).label("spent"))
    both = by_project.select_from(owned).group_by(projects.account_id, projects.parent_id).cte("spend_by_project").c
    levels = union_all(select(both.account_id, both.spent), select(both.parent_id, both.spent)).subquery("levels").c
    summed = select(levels.account_id, func.sum(levels.spent).label("spent"))
    return summed.group_by(levels.account_id).subquery("spend_by_account")


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
