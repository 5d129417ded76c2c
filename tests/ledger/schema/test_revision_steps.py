"""Revisions change a large ledger beside its writers: steps that block nobody, that can be cut off and repeated."""

from __future__ import annotations

import ast
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import Engine

from proxy import migrations
from proxy.ledger.schema import migrate as upgrading
from proxy.migrations import steps
from proxy.storage.database import LedgerUnavailable, open_engine, reading, writing
from tests.ledger.entries import a_store, batch_of
from tests.ledger.schema.revisions import run_revision
from tests.support.postgres import Server
from tests.support.waiting import wait_until

VERSIONS = Path(migrations.__path__[0], "versions")
FIRST_WITH_STEPS = "0007"
# What waits for no table that others use: a new one, and a column without a value of its own.
HARMLESS = {"create_table", "add_column", "bulk_insert", "get_bind"}


def blocking(revision: str) -> list[str]:
    """What a revision's text calls of Alembic that may block others on a large ledger."""
    tree = ast.parse(revision)
    calls = [
        node for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name) and node.func.value.id == "op"
    ]  # fmt: skip
    made = {_text(call, 0) for call in calls if _name(call) == "create_table"}
    return [
        _name(call) for call in calls
        if _name(call) not in HARMLESS and not (_name(call) == "create_index" and _text(call, 1) in made)
    ]  # fmt: skip


def _name(call: ast.Call) -> str:
    assert isinstance(call.func, ast.Attribute)
    return call.func.attr


def _text(call: ast.Call, place: int) -> str:
    found = call.args[place] if place < len(call.args) else None
    return str(found.value) if isinstance(found, ast.Constant) else ""


def test_no_new_revision_blocks() -> None:
    """Those up to 0006 are as they were: there is no large ledger that has not passed them."""
    new = [file for file in VERSIONS.glob("[0-9]*.py") if file.name[:4] >= FIRST_WITH_STEPS]
    assert {file.name: found for file in new if (found := blocking(file.read_text()))} == {}


def test_what_blocks_is_seen() -> None:
    assert blocking('op.create_index("ix_a_b", "a", ["b"])') == ["create_index"]
    assert blocking('op.create_table("a")\nop.create_index("ix_a_b", "a", ["b"])') == []
    assert blocking('op.execute("UPDATE ledger_entries SET x = 1")\nop.alter_column("a", "b")') == [
        "execute", "alter_column",
    ]  # fmt: skip
    assert blocking((VERSIONS / "0002_many_machines.py").read_text()) != []


def test_no_revision_narrows_what_may_use_the_ledger() -> None:
    """A version that may not use a revision may use no later one."""
    usable = [id_.partition("_from_")[2] or id_[:4] for id_ in upgrading._revisions()]
    assert usable == sorted(usable)


@pytest.fixture
def said() -> list[str]:
    return []


def mood() -> None:
    """What a later version might do."""
    steps.add_column("ledger_entries", sa.Column("mood", sa.String()))
    steps.in_batches("ledger_entries", "exchange_id", "mood = 'was ' || key_alias", "mood IS NULL")
    steps.create_index("ix_ledger_entries_mood", "ledger_entries", ["mood", "started_at"], where="mood IS NOT NULL")


def moods(engine: Engine) -> list[str | None]:
    with reading(engine) as connection:
        return list(connection.exec_driver_sql("SELECT mood FROM ledger_entries").scalars())


@pytest.fixture
def fresh(fresh_ledger_url: str) -> Iterator[Engine]:
    engine = open_engine(fresh_ledger_url)
    a_store(engine).settle(batch_of(range(250)))
    yield engine
    engine.dispose()


@pytest.mark.io
def test_each_step_is_done_once_however_often_it_is_run(fresh: Engine, said: list[str]) -> None:
    for _ in range(2):
        run_revision(fresh, mood, said)
    assert moods(fresh) == ["was anna"] * 250
    indexes = {one["name"] for one in sa.inspect(fresh).get_indexes("ledger_entries")}
    assert "ix_ledger_entries_mood" in indexes
    if fresh.dialect.name == "postgresql":
        assert "ledger_entries: 250 rows changed" in said
        assert "ledger_entries: 0 rows changed" in said


@pytest.fixture
def on_postgres(postgres_ledger_url: str) -> Iterator[Engine]:
    engine = open_engine(postgres_ledger_url)
    yield engine
    engine.dispose()


def parts(engine: Engine) -> dict[str, bool]:
    """The index and its parts → whether each is valid."""
    with reading(engine) as connection:
        query = "SELECT indexrelid::regclass::text AS name, indisvalid FROM pg_index"
        return {name: valid for name, valid in connection.exec_driver_sql(query) if name.endswith("mood")}


