"""The release before: its data is taken over, it runs beside this version, and the way back is as running.md has it.

Its code is that of its commit, from the history of this repository.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from contextlib import closing
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import yaml

from proxy import __version__
from proxy.demo.script import Shape
from tests.support.net import free_port
from tests.support.postgres import Server, binaries
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import COMMAND, ROOT, Listening, Tokenweir, provider_section
from tests.support.valkey import Valkey
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.io, pytest.mark.timeout(400)]

BEFORE, COMMIT = "0.1.0", "fe545caf"
WAIT_S = 60.0
# Settings of the tests' deployments that the release does not know.
UNKNOWN = ("estimates", "exchanges_max")


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with its code."""
    command = ["git", "archive", COMMIT, "proxy", "migrations"]
    archive = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"the commit of {BEFORE} is not in this clone: git fetch --unshallow")
    folder = tmp_path_factory.mktemp("release")
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder


class Upgraded(Tokenweir):
    """A deployment whose processes and commands are of one version or the other."""

    def __init__(self, folder: Path, provider: ScriptedProvider, release: Path, **settings: Any) -> None:
        super().__init__(
            folder, providers={"scripted": provider_section(provider.base_url)}, shutdown_grace_s=1.0,
            listen={"host": "127.0.0.1", "port": free_port()}, worker={"host": "127.0.0.1", "port": free_port()},
            **settings,
        )  # fmt: skip
        config = yaml.safe_load(self.config.read_text())
        self.config.write_text(yaml.safe_dump({name: one for name, one in config.items() if name not in UNKNOWN}))
        self.program = COMMAND
        self.release = release
        self.port = config["listen"]["port"]
        provider.script("m", Shape("openai", tokens=5))

    def of_before(self) -> Upgraded:
        """From now on, what is started is of the release before."""
        self.environment["PYTHONPATH"] = str(self.release)
        assert self.command("--version", check=False).stdout.split() == ["tokenweir", BEFORE]
        return self

    def of_today(self) -> Upgraded:
        self.environment["PYTHONPATH"] = str(ROOT)
        assert self.command("--version", check=False).stdout.split() == ["tokenweir", __version__]
        return self

    def launch(self) -> Any:
        """Without the empty ledger of this version that other tests begin with."""
        return Listening.launch(self)

    def new_key(self) -> str:
        secret: str = json.loads(self.command("keys", "create", "--alias", "alice", "--budget", "1").stdout)["key"]
        return secret

    def stream(self, key: str) -> None:
        """One stream, whole. Tried again while the proxy is getting ready."""
        body = {"model": "m", "messages": [{"role": "user", "content": "?"}], "stream": True}
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        asked = Request(f"http://127.0.0.1:{self.port}/v1/chat/completions", json.dumps(body).encode(), headers)
        failed: list[str] = []

        def answered() -> bool:
            try:
                with urlopen(asked, timeout=30) as answer:
                    return bool(answer.read().endswith(b"data: [DONE]\n\n"))
            except HTTPError as error:
                failed.append(error.read().decode())
            except OSError as error:
                failed.append(str(error))
            return False

        wait_until(answered, lambda: failed[-1:], within_s=WAIT_S, poll_s=0.2)

    def settled(self, count: int) -> list[dict[str, Any]]:
        """The entries as the command of the version prints them, which has nothing to object to them."""
        wait_until(lambda: len(self.ledger()) >= count, self.log_tail, within_s=WAIT_S, poll_s=0.5)
        entries = self.ledger()
        assert len(entries) == count
        code, printed = self.found("reconcile", "--grace", "1s")
        assert code == 0, printed
        return entries


def test_one_machine(tmp_path: Path, provider: ScriptedProvider, release: Path) -> None:
    served = Upgraded(tmp_path, provider, release)
    data, kept = tmp_path / "data", tmp_path / "data-before"
    with closing(served):
        key = served.of_before().new_key()
        served.start()
        for _ in range(3):
            served.stream(key)
        before = served.settled(3)
        assert served.stop() == 0
        shutil.copytree(data, kept, symlinks=True)

        served.of_today().start()
        served.stream(key)
        entries = served.settled(4)
        assert {one["entry_id"]: one["charge_usd"] for one in before}.items() <= {
            one["entry_id"]: one["charge_usd"] for one in entries
        }.items()
        assert served.stop() == 0

        served.of_before().launch()
        assert served._wait(WAIT_S) == 1
        assert "which this version does not know" in served.log_tail()
        data.rename(tmp_path / "data-of-today")
        kept.rename(data)
        served.start()
        served.stream(key)
        assert [one["entry_id"] for one in served.settled(4)][:3] == [one["entry_id"] for one in before]
        assert served.stop() == 0


def test_several_machines(
    tmp_path: Path, provider: ScriptedProvider, release: Path, postgres: Server, valkey: Valkey
) -> None:
    """A proxy of the release before serves on, with workers of this version; then the way back, by a dump."""
    name = postgres.new_database()
    served = Upgraded(tmp_path, provider, release, ledger_url=postgres.url(name), queue_url=valkey.url)
    dump = tmp_path / "dump.sql"
    served.of_before().command("migrate")
    key = served.new_key()
    worker = served.worker()
    with closing(worker), closing(served):
        worker.start()
        served.start()
        for _ in range(3):
            served.stream(key)
        before = served.settled(3)
        pg(postgres.url(name), "pg_dump", "--no-owner", "--file", str(dump))

        assert worker.stop() == 0  # its workers first
        assert "0006" in served.of_today().command("migrate").stderr
        served.stream(key)  # by the proxy of the release before
        newer = served.worker()
        with closing(newer):
            newer.start()
            served.settled(4)
            served.stream(key)
            served.settled(5)
            assert served.stop() == 0
            served.start()
            served.stream(key)
            served.settled(6)
            assert served.stop() == 0
            assert newer.stop() == 0

        back = postgres.new_database()
        pg(postgres.url(back), "psql", "--quiet", "-v", "ON_ERROR_STOP=1", "-f", str(dump))
        valkey.ask("FLUSHDB")
        (tmp_path / "data").rename(tmp_path / "data-of-today")
        served.environment["TEST_LEDGER"] = worker.environment["TEST_LEDGER"] = postgres.url(back)
        served.of_before()
        worker.start()
        served.start()
        served.stream(key)
        assert [one["entry_id"] for one in served.settled(4)][:3] == [one["entry_id"] for one in before]
        assert (served.stop(), worker.stop()) == (0, 0)
    postgres.drop_database(name)
    postgres.drop_database(back)


def pg(url: str, program: str, *arguments: str) -> None:
    command = [str(binaries() / program), *arguments, "--dbname", url]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
