"""`migrate --from`: a deployment is moved from SQLite to Postgres, from the command line."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from proxy.billing.entries import LedgerEntry
from proxy.billing.settlement import entry
from proxy.cli import WRONG_USAGE, main
from proxy.journal.journal import Journal
from proxy.ledger.schema.migrate import migrate
from proxy.ledger.schema.tables import ledger_entries, usage_daily
from proxy.reports.buckets import DAY_S
from proxy.reports.usage import UsageFilter, read_usage
from proxy.runtime.machine.data_folder import DataFolder
from proxy.storage.database import open_engine, sqlite_url
from tests.cli.commands import CONFIG, Commands
from tests.golden.reading import load_sqlite
from tests.ledger.entries import a_store, an_entry, arriving, count, id_at
from tests.ledger.priced_entries import a_real_record
from tests.support.processes import Copied
from tests.support.waiting import wait_until

pytestmark = pytest.mark.io

NOWHERE = "postgresql://u@127.0.0.1:1/d"
MONTH, STARTED_AT = "2026-01", 1_768_900_000.25
EXCHANGE = id_at(datetime.fromtimestamp(STARTED_AT, UTC), 3)
REPORTS: tuple[tuple[str, ...], ...] = (
    ("ledger", "--wide"),
    ("ledger", "--wide", "--explain"),
    ("receipt", EXCHANGE),
    ("statement", "--key", "anna", "--month", MONTH, "--format", "json"),
    ("statement", "--account", "org_default", "--month", MONTH, "--format", "csv"),
    ("statement", "--account", "proj_default", "--month", MONTH, "--format", "html"),
    ("periods", "list"),
    ("reconcile",),
    ("keys", "list"),
    ("accounts", "list"),
    ("audit", "--json"),
    ("dead-letters", "list", "--json"),
    ("sinks", "status"),
    ("export",),
    ("export", "--format", "beancount"),
)
"""those that print the same bytes"""
JSON_REPORTS = (("ledger", "--json"), ("ledger", "--json", "--explain"), ("exchange", EXCHANGE, "--json"))
"""those with an entry's details, whose fields Postgres puts in an order of its own"""


def a_settled_exchange(number: int, key_id: str) -> LedgerEntry:
    record = a_real_record(number, key=key_id, started_at=STARTED_AT)
    exchange_id = id_at(datetime.fromtimestamp(STARTED_AT, UTC), number)
    return entry(replace(record, opened=replace(record.opened, exchange_id=exchange_id)))


@pytest.fixture
def filled(run: Commands) -> Commands:
    """A month is closed: exchanges of two keys, a top-up, a correction, a limit."""
    keys = [run("keys", "create", "--alias", alias)[0]["key_id"] for alias in ("anna", "bert")]
    run.settle(*(a_settled_exchange(number, keys[number % 2]) for number in range(7)), node="n")
    run("credit", "add", "--key", "anna", "--usd", "12.345678901", "--reason", "prepaid")
    run("adjust", EXCHANGE, "--charge-usd", "0.000000001", "--reason", "goodwill")
    run("keys", "update", "bert", "--budget", "7")
    run("periods", "close", MONTH)
    return run