def test_an_index_that_was_cut_off_is_made_anew(on_postgres: Engine, said: list[str]) -> None:
    run_revision(on_postgres, lambda: steps.add_column("ledger_entries", sa.Column("mood", sa.String())), said)
    with writing(on_postgres) as connection:
        names = connection.exec_driver_sql(
            "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'ledger_entries'::regclass ORDER BY 1"
        ).scalars().all()  # fmt: skip
        broken = f"ix_{names[0]}_mood"
        connection.exec_driver_sql(f"CREATE INDEX {broken} ON {names[0]} (mood, started_at) WHERE mood IS NOT NULL")
    _spoil(on_postgres, broken)
    run_revision(on_postgres, mood, said)
    found = parts(on_postgres)
    assert len(found) == 1 + len(names)
    assert all(found.values()), found


def _spoil(engine: Engine, index: str) -> None:
    """As CREATE INDEX CONCURRENTLY leaves it when it is cut off."""
    with reading(engine) as connection:
        port = connection.connection.dbapi_connection.info.port  # type: ignore[union-attr]
        name = connection.connection.dbapi_connection.info.dbname  # type: ignore[union-attr]
    with psycopg.connect(f"postgresql://postgres@127.0.0.1:{port}/{name}") as superuser:
        superuser.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = %s::regclass", [index])


@contextmanager
def holding(engine: Engine, statement: str) -> Iterator[None]:
    """A transaction of somebody else that has a lock, for as long as the context lasts."""
    with engine.connect() as connection, connection.begin():
        connection.exec_driver_sql(statement)
        yield


def test_a_step_waits_for_a_long_reader_and_no_settlement_waits_behind_it(
    on_postgres: Engine, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "RETRY_S", 0.1)
    monkeypatch.setattr(steps, "LOCK_TIMEOUT", "100ms")
    store = a_store(on_postgres)
    store.settle(batch_of(range(3)))
    waits: list[float] = []
    with ThreadPoolExecutor(1) as threads, holding(on_postgres, "SELECT count(*) FROM ledger_entries"):
        upgraded = threads.submit(run_revision, on_postgres, mood, said)
        for number in count(3):
            began = time.monotonic()
            store.settle(batch_of([number]))
            waits.append(time.monotonic() - began)
            time.sleep(0.05)
            if said and number >= 12:
                break
        assert not upgraded.done()
    upgraded.result(60)
    assert "column ledger_entries.mood: another transaction has the lock; trying every 0.1 s" in said
    assert max(waits) < 2
    assert len(moods(on_postgres)) == number + 1


def test_a_step_gives_up_in_the_end(on_postgres: Engine, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "LOCK_TIMEOUT", "100ms")
    monkeypatch.setattr(steps, "LOCK_WAIT_S_MAX", 0.2)
    monkeypatch.setattr(steps, "RETRY_S", 0.05)
    with (
        holding(on_postgres, "SELECT count(*) FROM ledger_entries"),
        pytest.raises(LedgerUnavailable, match="lock timeout"),
    ):
        run_revision(on_postgres, mood, said)
    run_revision(on_postgres, mood, said)


@pytest.mark.thorough
def test_a_second_upgrade_waits_and_says_so(postgres: Server, said: list[str]) -> None:
    name = postgres.new_database()
    engine = open_engine(postgres.url(name))
    with ThreadPoolExecutor(1) as threads, upgrading._alone(engine, pytest.fail):
        second = threads.submit(upgrading.migrate, postgres.url(name), said.append)
        wait_until(lambda: said)
        assert said == ["another process changes the ledger's tables: waiting for it"]
    second.result(60)
    assert [one for one in said if one.startswith("revision ")][-1] == f"revision {upgrading._revisions()[-1]}"
    assert upgrading.check(postgres.url(name)) == []
    engine.dispose()
    postgres.drop_database(name)


def test_an_upgrade_that_waits_is_not_waited_for(
    on_postgres: Engine, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index is created concurrently only when no older snapshot is left: nor may one of those that wait be."""
    monkeypatch.setattr(upgrading, "RETRY_S", 0.1)
    waiting = threading.Event()

    def index() -> None:
        assert waiting.wait(20)
        steps.create_index("ix_ledger_entries_outcome", "ledger_entries", ["outcome"])

    first = threading.Thread(target=run_revision, args=(on_postgres, index, []), daemon=True)
    first.start()
    while not said:
        second = threading.Thread(target=run_revision, args=(on_postgres, list, said), daemon=True)
        second.start()
        second.join(0.3)
    time.sleep(0.2)
    waiting.set()
    first.join(30)
    assert not first.is_alive()
    second.join(30)
    assert not second.is_alive()
