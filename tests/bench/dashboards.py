"""What dashboards ask of a large ledger, and how long the answer takes, to its last row in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any

from sqlalchemy import Select, func, select

from proxy.ledger.schema.tables import ledger_entries, usage_daily
from proxy.storage.database import reading
from tests.bench.stores import Ledger
from tests.support.ledger_tables import read_daily

DAYS = 30
LAST = 100
TIMES = 5
_KEY = f"key_{17:020x}"


@dataclass(frozen=True, slots=True)
class Answer:
    """One question: how many rows, and how long (the median of some)."""

    rows: int
    ms: float


def spend(ledger: Ledger) -> Answer:
    """What each key was billed on each of the last 30 days."""
    first = datetime.now(UTC).date() - timedelta(DAYS - 1)
    day, key = usage_daily.c.day, usage_daily.c.key_id
    asked = select(day, key, func.sum(usage_daily.c.charged_nusd)).where(day >= first).group_by(day, key)
    return _timed(lambda: _rows(ledger, asked))


def usage(ledger: Ledger) -> Answer:
    """The same days with all that is known of them, by model as well, as reports read it."""
    last = datetime.now(UTC).date()
    return _timed(lambda: read_daily(ledger.engine, last - timedelta(DAYS - 1), last))


def last_entries(ledger: Ledger) -> Answer:
    columns = ledger_entries.c
    asked = select(ledger_entries).where(columns.key_id == _KEY).order_by(columns.started_at.desc()).limit(LAST)
    return _timed(lambda: _rows(ledger, asked))


def _rows(ledger: Ledger, asked: Select[Any]) -> Sequence[Any]:
    with reading(ledger.engine) as connection:
        return connection.execute(asked).all()


def _timed(ask: Callable[[], Sequence[Any]]) -> Answer:
    rows, times = len(ask()), list[float]()  # the first time opens connections and reads files
    for _ in range(TIMES):
        began = time.perf_counter()
        ask()
        times.append(time.perf_counter() - began)
    return Answer(rows, median(times) * 1e3)
