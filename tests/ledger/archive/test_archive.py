"""Archived months: nothing is lost, nothing is doubled, and what was said about them stays true."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec.structs import replace
from sqlalchemy import Engine, Table, func, insert, select, update

from proxy.billing.entries import LedgerEntry
from proxy.billing.limits import Limits
from proxy.billing.money import Nusd
from proxy.billing.period import month_from
from proxy.cli.common import whole_file
from proxy.foundation.ids import exchange_id
from proxy.ledger.accounts.credit import credit_entry
from proxy.ledger.archive import contents
from proxy.ledger.archive.archives import absent, read_archives
from proxy.ledger.limit_rules import RuleStore
from proxy.ledger.schema.account_tables import api_keys, grant_clock
from proxy.ledger.schema.partitions import make_partitions, partitions
from proxy.ledger.schema.tables import (
    account_clock,
    acts,
    archived_receipts,
    dead_letters,
    dimension_clock,
    dimension_daily,
    exchange_dimensions,
    ledger_entries,
    sinks,
)
from proxy.ledger.settling.settling import ARCHIVED
from proxy.ledger.settling.spend import sums
from proxy.ledger.settling.store import Arrival, LedgerStore
from proxy.reconciliation.reconcile import reconcile
from proxy.reports import archive as module
from proxy.reports.archive import ArchiveError, ArchiveOptions, alone, archive, archive_logs, finish, months_before
from proxy.reports.receipts import read_receipt, statement_lines
from proxy.sinks import progress
from proxy.storage.database import open_engine, reading, writing
from tests.ledger.entries import add_up, an_entry, arriving, content_hash, id_at, stored
from tests.ledger.owners import KEY, at
from tests.ledger.periods.books import NOVEMBER, OCTOBER, Book, adjusted, book, everything

__all__ = ["book"]

pytest.importorskip("pyarrow")

DECEMBER = month_from("2026-12")
BATCH = 2_000
JANUARY = at("2027-01-15")


def used(number: int, moment: str, **more: Any) -> LedgerEntry:
    """Usage with an id of its moment, by one of three end users."""
    began = datetime.fromisoformat(moment).replace(tzinfo=UTC)
    details = {"dimensions": {"end_user": f"v_{number % 3}"}}
    return an_entry(exchange=id_at(began, number), started_at=began.timestamp(), details=details, **more)


def received(book: Book, *entries: LedgerEntry, settled: str, first: int = 1, node: str = "node-1") -> None:
    book.now = at(settled)
    book.store.settle([Arrival(one, node, number) for number, one in enumerate(entries, first)])


@pytest.fixture
def engine(fresh_ledger_url: str) -> Iterator[Engine]:
    """One of its own: an archive changes more than rows."""
    engine = open_engine(fresh_ledger_url)
    yield engine
    engine.dispose()


@pytest.fixture
def years(book: Book) -> Book:
    """October and November, closed; usage of both in one journal, a late one, a top-up, one of today."""
    if book.engine.dialect.name == "postgresql":
        for month in (OCTOBER, DECEMBER):
            make_partitions(book.engine, month.since)
    october = [used(number, f"2026-10-{number + 1:02}", charge_nusd=number + 1) for number in range(20)]
    received(book, *october, settled="2026-10-25")
    top_up = credit_entry(
        id_at(datetime(2026, 10, 26, tzinfo=UTC)), "key-1", "anna", 7_000, "invoice", at("2026-10-26")
    )
    book.settle(top_up, "2026-10-26")
    book.close(OCTOBER, "2026-11-02")
    late = used(30, "2026-10-31T23:00", charge_nusd=100)
    november = [used(number, "2026-11-10", charge_nusd=1_000, key_id="key-2") for number in range(40, 45)]
    received(book, late, *november, settled="2026-11-12", first=21)
    book.close(NOVEMBER, "2026-12-02")
    received(book, used(50, "2027-01-10", charge_nusd=1_000_000), settled="2027-01-10", first=27)
    add_up(book.engine)
    return book


def order(folder: Path, before: str = "2026-11", **more: Any) -> ArchiveOptions:
    return ArchiveOptions(month_from(before), folder, "anna", more.get("now", JANUARY), more.get("sinks", ()))


def archived(book: Book, wanted: ArchiveOptions) -> list[str]:
    """Archive, as the command does → what it said."""
    said: list[str] = []
    finish(book.engine, wanted, said.append)
    for month in months_before(book.engine, wanted):
        said.append(archive(book.engine, month, wanted, whole_file, said.append).file)
    return said


def differing(book: Book) -> list[Any]:
    """What reconcile finds, but for prices: these entries have none."""
    found = reconcile(book.engine, clock=lambda: JANUARY, grace_s=0.0)
    return [(one.name, one.examples) for one in found if not one.ok and one.name != "prices"]


def by_dimension(book: Book) -> tuple[list[Any], set[str]]:
    """The daily usage by dimension, and the exchanges that have one."""
    with reading(book.engine) as connection:
        daily = connection.execute(select(dimension_daily).order_by(*dimension_daily.primary_key)).all()
        return [tuple(row) for row in daily], set(
            connection.execute(select(exchange_dimensions.c.exchange_id)).scalars()
        )


def ids(book: Book) -> set[str]:
    return {entry.exchange_id for entry in stored(book.engine)}


def test_entries_move_and_all_else_stays(years: Book, tmp_path: Path) -> None:
    from pyarrow import parquet

    before = {entry.exchange_id: entry for entry in stored(years.engine)}
    said = everything(years, [OCTOBER, NOVEMBER, month_from("2027-01")])
    spent = [(one, since) for one in ("key-1", "key-2", "proj-1", "org-1", "key-1/credit") for since in (0.0,)]
    totals = [(one.counter_id, one.amount) for one in sums(years.engine, spent)]
    assert differing(years) == []
    usage, named = by_dimension(years)
    assert (len(usage) > 20, len(named)) == (True, 27)

    assert archived(years, order(tmp_path)) == ["entries-2026-10.parquet"]

    rows = parquet.read_table(tmp_path / "entries-2026-10.parquet").to_pylist()
    moved = {row["exchange_id"] for row in rows}
    assert len(rows) == 22
    assert (moved | ids(years), moved & ids(years)) == (before.keys(), set())
    for row in rows:
        entry = before[row["exchange_id"]]
        assert int(row["charge_usd"].scaleb(9)) == entry.charge_nusd
        assert (row["started_at"].timestamp(), json.loads(row["details"])) == (entry.started_at, entry.details)
    assert everything(years, [OCTOBER, NOVEMBER, month_from("2027-01")]) == said
    assert [(one.counter_id, one.amount) for one in sums(years.engine, spent)] == totals
    assert differing(years) == []
    assert by_dimension(years) == (usage, named - moved)
    if years.engine.dialect.name == "postgresql":
        with reading(years.engine) as connection:
            assert "ledger_entries_2026_10" not in partitions(connection)

    assert archived(years, order(tmp_path, "2026-12")) == ["entries-2026-11.parquet"]
    assert everything(years, [OCTOBER, NOVEMBER, month_from("2027-01")]) == said
    assert differing(years) == []
    assert archived(years, order(tmp_path, "2026-12")) == []


def test_what_arrives_later_for_an_archived_month_is_an_operators_matter(years: Book, tmp_path: Path) -> None:
    """Without its entries nobody can tell a repeated record from a new one."""
    again, new = used(3, "2026-10-04", charge_nusd=4), used(99, "2026-10-05")
    archived(years, order(tmp_path))
    fine = used(100, "2027-01-11")
    received(years, again, new, fine, settled="2027-01-12", first=28)
    assert ids(years) & {again.exchange_id, new.exchange_id, fine.exchange_id} == {fine.exchange_id}
    with reading(years.engine) as connection:
        letters = connection.execute(select(dead_letters.c.exchange_id, dead_letters.c.reason)).all()
    assert {tuple(one) for one in letters} == {(again.exchange_id, ARCHIVED), (new.exchange_id, ARCHIVED)}
    assert [name for name, _ in differing(years)] == ["dead letters"]
    with reading(years.engine) as connection:
        assert "entries-2026-10.parquet" in absent(connection, again.exchange_id)
        assert "no such exchange" in absent(connection, exchange_id())


def test_a_receipt_of_an_archived_month_is_not_made_up(years: Book, tmp_path: Path) -> None:
    archived(years, order(tmp_path))
    for ask in (
        lambda: list(statement_lines(years.engine, KEY, NOVEMBER)),
        lambda: read_receipt(years.engine, used(3, "2026-10-04").exchange_id),
        lambda: read_receipt(years.engine, used(40, "2026-11-10").exchange_id),
    ):
        with pytest.raises(ValueError, match=r"entries-2026-10\.parquet"):
            ask()


def cut_short(years: Book, folder: Path, where: Any, name: str, effect: Any) -> None:
    """Archive, which ends as `effect`, an exception or a function that raises one, takes the place of a function."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(where, name, Mock(side_effect=effect))
        with pytest.raises((OSError, KeyboardInterrupt), match=r"No space|^$"):
            archived(years, order(folder))


