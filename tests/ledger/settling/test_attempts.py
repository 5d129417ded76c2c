"""Providers that were asked in vain: a line for each, beside the exchange's own entry, and never a second charge."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from sqlalchemy import Engine, delete, select, update

from proxy.billing.attempts import attempt_entries, listed_attempts
from proxy.billing.correction import CorrectionRequest
from proxy.billing.entries import EntryKind, LedgerEntry
from proxy.billing.record import Attempt, UsageRecord
from proxy.billing.settlement import entry
from proxy.ledger.schema.tables import dead_letters, ledger_entries
from proxy.ledger.settling.corrections import Corrections
from proxy.ledger.settling.spend import changes
from proxy.ledger.settling.store import Arrival
from proxy.reports.table_text import why
from proxy.storage.database import reading, writing
from tests.ledger.entries import stored
from tests.ledger.priced_entries import DEARER, FIRST, NODE, a_real_record, a_real_store, assert_right, wrong
from tests.support.ledgers import on_both_databases

pytestmark = pytest.mark.io

BEGAN = 1_793_000_000.25
UNREACHED = Attempt("far", "far-large", "not connected: TimeoutError", None, BEGAN, 10_000.5)
REFUSED = Attempt("full", "tera-large", "refused", 429, BEGAN + 10, 35.25)
FAILED = Attempt("ill", "tera-large", "failed", 503, BEGAN + 11, 7.0)
COLUMNS = ledger_entries.c


def a_record(number: int, *attempts: Attempt) -> UsageRecord:
    """Served, after these."""
    record = a_real_record(number)
    return replace(record, opened=replace(record.opened, attempts=attempts))


def an_entry(number: int, *attempts: Attempt, swept: bool = False) -> LedgerEntry:
    record = a_record(number, *attempts)
    return entry(replace(record, events=1, details={"swept": True}) if swept else record)


def arrival(number: int, *attempts: Attempt) -> Arrival:
    return Arrival(an_entry(number, *attempts), NODE, FIRST + number)


def attempts_of(engine: Engine) -> list[LedgerEntry]:
    return sorted(
        (one for one in stored(engine) if one.kind == EntryKind.ATTEMPT), key=lambda one: (one.exchange_id, one.seq)
    )


def test_each_attempt_has_a_line_that_charges_nothing_and_says_what_it_may_have_cost(engine: Engine) -> None:
    made = arrival(0, UNREACHED, REFUSED, FAILED)
    settled = a_real_store(engine).settle([made, arrival(1)])
    assert settled.inserted == (made.entry, an_entry(1)), "lines of attempts are not counted"
    found = attempts_of(engine)
    assert [(one.seq, one.provider, one.upstream_model) for one in found] == [
        (1, "far", "far-large"), (2, "full", "tera-large"), (3, "ill", "tera-large"),
    ]  # fmt: skip
    assert {(one.exchange_id, one.model, one.key_id) for one in found} == {
        (made.entry.exchange_id, made.entry.model, made.entry.key_id)
    }
    assert [(one.charge_nusd, one.cost_nusd) for one in found] == [(0, 0), (0, 0), (0, None)]
    assert [(one.outcome, one.details) for one in found] == [
        ("upstream_failed", {"failed": "not connected: TimeoutError"}),
        ("refused_upstream", {"failed": "refused", "upstream_status": 429}),
        ("upstream_failed", {"failed": "failed", "upstream_status": 503, "cost_unknown": True}),
    ]
    assert [(one.started_at, one.duration_ms) for one in found] == [
        (BEGAN, 10_000.5), (BEGAN + 10, 35.25), (BEGAN + 11, 7.0),
    ]  # fmt: skip
    assert why(found[1]) == "attempt 2: full refused"
    assert_right(engine)


def test_for_budgets_only_the_exchange_itself_counts(engine: Engine) -> None:
    a_real_store(engine).settle([arrival(0, REFUSED, FAILED)])
    found, _, _ = changes(engine, 0, 100)
    assert [one.nusd for one in found] == [an_entry(0).charge_nusd]


@on_both_databases
def test_a_repeat_changes_nothing(engine: Engine) -> None:
    store = a_real_store(engine)
    store.settle([arrival(0, REFUSED)])
    again = store.settle([arrival(0, REFUSED), arrival(1, FAILED)])
    assert (again.repeated, again.inserted, again.conflicts) == (1, (an_entry(1, FAILED),), 0)
    assert len(attempts_of(engine)) == 2
    assert_right(engine)


@pytest.mark.parametrize("together", [True, False])
def test_a_machine_that_slept_knows_of_more_attempts_than_its_sweeper(engine: Engine, together: bool) -> None:
    store = a_real_store(engine)
    swept, late = Arrival(an_entry(0, REFUSED, swept=True)), arrival(0, REFUSED, FAILED)
    for batch in [[swept, late]] if together else [[swept], [late], [swept]]:
        store.settle(batch)
    assert [one.provider for one in attempts_of(engine)] == ["full", "ill"]
    assert sum(one.charge_nusd or 0 for one in stored(engine)) == late.entry.charge_nusd
    assert_right(engine)


def test_what_a_person_sets_right_and_what_prices_do_leaves_attempts_alone(engine: Engine) -> None:
    a_real_store(engine).settle([arrival(0, REFUSED, FAILED), arrival(1, FAILED)])
    before = attempts_of(engine)
    at_work = Corrections(engine, a_real_store(engine))
    adjusted = at_work.adjust(an_entry(0).exchange_id, CorrectionRequest(completion_tokens=7), "miscounted")
    assert adjusted is not None
    assert adjusted.seq == 1
    rerated = at_work.rerate("tera-large", lambda *_: (DEARER, DEARER), since=0.0, until=2e9)
    assert (rerated.exchanges, rerated.total.adjusted, rerated.unreadable) == (2, 2, 0)
    assert attempts_of(engine) == before
    assert_right(engine)


def test_without_its_exchange_an_attempt_is_not_stored(engine: Engine) -> None:
    bad = Arrival(replace(an_entry(0, REFUSED), key_alias=None), NODE, FIRST)  # type: ignore[arg-type]
    settled = a_real_store(engine).settle([bad, arrival(1)])
    assert (settled.rejected, len(settled.inserted)) == (1, 1)
    assert attempts_of(engine) == []
    with reading(engine) as connection:
        assert len(connection.execute(select(dead_letters)).all()) == 1


@pytest.mark.parametrize(
    ("broken", "found"),
    [
        (delete(ledger_entries).where(COLUMNS.kind == EntryKind.ATTEMPT, COLUMNS.seq == 2), {"attempts": 1, "days": 1}),
        (update(ledger_entries).where(COLUMNS.seq == 2).values(charge_nusd=5), {"attempts": 1, "days": 1}),
        (update(ledger_entries).where(COLUMNS.seq == 2).values(provider="other"), {"attempts": 1}),
        (update(ledger_entries).where(COLUMNS.kind == "usage").values(details={"attempts": "?"}), {"attempts": 1}),
    ],
    ids=["lost", "charged", "another's", "unreadable"],
)
def test_a_line_that_is_not_as_it_was_named_is_found(engine: Engine, broken: object, found: dict[str, int]) -> None:
    a_real_store(engine).settle([arrival(0, UNREACHED, FAILED)])
    with writing(engine) as connection:
        connection.execute(broken)  # type: ignore[call-overload]
    assert wrong(engine).items() >= found.items()


attempts = st.builds(
    Attempt, st.text(max_size=9), st.text(max_size=9), st.text(max_size=9), st.none() | st.integers(400, 599),
    st.floats(0, 2e9), st.floats(0, 1e6),
)  # fmt: skip


@given(st.lists(attempts, max_size=4))
def test_an_entry_names_what_was_recorded(made: list[Attempt]) -> None:
    terminal = an_entry(0, *made)
    assert listed_attempts(terminal) == made
    found = attempt_entries(terminal)
    assert [one.seq for one in found] == list(range(1, len(made) + 1))
    assert len({one.entry_id for one in [terminal, *found]}) == 1 + len(made)
    assert all(one.charge_nusd == 0 and one.total_tokens is None for one in found)
