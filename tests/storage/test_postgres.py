"""The ledger on Postgres when Postgres has its bad days: what is settled is there once, a database that is away is
waited for, and only a bad row is a dead letter."""

from __future__ import annotations

import random
import string
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from socket import create_server
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, Engine, event, text

from proxy.ledger.schema.migrate import migrate
from proxy.ledger.schema.tables import dead_letters, ledger_entries
from proxy.ledger.settling.store import LedgerStore, Settled
from proxy.storage import postgres
from proxy.storage.database import LedgerUnavailable, open_engine, reading, writing
from proxy.storage.postgres import LedgerUrlError
from tests.ledger.entries import a_store, an_entry, arriving, assert_sums, batch_of, count, stored
from tests.support.examples import each
from tests.support.faulty import FaultyPath
from tests.support.net import closed_port
from tests.support.postgres import LOCKED, MIGRATED, OWNER, PostgresServer, own_server
from tests.support.waiting import wait_until

PASSWORD = "canary-5d41"
LOCAL = "127.0.0.1"


@pytest.fixture(scope="module")
def server(postgres_cluster: Any) -> Iterator[PostgresServer]:
    """One that may fall over."""
    with own_server(postgres_cluster) as server:
        yield server


@pytest.fixture
def database(server: PostgresServer) -> str:
    return server.new_database(MIGRATED)


@pytest.fixture
def engine(server: PostgresServer, database: str) -> Iterator[Engine]:
    engine = open_engine(server.url(database))
    yield engine
    engine.dispose()


@pytest.fixture
def store(engine: Engine) -> LedgerStore:
    return a_store(engine)


def terminate(server: PostgresServer, database: str) -> None:
    server.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'")


def settle_until_done(store: LedgerStore, numbers: range) -> Settled:
    """As the settler does: the same batch, as long as the ledger is away."""
    until = time.monotonic() + 60
    while True:
        try:
            return store.settle(batch_of(numbers))
        except LedgerUnavailable:
            assert time.monotonic() < until
            time.sleep(0.01)


def with_setting(engine: Engine, setting: str) -> Engine:
    """The engine, with transactions that are less patient than ours."""

    def impatient(connection: Connection) -> None:
        connection.exec_driver_sql(f"SET LOCAL {setting}")

    event.listen(engine, "begin", impatient)
    return engine


# -- what a session promises ---------------------------------------------------------------------------------------


def shown(engine: Engine, *names: str) -> list[str]:
    with writing(engine) as connection:
        return [connection.exec_driver_sql(f"SHOW {name}").scalar_one() for name in names]


@pytest.mark.thorough
def test_a_session_promises_the_same_whatever_the_database_says(
    server: PostgresServer, database: str, engine: Engine, store: LedgerStore
) -> None:
    odd = {
        "synchronous_commit": "off",
        "default_transaction_isolation": "serializable",
        "statement_timeout": "1s",  # its own first statements are under it, on a busy machine, too
        "DateStyle": "SQL, DMY",
        "TimeZone": "Asia/Tokyo",
        "client_encoding": "LATIN1",
    }
    for name, value in odd.items():
        server.execute(f"ALTER DATABASE {database} SET {name} = '{value}'")
    names = ("synchronous_commit", "transaction_isolation", "statement_timeout", "lock_timeout", "application_name")
    assert shown(engine, *names) == ["on", "read committed", "30s", "10s", "tokenweir"]
    assert shown(engine, "idle_in_transaction_session_timeout") == ["15s"]
    entry = an_entry(1, key_alias="Łódź – 東京 – \U0001f600")
    store.settle(arriving(entry))
    assert stored(engine) == [entry]
    assert_sums(engine)