@pytest.mark.parametrize("dies", ["record", "write", "read back"])
def test_nothing_changes_if_it_fails(years: Book, tmp_path: Path, dies: str) -> None:
    where = {"record": (contents, "record"), "write": (module, "write_parquet"), "read back": (module, "_read_back")}
    before = ids(years)
    cut_short(years, tmp_path, *where[dies], OSError(28, "No space left on device"))
    assert ids(years) == before
    assert differing(years) == []
    late = used(99, "2026-10-05")
    years.settle(late, "2027-01-13")
    assert late.exchange_id in ids(years)


def test_an_interrupted_removal_is_finished(years: Book, tmp_path: Path) -> None:
    cut_short(years, tmp_path, contents, "remove", KeyboardInterrupt())
    assert len(ids(years)) == 28
    assert differing(years) == []
    with reading(years.engine) as connection:
        assert [one.removed for one in read_archives(connection)] == [False]
    assert archived(years, order(tmp_path)) == []
    assert len(ids(years)) == 6
    assert differing(years) == []


def test_a_record_that_was_stored_all_the_same_keeps_its_guard(years: Book, tmp_path: Path) -> None:
    """Else what arrives before the next run would be removed by it, and be in no archive."""
    given = contents.record

    def interrupted(*arguments: Any) -> None:
        given(*arguments)
        raise KeyboardInterrupt

    cut_short(years, tmp_path, contents, "record", interrupted)
    late = used(99, "2026-10-05")
    received(years, late, settled="2027-01-12", first=28)
    assert late.exchange_id not in ids(years)
    assert archived(years, order(tmp_path)) == []
    assert [name for name, _ in differing(years)] == ["dead letters"]


