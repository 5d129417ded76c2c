"""Ledgers of 0.1, on SQLite and on Postgres: they migrate, are right but for what was planted, and go on."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine

from proxy.billing.keys import AccountKind
from proxy.billing.limits import Limits, OnExhausted, OnStoreOutage
from proxy.billing.settlement import content_hash, entry
from proxy.budgets import thresholds as alerts
from proxy.journal.frames import FrameKind, decode_record, scan
from proxy.keys import secrets
from proxy.ledger.accounts.account_store import AccountStore
from proxy.ledger.accounts.audit_log import AuditLog
from proxy.ledger.accounts.key_store import KeyStore
from proxy.ledger.schema.migrate import check, migrate
from proxy.ledger.settling.dead_letters import DeadLetters
from proxy.ledger.settling.store import Arrival, LedgerStore
from proxy.reconciliation.reconcile import reconcile
from proxy.reports.entry_reader import EntryFilter, EntryReader
from proxy.reports.totals import read_paid
from proxy.sinks import progress as sinks
from proxy.storage.database import open_engine, reading, sqlite_url
from tests.golden.reading import BEGAN, HERE, NODE, exchange_id, golden_entries, load_sqlite, shown
from tests.support.ledger_tables import read_alerts, read_balances, read_daily
from tests.support.postgres import Server

pytestmark = pytest.mark.io

NOW = BEGAN + 1_000_000
OTHER_NODE = "00000000000000aa"
SECRET = "tw-" + "g" * 43

# key, charged and cost in nUSD, prompt and completion tokens, entries; added up from entries.jsonl by another program
BALANCES = [
    ("key_golden", 971_937_660, 175_900_220, 140_734, 3_150, 24),
    ("key_other", 28_450, 25_550, 17, 64, 1),
    ("org_golden", -48_999_999_999, 0, 0, 0, 2),
]
# day, key, model, charged, entries
DAYS = [
    (date(2026, 10, 26), "key_golden", "electron", 971_693_760, 23),
    (date(2026, 10, 26), "key_golden", "häuser/größe", 243_900, 1),
    (date(2026, 10, 26), "key_other", "electron", 28_450, 1),
]


def clock() -> float:
    return NOW


@pytest.fixture(scope="module")
def on_postgres(postgres: Server) -> Iterator[str]:
    """The name of a database with the ledger as 0.1 left it, to be copied."""
    name = postgres.new_database()
    with psycopg.connect(postgres.url(name), autocommit=True) as connection:
        connection.execute((HERE / "ledger-postgres.sql").read_bytes())
    yield name
    postgres.drop_database(name)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The ledger as 0.1 left it."""
    if request.param == "sqlite":
        load_sqlite("ledger-sqlite.sql", tmp_path / "ledger.db")
        yield sqlite_url(tmp_path / "ledger.db")
        return
    server: Server = request.getfixturevalue("postgres")
    name = server.new_database(request.getfixturevalue("on_postgres"))
    yield server.url(name)
    server.drop_database(name)


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    """It, migrated."""
    migrate(url)
    engine = open_engine(url)
    yield engine
    engine.dispose()


@pytest.fixture
def store(engine: Engine) -> LedgerStore:
    return LedgerStore(engine, content_hash=content_hash, clock=clock)


def entries(engine: Engine) -> list[dict[str, Any]]:
    return shown(EntryReader(engine, EntryFilter()).new_entries())


@pytest.mark.thorough
@pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)
def test_it_becomes_what_the_code_expects(url: str) -> None:
    migrate(url)
    assert check(url) == []


@pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)
def test_every_entry_says_what_it_said(engine: Engine) -> None:
    assert entries(engine) == golden_entries()
    kinds = [one["kind"] for one in golden_entries()]
    assert {kind: kinds.count(kind) for kind in kinds} == {"usage": 17, "adjustment": 5, "attempt": 3, "credit": 2}


def test_it_is_right_but_for_what_was_planted(engine: Engine) -> None:
    """What the first run of the golden journal had settled, this ledger never got; two letters are open."""
    found = {one.name: one.differences for one in reconcile(engine, clock=clock, grace_s=0) if not one.ok}
    assert found == {"journals": 12, "conflicts": 1, "dead letters": 1}