def test_behind_a_pooler_a_transaction_may_be_any_sessions(
    server: PostgresServer, database: str, engine: Engine
) -> None:
    """Between two transactions, a pooler may give us a session that somebody else has had."""
    server.execute(f"ALTER DATABASE {database} SET statement_timeout = '7s'")
    names = ("statement_timeout", "lock_timeout", "TimeZone", "DateStyle")
    for _ in range(2):
        assert shown(engine, *names) == ["30s", "10s", "UTC", "ISO, MDY"]
        with engine.connect() as connection:
            session = connection.connection.dbapi_connection
            assert session is not None
            session.autocommit = True
            (left,) = session.execute("SELECT current_setting('statement_timeout')").fetchone()
            assert left == "7s", "nothing of ours is left for whoever comes next"
            session.execute("DISCARD ALL")
            session.execute("SET TimeZone = 'Asia/Tokyo'")
            session.autocommit = False


def test_statements_are_prepared_only_without_a_pooler(engine: Engine) -> None:
    """With one: test_pooler.py."""
    with engine.connect() as connection:
        session = connection.connection.dbapi_connection
        assert session is not None
        assert session.prepare_threshold == 5


@pytest.mark.thorough
def test_a_server_that_hangs_is_not_waited_for_without_end(
    server: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "ANSWER_S_MAX", 0.2)
    engine = open_engine(f"{server.url(database)}?connect_timeout=2")
    store = a_store(engine)
    store.settle(batch_of(range(3)))
    with server.hanging():
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(LedgerUnavailable, match=r"has not answered for 0\.2 s|timeout"):
                store.settle(batch_of(range(3, 6)))
            assert time.monotonic() - began < 10
    assert len(store.settle(batch_of(range(6))).inserted) == 3
    assert_sums(engine)
    engine.dispose()


def test_what_has_no_time_limit_is_waited_for(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "ANSWER_S_MAX", 0.2)
    with reading(engine) as connection:
        postgres.remove_time_limits(connection)
        connection.exec_driver_sql("SELECT pg_sleep(0.3)")
        assert connection.exec_driver_sql("SHOW statement_timeout").scalar_one() == "0"
    with pytest.raises(LedgerUnavailable, match="has not answered"), reading(engine) as connection:
        connection.exec_driver_sql("SELECT pg_sleep(0.5)")


def test_more_than_a_durable_commit_stays(server: PostgresServer, database: str, engine: Engine) -> None:
    server.execute(f"ALTER DATABASE {database} SET synchronous_commit = 'remote_apply'")
    assert shown(engine, "synchronous_commit") == ["remote_apply"]


def test_what_the_url_says_of_the_connection_holds(server: PostgresServer, database: str) -> None:
    engine = open_engine(f"{server.url(database)}?application_name=billing&connect_timeout=3")
    assert shown(engine, "application_name") == ["billing"]
    engine.dispose()


@pytest.mark.thorough
def test_several_hosts_as_libpq_takes_them(server: PostgresServer, database: str) -> None:
    engine = open_engine(f"postgresql://{OWNER}@{LOCAL}:{closed_port()},{LOCAL}:{server.port}/{database}")
    assert a_store(engine).settle(arriving(an_entry(1))) == Settled(inserted=(an_entry(1),))
    engine.dispose()


def test_a_reader_sees_one_state_and_cannot_write(engine: Engine, store: LedgerStore) -> None:
    with reading(engine) as connection:
        before = connection.execute(text("SELECT count(*) FROM ledger_entries")).scalar_one()
        store.settle(arriving(an_entry(1)))
        assert connection.execute(text("SELECT count(*) FROM ledger_entries")).scalar_one() == before
    with pytest.raises(LedgerUnavailable, match="read-only"), reading(engine) as connection:
        connection.execute(text("DELETE FROM balances"))


# -- away ----------------------------------------------------------------------------------------------------------


def test_ended_in_mid_transaction(server: PostgresServer, database: str, engine: Engine, store: LedgerStore) -> None:
    with pytest.raises(LedgerUnavailable), store.settling() as settling:  # noqa: PT012
        settling.insert(batch_of(range(5)))
        terminate(server, database)
    assert count(engine, ledger_entries) == 0
    assert len(store.settle(batch_of(range(5))).inserted) == 5
    assert_sums(engine)


