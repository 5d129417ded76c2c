"""A value is forgotten by the admin API; neither its answer nor the audit log has it."""

from __future__ import annotations

import pytest

from proxy.ledger.dimensions.values import DimensionValue, DimensionValues
from tests.console.stand import Stand
from tests.ledger.entries import an_entry
from tests.ledger.priced_entries import settle

pytestmark = pytest.mark.io

ALICE = DimensionValue("proj_default", "end_user", "alice@example.com")
ERASE = {"dimension": "end_user", "value": ALICE.value}


def test_a_value_is_forgotten(stand: Stand) -> None:
    values = DimensionValues(stand.engine)
    ((_, value_id),) = values.ids([ALICE], lambda _: True).items()
    settle(stand.engine, an_entry(1, details={"dimensions": {"end_user": value_id}}), node=None)
    erased = stand.post("/dimension/erase", {**ERASE, "project_id": "default"})
    assert erased == {
        "dimension": "end_user", "projects": ["proj_default"], "value_ids": [value_id], "exchanges": 1,
        "entries_by_month": {"2026-10": 1}, "archives": [], "sinks": [], "exports": [],
    }  # fmt: skip
    assert values.names([value_id]) == {}
    audit = stand.get("/v1/audit")["data"]
    assert [(act["action"], act["target"], act["result"]) for act in audit] == [("dimension.erase", value_id, "done")]
    assert ALICE.value not in str(audit)
    again = stand("POST", "/dimension/erase", ERASE)
    assert (again.status, again.body["error"]["code"]) == (404, "value_not_found")
    assert ALICE.value not in str(again.body)


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"dimension": "mood"}, 400, "dimension"),
        ({"dimension": "tag:a b"}, 400, "dimension"),
        ({"value": " "}, 400, "value"),
        ({"value": "a\x00b"}, 400, "value"),
        ({"project": "nobody"}, 404, "project_id"),
        ({"value": "bob"}, 404, "value"),
    ],
)
def test_what_is_wrong_is_named(unchanged: Stand, body: dict[str, str], status: int, param: str) -> None:
    refused = unchanged("POST", "/dimension/erase", {**ERASE, **body})
    assert (refused.status, refused.body["error"]["param"]) == (status, param)
    assert unchanged.get("/v1/audit")["data"] == []
