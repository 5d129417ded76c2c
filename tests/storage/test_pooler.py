"""The ledger behind a real PgBouncer in transaction mode: sessions of the server are lent for one transaction each."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from proxy.ledger.schema.migrate import migrate
from proxy.ledger.schema.tables import ledger_entries
from proxy.ledger.settling import spend
from proxy.storage.database import open_engine, reading
from tests.ledger.entries import a_store, assert_sums, batch_of, count
from tests.support.net import free_port
from tests.support.postgres import OWNER, PostgresServer, own_server, unprivileged
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.external, pytest.mark.process]

START_S_MAX = 20.0
NAMES = ("statement_timeout", "TimeZone")


@pytest.fixture
def server(postgres_cluster: Any) -> Iterator[PostgresServer]:
    with own_server(postgres_cluster) as server:
        yield server


@pytest.fixture
def pooler(tmp_path: Path, server: PostgresServer) -> Iterator[str]:
    """The URL of a database through it, up to the database's name."""
    if shutil.which("pgbouncer") is None:
        pytest.skip("pgbouncer is not on this machine: install it to try the ledger behind a pooler")
    port = free_port()
    users = tmp_path / "users"
    users.write_text(f'"{OWNER}" ""\n')
    config = tmp_path / "pgbouncer.ini"
    config.write_text(
        f"[databases]\n* = host=127.0.0.1 port={server.port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
        f"listen_port = {port}\nunix_socket_dir =\nauth_type = trust\nauth_file = {users}\n"
        "pool_mode = transaction\ndefault_pool_size = 3\nmax_client_conn = 100\n"
    )
    for path in (*reversed(tmp_path.parents[:3]), tmp_path):
        path.chmod(path.stat().st_mode | 0o055)
    log = tmp_path / "pgbouncer.log"
    with log.open("ab") as said, subprocess.Popen(unprivileged(["pgbouncer", str(config)]), stderr=said) as child:
        try:
            url = f"postgresql://{OWNER}@127.0.0.1:{port}"
            wait_until(lambda: _answers(f"{url}/postgres"), log.read_text, within_s=START_S_MAX)
            yield url
        finally:
            child.terminate()


def _answers(url: str) -> bool:
    engine = open_engine(url)
    try:
        with reading(engine):
            return True
    except OSError:
        return False
    finally:
        engine.dispose()


def test_a_ledger_behind_a_pooler_in_transaction_mode(server: PostgresServer, pooler: str) -> None:
    url = f"{pooler}/{server.new_database()}"
    migrate(url)
    engines = [open_engine(url) for _ in range(8)]
    with engines[0].connect() as connection:
        session = connection.connection.dbapi_connection
        assert session is not None
        assert session.prepare_threshold is None

    def settle_and_read(number: int) -> set[tuple[str, ...]]:
        store = a_store(engines[number])
        seen = set[tuple[str, ...]]()
        for turn in range(20):
            store.settle(batch_of(range(number * 1_000 + turn * 10, number * 1_000 + turn * 10 + 10)))
            spend.changes(engines[number], 0, 50)
            with reading(engines[number]) as connection:
                seen.add(tuple(connection.exec_driver_sql(f"SHOW {name}").scalar_one() for name in NAMES))
        return seen

    with ThreadPoolExecutor(8) as threads:
        seen = set[tuple[str, ...]]().union(*threads.map(settle_and_read, range(8)))
    assert seen == {("30s", "UTC")}, "in every transaction, whichever session it was given"
    assert count(engines[0], ledger_entries) == 8 * 20 * 10
    assert_sums(engines[0])
    for engine in engines:
        engine.dispose()
