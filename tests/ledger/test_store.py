"""Charged once; nothing overwritten; one bad row alone."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from sqlalchemy import Engine, event, insert, select, update

from proxy.billing.entries import LedgerEntry
from proxy.ledger.database import LedgerUnavailable, reading, writing
from proxy.ledger.reports import EntryFilter, EntryReader, read_balances
from proxy.ledger.store import DeadLetter, LedgerStore, Settled
from proxy.ledger.tables import dead_letters, ledger_entries
from tests.ledger.making import a_ledger, a_store, an_entry, count


def stored(engine: Engine) -> list[LedgerEntry]:
    return list(EntryReader(engine, EntryFilter()).new_entries())


def letters(engine: Engine) -> Sequence[Any]:
    with reading(engine) as connection:
        return connection.execute(select(dead_letters).order_by(dead_letters.c.exchange_id)).all()


def assert_balances_are_sums(engine: Engine) -> None:
    entries = stored(engine)
    for balance in read_balances(engine):
        own = [e for e in entries if e.key_id == balance.key_id]
        assert balance.charged_usd == sum(e.charge_usd or 0 for e in own)
        assert balance.cost_usd == sum(e.cost_usd or 0 for e in own)
        assert balance.prompt_tokens == sum(e.prompt_tokens or 0 for e in own)
        assert balance.reasoning_tokens == sum(e.reasoning_tokens or 0 for e in own)
        assert balance.entries == len(own)
    assert {b.key_id for b in read_balances(engine)} == {e.key_id for e in entries}


def test_an_entry_comes_back_as_it_went_in(engine: Engine, store: LedgerStore) -> None:
    full = an_entry(1, details={"flags": ["ü", "\u2028"], "depth": {"a": [1, 2.5, None, True]}})
    bare = an_entry(
        2,
        prompt_tokens=None,
        cost_usd=None,
        charge_usd=None,
        price_version=None,
        first_token_ms=None,
        seq=0,
        details={},
    )
    assert store.settle([full, bare]) == Settled(inserted=(full, bare))
    assert sorted(stored(engine), key=lambda e: e.exchange_id) == [full, bare]


@pytest.mark.parametrize(
    "nusd", [0, 1, 999_999_999, 1_000_000_000, -1, 123_456_789_123_456, 2**23 * 10**9 - 1, 1 - 2**23 * 10**9]
)
def test_money_is_exact_to_the_nano_dollar(engine: Engine, store: LedgerStore, nusd: int) -> None:
    store.settle([an_entry(charge_usd=nusd, cost_usd=-nusd)])
    assert (stored(engine)[0].charge_usd, stored(engine)[0].cost_usd) == (nusd, -nusd)
    assert read_balances(engine)[0].charged_usd == nusd


def test_many_small_charges_add_up_exactly(engine: Engine, store: LedgerStore) -> None:
    store.settle([an_entry(0, charge_usd=4_000_000_000_000_000)])  # four million dollars: floats are coarse there
    for start in range(1, 301, 3):
        store.settle([an_entry(start + i, charge_usd=100_000_001 + i) for i in range(3)])
    assert_balances_are_sums(engine)


def test_a_repeat_changes_nothing(engine: Engine, store: LedgerStore) -> None:
    entries = [an_entry(n) for n in range(3)]
    store.settle(entries)
    before = read_balances(engine)
    assert store.settle([*entries, an_entry(3)]) == Settled(inserted=(an_entry(3),), repeated=3)
    assert store.settle(entries) == Settled(repeated=3)
    assert read_balances(engine)[0].entries == before[0].entries + 1
    assert count(engine, dead_letters) == 0


def test_another_content_under_the_same_id_is_an_alarm_and_no_overwrite(engine: Engine, store: LedgerStore) -> None:
    store.settle([an_entry(1)])
    forged = an_entry(1, charge_usd=1)
    assert store.settle([forged, an_entry(2)]) == Settled(inserted=(an_entry(2),), conflicts=1)
    assert store.settle([forged]) == Settled(conflicts=1)
    assert stored(engine)[0].charge_usd == an_entry(1).charge_usd
    assert_balances_are_sums(engine)
    (letter,) = letters(engine)
    assert letter.reason.startswith("conflict")
    assert json.loads(letter.payload)["charge_usd"] == 1
    assert (letter.exchange_id, letter.kind, letter.seq, letter.times_seen) == (forged.exchange_id, "usage", 0, 2)


def test_another_id_for_the_same_exchange_is_an_alarm_too(engine: Engine, store: LedgerStore) -> None:
    store.settle([an_entry(1)])
    assert store.settle([replace(an_entry(1), entry_id="another")]) == Settled(conflicts=1)
    assert count(engine, ledger_entries) == 1


def test_a_conflict_within_one_batch(engine: Engine, store: LedgerStore) -> None:
    first, second = an_entry(1), an_entry(1, events=34)
    assert store.settle([first, second, first]) == Settled(inserted=(first,), repeated=1, conflicts=1)
    assert_balances_are_sums(engine)


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


@pytest.mark.parametrize("differences", POISON.values(), ids=list(POISON))
def test_a_bad_row_is_kept_aside_and_its_neighbours_settle(
    engine: Engine, store: LedgerStore, differences: dict[str, Any]
) -> None:
    bad = replace(an_entry(2), **differences)
    settled = store.settle([an_entry(1), bad, an_entry(3)])
    assert settled == Settled(inserted=(an_entry(1), an_entry(3)), rejected=1)
    assert_balances_are_sums(engine)
    (letter,) = letters(engine)
    assert letter.reason.startswith("rejected: ")
    assert letter.exchange_id == bad.exchange_id
    assert json.loads(letter.payload)["entry_id"] == bad.entry_id


def test_letters_go_down_in_the_same_transaction_and_are_counted_once(engine: Engine, store: LedgerStore) -> None:
    letter = DeadLetter("unreadable: ValueError", '{"half":', "x-1", "usage", 0)
    store.settle([an_entry(1)], [letter])
    store.settle([], [letter])
    (row,) = letters(engine)
    assert (row.reason, row.payload, row.times_seen) == (letter.reason, letter.payload, 2)
    assert row.last_seen > row.first_seen


def test_nothing_is_half_done_when_the_commit_fails(engine: Engine, store: LedgerStore) -> None:
    store.settle([an_entry(0)])

    def refuse(_connection: object) -> None:
        raise OSError("the disk went away")

    event.listen(engine, "commit", refuse)
    with pytest.raises(OSError):
        store.settle([an_entry(1)], [DeadLetter("unreadable", "…")])
    event.remove(engine, "commit", refuse)
    assert stored(engine) == [an_entry(0)]
    assert count(engine, dead_letters) == 0
    assert_balances_are_sums(engine)
    assert store.settle([an_entry(1)]) == Settled(inserted=(an_entry(1),))


def test_settling_times_rise_even_if_the_clock_falls(engine: Engine) -> None:
    times = iter([2_000.0, 1_000.0, 1_000.0, 3_000.0])
    store = LedgerStore(engine, content_hash=lambda e: e.entry_id, clock=lambda: next(times))
    for number in (3, 1, 2, 0):
        store.settle([an_entry(number)])
    with reading(engine) as connection:
        at = list(
            connection.execute(select(ledger_entries.c.settled_at).order_by(ledger_entries.c.settled_at)).scalars()
        )
    assert at == [2_000.0, 2_000.000001, 2_000.000002, 3_000.0]
    assert [e.exchange_id for e in stored(engine)] == [an_entry(n).exchange_id for n in (3, 1, 2, 0)]


def test_a_database_without_tables_is_unavailable_not_poison(tmp_path: Path) -> None:
    engine = a_ledger(tmp_path, "other.db")
    with writing(engine) as connection:
        connection.exec_driver_sql("DROP TABLE ledger_entries")
    with pytest.raises(LedgerUnavailable):
        a_store(engine).settle([an_entry(1)])
    assert count(engine, dead_letters) == 0
    engine.dispose()


def test_a_file_that_is_no_database_is_unavailable(tmp_path: Path) -> None:
    engine = a_ledger(tmp_path, "other.db")
    engine.dispose()
    (tmp_path / "other.db").write_bytes(b"no database" * 1000)
    with pytest.raises(LedgerUnavailable) as raised:
        a_store(engine).settle([an_entry(1)])
    assert "INSERT" not in str(raised.value)
    engine.dispose()


def test_the_database_itself_refuses_a_second_terminal_entry(engine: Engine, store: LedgerStore) -> None:
    """Whatever code will be written one day: the unique key stands in SQL."""
    store.settle([an_entry(1), an_entry(2)])
    first, second = an_entry(1), an_entry(2)
    change = update(ledger_entries).where(ledger_entries.c.entry_id == second.entry_id)
    with pytest.raises(Exception, match="UNIQUE"), writing(engine) as connection:
        connection.execute(change.values(exchange_id=first.exchange_id))
    row = {"id": "1", "reason": "r", "payload": "p", "first_seen": 1.0, "last_seen": 1.0, "times_seen": 1}
    with pytest.raises(Exception, match="UNIQUE"), writing(engine) as connection:
        connection.execute(insert(dead_letters), [row, row])


ENTRIES = st.builds(
    an_entry,
    st.integers(0, 7),
    key_id=st.sampled_from(["key-1", "key-2", "key-3"]),
    charge_usd=st.none() | st.integers(0, 10**13),
    cost_usd=st.none() | st.integers(0, 10**13),
    prompt_tokens=st.none() | st.integers(0, 10**8),
    seq=st.integers(0, 1),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(ENTRIES, max_size=6), max_size=6))
def test_any_batches_in_any_order_settle_each_entry_once(batches: list[list[LedgerEntry]]) -> None:
    """First come, first kept; balances are the sums; the counts add up to what was given."""
    with tempfile.TemporaryDirectory() as folder:
        engine = a_ledger(Path(folder))
        store = a_store(engine)
        kept: dict[str, LedgerEntry] = {}
        for batch in [*batches, *batches]:
            fresh = {e.entry_id: e for e in reversed(batch) if e.entry_id not in kept}
            conflicts = sum(e != {**fresh, **kept}[e.entry_id] for e in batch)
            kept = {**fresh, **kept}
            settled = store.settle(batch)
            assert {e.entry_id: e for e in settled.inserted} == fresh
            assert settled.conflicts == conflicts
            assert len(settled.inserted) + settled.repeated + settled.conflicts == len(batch)
        assert {e.entry_id: e for e in stored(engine)} == kept
        assert_balances_are_sums(engine)
        engine.dispose()