def test_ended_at_commit(server: PostgresServer, database: str, engine: Engine, store: LedgerStore) -> None:
    server.execute(
        "CREATE FUNCTION fall() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END$$; "
        "CREATE CONSTRAINT TRIGGER falls AFTER UPDATE ON ledger_clock "
        "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION fall()",
        database=database,
    )
    with pytest.raises(LedgerUnavailable):
        store.settle(batch_of(range(5)))
    server.execute("DROP TRIGGER falls ON ledger_clock", database=database)
    assert count(engine, ledger_entries) == 0
    assert len(store.settle(batch_of(range(5))).inserted) == 5
    assert_sums(engine)


def test_committed_but_the_answer_is_lost(server: PostgresServer, database: str, engine: Engine) -> None:
    with FaultyPath(LOCAL, server.port) as path:
        through = open_engine(f"postgresql://{OWNER}@{LOCAL}:{path.port}/{database}")
        store = a_store(through)
        store.settle([])
        path.lose_reply(b"COMMIT\0")  # not "READ COMMITTED"
        with pytest.raises(LedgerUnavailable):
            store.settle(batch_of(range(5)))
        assert path.lost
        assert count(engine, ledger_entries) == 5
        assert store.settle(batch_of(range(6))) == Settled(inserted=(an_entry(5),), repeated=5)
        through.dispose()
    assert_sums(engine)


@pytest.mark.thorough
def test_ended_while_a_standby_is_waited_for(
    server: PostgresServer, database: str, engine: Engine, store: LedgerStore
) -> None:
    """The server has committed, says so to nobody, and the batch comes again."""
    server.set(synchronous_standby_names="nobody")
    with ThreadPoolExecutor(1) as pool:
        settling = pool.submit(store.settle, batch_of(range(5)))
        until_waiting(server, database, "SyncRep")
        server.set(synchronous_standby_names="")
        terminate(server, database)
        with suppress(LedgerUnavailable):  # the server may have noticed first that no standby is wanted any more
            settling.result(20)
    assert count(engine, ledger_entries) == 5
    assert store.settle(batch_of(range(5))) == Settled(repeated=5)
    assert_sums(engine)


def until_waiting(server: PostgresServer, database: str, what: str) -> None:
    asked = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{database}' AND wait_event = '{what}'"
    seen = "SELECT wait_event, query FROM pg_stat_activity"
    wait_until(lambda: server.execute(asked) != [(0,)], lambda: server.execute(seen), poll_s=0.005)


@pytest.mark.thorough
def test_sessions_that_are_ended_again_and_again(
    server: PostgresServer, database: str, engine: Engine, store: LedgerStore
) -> None:
    with ThreadPoolExecutor(1) as pool:
        settling = pool.submit(_settle_many, store, 8)
        for _ in range(8):
            terminate(server, database)
            time.sleep(0.01)
        assert settling.result(60) == 8 * 5
    assert count(engine, ledger_entries) == 8 * 5
    assert_sums(engine)


def _settle_many(store: LedgerStore, batches: int) -> int:
    """→ how many the ledger has of them, as it said itself."""
    done = [settle_until_done(store, range(number * 5, number * 5 + 5)) for number in range(batches)]
    return sum(len(settled.inserted) + settled.repeated for settled in done)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "falls",
    [("stop_immediately",), pytest.param(("stop_immediately", "kill", "stop"), marks=pytest.mark.slow)],
    ids=["one fall", "three falls"],
)
def test_the_server_is_restarted_and_killed_under_load(
    server: PostgresServer, engine: Engine, store: LedgerStore, falls: tuple[str, ...]
) -> None:
    done: list[int] = []
    stopped = False

    def settle() -> None:
        while not stopped:
            settle_until_done(store, range(len(done) * 5, len(done) * 5 + 5))
            done.append(1)

    with ThreadPoolExecutor(1) as pool:
        settling: Future[None] = pool.submit(settle)
        for fall in falls:
            before = len(done)
            while len(done) < before + 3:  # it is under load
                assert not settling.done()
                time.sleep(0.001)
            getattr(server, fall)()
            server.start()
        stopped = True
        settling.result(60)
    assert count(engine, ledger_entries) == len(done) * 5
    assert_sums(engine)