def test_one_archives_at_a_time(years: Book) -> None:
    with alone(years.engine), pytest.raises(ArchiveError, match="another process"), alone(years.engine):
        pass
    with alone(years.engine):
        pass


def test_a_file_that_differs_from_the_ledger_is_noticed(years: Book, tmp_path: Path, monkeypatch: Any) -> None:
    def loses(connection: Any, month: Any) -> Iterator[Any]:
        rest = given(connection, month)
        next(rest)
        yield from rest

    given = contents.rows
    monkeypatch.setattr(contents, "rows", loses)
    with pytest.raises(ArchiveError, match="differs from the ledger"):
        archived(years, order(tmp_path))
    assert len(ids(years)) == 28


def refusal(years: Book, wanted: ArchiveOptions) -> str:
    with pytest.raises(ArchiveError) as refused:
        archived(years, wanted)
    assert len(ids(years)) >= 28
    return str(refused.value)


def test_open_months_are_refused(years: Book, tmp_path: Path) -> None:
    assert "2026-12 is not closed" in refusal(years, order(tmp_path, "2027-02", now=JANUARY + 60 * 86_400))
    assert "too late: 2026-12 at most" in refusal(years, order(tmp_path, "2027-01"))
    years.settle(replace(adjusted(0, -1), exchange_id=used(3, "2026-10-04").exchange_id, entry_id="x"), "2027-01-11")
    add_up(years.engine)
    assert "statements of 2027-01, which is not closed" in refusal(years, order(tmp_path))


