"""Months are checked and closed in the console's API, as by `tokenweir periods close`."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import insert

from proxy.billing.period import month_from, month_of
from proxy.console.api import periods
from proxy.ledger.periods.closing import read_period
from proxy.ledger.schema.tables import dead_letters
from proxy.reports import closing_checks
from proxy.reports.usage import id_from
from proxy.storage.database import reading, writing
from tests.console.entries import MONTH, SEPTEMBER_10, use_september
from tests.console.stand import READER, SECRET, WORKER, Stand

pytestmark = pytest.mark.io


@pytest.fixture
def used(stand: Stand) -> Stand:
    use_september(stand)
    return stand


def letter(stand: Stand) -> None:
    row = {"id": "letter-1", "exchange_id": f"{id_from(SEPTEMBER_10)}7fff-8000-000000000000", "kind": "usage", "seq": 0,
           "reason": "unreadable: cut off", "payload": "{}", "state": "open", "times_seen": 1,
           "state_at": 1.0, "first_seen": 1.0, "last_seen": 2.0}  # fmt: skip
    with writing(stand.engine) as connection:
        connection.execute(insert(dead_letters).values(row))


def closed(stand: Stand, leave: bool = False, key: str = SECRET) -> Any:
    return stand("POST", "/v1/periods/close", {"month": MONTH, "leave": leave}, key=key)


def test_a_month_is_checked_and_closed_once(used: Stand) -> None:
    """Before: only the command closed a month."""
    shown = used.get(f"/v1/periods/{MONTH}", key=READER)
    assert (shown["state"], shown["closes"][0], shown["unsettled"]) == ("provisional", MONTH, [])
    found = {one["name"]: (one["state"], one["count"]) for one in shown["checks"]}
    assert found == {"unpriced": ("review", 1), "unknown_cost": ("review", 1), "ledger": ("ok", 0)}
    assert shown["checks"][0]["words"] == "Without a price, and so without a charge: 1 request."
    done = closed(used)
    assert (done.status, done.body["state"], done.body["closed_by"]) == (200, "final", "admin"), done
    assert done.body["closed"] == [MONTH]
    again = closed(used)
    assert (again.status, again.body["closed"], again.body["closed_at"]) == (200, [], done.body["closed_at"])
    (line,) = used.get(f"/v1/statements?month={MONTH}")["data"]
    assert (line["state"], line["short_number"] is None) == ("final", False)
    shown = used.get(f"/v1/periods/{MONTH}")
    assert (shown["state"], shown["closes"], shown["checks"]) == ("final", [], [])
    acts = [(one["actor"], one["action"], one["target"], one["result"]) for one in used.get("/v1/audit")["data"]]
    assert acts == [("admin", "periods.close", MONTH, "done")] * 2


def test_a_month_before_the_first_closed_one_has_nothing_to_close(used: Stand) -> None:
    closed(used)
    assert used.get("/v1/periods/2026-03")["closes"] == []
    done = used.post("/v1/periods/close", {"month": "2026-03"})
    assert (done["state"], done["closed"]) == ("final", [])


def test_what_is_not_settled_is_left_only_on_request(used: Stand) -> None:
    letter(used)
    (left,) = used.get(f"/v1/periods/{MONTH}")["unsettled"]
    assert left == {"what": "dead letter", "count": 1, "examples": ["letter-1"]}
    refused = closed(used)
    assert (refused.status, refused.body["error"]["code"]) == (409, "unsettled_records")
    assert "(dead letter: 1)" in refused.body["error"]["message"]
    assert used.get("/v1/audit")["data"] == []
    assert closed(used, leave=True).body["closed"] == [MONTH]
    with reading(used.engine) as connection:
        period = read_period(connection, month_from(MONTH))
    assert period is not None
    assert [dict(one) for one in period.left_behind] == [left]


def test_of_two_operators_one_closes_it(used: Stand) -> None:
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: closed(used), range(4)))
    assert [one.status for one in answers] == [200] * 4
    assert sorted(month for one in answers for month in one.body["closed"]) == [MONTH]
    assert len({one.body["closed_at"] for one in answers}) == 1


def test_who_may_close_and_which_month(used: Stand) -> None:
    for key in (READER, WORKER):
        assert closed(used, key=key).body["error"]["code"] == "role_too_low"
    for month, status in ((str(month_of(time.time())), 400), ("2999-01", 400), ("2026-13", 400)):
        refused = used("POST", "/v1/periods/close", {"month": month})
        assert (refused.status, refused.body["error"]["param"]) == (status, "month"), month
    assert used.get("/v1/audit")["data"] == []


def test_a_large_month_is_final_later_and_checked_by_the_command(used: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing_checks, "LEDGER_REQUESTS_MAX", 2)
    ledger = used.get(f"/v1/periods/{MONTH}")["checks"][-1]
    assert (ledger["state"], "run `tokenweir reconcile`" in ledger["words"]) == ("not_checked", True)
    issue_all = periods.issue_all
    monkeypatch.setattr(periods, "issue_all", lambda _engine: [])
    assert closed(used).body["state"] == "closing"
    assert used.get(f"/v1/statements?month={MONTH}")["state"] == "closing"
    monkeypatch.setattr(periods, "issue_all", issue_all)
    assert closed(used).body["state"] == "final"
