"""What an operator does with one exchange: adjusts it, and takes its receipt."""

from __future__ import annotations

import time
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import update

from proxy.billing.entries import LedgerEntry
from proxy.billing.money import usd_text
from proxy.billing.period import month_of
from proxy.billing.settlement import content_hash
from proxy.ledger.periods.closing import close, issue_all
from proxy.ledger.schema.tables import ledger_clock
from proxy.ledger.settling.store import LedgerStore
from proxy.reconciliation.reconcile import reconcile
from proxy.reports.buckets import DAY_S
from proxy.reports.receipts import check_receipt
from proxy.storage.database import writing
from tests.console.entries import entry
from tests.console.stand import READER, WORKER, Stand
from tests.ledger.entries import arriving
from tests.ledger.priced_entries import a_real_entry, a_real_store, settle

pytestmark = pytest.mark.io


def of_last_month(stand: Stand) -> LedgerEntry:
    """An exchange of a month that is closed now."""
    this = month_of(time.time())
    last = month_of(this.since - 1)
    with writing(stand.engine) as connection:
        connection.execute(update(ledger_clock).values(settled_at=this.since - 2 * DAY_S))
    one = a_real_entry(7, started_at=float(this.since - DAY_S))
    one = replace(one, provider="secretcorp", upstream_model="secret-large")
    store = LedgerStore(stand.engine, content_hash=content_hash, clock=lambda: this.since - DAY_S)
    store.settle(arriving(one, node=None, seq=0))
    close(a_real_store(stand.engine), last, by="anna")
    issue_all(stand.engine)
    return one


def audited(stand: Stand) -> list[tuple[str, str, str]]:
    return [(one["action"], one["target"], one["result"]) for one in stand.get("/v1/audit")["data"]]


def test_a_preview_shows_what_an_adjustment_then_does(stand: Stand) -> None:
    stand.key()
    one = entry(1)
    settle(stand.engine, one, node=None)
    path, wanted = f"/v1/exchanges/{one.exchange_id}", {"completion_tokens": 10, "reason": "counted twice"}
    shown = stand.post(f"{path}/adjust", {**wanted, "dry_run": True})
    assert (shown["entry_id"], shown["replaced"]) == (None, {})
    assert shown["changed"]["completion_tokens"] == {"old": 51, "new": 10}
    assert shown["changed"]["charge_usd"]["old"] == usd_text(one.charge_nusd)
    assert set(shown["changed"]) == {"completion_tokens", "total_tokens", "charge_usd", "cost_usd"}
    assert (stand.get(path)["adjustments"], audited(stand)) == ([], [])
    made = stand.post(f"{path}/adjust", wanted)
    assert made["changed"] == shown["changed"]
    after = stand.get(path)
    (change,) = after["adjustments"]
    assert (change["entry_id"], change["actor"], change["reason"]) == (made["entry_id"], "admin", "counted twice")
    assert after["charge_usd"] == made["changed"]["charge_usd"]["new"]
    assert after["usage"]["counts"]["completion_tokens"] == 10
    assert audited(stand) == [("adjust", one.exchange_id, "done")]
    assert all(check.ok for check in reconcile(stand.engine, clock=time.time))


def test_an_amount_that_an_operator_has_set_is_replaced_only_if_told(stand: Stand) -> None:
    one = entry(1)
    settle(stand.engine, one, node=None)
    path = f"/v1/exchanges/{one.exchange_id}/adjust"
    stand.post(path, {"charge_usd": "0", "reason": "goodwill"})
    counts = {"completion_tokens": 10, "reason": "counted twice"}
    refused = stand("POST", path, counts)
    assert (refused.status, refused.body["error"]["param"]) == (409, "replace")
    assert "the charge of 0 USD" in refused.body["error"]["message"]
    assert stand.post(path, {**counts, "dry_run": True})["replaced"] == {"charge_usd": "0"}
    made = stand.post(path, {**counts, "replace": True})
    assert Decimal(made["changed"]["charge_usd"]["new"]) > 0


def test_a_charge_that_was_unknown_can_be_set(stand: Stand) -> None:
    one = replace(entry(1), charge_nusd=None)
    settle(stand.engine, one, node=None)
    made = stand.post(
        f"/v1/exchanges/{one.exchange_id}/adjust", {"charge_usd": "0.000000001", "reason": "price of the offer"}
    )
    assert made["changed"] == {"charge_usd": {"old": None, "new": "0.000000001"}}