@pytest.mark.parametrize("clock", [account_clock, dimension_clock, grant_clock])
def test_sums_that_are_not_complete_are_refused(years: Book, tmp_path: Path, clock: Table) -> None:
    with writing(years.engine) as connection:
        connection.execute(update(clock).values(settled_at=at("2026-10-24")))
    assert "daily sums do not have all of its entries" in refusal(years, order(tmp_path))


def test_what_others_need_is_refused(years: Book, tmp_path: Path) -> None:
    with writing(years.engine) as connection:
        row = {"name": "stripe", "settled_at": at("2026-10-24"), "entry_id": "", "sent": 0, "claimed_until": 0.0}
        connection.execute(insert(sinks), {**row, "failures": 0, "next_at": 0.0})
    assert "sink stripe has not had" in refusal(years, order(tmp_path, sinks=("stripe",)))
    with writing(years.engine) as connection:
        window = {"budget_usd": 5, "budget_window": "365d"}
        changes = {"limits": window, "created_at": at("2026-10-03T12:00")}
        connection.execute(update(api_keys).where(api_keys.c.key_id == "key-1").values(changes))
    assert "budget of anna" in refusal(years, order(tmp_path))
    with writing(years.engine) as connection:
        connection.execute(update(api_keys).values(created_at=at("2026-10-03")))
    assert archived(years, order(tmp_path)) == ["entries-2026-10.parquet"]


def test_what_a_limit_by_rule_needs_is_refused(years: Book, tmp_path: Path) -> None:
    rules = RuleStore(years.engine, clock=lambda: at("2026-12-01T12:00"))
    two = {"split_by": ("end_user", "session"), "limits": Limits(budget_nusd=Nusd(5), budget_window="none")}
    rules.create(rule_id="rule_1", name="each", **two)  # type: ignore[arg-type]
    rules.create(rule_id="rule_2", name="one", limits=two["limits"], split_by=("run",))  # type: ignore[arg-type]
    assert "the budget of the limit each (rule_1) counts from 1970-01-01" in refusal(years, order(tmp_path))
    rules.delete("each")
    assert archived(years, order(tmp_path)) == ["entries-2026-10.parquet"]


def test_no_file_is_replaced(years: Book, tmp_path: Path) -> None:
    """It may be the archive of another ledger."""
    there = tmp_path / "entries-2026-10.parquet"
    there.write_bytes(b"of another")
    assert archived(years, order(tmp_path)) == ["entries-2026-10-2.parquet"]
    assert there.read_bytes() == b"of another"


def test_what_is_delivered_is_called_alike() -> None:
    """The reports may not know of sinks."""
    assert module.SENT == progress.SENT


def test_what_does_not_add_up_is_not_archived(years: Book, tmp_path: Path) -> None:
    with writing(years.engine) as connection:
        one = used(3, "2026-10-04").exchange_id
        connection.execute(update(ledger_entries).where(ledger_entries.c.exchange_id == one).values(charge_nusd=1))
    assert "differ from" in refusal(years, order(tmp_path))


def test_odd_ids_and_dates_are_archived_too(years: Book, tmp_path: Path) -> None:
    """A month has all that is before its end, wherever it is stored."""
    odd = [
        an_entry(exchange=name, started_at=at("2026-11-20"), details={"dimensions": {"run": "v_9"}})
        for name in ("", "00", id_at(datetime(1971, 1, 1, tzinfo=UTC)))
    ]
    received(years, *odd, settled="2027-01-11", first=28)
    years.close(month_from("2027-01"), "2027-02-02")
    add_up(years.engine)
    archived(years, order(tmp_path, now=at("2027-03-15")))
    assert not ids(years) & {one.exchange_id for one in odd}
    assert differing(years) == []
    archived(years, order(tmp_path, "2027-01", now=at("2027-03-15")))
    assert differing(years) == []
    assert len(ids(years)) == 1


