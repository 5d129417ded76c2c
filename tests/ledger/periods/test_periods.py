"""Closed months: what is on which statement, and that a statement that was given away never changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as replace_settings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from sqlalchemy import delete, select, update

from proxy.billing.period import Closing, Closings, month_from, month_of
from proxy.ledger.accounts.credit import credit_entry
from proxy.ledger.periods.closing import PeriodError, close, issue_all, read_closings, read_period, read_periods
from proxy.ledger.schema.account_tables import accounts, api_keys
from proxy.ledger.schema.tables import ledger_entries, scope_months
from proxy.reconciliation.check_periods import closed_month_stays
from proxy.reconciliation.reconcile import reconcile
from proxy.reports.entry_reader import EntryFilter, EntryReader
from proxy.reports.statement import read_statement
from proxy.reports.statement_document import LATE_USAGE
from proxy.reports.statement_html import statement_html
from proxy.reports.statement_text import statement_json
from proxy.settings.statement import CustomerSettings, StatementSettings, TaxSettings
from proxy.storage.database import open_engine, reading, writing
from tests.ledger.entries import an_entry
from tests.ledger.owners import KEY, ORGANIZATION, OWNERS, at
from tests.ledger.periods.books import DECEMBER, NOVEMBER, OCTOBER, Book, adjusted, book, everything
from tests.support.examples import AT_RANDOM
from tests.support.ledgers import on_both_databases
from tests.support.sqlite import empty_ledger

pytestmark = pytest.mark.io

__all__ = ["book"]


@on_both_databases
def test_an_issued_month_never_moves(book: Book) -> None:
    book.settle(an_entry(1, started_at=at("2026-10-20"), charge_nusd=4_830_000), "2026-10-20")
    book.close(OCTOBER, "2026-11-02")
    said = everything(book, [OCTOBER])
    book.settle(an_entry(2, started_at=at("2026-10-31T23:00"), charge_nusd=9_110_000), "2026-11-02T00:01")
    book.settle(adjusted(1, -1_000), "2026-11-03")
    with writing(book.engine) as connection:
        connection.execute(update(api_keys).values(alias="renamed"))
        connection.execute(update(accounts).values(name="renamed"))
    assert everything(book, [OCTOBER]) == said

    november = book.statement(KEY, NOVEMBER)
    assert [(str(line.day), line.usages.charge_nusd) for line in november.lines] == [("2026-10-31", 9_110_000)]
    assert november.opening_nusd == book.statement(KEY, OCTOBER).closing_nusd == -4_830_000
    assert november.closing_nusd == -4_830_000 - 9_110_000 + 1_000
    assert LATE_USAGE in statement_html(november)
    assert "Provisional" in statement_html(november)


@on_both_databases
def test_a_closed_month_keeps_its_seller_and_tax(book: Book) -> None:
    """A later change of the settings would change what was asked for."""
    book.settle(an_entry(1, started_at=at("2026-10-20"), charge_nusd=10**9), "2026-10-20")
    book.now = at("2026-11-02")
    old = StatementSettings(
        seller="Weir",
        tax=TaxSettings(percent="19"),
        logo=Path("old.png"),
        customers={"acme": CustomerSettings(name="acme", legal_name="Acme Ltd")},
    )
    close(book.store, OCTOBER, by="anna", letterhead=old)
    new = StatementSettings(seller="Weir & Sons", tax=TaxSettings(percent="20"), logo=Path("new.png"))
    for issued in (False, True):
        if issued:
            issue_all(book.engine)
        found = read_statement(book.engine, ORGANIZATION, OCTOBER, letterhead=new)
        assert (found.issued is not None) == issued
        assert found.letterhead == replace_settings(old, logo=Path("new.png"))
        assert (found.customer.legal_name, found.due.tax_nusd) == ("Acme Ltd", 190_000_000)
    assert read_statement(book.engine, ORGANIZATION, NOVEMBER, letterhead=new).letterhead == new


def test_a_month_that_was_closed_without_prices_agrees_with_its_entries(book: Book) -> None:
    book.settle(an_entry(1, started_at=at("2026-10-20")), "2026-10-20")
    book.close(OCTOBER, "2026-11-02")
    said = statement_json(book.statement(KEY, OCTOBER))
    with writing(book.engine) as connection:
        content = connection.execute(
            select(scope_months.c.content).where(scope_months.c.scope_id == "key-1")
        ).scalar_one()
        del content["prices"]
        connection.execute(update(scope_months).where(scope_months.c.scope_id == "key-1").values(content=content))
    with reading(book.engine) as connection:
        assert closed_month_stays(connection, OCTOBER).differences == 0
    again = statement_json(book.statement(KEY, OCTOBER))
    assert {**again, "prices": None} == {**said, "prices": None}


def test_the_closed_form_is_all_that_is_needed(book: Book) -> None:
    """Later the entries may be in an archive."""
    for number in range(5):
        book.settle(an_entry(number, started_at=at("2026-10-20"), charge_nusd=number), "2026-10-20")
    book.settle(credit_entry(an_entry(90).exchange_id, "org-1", "acme", 7_000, "invoice", book.now), "2026-10-21")
    book.close(OCTOBER, "2026-11-02")
    said = everything(book, [OCTOBER])
    with writing(book.engine) as connection:
        connection.execute(delete(ledger_entries))
    assert everything(book, [OCTOBER]) == said


def test_a_month_is_closed_after_its_end_once_and_with_those_before_it(book: Book) -> None:
    book.settle(an_entry(1, started_at=at("2026-10-20")), "2026-10-20")
    with pytest.raises(PeriodError, match="2026-11: is not over: it can be closed from 2026-12-01 on"):
        close(book.store, NOVEMBER, by="anna")
    book.now = at("2026-12-01")
    assert close(book.store, NOVEMBER, by="anna") == [OCTOBER, NOVEMBER]
    assert close(book.store, NOVEMBER, by="bert") == []
    with reading(book.engine) as connection:
        assert [(one.closed_by, one.issued_at) for one in read_periods(connection)] == [("anna", None)] * 2
    assert book.statement(KEY, OCTOBER).issued is None
    assert issue_all(book.engine) == [OCTOBER, NOVEMBER]
    assert issue_all(book.engine) == []
    assert book.statement(KEY, OCTOBER).issued is not None


def test_an_interrupted_closed_form_is_continued(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    from proxy.ledger.periods import closing

    for number, key in enumerate(("key-1", "key-2", "key-3")):
        book.settle(an_entry(number, key_id=key, started_at=at("2026-10-20")), "2026-10-20")
    monkeypatch.setattr(closing, "BATCH_SCOPES", 1)
    store_rows, calls = closing._rows, 0

    def dies(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return store_rows(*arguments)

    book.now = at("2026-11-02")
    close(book.store, OCTOBER, by="anna")
    monkeypatch.setattr(closing, "_rows", dies)
    with pytest.raises(KeyboardInterrupt):
        issue_all(book.engine)
    with reading(book.engine) as connection:
        assert len(connection.execute(scope_months.select()).all()) == 2
    issue_all(book.engine)
    with reading(book.engine) as connection:
        found = read_period(connection, OCTOBER)
    assert found is not None
    assert found.entries == 3


MOMENTS = st.integers(0, 92 * 24 * 60 * 60 * 1000).map(lambda ms: at("2026-10-01") + ms / 1000)
KINDS = st.sampled_from(["usage", "usage", "usage", "adjustment", "credit"])


@settings(
    max_examples=25 if AT_RANDOM else 5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(MOMENTS, MOMENTS, KINDS, st.integers(-50, 10_000), st.sampled_from(["key-1", "key-2"])), max_size=12
    ),
    st.lists(st.tuples(st.sampled_from([OCTOBER, NOVEMBER]), st.floats(0, 40)), max_size=3),
)
def test_every_entry_is_on_one_statement_and_a_closed_one_stays(
    tmp_path_factory: pytest.TempPathFactory, made: list[Any], closed: list[Any]
) -> None:
    engine = open_engine(empty_ledger(tmp_path_factory.mktemp("ledger") / "ledger.db"))
    try:
        _all_stays(Book(engine), made, closed)
    finally:
        engine.dispose()


def _all_stays(book: Book, made: list[Any], closed: list[Any]) -> None:
    steps: list[tuple[float, Callable[[], None]]] = []
    for number, (began, settled, kind, nusd, key) in enumerate(made):
        entry = an_entry(
            number, kind=kind, seq=int(kind == "adjustment"), started_at=began, charge_nusd=nusd, key_id=key
        )
        if kind == "credit":
            entry = replace(entry, model="")
        moment = max(settled, began)
        steps.append((moment, lambda entry=entry, moment=moment: book.settle(entry, moment)))
    for month, days in closed:
        moment = month.until + days * 86_400

        def closing(month: Any = month, moment: float = moment) -> None:
            book.close(month, moment)

        steps.append((moment, closing))
    said: dict[Any, Any] = {}
    for _, step in sorted(steps, key=lambda one: one[0]):
        step()
        if step.__name__ == "closing":
            said = {**_issued(book), **said}
    assert _issued(book) == said
    january = month_from("2027-01")
    book.now = at("2027-02-01")
    with reading(book.engine) as connection:
        closings = read_closings(connection)
    entries = EntryReader(book.engine, EntryFilter()).settled()
    posted = [closings.posted_in(one.kind, one.started_at, settled) for one, settled in entries]
    for owner in OWNERS:
        total, opening = 0, None
        months = [month_from("2026-09"), OCTOBER, NOVEMBER, DECEMBER, january]
        for month in months:
            found = book.statement(owner, month)
            assert opening in (None, found.opening_nusd)
            opening = found.closing_nusd
            total += found.total.requests + len(found.adjustments)
        if owner is ORGANIZATION:
            assert total == sum(kind != "credit" for _, _, kind, _, _ in made)
    assert all(month_from("2026-10") <= one <= january for one in posted)


def _issued(book: Book) -> dict[Any, Any]:
    with reading(book.engine) as connection:
        months = [one.month for one in read_periods(connection)]
    return {(month, owner): statement_json(book.statement(owner, month)) for month in months for owner in OWNERS}


def test_late_is_what_the_spans_say() -> None:
    closings = Closings([Closing(OCTOBER, at("2026-11-03")), Closing(NOVEMBER, at("2026-12-05"))])
    for began in ("2026-09-30", "2026-10-31", "2026-11-30", "2026-12-01"):
        for settled in ("2026-11-03", "2026-11-03T00:00:00.000001", "2026-12-04", "2026-12-06", "2027-01-07"):
            month = closings.posted_in("usage", at(began), at(settled))
            spans = closings.late_between(month.since, month.until)
            late = any(one.after < at(settled) <= one.by and at(began) < one.began_before for one in spans)
            assert late == (month != month_of(at(began))), (began, settled)


def test_reconcile_finds_what_was_changed_in_a_closed_month(book: Book) -> None:
    for number, key in enumerate(("key-1", "key-2", "key-3")):
        book.settle(an_entry(number, key_id=key, started_at=at("2026-10-20")), "2026-10-20")
    book.close(OCTOBER, "2026-11-02")
    assert _differences(book) == []
    with writing(book.engine) as connection:
        its = ledger_entries.c.key_id
        connection.execute(update(ledger_entries).where(its == "key-1").values(charge_nusd=1))
        connection.execute(delete(ledger_entries).where(its == "key-2"))
        row = scope_months.c.scope_id == "key-3"
        connection.execute(update(scope_months).where(row).values(content={"lines": []}))
    assert _differences(book) == ["key-1", "key-2", "key-3"]


def _differences(book: Book) -> list[Any]:
    (found,) = [one for one in reconcile(book.engine, clock=lambda: book.now) if one.name == "periods"]
    return sorted(one["scope_id"] for one in found.examples)
