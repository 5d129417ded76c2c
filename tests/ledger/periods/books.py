"""Ledgers whose clock a test sets, and all that is ever said of their months."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, update

from proxy.billing.entries import LedgerEntry
from proxy.billing.period import month_from
from proxy.ledger.periods.closing import close, issue_all
from proxy.ledger.schema.tables import ledger_clock
from proxy.ledger.settling.store import LedgerStore
from proxy.reports.statement import Statement, StatementOwner, read_statement
from proxy.reports.statement_html import statement_html
from proxy.reports.statement_text import statement_csv, statement_json
from proxy.storage.database import writing
from tests.ledger.entries import an_entry, arriving, content_hash
from tests.ledger.owners import OWNERS, at, insert_owners

OCTOBER, NOVEMBER, DECEMBER = (month_from(f"2026-{number}") for number in (10, 11, 12))


class Book:
    """A ledger whose clock a test sets."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.now = at("2026-10-01")
        self.store = LedgerStore(engine, content_hash=content_hash, clock=lambda: self.now)
        with writing(engine) as connection:
            connection.execute(update(ledger_clock).values(settled_at=self.now))
        insert_owners(engine)

    def settle(self, entry: LedgerEntry, settled: str | float) -> None:
        self.now = at(settled) if isinstance(settled, str) else settled
        self.store.settle(arriving(entry))

    def close(self, month: Any, closed: str | float) -> None:
        self.now = at(closed) if isinstance(closed, str) else closed
        close(self.store, month, by="anna")
        issue_all(self.engine)

    def statement(self, owner: StatementOwner, month: Any) -> Statement:
        return read_statement(self.engine, owner, month)


@pytest.fixture
def book(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Book:
    """Postgres has a clock of its own, which this one takes the place of."""
    from proxy.ledger.settling import clock

    tick = clock.LedgerClock.tick

    def ticked(self: Any, connection: Any) -> float:
        if connection.dialect.name == "sqlite":
            return tick(self, connection)
        last = connection.exec_driver_sql("SELECT settled_at FROM ledger_clock FOR UPDATE").scalar().timestamp()
        now = max(round(self._clock(), 6), round(last + 1e-6, 6))
        connection.execute(update(ledger_clock).values(settled_at=now))
        return now

    monkeypatch.setattr(clock.LedgerClock, "tick", ticked)
    return Book(engine)


def adjusted(number: int, nusd: int) -> LedgerEntry:
    """An operator's correction of an exchange of October."""
    more = {"kind": "adjustment", "seq": 1, "details": {"why": "goodwill"}}
    return an_entry(number, started_at=at("2026-10-20"), charge_nusd=nusd, **more)


def everything(book: Book, months: Any) -> list[Any]:
    found = [book.statement(owner, month) for month in months for owner in OWNERS]
    return [(statement_json(one), statement_csv(one), statement_html(one)) for one in found]
