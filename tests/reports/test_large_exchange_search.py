"""Search in a hundred thousand exchanges: a page takes less than 0.3 s, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Engine

from proxy.reports.exchange_search import ExchangeFilter, ExchangeOrder, read_exchanges
from proxy.storage.database import open_engine
from tests.reports.large_ledger import END, ENTRIES, S_MAX, fill, shortest_s
from tests.support.reference_loop import slowness

pytestmark = [pytest.mark.io, pytest.mark.slow]


@pytest.fixture
def engine(fresh_ledger_url: str) -> Iterator[Engine]:
    made = open_engine(fresh_ledger_url)
    fill(made)
    yield made
    made.dispose()


def test_a_hundred_thousand_exchanges(engine: Engine) -> None:
    searches: list[dict[str, Any]] = [
        {}, {"text": f"chatcmpl-{5:029}"}, {"text": "service 77"}, {"text": "nothing like this"}, {"text": "aurora"},
        {"provider": "rare"}, {"provider": "nobody"}, {"project_id": "proj_0777"}, {"organization_id": "org_003"},
        {"outcome": "crashed"}, {"batch_id": "batch_1"}, {"key_id": "key_00007"}, {"since": END - 86_400},
        *({"order": order} for order in ExchangeOrder), {"order": ExchangeOrder.CHARGE, "provider": "provider-1"},
    ]  # fmt: skip
    slow = max(1.0, slowness())
    took = {}
    for one in searches:
        took[repr(one)] = shortest_s(partial(read_exchanges, engine, ExchangeFilter(**one), 50)) / slow
        print(f"{took[repr(one)]:.3f} s  {one}")
    ((found,), _) = read_exchanges(engine, ExchangeFilter(text=f"chatcmpl-{ENTRIES - 1:029}"), 50)
    assert found.terminal.provider_response_id == f"chatcmpl-{ENTRIES - 1:029}"
    assert max(took.values()) < S_MAX
    assert took[repr(searches[1])] < 0.02
