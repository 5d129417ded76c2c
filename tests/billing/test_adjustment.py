"""A better statement of an exchange becomes the difference; the last word is the machine's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from proxy.billing.adjustment import NUMBERS, ContradictionError, Finality, finality, is_statement, restated
from proxy.billing.entries import LedgerEntry, usage_of
from proxy.billing.settlement import content_hash
from tests.ledger.entries import an_entry

COUNTS = st.integers(0, 10**12)
ENTRIES = st.builds(
    an_entry,
    events=COUNTS,
    bytes=COUNTS,
    **{name: st.none() | COUNTS for name in NUMBERS if name not in ("events", "bytes")},
)


def swept(entry: LedgerEntry) -> LedgerEntry:
    return replace(entry, outcome="crashed", details={"swept": True})


def change_of(there: list[LedgerEntry], said: LedgerEntry) -> LedgerEntry:
    change = restated(there, said, content_hash)
    assert change is not None
    return change


@given(ENTRIES.map(swept), ENTRIES)
def test_the_two_add_up_to_what_the_late_record_says(old: LedgerEntry, late: LedgerEntry) -> None:
    change = change_of([old], late)
    for name in NUMBERS:
        assert (getattr(old, name) or 0) + (getattr(change, name) or 0) == (getattr(late, name) or 0)
        unknown = getattr(old, name) is None and getattr(late, name) is None
        assert (getattr(change, name) is None) == unknown


@given(ENTRIES.map(swept), st.lists(ENTRIES.map(swept), max_size=4), ENTRIES)
def test_however_often_it_was_swept_all_add_up_to_the_late_record(
    first: LedgerEntry, more: list[LedgerEntry], late: LedgerEntry
) -> None:
    there = [first]
    for said in (*more, late):
        if (change := restated(there, said, content_hash)) is not None:
            there.append(change)
    for name in NUMBERS:
        assert sum(getattr(one, name) or 0 for one in there) == (getattr(late, name) or 0)
    assert [one.seq for one in there[1:]] == list(range(1, len(there)))
    assert restated(there, late, content_hash) is None, "said again, it changes nothing"
    for said in more:
        assert restated(there, said, content_hash) is None, "after the last word no sweep counts"


@given(ENTRIES.map(swept), ENTRIES)
def test_the_same_two_give_the_same_entry(old: LedgerEntry, late: LedgerEntry) -> None:
    assert content_hash(change_of([old], late)) == content_hash(change_of([old], late))


def test_everything_else_is_as_the_late_record_says() -> None:
    late = an_entry(1, details={"billed": "prompt+output"})
    old = swept(an_entry(1, events=3))
    change = change_of([old], late)
    assert (change.kind, change.seq, change.exchange_id) == ("adjustment", 1, late.exchange_id)
    assert change.entry_id not in (old.entry_id, late.entry_id)
    assert (change.outcome, change.started_at, change.duration_ms) == ("served", late.started_at, late.duration_ms)
    said = {"adjusts": old.entry_id, "why": "late record", "restates": content_hash(late)}
    assert change.details == {"billed": "prompt+output", **said}
    assert finality(change) is Finality.FINAL
    assert is_statement(change)


def test_a_correction_keeps_its_number_and_is_no_statement() -> None:
    old = swept(an_entry(1))
    correction = an_entry(1, kind="adjustment", seq=1, charge_nusd=-5, details={"by": "operator"})
    assert not is_statement(correction)
    change = change_of([old, correction], an_entry(1, charge_nusd=7))
    assert (change.seq, change.charge_nusd) == (2, 7 - (old.charge_nusd or 0)), "the correction stands beside it"


def test_two_last_words_contradict_each_other() -> None:
    there = [swept(an_entry(1)), change_of([swept(an_entry(1))], an_entry(1, charge_nusd=7))]
    with pytest.raises(ContradictionError):
        restated(there, an_entry(1, charge_nusd=8), content_hash)


def recovered(entry: LedgerEntry) -> LedgerEntry:
    return replace(entry, outcome="crashed", details={"recovered": True})


@given(st.permutations(["swept", "recovered", "final"]), ENTRIES, ENTRIES, ENTRIES)
def test_in_whatever_order_they_come_all_add_up_to_the_best(
    order: list[str], first: LedgerEntry, second: LedgerEntry, third: LedgerEntry
) -> None:
    """A crash, after which the disk lacked what the ledger had, is no contradiction."""
    said = {"swept": swept(first), "recovered": recovered(second), "final": third}
    there = [said[order[0]]]
    for name in order[1:]:
        if (change := restated(there, said[name], content_hash)) is not None:
            there.append(change)
    for name in NUMBERS:
        assert sum(getattr(one, name) or 0 for one in there) == (getattr(third, name) or 0)


def test_a_second_recovery_counts_only_if_it_has_more() -> None:
    """A machine that is killed again before its disk took what it recovered."""
    there = [recovered(an_entry(1, events=5))]
    assert restated(there, recovered(an_entry(1, events=5, charge_nusd=8)), content_hash) is None
    assert change_of(there, recovered(an_entry(1, events=7))).events == 2


def test_how_well_a_record_knows_its_exchange() -> None:
    assert finality(swept(an_entry())) is Finality.SWEPT
    assert finality(recovered(an_entry())) is Finality.RECOVERED
    assert finality(an_entry(details={"swept": False})) is Finality.FINAL


def test_counts_that_stand_are_not_added_once_more() -> None:
    """An operator set a count; the late record of the machine changes none, and none of `units`."""
    units = {"cache_write_tokens": 5}
    old = replace(an_entry(1, outcome="crashed"), details={"swept": True, "units": units})
    by_hand = an_entry(1, kind="adjustment", seq=1, details={"by": "operator", "sets": {"prompt_tokens": 9}})
    change = change_of([old, by_hand], an_entry(1, details={"units": units}))
    assert [usage_of(one).cache_write_tokens or 0 for one in (old, by_hand, change)] == [5, 0, 0]
