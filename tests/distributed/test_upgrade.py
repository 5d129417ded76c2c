"""Only `tokenweir migrate` changes a ledger's tables on Postgres: servers wait for it, commands name it."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from proxy.cli import main
from proxy.demo.script import Shape
from proxy.ledger.schema.migrate import _revisions, migrate
from tests.golden.reading import HERE
from tests.support.net import free_port
from tests.support.postgres import Server
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import COMMAND, Listening, Tokenweir, provider_section
from tests.support.valkey import Valkey
from tests.support.waiting import wait_until

pytestmark = pytest.mark.thorough

WAIT_S = 30.0
TOLD = "run `tokenweir migrate --config FILE`"


@pytest.fixture(params=["empty", "of 0.1"])
def ledger_url(request: pytest.FixtureRequest, postgres: Server) -> Iterator[str]:
    """A database that nobody has migrated."""
    name = postgres.new_database()
    if request.param == "of 0.1":
        with psycopg.connect(postgres.url(name), autocommit=True) as connection:
            connection.execute((HERE / "ledger-postgres.sql").read_bytes())
    yield postgres.url(name)
    postgres.drop_database(name)


@pytest.fixture
def deployed(tmp_path: Path, provider: ScriptedProvider, ledger_url: str, queue_url: str) -> Iterator[Tokenweir]:
    provider.script("m", Shape("openai", tokens=5))
    made = Tokenweir(
        tmp_path,
        providers={"scripted": provider_section(provider.base_url)},
        ledger_url=ledger_url, queue_url=queue_url, shutdown_grace_s=1.0,
        listen={"host": "127.0.0.1", "port": free_port()}, worker={"host": "127.0.0.1", "port": free_port()},
    )  # fmt: skip
    yield made
    made.close()


def ask(port: int, path: str, *, key: str = "", model: str = "") -> tuple[int, str]:
    """Status and body; (0, …) while nobody listens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        if model:
            body = json.dumps({"model": model, "messages": [{"role": "user", "content": "?"}], "stream": True})
            headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
            connection.request("POST", path, body, headers)
        else:
            connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except OSError as error:
        return 0, str(error)
    finally:
        connection.close()


def until(port: int, path: str, status: int) -> str:
    wait_until(lambda: ask(port, path)[0] == status, lambda: ask(port, path), within_s=WAIT_S)
    return ask(port, path)[1]


def tables(url: str) -> list[Any]:
    with psycopg.connect(url) as connection:
        columns = "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public'"
        return sorted(connection.execute(columns).fetchall())


def ports(deployed: Tokenweir) -> tuple[int, int]:
    import yaml

    config = yaml.safe_load(deployed.config.read_text())
    return config["listen"]["port"], config["worker"]["port"]


@pytest.mark.parametrize(
    ("ledger_url", "processes"),
    [("of 0.1", 1), pytest.param("empty", 2, marks=pytest.mark.slow)],
    ids=["one on a ledger of 0.1", "two on an empty one"],
    indirect=["ledger_url"],
)
def test_servers_wait_for_the_ledger_and_then_serve(deployed: Tokenweir, ledger_url: str, processes: int) -> None:
    before = tables(ledger_url)
    worker: Listening = deployed.worker()
    if processes > 1:
        deployed.program = COMMAND  # a copy may have no children
        deployed._arguments = (*deployed._arguments, "--workers", str(processes))
    listening = ports(deployed)
    with closing(worker):
        for server in (deployed, worker):
            server.launch()
        for port in listening:
            assert TOLD in until(port, "/readyz", 503)
            assert ask(port, "/healthz")[0] == 200
            assert ask(port, "/metrics")[0] == 200
        status, refusal = ask(listening[0], "/v1/chat/completions", model="m")
        assert (status, json.loads(refusal)["error"]["code"]) == (503, "not_accepting")
        time.sleep(3)  # polled more than once
        assert [log.read_text().count(TOLD) for log in (deployed.log, worker.log)] == [processes, 1]
        assert tables(ledger_url) == before
        assert "up to date" in deployed.command("migrate").stdout
        for port in listening:
            until(port, "/readyz", 200)
        key = deployed.key()
        deadline = time.monotonic() + WAIT_S
        while (found := ask(listening[0], "/v1/chat/completions", key=key, model="m"))[0] != 200:
            # Each process begins by itself, and knows the key within a second.
            assert found[0] in (0, 401) or (found[0] == 503 and "The proxy is starting" in found[1]), found
            assert time.monotonic() < deadline
            time.sleep(0.2)
        deployed.until(lambda entries: any(one["model"] == "m" for one in entries))


