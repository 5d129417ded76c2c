"""A disk that is full, and a ledger that others hold, or nobody can open: streams do not notice, entries wait.

The disk is full for the proxy alone: by the limit on the size of its files, which another process can set and lift; as
root also by a tiny file system of its own.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from proxy.demo.script import Shape
from tests.crash.chaos import deployment, gauges, settle
from tests.crash.stage import Stage, entries_of, quick_key, until
from tests.support import sse
from tests.support.net import Response
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import Tokenweir

STREAM = Shape("openai", tokens=25, pace_ms=20)
PLAIN = Shape("openai", tokens=3)
# Small enough for a file system of 1 MiB.
SMALL = {"exchanges_max": 64}
# The last page of a file that has begun has room for a few frames on a full disk.
REFUSED_AT_LAST = 50


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    if sys.platform != "linux":
        pytest.skip("a tiny file system is made the Linux way")
    tmp_path.joinpath("tiny").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(tmp_path / "tiny")]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command here")
    if done.returncode:
        pytest.skip(f"mounting a tiny file system needs root: {done.stderr.strip()}")
    yield tmp_path / "tiny"
    subprocess.run(["umount", "--lazy", str(tmp_path / "tiny")], check=True)


async def test_beyond_the_file_size_limit(running: Tokenweir, key: str, provider: ScriptedProvider) -> None:
    await _streams_finish_on_a_full_disk(
        running, key, provider, lambda: _limit_files(running, _last(running)), lambda: _limit_files(running)
    )


def _limit_files(tokenweir: Tokenweir, size: int = resource.RLIM_INFINITY) -> None:
    assert tokenweir.child is not None
    resource.prlimit(tokenweir.child.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def _last(tokenweir: Tokenweir) -> int:
    """The size of the last file of its journal."""
    return max((tokenweir.folder / "data" / "journal").glob("*.log")).stat().st_size


@pytest.mark.thorough
@pytest.mark.privileged
async def test_on_a_full_file_system(tiny_disk: Path, provider: ScriptedProvider) -> None:
    tokenweir = deployment(tiny_disk, provider, **SMALL)
    key = quick_key(tokenweir)
    ballast = tiny_disk / "ballast"

    def fill() -> None:
        with ballast.open("wb", buffering=0) as file:
            try:
                while file.write(b"\0" * 4096):
                    pass
            except OSError:
                pass

    with closing(tokenweir):
        tokenweir.start()
        await _streams_finish_on_a_full_disk(tokenweir, key, provider, fill, ballast.unlink)


async def _streams_finish_on_a_full_disk(
    tokenweir: Tokenweir, key: str, provider: ScriptedProvider, fill: Callable[[], None], clear: Callable[[], object]
) -> None:
    names = [provider.script(f"full-{number}", STREAM) for number in range(4)]
    provider.script("plain", PLAIN)
    async with Stage(tokenweir, key) as stage:
        streams = [await stage.begin(name) for name in names]
        fill()
        try:
            refusal = await _refused_at_last(stage)
            for client, response in streams:
                await client.read_body(response)
            await until(lambda: gauges(tokenweir)["tokenweir_journal_unwritten_records"] > 0)
            still = await stage.whole("plain", stream=False)
        finally:
            clear()
        assert (refusal.status, still.status) == (503, 503)
        assert b'"code":"not_accepting"' in refusal.body
        assert b"journal" in refusal.body
        assert refusal.header("retry-after") is not None
        assert all(response.ended == "complete" and sse.done(response.body) for _, response in streams)
        await until(lambda: gauges(tokenweir)["tokenweir_journal_unwritten_records"] == 0)
        provider.script("again", PLAIN)
        assert (await stage.whole("again", stream=False)).status == 200
    served = entries_of(tokenweir, *names, "again")
    assert {(entry["outcome"], entry["usage_source"]) for entry in served} == {("served", "reported")}
    await asyncio.to_thread(settle, tokenweir)


async def _refused_at_last(stage: Stage) -> Response:
    for _ in range(REFUSED_AT_LAST):
        answer = await stage.whole("plain", stream=False)
        if answer.status != 200:
            return answer
    raise AssertionError("the disk never was full")


async def test_a_kill_on_a_full_disk_loses_nothing(running: Tokenweir, key: str, provider: ScriptedProvider) -> None:
    names = [provider.script(f"killed-{number}", STREAM) for number in range(4)]
    async with Stage(running, key) as stage:
        streams = [await stage.begin(name, usage=True) for name in names]
        _limit_files(running, _last(running))
        for client, response in streams:
            await client.read_body(response)
        running.kill()
    running.start()
    for entry, (_, response) in zip(entries_of(running, *names), streams, strict=True):
        # In memory its record said `served`; what survived is its progress, and with it the provider's own usage.
        assert (entry["usage_source"], entry["completion_tokens"]) == ("reported", 25)
        assert entry["bytes"] >= len(response.body)


async def test_a_second_process_on_the_same_data_refuses(
    running: Tokenweir, key: str, provider: ScriptedProvider
) -> None:
    second = await asyncio.to_thread(running.command, "serve", check=False)
    assert second.returncode == 1
    assert "is used by process" in second.stderr
    assert "Traceback" not in second.stderr
    provider.script("unharmed", PLAIN)
    async with Stage(running, key) as stage:
        assert (await stage.whole("unharmed", stream=False)).status == 200
    assert entries_of(running, "unharmed")[0]["outcome"] == "served"


async def test_streams_do_not_notice_that_the_ledger_is_locked(
    running: Tokenweir, key: str, provider: ScriptedProvider
) -> None:
    names = [provider.script(f"locked-{number}", STREAM) for number in range(3)]
    with closing(sqlite3.connect(running.folder / "data" / "ledger.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        async with Stage(running, key) as stage:
            bodies = [await stage.whole(name) for name in names]
        await until(lambda: gauges(running)["tokenweir_journal_pending_records"] == len(names))
        before = running.read_ledger()
        other.execute("ROLLBACK")
    assert all(body.ended == "complete" and sse.done(body.body) for body in bodies)
    assert not {entry["model"] for entry in before} & set(names)
    assert {entry["outcome"] for entry in entries_of(running, *names)} == {"served"}


async def test_what_the_ledger_has_not_taken_survives_a_kill(
    running: Tokenweir, key: str, provider: ScriptedProvider
) -> None:
    provider.script("unsettled", PLAIN)
    with closing(sqlite3.connect(running.folder / "data" / "ledger.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        async with Stage(running, key) as stage:
            assert (await stage.whole("unsettled")).ended == "complete"
        running.kill()
        other.execute("ROLLBACK")
    running.start()
    assert entries_of(running, "unsettled")[0]["outcome"] == "served"


@pytest.mark.thorough
def test_a_ledger_that_cannot_be_opened_is_said_at_start(tmp_path: Path, provider: ScriptedProvider) -> None:
    tokenweir = deployment(tmp_path, provider)
    ledger = tmp_path / "data" / "ledger.db"
    ledger.parent.mkdir()
    ledger.write_bytes(foreign := b"not a database, and long enough to be taken for one".ljust(4096, b"."))
    said = tokenweir.command("serve", check=False)
    assert said.returncode == 1
    assert "file is not a database" in said.stderr
    assert "Traceback" not in said.stderr
    ledger.chmod(0o400)
    said = _without_override(tokenweir)
    assert said.returncode == 1
    assert "no permission to write" in said.stderr
    assert "Traceback" not in said.stderr
    assert ledger.read_bytes() == foreign


def _without_override(tokenweir: Tokenweir) -> subprocess.CompletedProcess[str]:
    """Serve as somebody who may not write to what is read-only; root may, unless it gives that up."""
    give_up = ["setpriv", "--bounding-set", "-dac_override"] if os.geteuid() == 0 else []
    command = [*give_up, sys.executable, "-m", "proxy", "serve", "--config", str(tokenweir.config)]
    try:
        return subprocess.run(
            command, cwd=tokenweir.folder, env=tokenweir.environment, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
    except FileNotFoundError:
        pytest.skip("root may write to every file, and there is no setpriv here to give that up")


@pytest.mark.thorough
async def test_with_durability_power_streams_are_served_as_ever(tmp_path: Path, provider: ScriptedProvider) -> None:
    tokenweir = deployment(tmp_path, provider, journal={"durability": "power"})
    key = quick_key(tokenweir)
    names = [provider.script(f"power-{number}", STREAM) for number in range(20)]
    with closing(tokenweir):
        tokenweir.start()
        async with Stage(tokenweir, key) as stage:
            bodies = await asyncio.gather(*(stage.whole(name) for name in names))
        served = entries_of(tokenweir, *names)
    assert all(sse.done(body.body) for body in bodies)
    assert [(entry["outcome"], entry["events"], entry["bytes"]) for entry in served] == [
        ("served", len(sse.events(body.body)), len(body.body)) for body in bodies
    ]