def test_sums(engine: Engine) -> None:
    """1,100 prompt tokens, 300 of them cached, and 290 completion tokens cost 0.0002439 USD."""
    assert [
        (one.key_id, one.charged_nusd, one.cost_nusd, one.prompt_tokens, one.completion_tokens, one.entries)
        for one in read_balances(engine)
    ] == BALANCES
    days = [
        (one.day, one.key_id, one.model, one.charged_nusd, one.entries)
        for one in read_daily(engine, date.min, date.max)
    ]
    assert days == DAYS
    paid = read_paid(engine, ["org_golden", "key_golden"])
    assert (paid["org_golden"].credit_nusd, paid["org_golden"].used_nusd) == (48_999_999_999, BALANCES[0][1])


def records() -> list[Arrival]:
    """Those that the golden journal had not settled, and their receipts."""
    frames = [frame for path in sorted((HERE / "journal").glob("*.log")) for frame in scan(path.read_bytes()).frames]
    closed = {frame.seq: frame for frame in frames if frame.kind == FrameKind.CLOSE}
    of_ledger = {exchange_id(number) for number in range(1, 14)}
    made = [Arrival(entry(decode_record(closed[seq].payload)), NODE, seq) for seq in sorted(closed)]
    return [one for one in made if one.entry.exchange_id in of_ledger]


@pytest.mark.parametrize("url", ["sqlite", pytest.param("postgres", marks=pytest.mark.thorough)], indirect=True)
def test_what_comes_again_is_known(engine: Engine, store: LedgerStore) -> None:
    """Ids, content hashes and receipts are those of 0.1: nothing is charged twice, and nothing is a conflict."""
    again = records()
    assert len(again) == 13
    settled = store.settle(again)
    assert (settled.repeated, settled.conflicts, len(settled.inserted)) == (13, 0, 0)
    seqs = {one.journal_seq for one in again}
    assert {seq for seq, _ in store.receipts(NODE, 0, 1 << 62)} == seqs
    assert {seq for seq, _ in store.receipts(OTHER_NODE, 0, 1 << 62)} == {(1 << 40) + number for number in range(1, 7)}
    assert entries(engine) == golden_entries()


def test_letters(engine: Engine, store: LedgerStore) -> None:
    found = DeadLetters(engine, store, to_entry=lambda payload: entry(decode_record(payload)))
    assert [(one.reason, one.times_seen, one.exchange_id, one.kind, one.seq, one.node) for one in found.open()] == [
        ("unreadable: UndecodableError", 2, None, None, None, OTHER_NODE),
        (
            "conflict: the ledger has another content under this id",
            1, exchange_id(1), "usage", 0, OTHER_NODE,
        ),
    ]  # fmt: skip
    unreadable = found.open()[0]
    found.drop(found.named(unreadable.id), "seen", NOW)
    assert len(found.open()) == 1
    with reading(engine) as connection:
        states = connection.exec_driver_sql("SELECT state, count(*) FROM dead_letters GROUP BY state ORDER BY state")
        assert [tuple(row) for row in states] == [("dropped", 3), ("open", 1), ("retried", 1)]


def test_keys(engine: Engine) -> None:
    keys = {one.key_id: one for one in KeyStore(engine, clock=clock).every()}
    assert list(keys) == ["key_golden", "key_other", "key_rotated", "key_blocked", "key_revoked"]
    one = keys["key_golden"]
    pepper = secrets.load_pepper(HERE / "pepper")
    assert one.digest == secrets.digest(SECRET, pepper)
    assert (one.alias, one.hint, one.project_id, one.tags) == (
        "häuser", secrets.hint(SECRET), "proj_golden", ("prod", "größe"),
    )  # fmt: skip
    assert one.models == {"electron", "häuser/größe"}
    assert one.limits == Limits(
        budget_nusd=5_000_000_000, budget_window="calendar_month", rpm=60, tpm=90_000, parallel=3
    )
    assert (one.on_exhausted, one.on_store_outage) == (OnExhausted.CUT, OnStoreOutage.FAIL_OPEN)
    assert (one.created_at, one.revision) == (BEGAN + 105, 7)
    assert (keys["key_other"].on_exhausted, keys["key_other"].on_store_outage) == (
        OnExhausted.FINISH,
        OnStoreOutage.FAIL_CLOSED,
    )
    rotated = keys["key_rotated"]
    assert (rotated.digest, rotated.old_digest, rotated.old_until) == (b"2" * 32, b"1" * 32, BEGAN + 500_000)
    assert (rotated.expires_at, rotated.limits) == (BEGAN + 1_000_000, Limits(prepaid=True))
    assert keys["key_blocked"].blocked_at == BEGAN + 110
    assert keys["key_revoked"].revoked_at == BEGAN + 113