@pytest.mark.slow
def test_a_server_that_is_not_there_and_comes(postgres_cluster: Any) -> None:
    with own_server(postgres_cluster) as server:
        name = server.new_database()
        migrate(server.url(name))
        server.stop()
        engine = open_engine(server.url(name))
        for _ in range(2):
            with pytest.raises(LedgerUnavailable, match="refused"):
                a_store(engine).settle(arriving(an_entry(1)))
        server.start()
        assert a_store(engine).settle(arriving(an_entry(1))) == Settled(inserted=(an_entry(1),))
        engine.dispose()


@pytest.mark.io
def test_a_server_that_never_answers() -> None:
    with create_server((LOCAL, 0)) as silent:
        engine = open_engine(f"postgresql://{OWNER}@{LOCAL}:{silent.getsockname()[1]}/x?connect_timeout=2")
        with pytest.raises(LedgerUnavailable, match="timeout"):
            a_store(engine).settle([])
        engine.dispose()


def test_read_only_as_a_server_that_was_failed_over_from(
    server: PostgresServer, database: str, engine: Engine, store: LedgerStore
) -> None:
    server.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    with pytest.raises(LedgerUnavailable, match="read-only"):
        store.settle(batch_of(range(5)))
    server.execute(f"ALTER DATABASE {database} RESET default_transaction_read_only")
    engine.dispose()
    assert len(store.settle(batch_of(range(5))).inserted) == 5
    assert_sums(engine)


def test_too_many_connections(server: PostgresServer, engine: Engine, store: LedgerStore) -> None:
    server.execute(f"ALTER ROLE {OWNER} CONNECTION LIMIT 0")
    with pytest.raises(LedgerUnavailable, match="too many connections"):
        store.settle(batch_of(range(5)))
    server.execute(f"ALTER ROLE {OWNER} CONNECTION LIMIT -1")
    assert len(store.settle(batch_of(range(5))).inserted) == 5


@pytest.mark.slow
@pytest.mark.privileged
def test_the_disk_is_full(postgres_cluster: Any) -> None:
    """A file system of its own for one tablespace."""
    with own_server(postgres_cluster, tiny_disk_mb=18) as server:
        server.execute(f"CREATE TABLESPACE tiny LOCATION '{server.tiny_disk}'")
        name = server.new_database(options="TABLESPACE tiny STRATEGY file_copy")
        migrate(server.url(name))
        ballast = "CREATE TABLE ballast AS SELECT repeat('x', 100), n FROM generate_series(1, 40000) AS n"
        server.execute(ballast, database=name)
        engine = open_engine(server.url(name))
        store = a_store(engine)
        batches = 0

        def settle_next() -> None:
            store.settle(batch_of(range(batches * 100, batches * 100 + 100)))

        with pytest.raises(LedgerUnavailable, match="No space left"):  # noqa: PT012  some time or other
            while batches < 200:
                settle_next()
                batches += 1
        assert count(engine, ledger_entries) == batches * 100
        server.execute("DROP TABLE ballast", database=name)
        settle_next()
        assert count(engine, ledger_entries) == batches * 100 + 100
        assert_sums(engine)
        engine.dispose()


# -- locks ---------------------------------------------------------------------------------------------------------


def test_a_deadlock_with_somebody_else_is_tried_again(
    server: PostgresServer, database: str, engine: Engine, store: LedgerStore
) -> None:
    store.settle(arriving(an_entry(1)))
    server.execute(f"ALTER DATABASE {database} SET deadlock_timeout = '500ms'")
    engine.dispose()
    with psycopg.connect(server.url(database, user="postgres")) as other, ThreadPoolExecutor(1) as pool:
        other.execute("SET deadlock_timeout = '60s'")  # whoever looks first gives way
        other.execute("SELECT 1 FROM balances FOR UPDATE")
        settling = pool.submit(store.settle, arriving(an_entry(2)))
        until_waiting(server, database, "transactionid")
        other.execute("UPDATE ledger_clock SET settled_at = settled_at")
        with pytest.raises(LedgerUnavailable, match="deadlock"):
            settling.result(20)
        other.rollback()
    assert store.settle(arriving(an_entry(2))) == Settled(inserted=(an_entry(2),))
    assert_sums(engine)


