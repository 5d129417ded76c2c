"""An older ledger is put back: what waited in the journal arrives, what was lost is named, and budgets follow.

The steps are those of docs/operations/running.md, with its commands and Postgres's own.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from decimal import Decimal
from pathlib import Path

import psycopg
import pytest

from proxy.billing.limits import Limits
from proxy.billing.money import NUSD_PER_USD, nusd_from_usd
from proxy.budgets.sqlite.store import SqliteBudgets
from proxy.cli import main
from proxy.demo.script import Shape
from proxy.doctor.machine import read
from proxy.reconciliation.reconcile import reconcile
from proxy.settings import load
from tests.crash.stage import PATIENCE_S, Stage, quick_key, until
from tests.support.postgres import Server, binaries
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import Tokenweir

# What was settled is kept nowhere else; tests/distributed/test_failover.py keeps it.
FORGETS = {"keep_settled_s": 0}


class OnSqlite:
    """The steps for a ledger beside the journal."""

    def __init__(self, tokenweir: Tokenweir, folder: Path) -> None:
        self._tokenweir, self._folder = tokenweir, folder
        self._ledger = tokenweir.folder / "data" / "ledger.db"

    def back_up(self) -> None:
        """While it serves."""
        assert main(["backup", str(self._folder), "--config", str(self._tokenweir.config)]) == 0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within it the ledger takes nothing."""
        with closing(sqlite3.connect(self._ledger, isolation_level=None)) as writer:
            writer.execute("BEGIN IMMEDIATE")
            yield

    def restore(self) -> None:
        """While nothing runs. The pepper, too: the machine is a new one, but for its journal."""
        for file in self._ledger.parent.glob("ledger.db*"):
            file.unlink()
        for name in ("ledger.db", "pepper"):
            shutil.copy(self._folder / name, self._ledger.parent / name)


class OnPostgres:
    """The steps for one elsewhere."""

    def __init__(self, tokenweir: Tokenweir, folder: Path, server: Server) -> None:
        self._tokenweir, self._server = tokenweir, server
        self._file = folder.with_suffix(".sql")

    def back_up(self) -> None:
        """While it serves."""
        self._run("pg_dump", "--no-owner", "--file", str(self._file))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within it the ledger takes nothing."""
        with psycopg.connect(self._tokenweir.ledger_url) as holder:
            holder.execute("LOCK TABLE ledger_clock IN ACCESS EXCLUSIVE MODE")
            yield

    def restore(self) -> None:
        """While nothing runs; into a new database."""
        url = self._server.url(self._server.new_database())
        self._tokenweir.close()
        self._tokenweir.ledger_url = self._tokenweir.environment["TEST_LEDGER"] = url
        self._run("psql", "--quiet", "--set", "ON_ERROR_STOP=1", "--output", "/dev/null", "--file", str(self._file))

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(binaries() / program), *arguments, "--dbname", self._tokenweir.ledger_url],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def test_a_backup_writes_over_nothing_and_is_its_owners(
    tokenweir: Callable[..., Tokenweir],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TEST_PROVIDER_KEY", Tokenweir.PROVIDER_KEY)
    made = tokenweir(start=False)
    command = ["backup", str(tmp_path / "backup"), "--config", str(made.config)]
    assert main(command) == 1
    assert "there is no ledger at" in capsys.readouterr().err
    quick_key(made)
    assert main(command) == 0
    kept = sorted((tmp_path / "backup").iterdir())
    assert [(file.name, stat.S_IMODE(file.stat().st_mode)) for file in kept] == [
        ("ledger.db", 0o600),
        ("pepper", 0o600),
    ]
    assert main(command) == 1
    assert "already exists" in capsys.readouterr().err
    other = tmp_path / "other"
    capsys.readouterr()
    assert main(["backup", str(other), "--json", "--config", str(made.config)]) == 0
    copies = {"ledger": str(other / "ledger.db"), "pepper": str(other / "pepper")}
    assert json.loads(capsys.readouterr().out) == copies
    with closing(sqlite3.connect(kept[0])) as copy:
        assert copy.execute("SELECT count(*) FROM api_keys").fetchone() == (1,)


@pytest.mark.thorough
@pytest.mark.parametrize("ledger", ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
async def test_an_older_ledger_is_put_back(
    ledger: str,
    tokenweir: Callable[..., Tokenweir],
    provider: ScriptedProvider,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("TEST_PROVIDER_KEY", Tokenweir.PROVIDER_KEY)
    monkeypatch.setenv("TEST_PEPPER", Tokenweir.PEPPER)
    served, steps = _deployment(ledger, tokenweir, request, tmp_path / "backup")
    key = quick_key(served, Limits(budget_nusd=nusd_from_usd(100)))
    for name in ("kept", "lost", "waits", "later"):
        provider.script(name, Shape("openai", tokens=3))
    async with Stage(served.start(), key) as stage:
        assert (await stage.whole("kept")).status == 200
        served.entries(1)
        steps.back_up()
        assert (await stage.whole("lost")).status == 200
        served.entries(2)
        await _spent_what_was_charged(served)
        with steps.held():
            assert (await stage.whole("waits")).ended == "complete"
            await until(lambda: read(served.folder / "data" / "journal")[0] == 1)
            served.kill()
    served.close()
    steps.restore()
    monkeypatch.setenv("TEST_LEDGER", served.ledger_url)
    async with Stage(served.start(), key) as stage:  # its key was made before the backup, and is known
        assert (await stage.whole("later")).status == 200
    assert sorted(entry["model"] for entry in served.entries(3)) == ["kept", "later", "waits"]

    assert served._engine is not None
    findings = reconcile(served._engine, clock=time.time, since=None, grace_s=0.0, in_flight=None)
    (hole,) = [finding for finding in findings if not finding.ok]
    assert (hole.name, hole.differences) == ("journals", 1)
    assert await asyncio.to_thread(main, ["budgets", "rebuild", "--config", str(served.config)]) == 0
    async with Stage(served, key) as stage:
        assert (await stage.whole("later")).status == 200
    served.entries(4)
    await _spent_what_was_charged(served)


def _deployment(
    ledger: str, tokenweir: Callable[..., Tokenweir], request: pytest.FixtureRequest, backup: Path
) -> tuple[Tokenweir, OnSqlite | OnPostgres]:
    if ledger == "sqlite":
        served = tokenweir(start=False, journal=FORGETS)
        return served, OnSqlite(served, backup)
    server: Server = request.getfixturevalue("postgres")
    served = tokenweir(
        start=False, journal=FORGETS, ledger_url=server.url(server.new_database(request.getfixturevalue("migrated")))
    )
    return served, OnPostgres(served, backup, server)


async def _spent_what_was_charged(served: Tokenweir) -> None:
    """The key's budget comes to what the ledger's entries come to, soon."""
    settings = load(served.config, served.environment)
    budgets = SqliteBudgets(settings.data_dir / "budgets.db", node="test", unix_time=time.time)
    charged = sum((Decimal(entry["charge_usd"]) for entry in served.read_ledger()), Decimal())
    async with asyncio.timeout(PATIENCE_S):
        while sum(one.spent or 0 for one in await budgets.counter_states()) != charged * NUSD_PER_USD:
            await asyncio.sleep(0.05)
    await budgets.aclose()
