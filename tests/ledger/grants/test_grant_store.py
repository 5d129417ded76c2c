"""Grants in the ledger: each entry is posted once, and what is burned follows from the entries, whoever burns when."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, delete, event, insert, update

from proxy.billing import grants as grants_of_billing
from proxy.billing import windows
from proxy.billing.entries import EntryKind
from proxy.billing.grants import GrantError
from proxy.billing.period import month_of
from proxy.ledger.grants import burning
from proxy.ledger.grants.burning import GrantPeriod, burn, grant_periods, read_current_states
from proxy.ledger.grants.store import UnknownGrantError
from proxy.ledger.schema.account_tables import grant_moves, grants
from proxy.ledger.schema.archive_guard import refuse_until
from proxy.ledger.schema.tables import archives, ledger_entries
from proxy.reconciliation.check_grants import grants_add_up
from proxy.reconciliation.integrity import CheckScope
from proxy.storage.database import reading, writing
from tests.ledger.entries import emptied, stored
from tests.ledger.grants.book import DAY_S, Book, T
from tests.ledger.owners import insert_owners
from tests.support.examples import examples
from tests.support.ledgers import on_both_databases
from tests.support.waiting import wait_until

pytestmark = pytest.mark.io

ENTRY, SCOPES = ledger_entries.c, ("key-1", "proj-1", "org-1")


class Killed(Exception):
    pass


@pytest.fixture
def book(engine: Engine) -> Book:
    insert_owners(engine)
    return Book(engine)


@contextmanager
def killed_at_commit(engine: Engine) -> Iterator[None]:
    """The next transaction that would write is not committed."""

    def kill(_connection: object) -> None:
        raise Killed

    event.listen(engine, "commit", kill)
    try:
        with pytest.raises(Killed):
            yield
    finally:
        event.remove(engine, "commit", kill)


@on_both_databases
def test_a_grant_is_an_entry_and_what_is_left_leaves_the_balance_at_its_end(book: Book) -> None:
    before = book.charge(3)
    made = book.grant()
    assert (made.granted, book.credit()) == (10, 10)
    first = stored(book.engine)[-1]
    assert (first.kind, first.charge_nusd, first.key_id) == ("credit", -10, "key-1")
    assert first.details == {
        "why": "grant trial", "by": "operator", "grant": "grant_key-1_trial", "grant_move": "granted",
    }  # fmt: skip
    used = book.charge(4, at=made.grant.begins_at)
    book.charge(-1, of=used)
    book.charge(-1, of=before)
    assert book.amounts() == [(10, 3, 0)]
    ended = book.grants.revoke(made.grant.grant_id)
    assert (ended.granted, ended.burned, ended.expired, ended.left) == (10, 3, 7, 0)
    last = stored(book.engine)[-1]
    assert (last.charge_nusd, last.details["why"], book.credit()) == (7, "grant trial: revoked", 3)
    book.charge(2, of=used)
    book.post()
    assert book.amounts() == [(10, 5, 5)], "a late charge is not given back"
    assert book.credit() == 5
    book.charge(-5, of=used)
    book.post()
    assert (book.amounts(), book.credit()) == ([(10, 0, 10)], 0), "a refund became credit that does not expire"
    assert book.wrong() == []
    count = len(stored(book.engine))
    book.post()
    book.grants.revoke(made.grant.grant_id)
    assert len(stored(book.engine)) == count


on_sqlite = pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)
"""The clock is set by hand."""


@on_sqlite
def test_it_begins_expires_and_recurs_also_after_a_downtime(book: Book) -> None:
    book.wait(0.5)
    made = book.grant(recurs="calendar_month", time_zone="Europe/Berlin", begins_at=T + 60)
    assert (made.granted, len(stored(book.engine))) == (0, 0)
    book.wait(61)
    book.post()
    assert book.credit() == 10
    book.wait(100 * DAY_S)
    during = book.charge(4, 95 * DAY_S)  # a long exchange of the first month
    book.post()
    assert book.amounts() == [(10, 4, 6), *3 * [(10, 0, 10)], (10, 0, 0)]
    assert book.credit() == 14
    count = len(stored(book.engine))
    book.post()
    assert len(stored(book.engine)) == count
    book.charge(3, of=during)
    book.post()
    assert book.amounts()[0] == (10, 7, 3)
    book.grants.revoke(made.grant.grant_id)
    book.wait(100 * DAY_S)
    book.post()
    assert len(book.amounts()) == 5, "a revoked grant recurs"
    assert (book.credit(), book.wrong()) == (7, [])


@on_sqlite
def test_the_end_of_an_idle_ledger(book: Book) -> None:
    """Nothing is settled, so that the ledger's clock does not advance."""
    book.grant(expires_at=T + 60)
    book.post()
    assert book.credit() == 10
    book.wait(60)
    book.post()
    assert (book.credit(), book.amounts()) == (0, [(10, 0, 10)])