def test_a_lock_is_not_waited_for_for_ever(server: PostgresServer, database: str, engine: Engine) -> None:
    store = a_store(with_setting(engine, "lock_timeout = '50ms'"))
    with psycopg.connect(server.url(database)) as other:
        other.execute("SELECT 1 FROM ledger_clock FOR UPDATE")
        with pytest.raises(LedgerUnavailable, match="lock timeout"):
            store.settle(arriving(an_entry(1)))
    assert len(store.settle(arriving(an_entry(1))).inserted) == 1


def test_a_settler_that_falls_asleep_with_the_lock_loses_it(
    server: PostgresServer, database: str, engine: Engine, store: LedgerStore
) -> None:
    own = open_engine(server.url(database))  # nobody else's sessions may end so
    asleep = a_store(with_setting(own, "idle_in_transaction_session_timeout = '500ms'"))
    with pytest.raises(LedgerUnavailable), asleep.settling() as settling:  # noqa: PT012
        settling.insert(arriving(an_entry(1)))
        assert len(store.settle(arriving(an_entry(2))).inserted) == 1  # waits, and then goes on
    own.dispose()
    assert stored(engine) == [an_entry(2)]
    assert_sums(engine)


# -- whose fault it is ---------------------------------------------------------------------------------------------

STATES_OF_THE_DATABASE = (
    "08006", "25006", "40001", "40P01", "42501", "42P01", "53100", "53200", "53300", "55P03", "57014", "57P01",
    "57P03", "58030", "XX000", "XX001",
)  # fmt: skip
FAULTS_OF_A_ROW = ("22003", "22P02", "22P05", "23502", "23514", "54000", "54001")


@pytest.fixture(scope="module")
def tripping(server: PostgresServer) -> str:
    """A database in which a row with a provider's name in capitals raises the SQLSTATE that this name is."""
    name = server.new_database(MIGRATED)
    server.execute(
        "CREATE FUNCTION trip() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN RAISE EXCEPTION 'tripped' USING ERRCODE = NEW.provider, DETAIL = 'canary ' || NEW.key_alias; END$$; "
        "CREATE TRIGGER trips BEFORE INSERT ON ledger_entries FOR EACH ROW "
        "WHEN (NEW.model = 'trips') EXECUTE FUNCTION trip()",
        database=name,
    )
    return name


@pytest.mark.parametrize("sqlstate", each(4, STATES_OF_THE_DATABASE))
def test_a_state_of_the_database_is_waited_for(server: PostgresServer, tripping: str, sqlstate: str) -> None:
    engine = open_engine(server.url(tripping))
    before = count(engine, ledger_entries), count(engine, dead_letters)
    with pytest.raises(LedgerUnavailable) as raised:
        a_store(engine).settle(arriving(an_entry(1), an_entry(2, model="trips", provider=sqlstate)))
    assert "tripped" in str(raised.value)
    assert "canary" not in str(raised.value)
    assert (count(engine, ledger_entries), count(engine, dead_letters)) == before
    engine.dispose()


@pytest.mark.parametrize("sqlstate", each(3, FAULTS_OF_A_ROW))
def test_a_fault_of_a_row_is_its_own(server: PostgresServer, tripping: str, sqlstate: str) -> None:
    engine = open_engine(server.url(tripping))
    good = [an_entry(int(sqlstate[-3:], 36) * 100 + number) for number in range(9)]
    bad = an_entry(10**9, model="trips", provider=sqlstate)
    settled = a_store(engine).settle(arriving(*good[:6], bad, *good[6:]))
    assert settled == Settled(inserted=tuple(good), rejected=1)
    assert_sums(engine)
    engine.dispose()


@pytest.mark.thorough
def test_what_postgres_alone_cannot_hold(engine: Engine, store: LedgerStore) -> None:
    """A NUL, and a name too long for an index, even where only the day's usage has one."""
    dice = random.Random(1)
    long = "".join(dice.choices(string.printable, k=9_000))
    bad = [an_entry(2, finish_reason="a\0b"), an_entry(4, model=long), an_entry(5, details={"x": "\0"})]
    settled = store.settle(arriving(an_entry(1), *bad, an_entry(3)))
    assert settled == Settled(inserted=(an_entry(1), an_entry(3)), rejected=3)
    sizes = range(2_600, 2_720, 8)  # the largest that fit: in the entries' index, and then in that of the days
    refused = [n for n in sizes if store.settle(arriving(an_entry(n, model=long[:n]))).rejected]
    assert 0 < len(refused) < len(sizes)
    assert_sums(engine)