def printed(run: Commands) -> list[Any]:
    """What all reports print."""
    found: list[Any] = []
    for command in REPORTS:
        run(*command, code=(0, 1))
        found.append((command, run.out, run.err))
    found += ((command, run(*command)) for command in JSON_REPORTS)
    day = int(STARTED_AT // DAY_S) * DAY_S
    for bucket_s in (DAY_S, 3_600):
        wanted = UsageFilter(begin=day, end=day + DAY_S, bucket_s=bucket_s, by_key=True, by_model=True)
        found.append(run.ledger(lambda store: read_usage(store.engine, wanted, 99)))  # noqa: B023  called at once
        assert found[-1][0]
    return found


def move(url: str, file: Path, *more: str) -> int:
    return main(["migrate", "--from", f"sqlite:{file}", "--to", url, *more])


@pytest.mark.thorough
def test_every_report_prints_the_same(
    filled: Commands,
    postgres_url: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "data" / "ledger.db"
    before = printed(filled)
    assert move(postgres_url, file) == 0
    moved = capsys.readouterr()
    assert f"{file} is moved" in moved.out
    assert "9 of them entries" in moved.out
    assert "key_pepper" in moved.err
    assert "\r" not in moved.err
    monkeypatch.setenv("TEST_LEDGER", postgres_url)
    monkeypatch.setenv("TEST_PEPPER", (file.parent / "pepper").read_bytes().hex())
    filled.configure({**CONFIG, "ledger": "${TEST_LEDGER}", "key_pepper": "${TEST_PEPPER}"})
    for one, other in zip(before, printed(filled), strict=True):
        assert one == other
    (receipt,) = filled("receipt", EXCHANGE)
    (tmp_path / "receipt").write_text(json.dumps(receipt))
    assert main(["verify", str(tmp_path / "receipt")]) == 0
    capsys.readouterr()
    assert filled("migrate", "--from", f"sqlite:{file}", "--json")[0]["rows"]["ledger_entries"] == 9


@pytest.mark.process
@pytest.mark.thorough
def test_a_killed_move_goes_on(filled: Commands, postgres_ledger_url: str, tmp_path: Path) -> None:
    """It is killed where it waits for a table: the entries are there, the rest is not."""
    file, log = tmp_path / "data" / "ledger.db", tmp_path / "log"
    engine = open_engine(postgres_ledger_url)
    waiting = "SELECT count(*) FROM pg_locks WHERE relation = 'usage_daily'::regclass AND NOT granted"
    with psycopg.connect(postgres_ledger_url) as holder, psycopg.connect(postgres_ledger_url, autocommit=True) as look:
        holder.execute("LOCK TABLE usage_daily IN SHARE MODE")
        child = Copied(["migrate", "--from", f"sqlite:{file}", "--to", postgres_ledger_url], tmp_path, os.environ, log)
        wait_until(lambda: look.execute(waiting).fetchall() == [(1,)], log.read_text)
        child.send_signal(signal.SIGKILL)
        child.wait(10)
        assert child.stdout is not None
        child.stdout.close()
    assert (count(engine, ledger_entries), count(engine, usage_daily)) == (9, 0)
    with pytest.raises(OSError, match="a copy not finished"):
        a_store(engine).settle(arriving(an_entry(99)))
    assert move(postgres_ledger_url, file) == 0
    assert count(engine, usage_daily) > 0
    assert len(a_store(engine).settle(arriving(an_entry(99))).inserted) == 1
    engine.dispose()


def test_what_cannot_be_moved_is_refused(run: Commands) -> None:
    assert "no ledger at /nowhere/a.db" in run.refused("migrate", "--from", "sqlite:///nowhere/a.db", "--to", NOWHERE)
    for options, message in (
        (("--from", "sqlite:a.db"), "--to: is missing, and the configuration has no `ledger`"),
        (("--to", NOWHERE), "--to: needs --from"),
        (("--json",), "--json: needs --from"),
    ):
        run("migrate", *options, code=WRONG_USAGE)
        assert message in run.err


def test_a_ledger_that_a_proxy_uses_is_not_moved(postgres_ledger_url: str, tmp_path: Path, run: Commands) -> None:
    """Nor does one start meanwhile, since the locks of its journals are taken."""
    journal = Journal.open(DataFolder(tmp_path / "data", 3).journal, bytes_max=1 << 30)
    command = ("migrate", "--from", f"sqlite:{tmp_path / 'data' / 'ledger.db'}", "--to", postgres_ledger_url)
    try:
        assert "a proxy runs with the data folder" in run.refused(*command)
    finally:
        journal.close()


def test_an_earlier_ledger_is_left_as_it_is(postgres_url: str, tmp_path: Path, run: Commands) -> None:
    """And so is the target."""
    load_sqlite("ledger-sqlite.sql", tmp_path / "old.db")
    told = run.refused("migrate", "--from", f"sqlite:{tmp_path / 'old.db'}", "--to", postgres_url)
    assert "run `tokenweir migrate` with its configuration first" in told
    with psycopg.connect(postgres_url) as connection, closing(sqlite3.connect(tmp_path / "old.db")) as old:
        assert connection.execute("SELECT to_regclass('ledger_entries')").fetchone() == (None,)
        assert old.execute("SELECT version_num FROM alembic_version").fetchone() == ("0005",)


@pytest.mark.thorough
def test_what_is_wrong_in_the_source_is_no_fault_of_the_move(
    postgres_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The ledger of 0.1 has open dead letters."""
    file = tmp_path / "ledger.db"
    load_sqlite("ledger-sqlite.sql", file)
    migrate(sqlite_url(file))
    assert move(postgres_url, file) == 0
    assert "reconcile: dead letters" in capsys.readouterr().err
