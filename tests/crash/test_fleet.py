"""`serve --workers N`: one port, N processes, a journal each; one that dies comes back; none is left behind."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest

from proxy.demo.script import Shape
from proxy.runtime.proxy import supervisor
from tests.crash.chaos import gauges
from tests.crash.stage import WORKERS, Stage, members, quick_key, until
from tests.support import sse
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import Tokenweir

SHORT = Shape("openai", tokens=12, pace_ms=5)


@pytest.fixture
def fleet(tokenweir: Callable[..., Tokenweir]) -> Tokenweir:
    """Two processes, not started yet."""
    return tokenweir(options=("--workers", str(WORKERS)), shutdown_grace_s=1.0, start=False)


def open_journals(fleet: Tokenweir) -> set[str]:
    return {path.parent.parent.name for path in (fleet.folder / "data").glob("worker-*/journal/node.json")}


@pytest.mark.thorough
async def test_one_port_many_processes_one_ledger(fleet: Tokenweir, provider: ScriptedProvider) -> None:
    key = quick_key(fleet)
    fleet.start()
    names = [provider.script(f"fleet-{number}", SHORT) for number in range(24)]
    async with Stage(fleet, key) as stage:
        for name in names:
            assert sse.done((await stage.whole(name)).body)
    entries = fleet.entries(len(names))
    assert sorted(entry["model"] for entry in entries) == sorted(names)
    assert open_journals(fleet) == {"worker-0", "worker-1"}
    assert gauges(fleet)["tokenweir_processes"] == WORKERS
    with urlopen(f"{fleet.url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    served = [
        float(line.split()[-1])
        for line in lines
        if line.startswith("tokenweir_exchanges_total{") and '"served"' in line
    ]
    assert sum(served) == len(names)
    assert fleet.stop() == 0


@pytest.mark.thorough
async def test_one_that_dies_comes_back_and_nothing_is_lost(fleet: Tokenweir, provider: ScriptedProvider) -> None:
    """And then: none outlives its parent."""
    key = quick_key(fleet)
    fleet.start()
    names = [provider.script(f"dying-{number}", Shape("openai", tokens=400, pace_ms=10)) for number in range(12)]
    async with Stage(fleet, key) as stage:
        streams = [await stage.begin(name) for name in names]
        victim = members(fleet)[0]
        victim.kill()
        await until(lambda: victim.pid not in {one.pid for one in members(fleet)} and len(members(fleet)) == WORKERS)
        bodies = [(await client.read_body(response)).body for client, response in streams]
    ended = {sse.done(body) for body in bodies}
    assert ended <= {True, False}
    entries = fleet.entries(len(names), timeout_s=20)
    by_model = {entry["model"]: entry for entry in entries}
    assert sorted(by_model) == sorted(names)
    assert len(entries) == len(names)
    for name, body in zip(names, bodies, strict=True):
        assert by_model[name]["outcome"] == ("served" if sse.done(body) else "crashed")
        assert by_model[name]["events"] >= len(sse.events(body))
    children = members(fleet)
    assert len(children) == WORKERS
    fleet.kill()
    await until(lambda: not any(_runs(child) for child in children))


def _runs(child: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return child.is_running() and child.status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.thorough
def test_a_first_start_that_fails_is_a_failure(tokenweir: Callable[..., Tokenweir], tmp_path: Path) -> None:
    fleet = tokenweir(options=("--workers", "2"), start=False)
    (fleet.folder / "data").write_text("not a folder")
    child = fleet.launch()
    assert child.wait(60) == 1
    assert "tokenweir: " in fleet.log.read_text()
    assert child.stdout is not None
    child.stdout.close()


@pytest.mark.thorough
async def test_fewer_workers_settle_what_the_others_left(fleet: Tokenweir, provider: ScriptedProvider) -> None:
    key = quick_key(fleet)
    fleet.start()
    names = [provider.script(f"left-{number}", Shape("openai", tokens=2_000, pace_ms=20)) for number in range(9)]
    async with Stage(fleet, key) as stage:
        for name in names:
            await stage.begin(name)
        for child in members(fleet):
            child.suspend()  # so that none is started again before all are dead
        fleet.signal(signal.SIGSTOP)
        for child in members(fleet):
            child.kill()
        fleet.kill()
    alone = fleet.alone().start()
    entries = alone.entries(len(names), timeout_s=20)
    assert {entry["model"]: entry["outcome"] for entry in entries} == dict.fromkeys(names, "crashed")
    assert len(entries) == len(names)
    assert alone.stop() == 0


@pytest.mark.thorough
async def test_a_hangup_ends_nothing_and_reaches_every_process(fleet: Tokenweir, provider: ScriptedProvider) -> None:
    key = quick_key(fleet)
    fleet.start()
    before = {child.pid for child in members(fleet)}
    names = [provider.script(f"hung-up-{number}", SHORT) for number in range(6)]
    async with Stage(fleet, key) as stage:
        streams = [await stage.begin(name) for name in names]
        fleet.signal(signal.SIGHUP)
        for client, response in streams:
            assert sse.done((await client.read_body(response)).body)
    await until(lambda: fleet.log.read_text().count("the configuration was reloaded") == WORKERS)
    assert {child.pid for child in members(fleet)} == before
    assert fleet.stop() == 0
    assert "started again" not in fleet.log.read_text()


@pytest.mark.thorough
def test_a_hangup_while_the_processes_start_is_survived(fleet: Tokenweir) -> None:
    launched = fleet.launch()
    signalled: set[int] = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet, "launch", lambda: launched)
        deadline = time.monotonic() + 20
        while len(signalled) < WORKERS and time.monotonic() < deadline:
            for child in members(fleet):
                if child.pid not in signalled:
                    child.send_signal(signal.SIGHUP)
                    signalled.add(child.pid)
        fleet.start()
    assert signalled == {child.pid for child in members(fleet)}
    assert fleet.stop() == 0


def test_a_folder_in_use_is_not_removed_and_one_of_a_killed_parent_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left_behind = tmp_path / f"{supervisor.FOLDER_PREFIX}x"
    left_behind.mkdir()
    with supervisor._socket_folder() as first:
        assert not left_behind.exists()
        with supervisor._socket_folder() as second:
            assert (first.is_dir(), second.is_dir()) == (True, True)
        assert not second.exists()
        assert first.is_dir()
    assert list(tmp_path.iterdir()) == []