@on_sqlite
def test_a_series_that_is_revoked_between_two_of_its_grants(book: Book) -> None:
    made = book.grant(recurs="calendar_month", lasts_s=3_600)
    book.wait(DAY_S)
    book.post()
    book.grants.revoke(made.grant.grant_id)
    book.wait(40 * DAY_S)
    book.post()
    book.charge(1)
    assert (book.amounts(), book.credit()) == ([(10, 0, 10)], 0)


@on_sqlite
def test_new_data_of_time_zones_leave_no_gap(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    """A country no longer changes its clocks: the window that has begun ends as it was granted."""
    first = book.grant(recurs="calendar_day", time_zone="Europe/Berlin").grant
    end = windows.window_end
    monkeypatch.setattr(grants_of_billing, "window_end", lambda *of: (end(*of) or 0.0) + 3_600)
    book.wait(2 * DAY_S)
    book.post()
    second, third = (one.grant for one in book.grants.every("key-1")[1:])
    assert (first.expires_at, second.expires_at) == (second.begins_at, third.begins_at)
    assert (first.expires_at, book.wrong()) == (end("calendar_day", "Europe/Berlin", 0.0, first.begins_at), [])


@on_sqlite
def test_who_charges_in_the_first_second_burns_the_next_grant(book: Book) -> None:
    """It is settled before the entry of the grant is posted."""
    book.grant(recurs="calendar_day")
    book.wait(DAY_S)
    book.charge(4, 0.1)
    while burn(book.engine):
        pass
    assert read_current_states(book.engine, "key-1")[1].burned == 4
    book.post()
    assert book.amounts() == [(10, 0, 10), (10, 4, 0)]


@on_sqlite
def test_each_level_has_its_own_grants(book: Book) -> None:
    for scope_id, usd in zip(SCOPES, (3, 5, 20), strict=True):
        book.grant(usd, scope_id=scope_id)
    book.charge(4, 1e-3)
    book.wait(1)
    book.charge(4, key_id="key-2")
    assert [book.amounts(one)[0][1] for one in SCOPES] == [0, 4, 4]
    of = book.charge(4)
    assert [book.amounts(one)[0][1] for one in SCOPES] == [3, 5, 8]
    while burn(book.engine):
        pass
    book.charge(-2, of=of)
    assert [book.amounts(one)[0][1] for one in SCOPES] == [2, 5, 6], "gives back at each level what was burned there"
    while burn(book.engine):
        pass
    assert book.wrong() == []


@on_sqlite
def test_a_kill_at_any_commit_loses_and_repeats_nothing(book: Book) -> None:
    with killed_at_commit(book.engine):
        book.grant(expires_at=T + 60)
    assert (stored(book.engine), book.grants.every()) == ([], [])
    book.grant(expires_at=T + 60)
    book.wait(1)
    book.charge(4)
    book.wait(60)
    for _ in range(2):
        with killed_at_commit(book.engine):
            burn(book.engine)
        with killed_at_commit(book.engine):
            book.post()
    book.post()
    assert (book.amounts(), book.credit(), book.wrong()) == ([(10, 4, 6)], 4, [])


@on_sqlite
def test_what_is_refused(book: Book) -> None:
    book.grant()
    with pytest.raises(GrantError, match="name: key-1 already has a grant 'trial'"):
        book.grant(99)
    book.grant(scope_id="proj-1")
    with pytest.raises(UnknownGrantError, match="grant: no grant has the id 'x'"):
        book.grants.revoke("x")
    assert book.credit() == 10


def periods(book: Book) -> list[list[GrantPeriod]]:
    """Of each scope, in two periods; the second one begins with what the first one left."""
    middle, found = T + 1.5 * DAY_S, []
    with reading(book.engine) as connection:
        for scope_id in SCOPES:
            first = grant_periods(connection, scope_id, 0.0, middle)
            second = grant_periods(connection, scope_id, middle, T + 1_000 * DAY_S)
            left = {one.grant.grant_id: one.closing for one in first if one.closing}
            assert {one.grant.grant_id: one.opening for one in second if one.opening} == left
            closing = left | {one.grant.grant_id: one.closing for one in second}
            now = {one.grant.grant_id: one.left for one in book.grants.every(scope_id) if one.left}
            assert {name: nusd for name, nusd in closing.items() if nusd} == now
            found += [first, second]
    return found


@on_both_databases
@pytest.mark.thorough
def test_many_at_once_post_each_entry_once(engine: Engine) -> None:
    """Posters and settlers in several threads, while grants are added, expire and are revoked."""
    insert_owners(engine)
    books = [Book(engine, first=1_000 * number, is_real=True) for number in range(4)]

    def settle(number: int) -> None:
        for _ in range(12):
            of = books[number].charge(3, 0.05)
            books[number].post()
            books[number].charge(-1, of=of)

    with ThreadPoolExecutor(4) as threads:
        settling = [threads.submit(settle, number) for number in range(4)]
        for number in range(12):
            made = books[0].grant(9, f"g{number}", SCOPES[number % 3], lasts_s=1)
            if number % 4 == 0:
                books[0].grants.revoke(made.grant.grant_id)
        for one in settling:
            one.result()
    book = books[0]
    wait_until(lambda: all(one.grant.ends_at < time.time() for one in book.grants.every()))
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(Book.post, books))
    assert book.wrong() == []
    states = book.grants.every()
    assert [(one.granted, one.left) for one in states] == [(9, 0)] * 12
    assert any(one.burned for one in states)
    for scope_id in SCOPES:
        of_scope = [one for one in states if one.grant.scope_id == scope_id]
        assert book.credit(scope_id) == sum(one.burned for one in of_scope)