def test_closed_letters_and_the_audit_log_move(years: Book, tmp_path: Path) -> None:
    with writing(years.engine) as connection:
        for number, (state, moment) in enumerate(
            [("dropped", "2026-10-05"), ("open", "2026-10-05"), ("retried", "2027-01-03")], 28
        ):
            row = {"id": f"letter-{number}", "exchange_id": f"x{number}", "reason": "r", "payload": "{}"}
            times = dict.fromkeys(("first_seen", "last_seen", "state_at"), at(moment))
            receipt = {"node": "node-1", "journal_seq": number, "state": state, "times_seen": 1}
            connection.execute(insert(dead_letters), {**row, **times, **receipt})
        for moment in ("2026-10-05", "2027-01-03"):
            row = {"act_id": f"{int(at(moment) * 1e6):017d}-a", "at": at(moment), "actor": "anna", "via": "cli"}
            connection.execute(insert(acts), {**row, "action": "keys.create", "result": "done"})
    wanted = order(tmp_path)
    archived(years, wanted)
    moved = archive_logs(years.engine, wanted, whole_file)
    assert moved == [("dead-letters-before-2026-11.jsonl", 1), ("audit-log-before-2026-11.jsonl", 1)]
    assert json.loads((tmp_path / moved[0][0]).read_text())["id"] == "letter-28"
    assert json.loads((tmp_path / moved[1][0]).read_text())["actor"] == "anna"
    assert archive_logs(years.engine, wanted, whole_file) == []
    with reading(years.engine) as connection:
        assert connection.execute(select(func.count()).select_from(dead_letters)).scalar() == 2
        assert connection.execute(select(func.count()).select_from(acts)).scalar() == 1
        columns = archived_receipts.c
        ranges = connection.execute(select(columns.first_seq, columns.last_seq).order_by(columns.first_seq)).all()
    assert [tuple(one) for one in ranges] == [(1, 21), (28, 28)]
    assert [name for name, _ in differing(years)] == ["dead letters"]


@pytest.mark.thorough
def test_settling_goes_on_while_a_month_is_archived(years: Book, tmp_path: Path, capsys: Any) -> None:
    """Nobody waits for long, and nothing is lost. Many more rows with TEST_LEDGER_ROWS."""
    many = int(os.environ.get("TEST_LEDGER_ROWS", "2000"))
    years.now = at("2027-01-11")
    years.store.settle(arriving(*(used(number, "2026-12-20") for number in range(1_000, 1_100))))
    for first in range(0, many, BATCH):
        batch = [used(10_000 + first + number, "2026-12-24") for number in range(min(BATCH, many - first))]
        years.store.settle(arriving(*batch))
    years.close(DECEMBER, "2027-01-12")
    add_up(years.engine)
    clock, stop, waits, number = count(int(years.now) + 10), Event(), [], count(1_000_000)
    live = LedgerStore(years.engine, content_hash=content_hash, clock=lambda: float(next(clock)))

    def settling() -> None:
        while not stop.is_set():
            began = time.monotonic()
            live.settle(arriving(used(next(number), "2027-01-20"), used(next(number), "2027-02-03")))
            waits.append(time.monotonic() - began)
            time.sleep(0.005)

    later = order(tmp_path, "2027-01", now=at("2027-03-15"))
    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(settling)
        began = time.monotonic()
        try:
            assert len(archived(years, later)) == 3
        finally:
            took_s = time.monotonic() - began
            stop.set()
        done.result()
    with capsys.disabled():
        if many > BATCH:
            print(f"{many} entries in {took_s:.1f} s, {len(waits)} settlements meanwhile, longest {max(waits):.3f} s")
    assert max(waits) < 2.0
    assert len(ids(years)) == 1 + 2 * len(waits)
    assert differing(years) == []
