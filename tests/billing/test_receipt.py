"""What a statement says of one entry."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from proxy.billing.entries import TOKENS, EntryKind
from proxy.billing.receipt import BOOKED, line_of

NOON_S = 1_795_694_400.0


@pytest.mark.parametrize("kind", EntryKind)
def test_what_somebody_booked_states_its_reason_and_nothing_else_does(kind: EntryKind) -> None:
    row = SimpleNamespace(
        charge_nusd=1_500_000_000, endpoint="chat", exchange_id="x", key_id="k", kind=kind, model="m", outcome=None,
        seq=0, settled_at=NOON_S, started_at=NOON_S, units=None, usage_source=None, why="a refund",
        **dict.fromkeys(TOKENS, 3),
    )  # fmt: skip
    line = line_of(row)
    assert (line["charge_usd"], line["units"]) == ("1.5", {})
    assert line.get("why") == ("a refund" if kind in BOOKED else None)
    assert ("why" in line) is (kind in (EntryKind.ADJUSTMENT, EntryKind.CREDIT))
