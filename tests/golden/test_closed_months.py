"""The closed form of a month in `scope_months.content`, as 0.1 stored it: it is read, and written as before."""

from __future__ import annotations

import msgspec

from proxy.ledger.periods.activity import Activity
from tests.golden.reading import HERE

STORED = (HERE / "closed_month.json").read_bytes()


def test_a_closed_month_of_0_1_has_its_amounts() -> None:
    activity = msgspec.convert(msgspec.json.decode(STORED), Activity)
    (line,) = activity.lines
    assert (line.usages.charge_nusd, line.usages.estimated_nusd) == (243_900, 81_300)
    assert activity.charged_nusd == 243_900 - 6_000
    assert activity.credited_nusd == 49_000_000_000


def test_a_closed_month_is_stored_as_by_0_1() -> None:
    activity = msgspec.json.decode(STORED, type=Activity)
    assert msgspec.json.format(msgspec.json.encode(activity)) + b"\n" == STORED