@on_sqlite
def test_what_is_archived_stays_burned(book: Book) -> None:
    """A month is archived before a server posts the end of a grant in it."""
    trial, long = book.grant(expires_at=T + 60), book.grant(30, "long")
    book.wait(1)
    book.charge(4)
    while burn(book.engine):
        pass
    october = month_of(T)
    with writing(book.engine) as connection:
        row = {"month": str(october), "statements_until": str(october), "entries": 3, "file": "f", "sha256": ""}
        connection.execute(insert(archives), {**row, "archived_at": T, "archived_by": "anna"})
        connection.execute(delete(ledger_entries))
    refuse_until(book.engine, october, print)
    book.wait(40 * DAY_S)
    book.first = round(october.until * 1_000) << 80  # of the next exchange: its id is that of a later month
    book.charge(5)
    book.post()
    assert (book.amounts(), book.wrong()) == ([(10, 4, 6), (30, 5, 0)], [])
    (end,) = (one for one in stored(book.engine) if one.kind == EntryKind.CREDIT)
    assert (end.details["grant"], end.started_at > october.until) == (trial.grant.grant_id, True)
    book.grants.revoke(long.grant.grant_id)
    assert (book.amounts()[1], book.wrong()) == ((30, 5, 25), [])
    refuse_until(book.engine, None, print)


