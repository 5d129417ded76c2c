"""A server adds up the usage by dimension, also that of entries which were settled before it started."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from sqlalchemy import Engine, func, select

from proxy.budgets.sqlite.store import SqliteBudgets
from proxy.foundation.tasks import Tasks
from proxy.ledger.schema.tables import dimension_daily
from proxy.runtime.proxy.admission import LedgerFollowing
from proxy.storage.database import reading
from proxy.telemetry.metrics import Metrics
from tests.ledger.entries import a_store, an_entry, arriving
from tests.support.waiting import until

pytestmark = pytest.mark.io


async def test_usage_by_dimension_is_added_up(engine: Engine, tmp_path: Path) -> None:
    a_store(engine).settle(arriving(an_entry(details={"dimensions": {"end_user": "v_1"}})))
    store, tasks = SqliteBudgets(tmp_path / "budgets.db", node="test", unix_time=time.time), Tasks()
    LedgerFollowing(store, engine, Metrics(), asyncio.to_thread).start(tasks)

    def rows() -> int:
        with reading(engine) as connection:
            return connection.execute(select(func.count()).select_from(dimension_daily)).scalar_one()

    await until(lambda: rows() == 1)
    await tasks.stop()
    await store.aclose()
