"""What a start takes from budgets: what earlier runs have used and the ledger does not have yet."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from proxy.billing.limits import LimitCounter
from proxy.billing.pricing.prices import configured
from proxy.billing.record import Rates
from proxy.billing.settlement import entry
from proxy.runtime.proxy import admission
from tests.journal.records import opened, record

PRICE = configured(Rates(10**9, 10**9, 10**9), service_tiers={"priority": (Rates(3 * 10**9, 10**9, 5 * 10**9),)})


@pytest.mark.parametrize("tier", [None, "default", "priority"])
def test_it_is_what_the_entry_will_charge(monkeypatch: pytest.MonkeyPatch, tier: str | None) -> None:
    one = record(opened(1, price=PRICE))
    one = replace(one, reading=replace(one.reading, service_tier=tier))
    counter = LimitCounter("key_a", nusd_max=10**12)
    monkeypatch.setattr(admission, "limit_counters", lambda scope, now: [counter])
    access = SimpleNamespace(levels=lambda model, dimensions, providers: ("key_a",))
    keyring = SimpleNamespace(known=lambda key_id: key_id, access=lambda key: access)
    service: Any = SimpleNamespace(_keyring=keyring)
    (reserved,) = admission.AdmissionService._reservations(service, [one])
    assert reserved.nusd == entry(one).charge_nusd
    assert reserved.exchange_id == one.opened.exchange_id