STEP = st.one_of(
    st.tuples(st.just("charge"), st.integers(1, 20), st.sampled_from([0.0, 5.0, 2 * DAY_S])),
    st.tuples(st.just("adjust"), st.integers(-20, 20), st.integers(0, 5)),
    st.tuples(st.just("grant"), st.integers(1, 30), st.sampled_from([None, "calendar_day"]), st.sampled_from(SCOPES)),
    st.tuples(st.just("revoke"), st.integers(0, 3)),
    st.tuples(st.just("wait"), st.sampled_from([1.0, 3_600.0, DAY_S])),
    st.tuples(st.just("burn"), st.integers(1, 3)),
    st.tuples(st.just("post")),
)


def do(book: Book, number: int, what: str, *how: Any) -> None:
    usage = [one for one in book.entries if one.kind == EntryKind.USAGE]
    known = book.grants.every()
    match what:
        case "charge":
            book.charge(how[0], how[1], key_id=f"key-{1 + how[0] % 2}")
        case "adjust" if usage:
            of = usage[how[1] % len(usage)]
            total = sum(one.charge_nusd or 0 for one in book.entries if one.exchange_id == of.exchange_id)
            if change := max(-total, how[0]):
                book.charge(change, of=of)
        case "grant":
            lasts = None if how[1] else 5_000
            book.grant(how[0], f"g{number}", how[2], recurs=how[1], lasts_s=lasts, priority=how[0])
        case "revoke" if known:
            book.grants.revoke(known[how[0] % len(known)].grant.grant_id)
        case "wait":
            book.wait(how[0])
        case "burn":
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(burning, "ENTRIES_MAX", how[0])
                burn(book.engine)
        case "post":
            book.post()


@on_sqlite
@pytest.mark.hypothesis
@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEP, max_size=25))
def test_the_amounts_do_not_depend_on_who_burns_when(engine: Engine, steps: list[tuple[Any, ...]]) -> None:
    emptied(engine)
    insert_owners(engine)
    book = Book(engine)
    for number, step in enumerate(steps):
        do(book, number, *step)
        book.wait(0.25)
    before, months = [book.grants.every(one) for one in SCOPES], periods(book)
    while burn(engine):
        pass
    assert [book.grants.every(one) for one in SCOPES] == before, "a reader has other amounts"
    assert periods(book) == months
    assert (book.wrong(), book.wrong(since=T + DAY_S)) == ([], [])
    book.post()
    assert book.wrong() == []
    for scope_id in SCOPES:
        states = book.grants.every(scope_id)
        assert book.credit(scope_id) == sum(one.granted - one.expired for one in states)
        assert all(one.left == 0 for one in states if one.grant.ends_at <= book.now)


BREAKS: dict[str, Callable[[], Any]] = {
    "an amount": lambda: update(grants).values(burned_nusd=5),
    "a burn": lambda: update(grant_moves).where(grant_moves.c.kind == "burned").values(amount_nusd=5),
    "a burn is gone": lambda: delete(grant_moves).where(grant_moves.c.kind == "burned"),
    "a move is gone": lambda: delete(grant_moves).where(grant_moves.c.kind == "granted"),
    "an entry": lambda: update(ledger_entries).where(ENTRY.kind == "credit").values(charge_nusd=-11),
    "an entry is gone": lambda: delete(ledger_entries).where(ENTRY.kind == "credit"),
    "a charge": lambda: update(ledger_entries).where(ENTRY.kind == "usage").values(charge_nusd=3),
    "when it began": lambda: update(ledger_entries).where(ENTRY.kind == "usage").values(started_at=T - 1),
    "the grant": lambda: update(grants).values(amount_nusd=3),
}


@on_sqlite
def test_what_is_broken_by_hand_is_found(book: Book) -> None:
    book.grant()
    book.wait(1)
    book.charge(4)
    book.post()
    assert book.wrong() == []
    for name, statement in BREAKS.items():
        connection = book.engine.connect()
        connection.execute(statement())
        assert grants_add_up(connection, CheckScope(book.now, None, 0.0)).differences, name
        connection.rollback()
        connection.close()