@pytest.mark.parametrize("ledger_url", ["empty"], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_server_that_waits_can_be_stopped(deployed: Tokenweir, number: signal.Signals) -> None:
    worker = deployed.worker()
    for server, port in zip((deployed, worker), ports(deployed), strict=True):
        server.launch()
        until(port, "/readyz", 503)
        server.signal(number)
        assert server._wait(10) == 0


COMMANDS = [
    ("keys", "create", "--alias", "a"), ("keys", "list"), ("accounts", "list"), ("ledger",), ("audit",), ("export",),
    ("reconcile",), ("dead-letters", "list"), ("dead-letters", "retry", "--all"), ("budgets", "show"),
    ("statement", "--month", "2026-10", "--account", "default"), ("sinks", "status"),
    ("adjust", "an-exchange", "--reason", "r", "--charge-usd", "0"), ("doctor",),
]  # fmt: skip


def test_commands_name_the_command_and_change_nothing(
    deployed: Tokenweir, ledger_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in deployed.environment.items():
        monkeypatch.setenv(name, value)
    before = tables(ledger_url)
    for command in COMMANDS:
        assert main([*command, "--config", str(deployed.config)]) == 1, command
        assert "run `tokenweir migrate" in "".join(capsys.readouterr()), command
    assert tables(ledger_url) == before
    assert main(["migrate", "--config", str(deployed.config)]) == 0
    assert "revision 0006" in capsys.readouterr().err
    assert main(["keys", "list", "--config", str(deployed.config)]) == 0


@pytest.mark.parametrize("ledger_url", ["empty"], indirect=True)
def test_a_later_ledger_is_used_if_it_says_so_and_refused_otherwise(deployed: Tokenweir, ledger_url: str) -> None:
    migrate(ledger_url)

    def at(revision: str) -> Any:
        with psycopg.connect(ledger_url) as connection:
            connection.execute("UPDATE alembic_version SET version_num = %s", [revision])
        return deployed.command("keys", "list", check=False)

    newest = _revisions()[-1]
    assert at(f"9999_from_{newest[:4]}").returncode == 0
    assert "up to date" in deployed.command("migrate").stdout
    deployed.start()
    assert deployed.stop() == 0
    for revision in ("9999", "9999_from_9998"):
        refused = at(revision)
        assert refused.returncode == 1
        assert f"revision {revision}, which this version cannot use" in refused.stderr
        served = deployed.launch()
        assert served.wait(WAIT_S) == 1
        assert served.stdout is not None
        served.stdout.close()
        assert f"revision {revision}, which this version cannot use" in deployed.log.read_text()


@pytest.mark.parametrize("ledger_url", ["empty"], indirect=True)
def test_servers_wait_for_a_redis_that_is_not_there(deployed: Tokenweir, valkey: Valkey) -> None:
    """And then for the ledger, and can be stopped meanwhile."""
    valkey.kill()
    deployed.environment["TEST_QUEUE"] = valkey.url
    worker = deployed.worker()
    with closing(worker):
        for server in (deployed, worker):
            server.launch()
        for port in ports(deployed):
            assert "cannot be reached" in until(port, "/readyz", 503)
        status, refusal = ask(ports(deployed)[0], "/v1/chat/completions", model="m")
        assert (status, json.loads(refusal)["error"]["code"]) == (503, "not_accepting")
        assert "waiting for the queue's Redis" in deployed.log.read_text()
        valkey.start()
        for port in ports(deployed):
            wait_until(lambda port=port: TOLD in ask(port, "/readyz")[1], within_s=WAIT_S)  # type: ignore[misc]
        assert "the queue's Redis is there" in deployed.log.read_text()
        for server in (deployed, worker):
            server.signal(signal.SIGTERM)
            assert server._wait(10) == 0


@pytest.mark.parametrize("ledger_url", ["empty"], indirect=True)
def test_servers_wait_for_a_postgres_that_cannot_be_reached(deployed: Tokenweir, ledger_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        deployed.environment["TEST_LEDGER"] = f"postgresql://u@127.0.0.1:{nobody.getsockname()[1]}/d"
        nobody.close()
        worker = deployed.worker()
        with closing(worker):
            for server in (deployed, worker):
                server.launch()
            for port in ports(deployed):
                until(port, "/readyz", 503)
                assert ask(port, "/healthz")[0] == 200
            assert "waiting for the ledger" in deployed.log.read_text()
            for server in (deployed, worker):
                server.signal(signal.SIGTERM)
                assert server._wait(10) == 0
