"""What a proxy that was killed has spent counts when it starts again, whatever of it is settled meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from proxy.billing.limits import LimitCounter, OnStoreOutage
from proxy.billing.reservation import Reservation, SpendTotal
from proxy.budgets.admission import Admission, ClosedReservations
from proxy.budgets.follower import Follower
from proxy.runtime.proxy.admission import AdmissionService
from tests.budgets.conftest import announced
from tests.budgets.recorder import FollowerRecorder
from tests.budgets.stores import NOW, Stores
from tests.budgets.test_follower import START_US, Ledger
from tests.budgets.test_store_contract import left

pytestmark = pytest.mark.io

KEY = LimitCounter("key_a", NOW - 1_000, nusd_max=1_000)


@pytest.mark.parametrize("ledger_is_away", [False, True])
async def test_what_is_settled_before_its_record_is_read_counts(stores: Stores, *, ledger_is_away: bool) -> None:
    """The settler is faster than the start, and the store had not been told of the end of the exchange."""
    ledger, before = Ledger(), await announced(stores, "proxy")
    ledger.now_us = START_US
    await before.seed([SpendTotal(KEY.counter_id, KEY.since, 0, START_US)])
    await before.reserve(Reservation("exchange", (KEY,), 600, 0, NOW))
    await before.aclose()  # killed
    ledger.settle("exchange", counters=[KEY.counter_id], nusd=500, at=NOW)
    ledger.away = ledger_is_away

    store, seen = stores.node("proxy"), FollowerRecorder()
    follower = Follower(store, ledger, on_spent=seen.on_spent, observer=seen)  # type: ignore[arg-type]
    admission = Admission(
        store, ClosedReservations(), seed=follower.seed, settled=follower.counted, tidy=follower.tidy,
        on_store_outage=OnStoreOutage.FAIL_CLOSED, allowance_nusd=0, observer=seen,  # type: ignore[arg-type]
    )  # fmt: skip
    service: Any = SimpleNamespace(admission=admission, _following=SimpleNamespace(follower=follower))
    journal: Any = SimpleNamespace(pending=lambda *_: [])  # has forgotten it
    await AdmissionService._announce(service, journal)
    assert admission._counted.is_set()
    if not ledger_is_away:
        assert await left(store, KEY) == 500
