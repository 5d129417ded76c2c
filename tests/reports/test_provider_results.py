"""How providers have answered: requests, failures, attempts, times, and the latest errors."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import Engine

from proxy.billing.entries import LedgerEntry
from proxy.reports.provider_results import ERRORS_SHOWN, read_provider_results
from proxy.reports.usage import id_from
from tests.ledger.entries import an_entry, arriving
from tests.ledger.priced_entries import a_real_store, settle
from tests.support.ledgers import on_both_databases

pytestmark = pytest.mark.io

BEGIN = 1_793_059_200.0


def began(number: int, **differences: Any) -> LedgerEntry:
    at = BEGIN + number
    exchange = f"{id_from(at)}7{number:03x}-8000-{number:012x}"
    made = an_entry(exchange=exchange, started_at=at, first_token_ms=float(number), **differences)
    return replace(made, entry_id=f"{number}-{made.kind}-{made.seq}")


@on_both_databases
def test_failures_count_at_the_provider_that_failed(engine: Engine) -> None:
    """Before: failures were exchanges in a list, one by one, without the provider's name."""
    served = [began(number) for number in range(1, 101)]
    error = {"failed": "failed", "upstream_status": 500}
    failed = [
        began(number, provider="borealis", outcome="upstream_failed", details=error) for number in range(200, 210)
    ]
    stalled = began(300, provider="borealis", outcome="upstream_stalled")
    rejected = began(301, provider="borealis", outcome="refused_upstream")
    attempt = replace(
        began(302, kind="attempt", provider="borealis", outcome="upstream_failed", details={"failed": "unreachable"}),
        exchange_id=served[50].exchange_id,
    )
    settle(engine, *served, *failed, stalled, rejected, began(9_000, provider="late"), node=None)
    credit = began(303, kind="credit", provider="", charge_nusd=-5, cost_nusd=0)  # before: a provider without a name
    for entry in (attempt, credit):
        a_real_store(engine).settle(arriving(entry))
    found = read_provider_results(engine, BEGIN, BEGIN + 8_000)
    assert found.keys() == {"tera", "borealis"}
    tera, borealis = found["tera"], found["borealis"]
    assert (tera.requests, tera.failed, tera.failed_attempts, tera.error_rate, tera.errors) == (100, 0, 0, 0.0, ())
    assert tera.first_token_p95_ms == 95.0
    assert (borealis.requests, borealis.failed, borealis.failed_attempts) == (12, 11, 1)
    assert borealis.error_rate == round(12 / 13, 6)
    assert len(borealis.errors) == ERRORS_SHOWN
    first, second, third = borealis.errors[:3]
    assert (first.what, first.was_passed_on, first.exchange_id) == ("unreachable", True, served[50].exchange_id)
    assert (second.what, second.was_passed_on, second.status) == ("upstream_stalled", False, None)
    assert (third.what, third.status, third.at) == ("failed", 500, BEGIN + 209)
    assert read_provider_results(engine, 0.0, 1.0) == {}
