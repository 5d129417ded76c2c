"""Charged once; nothing overwritten; one bad row alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from sqlalchemy import Engine, delete, event, select, update
from sqlalchemy.exc import IntegrityError

from proxy.billing.entries import LedgerEntry
from proxy.ledger.schema.tables import dead_letters, ledger_clock, ledger_entries
from proxy.ledger.settling.store import Arrival, DeadLetter, LedgerStore, Settled
from proxy.storage.database import LedgerUnavailable, open_engine, reading, writing
from tests.ledger.entries import (
    a_ledger,
    a_store,
    an_entry,
    arriving,
    assert_sums,
    content_hash,
    count,
    emptied,
    stored,
)
from tests.support.examples import examples
from tests.support.ledger_tables import read_balances
from tests.support.ledgers import on_both_databases

pytestmark = pytest.mark.io


def letters(engine: Engine) -> Sequence[Any]:
    with reading(engine) as connection:
        return connection.execute(select(dead_letters).order_by(dead_letters.c.exchange_id)).all()


@on_both_databases
def test_an_entry_comes_back_as_it_went_in(engine: Engine, store: LedgerStore) -> None:
    full = an_entry(1, details={"flags": ["ü", "\u2028"], "depth": {"a": [1, 2.5, None, True]}})
    missing = ("prompt_tokens", "cost_nusd", "charge_nusd", "price_version", "first_token_ms")
    bare = an_entry(2, seq=0, details={}, **dict.fromkeys(missing))
    assert store.settle(arriving(full, bare)) == Settled(inserted=(full, bare))
    assert sorted(stored(engine), key=lambda e: e.exchange_id) == [full, bare]


@on_both_databases
def test_money_is_exact_to_the_nano_dollar(engine: Engine, store: LedgerStore) -> None:
    amounts = [0, 1, 999_999_999, 1_000_000_000, -1, 123_456_789_123_456, 2**23 * 10**9 - 1, 1 - 2**23 * 10**9]
    for n, nusd in enumerate(amounts):
        store.settle(arriving(an_entry(n, key_id=f"key-{n}", charge_nusd=nusd, cost_nusd=-nusd)))
    assert [(one.charge_nusd, one.cost_nusd) for one in stored(engine)] == [(nusd, -nusd) for nusd in amounts]
    assert [one.charged_nusd for one in read_balances(engine)] == amounts


@on_both_databases
def test_many_small_charges_add_up_exactly(engine: Engine, store: LedgerStore) -> None:
    dear = an_entry(0, charge_nusd=4_000_000_000_000_000)
    store.settle(arriving(dear))  # four million dollars: floats are coarse there
    for start in range(1, 91, 3):
        store.settle(arriving(*(an_entry(start + i, charge_nusd=100_000_001 + i) for i in range(3))))
    assert_sums(engine)


@on_both_databases
def test_a_repeat_changes_nothing(engine: Engine, store: LedgerStore) -> None:
    entries = [an_entry(n) for n in range(3)]
    store.settle(arriving(*entries))
    before = read_balances(engine)
    assert store.settle(arriving(*entries, an_entry(3))) == Settled(inserted=(an_entry(3),), repeated=3)
    assert store.settle(arriving(*entries)) == Settled(repeated=3)
    assert read_balances(engine)[0].entries == before[0].entries + 1
    assert count(engine, dead_letters) == 0


@on_both_databases
def test_another_content_under_the_same_id_is_an_alarm_and_no_overwrite(engine: Engine, store: LedgerStore) -> None:
    store.settle(arriving(an_entry(1)))
    forged = an_entry(1, charge_nusd=1)
    assert store.settle(arriving(forged, an_entry(2))) == Settled(inserted=(an_entry(2),), conflicts=1)
    assert store.settle(arriving(forged)) == Settled(conflicts=1)
    assert stored(engine)[0].charge_nusd == an_entry(1).charge_nusd
    assert_sums(engine)
    (letter,) = letters(engine)
    assert letter.reason.startswith("conflict")
    assert json.loads(letter.payload)["charge_usd"] == 1
    assert (letter.exchange_id, letter.kind, letter.seq, letter.times_seen) == (forged.exchange_id, "usage", 0, 2)


def test_another_id_for_the_same_exchange_is_an_alarm_too(engine: Engine, store: LedgerStore) -> None:
    store.settle(arriving(an_entry(1)))
    assert store.settle(arriving(replace(an_entry(1), entry_id="another"))) == Settled(conflicts=1)
    assert count(engine, ledger_entries) == 1


def test_a_conflict_within_one_batch(engine: Engine, store: LedgerStore) -> None:
    first, second = an_entry(1), an_entry(1, events=34)
    assert store.settle(arriving(first, second, first)) == Settled(inserted=(first,), repeated=1, conflicts=1)
    assert_sums(engine)


POISON: dict[str, dict[str, Any]] = {
    "no duration": {"duration_ms": None},
    "not a number": {"duration_ms": float("nan")},
    "half a surrogate pair": {"provider_response_id": "\ud800"},
    "more than 64 bits": {"bytes": 1 << 63},
    "tokens in words": {"prompt_tokens": "many"},
    "not a bool": {"streamed": "perhaps"},
    "a time beyond the calendar": {"started_at": 1e18},
    "no JSON": {"details": {"x": object()}},
    "a list for a name": {"model": ["a"]},
    "no key": {"key_id": None},
}


@on_both_databases
def test_bad_rows_of_every_kind_are_kept_aside(engine: Engine, store: LedgerStore) -> None:
    bad = [replace(an_entry(2 * n), **differences) for n, differences in enumerate(POISON.values())]
    good = [an_entry(2 * n + 1) for n in range(len(bad))]
    settled = store.settle(arriving(*(one for pair in zip(bad, good, strict=True) for one in pair)))
    assert settled == Settled(inserted=tuple(good), rejected=len(bad))
    assert_sums(engine)
    found = {letter.exchange_id: json.loads(letter.payload)["entry_id"] for letter in letters(engine)}
    assert found == {one.exchange_id: one.entry_id for one in bad}
    assert all(letter.reason.startswith("rejected: ") for letter in letters(engine))


@on_both_databases
def test_letters_go_down_in_the_same_transaction_and_are_counted_once(engine: Engine, store: LedgerStore) -> None:
    letter = DeadLetter("unreadable: ValueError", '{"half":', "x-1", "usage", 0)
    store.settle(arriving(an_entry(1)), [letter])
    store.settle([], [letter])
    (row,) = letters(engine)
    assert (row.reason, row.payload, row.times_seen) == (letter.reason, letter.payload, 2)
    assert row.last_seen > row.first_seen


@on_both_databases
def test_nothing_is_half_done_when_the_commit_fails(engine: Engine, store: LedgerStore) -> None:
    store.settle(arriving(an_entry(0)))

    def refuse(_connection: object) -> None:
        raise OSError("the disk went away")

    event.listen(engine, "commit", refuse)
    with pytest.raises(OSError):
        store.settle(arriving(an_entry(1)), [DeadLetter("unreadable", "…")])
    event.remove(engine, "commit", refuse)
    assert stored(engine) == [an_entry(0)]
    assert count(engine, dead_letters) == 0
    assert_sums(engine)
    assert store.settle(arriving(an_entry(1))) == Settled(inserted=(an_entry(1),))


def settled_at(engine: Engine) -> list[float]:
    with reading(engine) as connection:
        column = ledger_entries.c.settled_at
        return list(connection.execute(select(column).order_by(column)).scalars())


def test_settling_times_rise_even_if_the_clock_falls(tmp_path: Path) -> None:
    times = iter([2_000.0, 1_000.0, 1_000.0, 3_000.0])
    engine = a_ledger(tmp_path)
    store = LedgerStore(engine, content_hash=lambda e: e.entry_id, clock=lambda: next(times))
    for number in (3, 1, 2, 0):
        store.settle(arriving(an_entry(number)))
    assert settled_at(engine) == [2_000.0, 2_000.000001, 2_000.000002, 3_000.0]
    assert [e.exchange_id for e in stored(engine)] == [an_entry(n).exchange_id for n in (3, 1, 2, 0)]
    engine.dispose()


def test_settling_times_rise_even_behind_a_clock_that_was_ahead(engine: Engine, store: LedgerStore) -> None:
    ahead = 4_000_000_000.0  # the machine, or the server before a failover
    with writing(engine) as connection:
        connection.execute(update(ledger_clock).values(settled_at=ahead))
    for number in range(2):
        store.settle(arriving(an_entry(number)))
    assert settled_at(engine) == [ahead + 0.000001, ahead + 0.000002]


def test_a_ledger_without_its_clock_is_unavailable(engine: Engine, store: LedgerStore) -> None:
    with writing(engine) as connection:
        connection.execute(delete(ledger_clock))
    with pytest.raises(LedgerUnavailable, match="clock"):
        store.settle(arriving(an_entry(1)))


def test_a_database_without_tables_is_unavailable_not_poison(fresh_ledger_url: str) -> None:
    engine = open_engine(fresh_ledger_url)
    with writing(engine) as connection:
        connection.exec_driver_sql("DROP TABLE ledger_entries")
    with pytest.raises(LedgerUnavailable):
        a_store(engine).settle(arriving(an_entry(1)))
    assert count(engine, dead_letters) == 0
    engine.dispose()


def test_a_file_that_is_no_database_is_unavailable(tmp_path: Path) -> None:
    engine = a_ledger(tmp_path, "other.db")
    engine.dispose()
    (tmp_path / "other.db").write_bytes(b"no database" * 1000)
    with pytest.raises(LedgerUnavailable) as raised:
        a_store(engine).settle(arriving(an_entry(1)))
    assert "INSERT" not in str(raised.value)
    engine.dispose()


@on_both_databases
def test_the_database_itself_refuses_a_second_terminal_entry(engine: Engine, store: LedgerStore) -> None:
    """Whatever code will be written one day: the unique key stands in SQL."""
    store.settle(arriving(an_entry(1), an_entry(2)))
    first, second = an_entry(1), an_entry(2)
    change = update(ledger_entries).where(ledger_entries.c.entry_id == second.entry_id)
    with pytest.raises(IntegrityError), writing(engine) as connection:
        connection.execute(change.values(exchange_id=first.exchange_id))


# -- receipts ----------------------------------------------------------------------------------------------------


@on_both_databases
def test_a_receipt_is_found_in_entries_and_in_dead_letters(engine: Engine, store: LedgerStore) -> None:
    epoch = 7 << 40  # as journals number their records
    bad = replace(an_entry(3), duration_ms=None)
    store.settle(arriving(an_entry(1), an_entry(2), bad, node="a", seq=epoch + 1))
    store.settle(arriving(an_entry(4), node="b", seq=epoch + 2))
    store.settle([], [DeadLetter("unreadable", "…", node="a", journal_seq=epoch + 5)])
    assert {seq for seq, _ in store.receipts("a", epoch, epoch + 10)} == {epoch + 1, epoch + 2, epoch + 3, epoch + 5}
    assert {seq for seq, _ in store.receipts("a", epoch + 2, epoch + 4)} == {epoch + 2, epoch + 3}
    assert {seq for seq, _ in store.receipts("b", 0, 1 << 62)} == {epoch + 2}
    assert {seq for seq, _ in store.receipts("c", 0, 1 << 62)} == set()


def test_a_repeat_under_another_receipt_leaves_it_too(engine: Engine, store: LedgerStore) -> None:
    """Else its journal would ask for ever. It is nothing to look at: the letter is not an open one."""
    store.settle(arriving(an_entry(1), node="a", seq=1))
    assert store.settle(arriving(an_entry(1), node="a", seq=9)) == Settled(repeated=1)
    assert store.settle(arriving(an_entry(1), node="a", seq=1)) == Settled(repeated=1)
    assert {seq for seq, _ in store.receipts("a", 0, 10)} == {1, 9}
    assert [letter.state for letter in letters(engine)] == ["dropped"]


def test_a_letter_with_another_receipt_is_another_letter(engine: Engine, store: LedgerStore) -> None:
    said = [DeadLetter("unreadable", "…", node="a", journal_seq=seq) for seq in (1, 2, 2)]
    store.settle([], said)
    store.settle([], said[:1])
    assert sorted((letter.journal_seq, letter.times_seen) for letter in letters(engine)) == [(1, 2), (2, 2)]
    assert {letter.state for letter in letters(engine)} == {"open"}


def test_a_retried_letter_that_comes_again_is_open_again_and_a_dropped_one_stays(
    engine: Engine, store: LedgerStore
) -> None:
    store.settle([], [DeadLetter("unreadable", state) for state in ("retried", "dropped")])
    with writing(engine) as connection:
        connection.execute(update(dead_letters).values(state=dead_letters.c.payload, state_at=5.0))
    store.settle([], [DeadLetter("unreadable", state) for state in ("retried", "dropped")])
    found = {letter.payload: (letter.state, letter.state_at > 5.0) for letter in letters(engine)}
    assert found == {"retried": ("open", True), "dropped": ("dropped", False)}


@on_both_databases
def test_whatever_a_letter_holds_it_is_stored(engine: Engine, store: LedgerStore) -> None:
    for text in ("nul \0 inside", "half a pair \ud800", "\x1b[31m"):
        store.settle([], [DeadLetter(text, text, text, text)])
        store.settle([], [DeadLetter(text, text, text, text)])
    assert [letter.times_seen for letter in letters(engine)] == [2, 2, 2]


# -- late records ------------------------------------------------------------------------------------------------


def swept(number: int = 1, **differences: Any) -> LedgerEntry:
    details = {"swept": True}
    return an_entry(number, outcome="crashed", completion_tokens=7, charge_nusd=70, details=details, **differences)


@on_both_databases
def test_a_late_record_of_a_swept_exchange_becomes_the_difference(engine: Engine, store: LedgerStore) -> None:
    late = an_entry(1, charge_nusd=100, completion_tokens=5, cached_tokens=None)
    store.settle(arriving(swept()))
    settled = store.settle(arriving(late, node="a", seq=3))
    (change,) = settled.adjusted
    assert settled == Settled(adjusted=(change,))
    assert stored(engine) == [swept(), change]
    assert (change.kind, change.seq, change.outcome) == ("adjustment", 1, late.outcome)
    assert (change.charge_nusd, change.completion_tokens, change.cached_tokens) == (30, -2, -20)
    said = {"adjusts": swept().entry_id, "why": "late record", "restates": content_hash(late)}
    assert change.details == {**late.details, **said}
    assert {seq for seq, _ in store.receipts("a", 0, 9)} == {3}
    assert_sums(engine)
    assert read_balances(engine)[0].charged_nusd == 100
    # Again, alone and doubled: nothing. Another record after that one: an alarm.
    assert store.settle(arriving(late, node="a", seq=3)) == Settled(repeated=1)
    assert store.settle([*arriving(late, node="a", seq=3), *arriving(late, node="a", seq=3)]) == Settled(repeated=2)
    assert store.settle(arriving(an_entry(1, charge_nusd=5), node="a", seq=4)) == Settled(conflicts=1)
    assert {seq for seq, _ in store.receipts("a", 0, 9)} == {3, 4}
    assert_sums(engine)


def test_a_late_record_that_says_the_same_still_leaves_its_receipt(engine: Engine, store: LedgerStore) -> None:
    store.settle(arriving(swept()))
    same = replace(swept(), details={"recovered": True})
    (change,) = store.settle(arriving(same, node="a", seq=3)).adjusted
    assert {change.charge_nusd, change.total_tokens, change.events} == {0}
    assert {seq for seq, _ in store.receipts("a", 3, 3)} == {3}
    assert_sums(engine)


def test_a_sweeper_that_comes_after_the_record_changes_nothing(engine: Engine, store: LedgerStore) -> None:
    late = an_entry(1)
    assert store.settle(arriving(late, node="a", seq=3)) == Settled(inserted=(late,))
    assert store.settle(arriving(swept())) == Settled(repeated=1)
    assert stored(engine) == [late]
    assert count(engine, dead_letters) == 0


def test_a_machine_that_woke_and_fell_silent_again_is_swept_again(engine: Engine, store: LedgerStore) -> None:
    again = replace(swept(events=50), charge_nusd=90)
    store.settle(arriving(again))
    assert store.settle(arriving(swept(events=34))) == Settled(repeated=1), "an older sweep says nothing new"
    newer = replace(swept(events=60), charge_nusd=120)
    (change,) = store.settle(arriving(newer)).adjusted
    assert (change.events, change.charge_nusd, change.details["why"]) == (10, 30, "swept again")
    assert store.settle(arriving(newer, again)) == Settled(repeated=2)
    late = an_entry(1, charge_nusd=100)
    (last,) = store.settle(arriving(late, node="a", seq=3)).adjusted
    assert (last.seq, last.charge_nusd, last.details["why"]) == (2, -20, "late record")
    assert store.settle(arriving(replace(swept(events=99), charge_nusd=500))) == Settled(repeated=1), "too late"
    assert read_balances(engine)[0].charged_nusd == 100
    assert {seq for seq, _ in store.receipts("a", 0, 9)} == {3}
    assert_sums(engine)


def test_in_one_batch_with_the_sweeper_in_either_order(engine: Engine, store: LedgerStore) -> None:
    first, second = an_entry(1, charge_nusd=100), an_entry(2, charge_nusd=100)
    settled = store.settle(arriving(swept(1), first, second, swept(2)))
    assert settled.inserted == (swept(1), second)
    assert [change.charge_nusd for change in settled.adjusted] == [30]
    assert settled.repeated == 1
    assert read_balances(engine)[0].charged_nusd == 200
    assert_sums(engine)


@on_both_databases
def test_a_difference_that_cannot_be_stored_is_a_dead_letter(engine: Engine, store: LedgerStore) -> None:
    """-2**63 and 2**63 - 1 are both sound; what is between them is not."""
    largest = (1 << 63) - 1
    store.settle(arriving(swept(bytes=-largest)))
    late = arriving(an_entry(1, bytes=largest), an_entry(2), node="a", seq=3)
    assert store.settle(late) == Settled(inserted=(an_entry(2),), rejected=1)
    assert {seq for seq, _ in store.receipts("a", 3, 4)} == {3, 4}
    assert_sums(engine)


# -- all of it in any order --------------------------------------------------------------------------------------

AMOUNTS = st.none() | st.integers(0, 10**13)
ENTRIES = st.builds(
    an_entry,
    st.integers(0, 7),
    key_id=st.sampled_from(["key-1", "key-2", "key-3"]),
    model=st.sampled_from(["large", "small"]),
    charge_nusd=AMOUNTS,
    cost_nusd=AMOUNTS,
    prompt_tokens=st.none() | st.integers(0, 10**8),
    started_at=st.sampled_from([1_793_000_000.25, 1_793_059_199.9999999, 1_793_059_200.0]),  # to midnight and after
    seq=st.integers(0, 1),
)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=st.lists(st.lists(ENTRIES, max_size=6), max_size=6))
def test_any_batches_in_any_order_settle_each_entry_once(
    engine: Engine, store: LedgerStore, batches: list[list[LedgerEntry]]
) -> None:
    """First come, first kept; the sums are right; the counts add up to what was given."""
    emptied(engine)
    kept: dict[str, LedgerEntry] = {}
    for batch in [*batches, *batches]:
        fresh = {e.entry_id: e for e in reversed(batch) if e.entry_id not in kept}
        conflicts = sum(e != {**fresh, **kept}[e.entry_id] for e in batch)
        kept = {**fresh, **kept}
        settled = store.settle(arriving(*batch))
        assert {e.entry_id: e for e in settled.inserted} == fresh
        assert settled.conflicts == conflicts
        assert len(settled.inserted) + settled.repeated + settled.conflicts == len(batch)
    assert {e.entry_id: e for e in stored(engine)} == {name: as_stored(e) for name, e in kept.items()}
    assert_sums(engine)


def as_stored(entry: LedgerEntry) -> LedgerEntry:
    """Times are kept to the microsecond."""
    return replace(entry, started_at=round(entry.started_at, 6))


def record_of(number: int, drawn: tuple[int, int | None, int | None]) -> LedgerEntry:
    """What a machine says of its exchange; the same whenever it is asked."""
    tokens, charge_nusd, cost_nusd = drawn
    return an_entry(
        number, key_id=f"key-{number % 2}", completion_tokens=tokens, charge_nusd=charge_nusd, cost_nusd=cost_nusd
    )


def sweep_of(record: LedgerEntry, events: int) -> LedgerEntry:
    """What sweepers make of it who saw so many events; the same on every machine."""
    less = (record.completion_tokens or 0) // 2
    return replace(
        record, outcome="crashed", completion_tokens=less, charge_nusd=less + events, cost_nusd=None, events=events,
        details={"swept": True},
    )  # fmt: skip


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=st.lists(st.tuples(st.integers(0, 10**6), AMOUNTS, AMOUNTS), min_size=1, max_size=6), random=st.randoms())
def test_sweeps_and_late_records_in_any_order_doubled_and_in_any_batches_give_the_same_sums(
    engine: Engine, store: LedgerStore, drawn: list[tuple[int, int | None, int | None]], random: Random
) -> None:
    """Every record comes at least once with its receipt, some are swept before, between or after: what is billed in
    the end is what the records say, and each receipt is there."""
    emptied(engine)
    records = [record_of(number, one) for number, one in enumerate(drawn)]
    coming = [Arrival(record, "a", seq) for seq, record in enumerate(records)]
    coming += [one for one in coming if random.random() < 0.5]
    coming += [Arrival(sweep_of(record, random.randint(0, 2))) for record in records * 3 if random.random() < 0.5]
    random.shuffle(coming)
    while coming:
        size = random.randint(1, 5)
        batch, coming = coming[:size], coming[size:]
        settled = store.settle(batch)
        assert len(settled.inserted) + len(settled.adjusted) + settled.repeated == len(batch)
    assert_sums(engine)
    balances = read_balances(engine)
    assert sum(one.charged_nusd for one in balances) == sum(record.charge_nusd or 0 for record in records)
    assert sum(one.cost_nusd for one in balances) == sum(record.cost_nusd or 0 for record in records)
    assert sum(one.completion_tokens for one in balances) == sum(record.completion_tokens or 0 for record in records)
    assert {seq for seq, _ in store.receipts("a", 0, 100)} == set(range(len(records)))
    assert count(engine, dead_letters) == 0
