"""Dead letters: settled after all, or decided against; never deleted, never twice."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import msgspec
import pytest
from msgspec import structs
from sqlalchemy import Engine, event, select

from proxy.billing.entries import LedgerEntry
from proxy.billing.settlement import entry
from proxy.foundation.names import UnknownNameError
from proxy.journal.frames import decode_record, record_payload
from proxy.ledger.schema.tables import dead_letters
from proxy.ledger.settling.dead_letters import ID_CHARS_MIN, DeadLetterError, DeadLetters, StoredDeadLetter
from proxy.ledger.settling.store import Arrival, DeadLetter
from proxy.storage.database import open_engine, reading
from tests.ledger.entries import assert_sums, count, stored
from tests.ledger.priced_entries import FIRST, NODE, a_real_entry, a_real_record, a_real_store, settle, wrong
from tests.support.ledgers import on_both_databases

pytestmark = pytest.mark.io


def to_entry(payload: bytes) -> LedgerEntry:
    return entry(decode_record(payload))


@pytest.fixture
def letters(engine: Engine) -> DeadLetters:
    return DeadLetters(engine, a_real_store(engine), to_entry=to_entry)


def of_record(number: int = 0) -> DeadLetter:
    """A record that could not be read at first."""
    payload = record_payload(a_real_record(number)).decode()
    return DeadLetter("unreadable: UndecodableError", payload, node=NODE, journal_seq=FIRST + number)


def of_entry(number: int = 0, **differences: Any) -> DeadLetter:
    """An entry that could not be stored at first, as the store lays it aside."""
    line = structs.replace(a_real_entry(number), **differences)
    payload = json.dumps(msgspec.to_builtins(line), default=repr)
    return DeadLetter("rejected: DataError", payload, line.exchange_id, "usage", 0, NODE, FIRST + number)


def bury(engine: Engine, *buried: DeadLetter) -> None:
    a_real_store(engine).settle([], buried)


def every(engine: Engine) -> list[StoredDeadLetter]:
    """All there are, in any state."""
    with reading(engine) as connection:
        return [StoredDeadLetter(*row) for row in connection.execute(select(dead_letters))]


@pytest.mark.parametrize("letter", [of_record(), of_entry()], ids=["a record", "an entry"])
def test_what_can_be_settled_by_now_is_settled_with_its_receipt(
    engine: Engine, letters: DeadLetters, letter: DeadLetter
) -> None:
    bury(engine, letter)
    (found,) = letters.open()
    assert letters.retry(found) == "inserted"
    assert stored(engine) == [a_real_entry()]
    assert_sums(engine)
    assert {seq for seq, _ in a_real_store(engine).receipts(NODE, FIRST, FIRST)} == {FIRST}
    (kept,) = every(engine)
    assert structs.replace(kept, state="open", state_at=found.state_at) == found
    assert (kept.state, kept.state_at > found.state_at) == ("retried", True)
    assert letters.open() == []
    assert wrong(engine) == {}


def test_what_the_ledger_has_by_now_is_a_repeat(engine: Engine, letters: DeadLetters) -> None:
    bury(engine, of_record())
    settle(engine, a_real_entry())
    assert letters.retry(letters.open()[0]) == "repeated"
    assert stored(engine) == [a_real_entry()]
    assert [one.state for one in every(engine)] == ["retried"]


def test_a_late_record_becomes_an_adjustment(engine: Engine, letters: DeadLetters) -> None:
    bury(engine, of_record())
    settle(engine, a_real_entry(events=3, details={"swept": True}), node=None)
    assert letters.retry(letters.open()[0]) == "adjusted"
    assert [one.kind for one in stored(engine)] == ["usage", "adjustment"]
    assert_sums(engine)


OF_LATER = msgspec.json.encode(structs.replace(a_real_record(), version=99)).decode()
BAD = {
    "not JSON": ("{", "still cannot be read: DecodeError"),
    "not a record": ('{"v": "9"}', "still cannot be read: UndecodableError"),
    "not an object": ("[1]", "still cannot be read: UndecodableError"),
    "half an entry": ('{"entry_id": "x"}', "still cannot be read: ValidationError"),
    "of a later version": (OF_LATER, "still cannot be read: UndecodableError: record version 99"),
    "more than a column holds": (of_entry(bytes=1 << 63).payload, "the database still rejects it"),
}


@pytest.mark.parametrize(("payload", "words"), BAD.values(), ids=list(BAD))
def test_what_fails_again_stays_as_it_is_and_says_why(
    engine: Engine, letters: DeadLetters, payload: str, words: str
) -> None:
    bury(engine, DeadLetter("rejected: X", payload))
    before = every(engine)
    with pytest.raises(DeadLetterError, match=words):
        letters.retry(before[0])
    assert every(engine) == before == letters.open()
    assert stored(engine) == []


def test_a_conflict_stays_one(engine: Engine, letters: DeadLetters) -> None:
    settle(engine, a_real_entry(events=1))
    a_real_store(engine).settle([Arrival(a_real_entry(), NODE, FIRST + 1)])
    (conflict,) = letters.open()
    with pytest.raises(DeadLetterError, match="another content"):
        letters.retry(conflict)
    assert letters.open() == [conflict]
    assert stored(engine) == [a_real_entry(events=1)]


def test_a_letter_that_is_dropped_is_kept_with_the_reason(engine: Engine, letters: DeadLetters) -> None:
    bury(engine, of_record(0), of_record(1))
    first, second = sorted(letters.open(), key=lambda letter: letter.journal_seq or 0)
    letters.drop(first, " from a test of ours ", 5_000.0)
    assert letters.open() == [second]
    kept = next(one for one in every(engine) if one.id == first.id)
    assert (kept.state, kept.state_at) == ("dropped", 5_000.0)
    assert kept.reason == f"{first.reason}; dropped: from a test of ours"
    assert {seq for seq, _ in a_real_store(engine).receipts(NODE, FIRST, FIRST + 1)} == {FIRST, FIRST + 1}
    bury(engine, of_record(0))  # and comes again
    assert letters.open() == [second]
    assert count(engine, dead_letters) == 2


def test_nobody_deals_with_a_letter_twice(engine: Engine, letters: DeadLetters) -> None:
    bury(engine, of_record())
    (letter,) = letters.open()
    letters.retry(letter)
    with pytest.raises(DeadLetterError, match="no longer open"):
        letters.retry(letter)
    with pytest.raises(DeadLetterError, match="no longer open"):
        letters.drop(letter, "too late", 1.0)
    with pytest.raises(DeadLetterError, match="is already retried"):
        letters.named(letter.id)
    assert stored(engine) == [a_real_entry()]


@pytest.mark.parametrize("why", ["", " ", "x" * 501, "two\nlines"])
def test_a_reason_to_drop_is_a_sentence(engine: Engine, letters: DeadLetters, why: str) -> None:
    bury(engine, of_record())
    with pytest.raises(DeadLetterError, match="reason: must be"):
        letters.drop(letters.open()[0], why, 1.0)
    assert len(letters.open()) == 1


def test_a_letter_is_named_by_the_beginning_of_its_id(engine: Engine, letters: DeadLetters) -> None:
    bury(engine, *(of_record(n) for n in range(3)))
    for letter in letters.open():
        assert letters.named(letter.id) == letters.named(letter.id[:ID_CHARS_MIN]) == letter
    for nobody in ("0" * 64, "%" * ID_CHARS_MIN, "_" * ID_CHARS_MIN):
        with pytest.raises(UnknownNameError, match="no dead letter"):
            letters.named(nobody)
    with pytest.raises(DeadLetterError, match="first 8 characters"):
        letters.named(letters.open()[0].id[: ID_CHARS_MIN - 1])


def test_an_id_that_could_mean_two_names_none(engine: Engine, letters: DeadLetters) -> None:
    with engine.begin() as connection:
        times = dict.fromkeys(("first_seen", "last_seen", "state_at"), 1.0)
        row = {"reason": "r", "payload": "{}", "times_seen": 1, "state": "open", **times}
        connection.execute(dead_letters.insert(), [{**row, "id": "a" * 63 + last} for last in "12"])
    with pytest.raises(DeadLetterError, match="several dead letters"):
        letters.named("a" * 63)
    assert letters.named("a" * 63 + "2").id == "a" * 63 + "2"


@on_both_databases
def test_two_people_retry_the_same_letter_at_once(engine: Engine, ledger_url: str, letters: DeadLetters) -> None:
    bury(engine, *(of_record(n) for n in range(5)))
    todo = letters.open()
    begin = Barrier(2)
    said: list[str] = []

    def retry_all(_: int) -> None:
        own = open_engine(ledger_url)
        mine = DeadLetters(own, a_real_store(own), to_entry=to_entry)
        begin.wait()
        for letter in todo:
            try:
                said.append(mine.retry(letter))
            except DeadLetterError:
                said.append("refused")
        own.dispose()

    with ThreadPoolExecutor(2) as people:
        list(people.map(retry_all, range(2)))
    assert sorted(said) == ["inserted"] * 5 + ["refused"] * 5
    assert len(stored(engine)) == 5
    assert_sums(engine)


@on_both_databases
def test_the_entry_and_the_mark_are_one_transaction(engine: Engine, letters: DeadLetters) -> None:
    bury(engine, of_record())
    before = letters.open()

    def refuse(_connection: object) -> None:
        raise OSError("the disk went away")

    event.listen(engine, "commit", refuse)
    with pytest.raises(OSError, match="went away"):
        letters.retry(before[0])
    event.remove(engine, "commit", refuse)
    assert (letters.open(), stored(engine)) == (before, [])
    assert letters.retry(before[0]) == "inserted"
