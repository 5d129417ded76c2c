"""The migrations make exactly the tables that the code expects, and keep what is there."""

from __future__ import annotations

import stat
import time
from pathlib import Path

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import Column, Engine, MetaData, Table, insert, inspect, select

from proxy.billing.keys import DEFAULT_ORGANIZATION, DEFAULT_PROJECT, Account, ApiKey
from proxy.ledger.accounts.key_store import KeyStore
from proxy.ledger.schema.account_tables import api_keys, grant_clock
from proxy.ledger.schema.migrate import NewerDatabaseError, _config, _revisions, _upgrade_to, check, migrate
from proxy.ledger.schema.partitions import add_partitions
from proxy.ledger.schema.tables import (
    account_clock,
    balances,
    dead_letters,
    dimension_clock,
    dimension_daily,
    ledger_clock,
    ledger_entries,
)
from proxy.ledger.settling import account_sums
from proxy.storage import database
from proxy.storage.database import open_engine, reading, sqlite_url, writing
from proxy.storage.postgres import UnsuitableDatabaseError
from tests.ledger.entries import (
    a_ledger,
    a_store,
    add_up,
    an_entry,
    arriving,
    assert_sums,
    balances_of,
    content_hash,
    count,
    stored,
)  # fmt: skip
from tests.support.ledger_tables import read_balances
from tests.support.ledgers import on_both_databases
from tests.support.postgres import Server

pytestmark = pytest.mark.io


@on_both_databases
def test_from_nothing_to_what_the_code_expects(ledger_url: str) -> None:
    """The ledgers of all tests are copies of one that was migrated from nothing."""
    assert check(ledger_url) == []


def test_in_an_odd_folder(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path / "with space & 100% odd" / "ledger.db")
    migrate(url)
    assert check(url) == []


def test_again_keeps_everything_and_writes_nothing(ledger_url: str, engine: Engine) -> None:
    a_store(engine).settle(arriving(an_entry()))
    with writing(engine):  # whoever wanted to write would wait
        migrate(ledger_url)
    assert count(engine, ledger_entries) == 1


def test_drift_is_seen(fresh_ledger_url: str) -> None:
    engine = open_engine(fresh_ledger_url)
    with writing(engine) as connection:
        connection.exec_driver_sql("ALTER TABLE balances ADD COLUMN mood VARCHAR")
        connection.exec_driver_sql("DROP INDEX ix_usage_daily_day")
        connection.exec_driver_sql("DROP TABLE ledger_clock")
        connection.exec_driver_sql("CREATE TABLE ledger_clock (id INTEGER NOT NULL, settled_at TIMESTAMP NOT NULL)")
    engine.dispose()
    differences = " ".join(check(fresh_ledger_url))
    assert "mood" in differences
    assert "ix_usage_daily_day" in differences
    assert "primary key of ledger_clock" in differences


def test_a_database_of_a_later_version_is_left_alone(fresh_ledger_url: str) -> None:
    engine = open_engine(fresh_ledger_url)
    with writing(engine) as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    engine.dispose()
    with pytest.raises(NewerDatabaseError, match="9999"):
        migrate(fresh_ledger_url)


def test_a_failed_upgrade_goes_on_where_it_was(database_url: str) -> None:
    """It leaves nothing of the revision that failed behind; of those before, on SQLite nothing, either."""
    engine = open_engine(database_url)
    with writing(engine) as connection:
        connection.exec_driver_sql("CREATE TABLE usage_daily (key_id VARCHAR)")  # in the way of revision 0002
    with pytest.raises(OSError, match="usage_daily"):
        migrate(database_url)
    kept = {"balances", "ledger_entries", "dead_letters", "api_keys", "alembic_version"}
    with writing(engine) as connection:
        tables = set(inspect(connection).get_table_names())
        assert tables == {"usage_daily", *(kept if engine.dialect.name == "postgresql" else ())}
        connection.exec_driver_sql("DROP TABLE usage_daily")
    migrate(database_url)
    assert check(database_url) == []
    engine.dispose()


def test_the_file_is_its_owners_alone_and_survives_power_cuts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = database._connected_sqlite.__wrapped__  # type: ignore[attr-defined]  # of tests/support/made_once.py
    monkeypatch.setattr(database, "_connected_sqlite", synced)
    engine = a_ledger(tmp_path)
    with writing(engine) as connection:
        settings = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        }
        for file in tmp_path.glob("ledger.db*"):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert settings == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}
    engine.dispose()