WRONG: list[tuple[dict[str, Any], int, str | None]] = [
    ({}, 400, "reason"),
    ({"reason": " ", "charge_usd": "1"}, 400, "reason"),
    ({"reason": "a\u0007", "charge_usd": "1"}, 400, "reason"),
    ({"reason": "why", "charge_usd": "-1"}, 400, "charge_usd"),
    ({"reason": "why", "charge_usd": 1}, 400, "charge_usd"),
    ({"reason": "why", "charge_usd": "1000001"}, 400, "charge_usd"),
    ({"reason": "why", "cost_usd": "0.0000000001"}, 400, "cost_usd"),
    ({"reason": "why", "images": 10_001}, 400, "images"),
    ({"reason": "why", "total_tokens": 5}, 400, "total_tokens"),
    ({"reason": "why", "cached_tokens": 5_000}, 400, None),
    ({"reason": "why"}, 400, None),
]


def test_what_is_wrong_is_named_and_changes_nothing(stand: Stand) -> None:
    one = entry(1)
    settle(stand.engine, one, node=None)
    path = f"/v1/exchanges/{one.exchange_id}"
    same = {"reason": "why", "charge_usd": usd_text(one.charge_nusd)}
    for body, status, param in [*WRONG, (same, 400, None)]:
        for dry_run in (True, False):
            refused = stand("POST", f"{path}/adjust", {**body, "dry_run": dry_run})
            assert (refused.status, refused.body["error"]["param"]) == (status, param), (body, refused.body)
    finer = stand("POST", f"{path}/adjust", {"reason": "why", "charge_usd": "0.0000000001"}).body["error"]["message"]
    assert "from 0 to 1000000 with up to 9 decimals" in finer
    unknown = stand("POST", "/v1/exchanges/nobody/adjust", {"reason": "why", "charge_usd": "1"})
    assert (unknown.status, unknown.body["error"]["code"]) == (404, "exchange_not_found")
    assert stand.get(path)["adjustments"] == []
    assert {result for _, _, result in audited(stand)} == {"refused"}


def test_only_who_may_add_credit_may_adjust(stand: Stand) -> None:
    one = entry(1)
    settle(stand.engine, one, node=None)
    body = {"reason": "why", "charge_usd": "1"}
    for secret, code in ((READER, "role_too_low"), (WORKER, "role_too_low"), (stand.key(), "operator_only")):
        for more in ({}, {"dry_run": True}):
            refused = stand("POST", f"/v1/exchanges/{one.exchange_id}/adjust", {**body, **more}, key=secret)
            assert (refused.status, refused.body["error"]["code"]) == (403, code)


def test_a_closed_month_keeps_its_statement_and_the_next_one_has_the_adjustment(stand: Stand) -> None:
    """As with the command."""
    secret = stand.key()
    one = of_last_month(stand)
    path, month = f"/v1/exchanges/{one.exchange_id}", str(month_of(one.started_at))
    before = stand.get(f"/v1/statements/key-1?month={month}")
    receipt = stand.get(f"{path}/receipt")
    stand.post(f"{path}/adjust", {"charge_usd": "0", "reason": "goodwill"})
    assert stand.get(f"/v1/statements/key-1?month={month}") == before
    (booked,) = stand.get(f"/v1/statements/key-1?month={month_of(time.time())}")["adjustments"]
    assert booked["charge_usd"] == f"-{usd_text(one.charge_nusd)}"
    after = stand.get(f"{path}/receipt", key=secret)
    assert after == {**receipt, "open_months": [str(month_of(time.time()))]}
    assert "secret" not in str(after), "of the provider"
    assert check_receipt(after)[month, "key-1"] == before["digest"]


def test_a_receipt_is_of_a_closed_month_and_of_its_own_key(stand: Stand) -> None:
    secret = stand.key("key-2")
    one = of_last_month(stand)
    answered = stand("GET", f"/v1/exchanges/{one.exchange_id}/receipt")
    assert answered.headers["Content-Disposition"] == f'attachment; filename="receipt-{one.exchange_id}.json"'
    for path in (one.exchange_id, "nobody"):
        assert stand("GET", f"/v1/exchanges/{path}/receipt", key=secret).status == 404
    new = entry(2, key="key-2")
    settle(stand.engine, new, node=None)
    refused = stand("GET", f"/v1/exchanges/{new.exchange_id}/receipt", key=secret)
    assert (refused.status, refused.body["error"]["code"]) == (409, "no_receipt")
    assert "is not closed: a receipt is of a closed month" in refused.body["error"]["message"]