def test_rights_that_are_missing_are_not_the_rows_fault(
    server: PostgresServer, database: str, engine: Engine, store: LedgerStore
) -> None:
    server.execute(f"REVOKE INSERT ON ledger_entries FROM {OWNER}", database=database)
    with pytest.raises(LedgerUnavailable, match="permission denied"):
        store.settle(arriving(an_entry(1)))
    assert count(engine, dead_letters) == 0


# -- no password anywhere ------------------------------------------------------------------------------------------


def test_no_error_of_a_connection_holds_the_password(server: PostgresServer, database: str) -> None:
    server.lock("another")
    closed = closed_port()
    for place in (
        f"{LOCAL}:{server.port}/{database}",
        f"{LOCAL}:{server.port}/absent",
        f"{LOCAL}:{closed}/{database}",
        f"nowhere.invalid:{server.port}/{database}",
        f"{LOCAL}:{server.port}/{database}?connect_timeout=soon",
        f"{LOCAL}:{server.port}/{database}?sslmode=require",
        f"{LOCAL}:{server.port}/{database}?sslmode=perhaps",
        f"{LOCAL}:{closed},{LOCAL}:{closed}/{database}",
    ):
        engine = open_engine(f"postgresql://{LOCKED}:{PASSWORD}@{place}")
        with pytest.raises(LedgerUnavailable) as raised:
            a_store(engine).settle([])
        assert PASSWORD not in "".join(traceback.format_exception(raised.value)) + repr(raised.value) + repr(engine)
        engine.dispose()


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://user:{PASSWORD}/more@host/db",
        f"postgresql://user:{PASSWORD}@more@host/db",
        f"postgresql://user:1/{PASSWORD}@host/db",
        f"postgresql://user:more@{PASSWORD}@host:5432/db",
        f"postgresql://user:%zz{PASSWORD}@host/db",
        f"postgresql://user:x@host:{PASSWORD}/db",
        f"postgresql://user:{PASSWORD}@host/db?nonsense=1",
        f"postgresql://user:{PASSWORD}@[::1/db",
        f"postgresql:/{PASSWORD}",
    ],
)
def test_a_url_that_cannot_be_read_is_refused_without_quoting_it(url: str) -> None:
    with pytest.raises(LedgerUrlError) as raised:
        open_engine(url)
    assert "canary" not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("schema=public&connection_limit=5", "'schema', which PostgreSQL's library does not know: write options="),
        (
            "sslmode=require&connection_limit=5",
            "'connection_limit', which PostgreSQL's library does not know: remove it",
        ),
        ("pgbouncer=true", "'pgbouncer'"),
    ],
)
def test_a_parameter_that_nobody_knows_is_named(query: str, said: str) -> None:
    with pytest.raises(LedgerUrlError) as raised:
        open_engine(f"postgres://user:{PASSWORD}@host/db?{query}")
    assert said in str(raised.value)
    assert PASSWORD not in str(raised.value)


def test_a_password_with_a_question_mark_is_not_taken_for_a_parameter() -> None:
    with pytest.raises(LedgerUrlError) as raised:
        open_engine("postgresql://user:some?canary=1@[::1/db")
    assert "canary" not in str(raised.value)


@pytest.mark.thorough
def test_a_password_with_everything_in_it(server: PostgresServer, database: str) -> None:
    server.lock("p@ss:/?#[%é")
    server.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {LOCKED}", database=database)
    engine = open_engine(f"postgresql://{LOCKED}:p%40ss%3A%2F%3F%23%5B%25%C3%A9@{LOCAL}:{server.port}/{database}")
    assert len(a_store(engine).settle(arriving(an_entry(1))).inserted) == 1
    engine.dispose()