def test_a_server_that_is_too_old_is_refused(kept_on_postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.storage.postgres._VERSION_MIN", 99)
    with pytest.raises(UnsuitableDatabaseError, match="PostgreSQL 99"):
        migrate(kept_on_postgres)


def test_a_database_that_cannot_hold_every_character_is_refused(postgres: Server) -> None:
    name = postgres.new_database("template0", options="ENCODING 'LATIN1' LOCALE 'C'")
    with pytest.raises(UnsuitableDatabaseError, match="UTF8, not LATIN1"):
        migrate(postgres.url(name))
    postgres.drop_database(name)


# -- from 0001 ---------------------------------------------------------------------------------------------------

NEW_COLUMNS = {"node", "journal_seq", "state", "state_at"}


def as_of_0001(table: Table) -> Table:
    """A table that 0002 has changed, as it was."""
    kept = [Column(c.name, c.type, key=c.key) for c in table.columns if c.name not in NEW_COLUMNS]
    return Table(table.name, MetaData(), *kept)


def test_the_files_are_named_by_their_revisions() -> None:
    """Whether an upgrade is due is told from the names, without Alembic."""
    scripts = ScriptDirectory.from_config(_config())
    assert _revisions() == [script.revision for script in reversed(list(scripts.walk_revisions()))]


def upgrade_to(engine: Engine, revision: str) -> None:
    config = _config()
    with writing(engine) as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


def test_a_ledger_of_0001_comes_along_with_its_rows(database_url: str) -> None:
    """What a ledger with the entries of three days held, it holds; the days are added up from them."""
    engine = open_engine(database_url)
    midnight = 1_793_059_200.0
    entries = [
        an_entry(0, started_at=midnight - 1e-6, charge_nusd=1),
        an_entry(1, started_at=midnight, charge_nusd=4_000_000_123_456_789, cost_nusd=None),
        an_entry(2, started_at=midnight, charge_nusd=None, prompt_tokens=None, model="small"),
        an_entry(3, started_at=midnight + 86_400, key_id="key-2"),
    ]
    upgrade_to(engine, "0001")
    rows = [
        {name: getattr(entry, name) for name in entry.__struct_fields__}
        | {"content_hash": content_hash(entry), "settled_at": midnight + place}
        for place, entry in enumerate(entries)
    ]
    letter = {"id": "1", "reason": "r", "payload": "p", "first_seen": 1.0, "last_seen": 2.0, "times_seen": 3}
    with writing(engine) as connection:
        connection.execute(insert(as_of_0001(ledger_entries)), rows)
        connection.execute(insert(balances).values(balances_of(entries)))
        connection.execute(insert(as_of_0001(dead_letters)), [letter])
    migrate(database_url)
    assert check(database_url) == []
    assert stored(engine) == entries
    assert_sums(engine)
    with reading(engine) as connection:
        (kept,) = connection.execute(select(dead_letters))
        assert (kept.times_seen, kept.state, kept.state_at, kept.node) == (3, "open", 1.0, None)
        assert connection.execute(select(ledger_clock.c.settled_at)).scalar_one() == midnight + 3
    assert a_store(engine).settle(arriving(*entries)).repeated == 4
    engine.dispose()


# -- from 0002 ---------------------------------------------------------------------------------------------------

KEY_COLUMNS_OF_0003 = {
    *("project_id", "limits", "on_exhausted", "on_store_outage", "tags", "blocked_at", "old_digest", "old_until"),
}  # fmt: skip


def test_keys_of_0002_come_along_in_a_project_without_limits(database_url: str) -> None:
    """Whoever had a key has it; whoever follows the changes from before sees the accounts, and no key again."""
    engine = open_engine(database_url)
    upgrade_to(engine, "0002")
    kept = [Column(c.name, c.type, key=c.key) for c in api_keys.columns if c.name not in KEY_COLUMNS_OF_0003]
    row = {
        "key_id": "key-1", "alias": "anna", "digest": b"1" * 32, "hint": "tw-…1111", "models": ["m"],
        "created_at": 5.0, "expires_at": None, "revoked_at": None, "revision": 7,
    }  # fmt: skip
    with writing(engine) as connection:
        connection.execute(insert(Table("api_keys", MetaData(), *kept)).values(row))
    migrate(database_url)
    assert check(database_url) == []
    keys = KeyStore(engine, clock=lambda: 9.0)
    key = ApiKey("key-1", "anna", b"1" * 32, "tw-…1111", frozenset("m"), 5.0, None, None, 7)
    assert list(keys.every()) == [key]
    assert key.project_id == DEFAULT_PROJECT
    organization, project = keys.changes_since(7).rows
    assert isinstance(organization, Account)
    assert isinstance(project, Account)
    assert (organization.account_id, project.account_id) == (DEFAULT_ORGANIZATION, DEFAULT_PROJECT)
    assert (organization.revision, project.revision) == (8, 9)
    assert time.time() - 60 < project.created_at < time.time() + 1
    assert keys.update("anna", rpm=3).revision == 10
    engine.dispose()


# -- from 0012 ---------------------------------------------------------------------------------------------------


def test_usage_by_dimension_begins_at_the_upgrade(database_url: str) -> None:
    """A ledger with entries: they have no dimensions; those that are settled later are added up, and all else stays."""
    engine = open_engine(database_url)
    if engine.dialect.name == "sqlite":
        upgrade_to(engine, "0012_from_0006")
    else:  # one after the other: their steps commit
        for revision in _revisions():
            if revision <= "0012_from_0006":
                _upgrade_to(engine, revision, lambda _line: None)
        with writing(engine) as connection:
            add_partitions(connection, time.time())
    store, earlier = a_store(engine), [an_entry(number) for number in range(3)]
    store.settle(arriving(*earlier))
    while account_sums.add_up(engine):
        pass
    store.settle(arriving(an_entry(3)))
    before, sums_before = stored(engine), read_balances(engine)
    migrate(database_url)
    assert check(database_url) == []
    assert (stored(engine), read_balances(engine)) == (before, sums_before)
    with reading(engine) as connection:
        clocks = [
            connection.execute(select(clock.c.settled_at)).scalar_one()
            for clock in (account_clock, dimension_clock, grant_clock)
        ]
        assert clocks[0] == clocks[1] == clocks[2] > 0
    store.settle(arriving(an_entry(4, details={"dimensions": {"end_user": "v_1"}})))
    add_up(engine)
    with reading(engine) as connection:
        assert [row.entries for row in connection.execute(select(dimension_daily))] == [1]
    engine.dispose()
