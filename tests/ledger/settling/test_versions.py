"""Two versions settle the same records: whoever settles one first, it is charged once, and nothing is a conflict."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from sqlalchemy import Engine, select

from proxy.billing.entries import LedgerEntry
from proxy.billing.record import Attempt, UsageRecord
from proxy.billing.settlement import HASHED_FIELDS, entry
from proxy.delivery.delivery import DeliveredRecord
from proxy.journal.frames import record_payload
from proxy.ledger.schema.tables import ledger_entries
from proxy.ledger.settling.store import Arrival, Settled
from proxy.reconciliation.reconcile import reconcile
from proxy.storage.database import reading
from tests.ledger.entries import assert_sums, emptied
from tests.ledger.priced_entries import FIRST, NODE, a_real_record, a_real_store
from tests.ledger.settling.sources import Source, settle_all
from tests.support.examples import AT_RANDOM
from tests.support.ledgers import on_both_databases

pytestmark = pytest.mark.io

Settle = Callable[[Engine, bytes], Settled]


def of_version(to_entry: Callable[[UsageRecord], LedgerEntry]) -> Settle:
    """A settler of a version that makes these entries of records."""

    def settle(engine: Engine, payload: bytes) -> Settled:
        source = Source({FIRST: DeliveredRecord(NODE, FIRST, payload)})
        recorder = asyncio.run(settle_all(source, a_real_store(engine), to_entry))
        assert (recorder.unreadable, recorder.failures) == (0, [])
        [found] = recorder.settled
        return found

    return settle


def by_0_1(engine: Engine, payload: bytes) -> Settled:
    """0.1 hashed its entries."""
    record = msgspec.json.decode(payload, type=UsageRecord)
    return a_real_store(engine).settle([Arrival(entry(record), NODE, FIRST)])


def with_a_new_detail(record: UsageRecord) -> LedgerEntry:
    line = entry(record)
    return replace(line, details={**line.details, "a_later_detail": 0})


def with_another_text(record: UsageRecord) -> LedgerEntry:
    line = entry(record)
    return replace(line, usage_source=line.usage_source.upper(), price_version="written differently")


today = of_version(entry)
VERSIONS = {"today": today, "detail": of_version(with_a_new_detail), "text": of_version(with_another_text)}
FAILED = Attempt("far", "far-large", "not connected", None, 1_793_000_000.0, 3.5)


def a_payload(record: UsageRecord, unknown: dict[str, int]) -> bytes:
    """As a proxy wrote it: of a later version, if it has fields that today's does not know."""
    written = msgspec.json.decode(record_payload(record))
    return msgspec.json.encode(written | {f"later_{name}": value for name, value in unknown.items()})


@pytest.mark.hypothesis
@settings(max_examples=30 if AT_RANDOM else 5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    number=st.integers(0, 9),
    late=st.booleans(),
    attempted=st.booleans(),
    unknown=st.dictionaries(st.sampled_from("abc"), st.integers(0, 9)),
    order=st.permutations(sorted(VERSIONS)),
)
def test_a_record_that_two_versions_settle_is_repeated(
    engine: Engine, number: int, late: bool, attempted: bool, unknown: dict[str, int], order: list[str]
) -> None:
    emptied(engine)
    record = a_real_record(number)
    if attempted:
        record = replace(record, opened=replace(record.opened, attempts=(FAILED,)))
    if late:
        a_real_store(engine).settle([Arrival(entry(replace(record, events=1, details={"swept": True})))])
    payload = a_payload(record, unknown)
    first, *others = [VERSIONS[name](engine, payload) for name in order]
    assert (len(first.inserted), len(first.adjusted)) == (int(not late), int(late))
    assert [(one.repeated, one.conflicts, len(one.adjusted)) for one in others] == [(1, 0, 0)] * 2
    assert_sums(engine)
    assert {one.name for one in reconcile(engine, clock=lambda: record.opened.started_at + 9e6) if not one.ok} <= {
        "charges"
    }


@on_both_databases
@pytest.mark.parametrize("late", [False, True])
def test_what_0_1_has_settled_is_known(engine: Engine, late: bool) -> None:
    record = a_real_record()
    if late:
        a_real_store(engine).settle([Arrival(entry(replace(record, events=1, details={"swept": True})))])
    payload = record_payload(record)
    first, second = by_0_1(engine, payload), today(engine, payload)
    assert len(first.adjusted if late else first.inserted) == 1
    assert (second.repeated, second.conflicts) == (1, 0)


def test_another_record_is_a_conflict(engine: Engine) -> None:
    record = a_real_record()
    today(engine, record_payload(record))
    other = today(engine, record_payload(replace(record, bytes=record.bytes + 1)))
    assert (other.conflicts, other.repeated) == (1, 0)


def test_the_hash_says_its_version(engine: Engine) -> None:
    today(engine, record_payload(a_real_record()))
    with reading(engine) as connection:
        [found] = connection.execute(select(ledger_entries.c.content_hash)).scalars()
    assert found.startswith("2:")
    assert len(found) == 2 + 64


def test_the_first_hash_is_of_the_fields_of_0_1() -> None:
    """A field that is added to entries must not be added to it."""
    assert LedgerEntry.__struct_fields__[: len(HASHED_FIELDS)] == HASHED_FIELDS
    assert len(HASHED_FIELDS) == 30
