"""Usage by end user of ten million requests on Postgres, from the daily sums."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, text

from proxy.billing.dimensions import END_USER
from proxy.reports.buckets import DAY_S
from proxy.reports.usage import UsageFilter, read_usage
from proxy.storage.database import open_engine, outside_transactions, writing
from tests.support.cost import tree_cpu_s
from tests.support.reference_loop import slowness

pytestmark = [pytest.mark.io, pytest.mark.slow]

BEGIN = 1_793_059_200
DAYS, REQUESTS = 30, 10_000_000
ASKED = UsageFilter(begin=BEGIN, end=BEGIN + DAYS * DAY_S, bucket_s=DAY_S, is_total=True, by_dimension=END_USER)

FILL = f"""
INSERT INTO dimension_daily
SELECT 'end_user', date '1970-01-01' + {BEGIN // DAY_S} + day,
       'v_' || lpad((("user" * 3 + day) % :users)::text, 16, '0'),
       'key-' || "user" % 100, 'model-' || "user" % 3, 0.001000001, 0.0005, 1000, 100, 500, 50, 1500, :requests
FROM generate_series(0, {DAYS - 1}) AS day, generate_series(0, :active - 1) AS "user"
"""
# One request a day, key and model without an end user.
WHOLE = """
INSERT INTO usage_daily
SELECT day, key_id, model, sum(charged_usd) + 1, sum(cost_usd) + 1, sum(prompt_tokens) + 1, sum(cached_tokens) + 1,
       sum(completion_tokens) + 1, sum(reasoning_tokens) + 1, sum(total_tokens) + 1, sum(entries) + 1
FROM dimension_daily GROUP BY day, key_id, model
"""


@pytest.fixture
def engine(postgres_ledger_url: str) -> Iterator[Engine]:
    made = open_engine(postgres_ledger_url)
    yield made
    made.dispose()


@pytest.mark.parametrize("users", [10_000, 100_000])
def test_ten_million_requests_by_end_user(engine: Engine, users: int) -> None:
    """A third of the end users on each day. In CPU-seconds of all processes, because the machine may be busy; a slow
    machine may take longer in proportion."""
    active = users // 3
    numbers: dict[str, Any] = {"users": users, "active": active, "requests": REQUESTS // (DAYS * active) + 1}
    with writing(engine) as connection:
        connection.execute(text(FILL), numbers)
        connection.execute(text(WHOLE))
    with outside_transactions(engine) as connection:
        connection.exec_driver_sql("VACUUM ANALYZE dimension_daily, usage_daily")
    used = []
    for _ in range(4):
        before = tree_cpu_s()
        found, _end = read_usage(engine, ASKED, 1_000)
        used.append((tree_cpu_s() - before) / max(1.0, slowness()))
        assert len(found) == 1_000
    print(f"{users:,} end users: {min(used):.2f} CPU-s")
    (total,), _end = read_usage(engine, replace(ASKED, by_dimension=None), 1)
    assert total.requests >= REQUESTS
    every, _end = read_usage(engine, ASKED, 2 * users)
    assert sum(one.charge_nusd for one in every) == total.charge_nusd
    assert sum(one.requests for one in every) == total.requests
    assert min(used) < 1
