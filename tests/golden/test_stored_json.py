"""JSON that 0.1 stored, outside the journal, queue and estimator: it is read, and written as before."""

from __future__ import annotations

import msgspec

from proxy.gateway.background.partial_result import decoded, encoded
from proxy.ledger.periods.activity import Activity
from tests.golden.reading import HERE

CLOSED_MONTH = (HERE / "closed_month.json").read_bytes()
BACKGROUND_NOTE = (HERE / "background_note.json").read_bytes()


def test_a_closed_month_of_0_1_has_its_amounts() -> None:
    """`scope_months.content`"""
    activity = msgspec.convert(msgspec.json.decode(CLOSED_MONTH), Activity)
    (line,) = activity.lines
    assert (line.usages.charge_nusd, line.usages.estimated_nusd) == (243_900, 81_300)
    assert activity.charged_nusd == 243_900 - 6_000
    assert activity.credited_nusd == 49_000_000_000


def test_a_closed_month_is_stored_as_by_0_1() -> None:
    activity = msgspec.json.decode(CLOSED_MONTH, type=Activity)
    assert msgspec.json.format(msgspec.json.encode(activity)) + b"\n" == CLOSED_MONTH


def test_a_note_about_a_background_response_is_read_and_written_as_by_0_1() -> None:
    """The note that a reader of the response leaves for the process of its exchange."""
    seen = decoded(BACKGROUND_NOTE)
    assert seen.ended is not None
    assert seen.ended.usage is not None
    assert seen.ended.unknown_usage_fields == (("queue_s", "usage.new_tokens"), {"queue_s": 1.5})
    assert msgspec.json.format(encoded(seen)) + b"\n" == BACKGROUND_NOTE
