"""Whole tables of the ledger, as tests compare them: sums of keys and days, and alerts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from sqlalchemy import Engine, select

from proxy.budgets.thresholds import Alert
from proxy.ledger.schema.tables import balances, budget_alerts, usage_daily
from proxy.storage.database import reading


@dataclass(frozen=True, slots=True)
class Balance:
    """The sum of the entries of one key or account.

    A key's entries are its usage and its top-ups; an account has top-ups only, because usage is booked on keys.
    A top-up is a charge below 0. Money: nUSD. Tokens: reported or estimated.
    """

    key_id: str
    charged_nusd: int
    cost_nusd: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    total_tokens: int
    entries: int


@dataclass(frozen=True, slots=True)
class DailyUsage:
    """The sum of one key's entries for one model whose exchanges began on one day (UTC). Money: nUSD."""

    day: date
    key_id: str
    model: str
    charged_nusd: int
    cost_nusd: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    total_tokens: int
    entries: int


def read_balances(engine: Engine) -> list[Balance]:
    """Balances of all keys and accounts that have an entry, by id. Raises LedgerUnavailable."""
    with reading(engine) as connection:
        return [Balance(*row) for row in connection.execute(select(balances).order_by(balances.c.key_id))]


def read_daily(engine: Engine, first: date, last: date, *, key_id: str | None = None) -> list[DailyUsage]:
    """Usage from day `first` to day `last` inclusive, ordered by day, key and model. Raises LedgerUnavailable.

    The time grows with the rows returned, not with the number of entries.
    """
    columns = usage_daily.c
    query = select(usage_daily).where(columns.day.between(first, last))
    if key_id is not None:
        query = query.where(columns.key_id == key_id)
    with reading(engine) as connection:
        rows = connection.execute(query.order_by(columns.day, columns.key_id, columns.model))
        return [DailyUsage(*row) for row in rows]


def read_alerts(engine: Engine) -> list[Alert]:
    """Every alert, oldest first. Raises LedgerUnavailable."""
    columns = budget_alerts.c
    with reading(engine) as connection:
        rows = connection.execute(select(budget_alerts).order_by(columns.created_at, columns.alert_id))
        return [Alert(*row) for row in rows]