def test_accounts(engine: Engine) -> None:
    found = {one.account_id: one for one in AccountStore(engine, clock=clock).every()}
    assert {name: (one.kind, one.parent_id, one.name) for name, one in found.items()} == {
        "org_default": (AccountKind.ORGANIZATION, None, "default"),
        "proj_default": (AccountKind.PROJECT, "org_default", "default"),
        "org_golden": (AccountKind.ORGANIZATION, None, "Größe AG"),
        "proj_golden": (AccountKind.PROJECT, "org_golden", "ops"),
        "proj_blocked": (AccountKind.PROJECT, "org_default", "old"),
    }
    assert found["org_golden"].limits == Limits(prepaid=True, budget_nusd=7_000_000_000_000, budget_window="none")
    assert found["proj_golden"].limits == Limits(budget_nusd=1, budget_window="4w", parallel=9)
    assert found["proj_blocked"].blocked_at == BEGAN + 104


def test_acts(engine: Engine) -> None:
    found = list(AuditLog(engine, clock=clock).since(0.0))
    first = found[0].at
    assert [
        (one.at - first, one.actor, one.via, one.origin, one.action, one.target, one.details, one.result, one.words)
        for one in found
    ] == [
        (0.0, "admin", "api", "192.0.2.1", "key.create", "key_golden",
         {"alias": "häuser", "limits": {"rpm": 60}}, "done", None),
        (1.0, "root", "cli", "golden-host", "key.block", "key_nobody", None, "refused", "no such key"),
        (2.0, "root", "cli", "golden-host", "key.revoke", "key_nobody", None, "failed", "RuntimeError"),
        (3.0, "admin", "api", "192.0.2.1", "credit.add", "org_golden", {"usd": "50"}, "begun", None),
    ]  # fmt: skip


def test_alerts(engine: Engine) -> None:
    found = read_alerts(engine)
    assert [(one.threshold, one.state, one.tries, one.last_error) for one in found] == [
        (50, "sent", 1, None), (80, "given_up", 1, "HTTP 500"), (100, "open", 1, None),
    ]  # fmt: skip
    assert {(one.scope_id, one.since, one.spent_nusd, one.budget_nusd) for one in found} == {
        ("key_golden", 1_792_800_000.0, 4_000_000_000, 5_000_000_000)
    }
    [due] = alerts.claim(engine, BEGAN + 100, 10)
    assert due.threshold == 100


def test_sinks(engine: Engine) -> None:
    stripe, hook = sinks.sink_status(engine, "stripe"), sinks.sink_status(engine, "hook")
    assert stripe is not None
    assert hook is not None
    assert (stripe.sink.sent, stripe.dead_letters, stripe.waiting) == (4, 1, 27 - 5)
    assert (stripe.sink.last_sent_at, stripe.sink.claimed_by) == (BEGAN + 701, "golden-host:1")
    assert (hook.sink.failures, hook.sink.failing_since, hook.sink.next_at) == (1, BEGAN + 702, BEGAN + 762)
    assert (hook.sink.last_error, hook.waiting) == ("HTTP 503", 27)
    assert [(one.why, one.state) for one in sinks.dead_letters(engine, "stripe")] == [
        ("HTTP 400", "again"), ("HTTP 422", "open"),
    ]  # fmt: skip
    assert len(sinks.to_resend(engine, "stripe", 10)) == 1
    assert sinks.retry(engine, "stripe") == 1


def test_partitions(postgres: Server, on_postgres: str) -> None:
    """A month's entries lie in its partition; an id that is of no month lies in the default one."""
    count = "SELECT tableoid::regclass::text, count(*) FROM ledger_entries GROUP BY 1 ORDER BY 1"
    assert postgres.execute(count, database=on_postgres) == [
        ("ledger_entries_2026_10", 26), ("ledger_entries_default", 1),
    ]  # fmt: skip
