"""The migrations make exactly the tables that the code expects."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from proxy.ledger.database import open_engine, sqlite_url, writing
from proxy.ledger.migrate import NewerDatabaseError, check, migrate
from proxy.ledger.tables import ledger_entries
from tests.ledger.making import a_ledger, a_store, an_entry, count


def test_from_nothing_to_what_the_code_expects(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path / "with space & 100% odd" / "ledger.db")
    migrate(url)
    assert check(url) == []


def test_again_keeps_everything(tmp_path: Path) -> None:
    engine = a_ledger(tmp_path)
    a_store(engine).settle([an_entry()])
    migrate(sqlite_url(tmp_path / "ledger.db"))
    assert count(engine, ledger_entries) == 1
    engine.dispose()


def test_drift_is_seen(tmp_path: Path) -> None:
    engine = a_ledger(tmp_path)
    with writing(engine) as connection:
        connection.exec_driver_sql("ALTER TABLE balances ADD COLUMN mood VARCHAR")
        connection.exec_driver_sql("DROP INDEX ix_ledger_entries_started_at")
    engine.dispose()
    differences = " ".join(check(sqlite_url(tmp_path / "ledger.db")))
    assert "mood" in differences
    assert "ix_ledger_entries_started_at" in differences


def test_a_database_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    engine = a_ledger(tmp_path)
    with writing(engine) as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    engine.dispose()
    with pytest.raises(NewerDatabaseError, match="9999"):
        migrate(sqlite_url(tmp_path / "ledger.db"))


def test_a_failed_upgrade_leaves_nothing_behind(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path / "ledger.db")
    engine = open_engine(url)
    with writing(engine) as connection:
        connection.exec_driver_sql("CREATE TABLE api_keys (key_id VARCHAR)")  # in the way of the last table
    with pytest.raises(OSError, match="api_keys"):
        migrate(url)
    with writing(engine) as connection:
        tables = {row[0] for row in connection.exec_driver_sql("SELECT name FROM sqlite_master")}
        assert tables == {"api_keys"}
    engine.dispose()


def test_the_file_is_its_owners_alone_and_survives_power_cuts(tmp_path: Path) -> None:
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
