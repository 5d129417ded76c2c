"""Whole tables of the ledger, as tests compare them: sums of keys and days, and alerts."""

from __future__ import annotations

from datetime import date
from typing import Any

from sqlalchemy import Engine, Row, select

from proxy.budgets.thresholds import Alert
from proxy.ledger.schema.account_tables import budget_alerts
from proxy.ledger.schema.tables import balances, usage_daily
from proxy.storage.database import reading

Balance = Row[Any]
"""of table balances: a key's entries are its usage and its top-ups, an account's are top-ups only"""


def read_balances(engine: Engine) -> list[Balance]:
    """Balances of all keys and accounts that have an entry, by id. Raises LedgerUnavailable."""
    with reading(engine) as connection:
        return list(connection.execute(select(balances).order_by(balances.c.key_id)))


def read_daily(engine: Engine, first: date, last: date, *, key_id: str | None = None) -> list[Row[Any]]:
    """Usage from day `first` to day `last` inclusive, ordered by day, key and model. Raises LedgerUnavailable.

    The time grows with the rows returned, not with the number of entries.
    """
    columns = usage_daily.c
    query = select(usage_daily).where(columns.day.between(first, last))
    if key_id is not None:
        query = query.where(columns.key_id == key_id)
    with reading(engine) as connection:
        return list(connection.execute(query.order_by(columns.day, columns.key_id, columns.model)))


def read_alerts(engine: Engine) -> list[Alert]:
    """Every alert, oldest first. Raises LedgerUnavailable."""
    columns = budget_alerts.c
    with reading(engine) as connection:
        rows = connection.execute(select(budget_alerts).order_by(columns.created_at, columns.alert_id))
        return [Alert(*row) for row in rows]
