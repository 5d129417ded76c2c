"""Proxies and workers on machines of their own: one ledger, each exchange in it once, whatever dies or sleeps."""

from __future__ import annotations

import asyncio
import json
import resource
import shutil
import signal
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import pytest

from proxy.billing.keys import DEFAULT_PROJECT
from proxy.demo.script import Shape
from tests.console.serving import SECRET, answer, opened
from tests.crash.chaos import exposition, gauges, settle
from tests.crash.stage import Stage, until
from tests.distributed.apart import Apart
from tests.support import sse
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import Tokenweir

PATIENCE_S = 20.0
# Where nobody has to live for longer than a lease.
SHORT_LEASE_S = 1.0
# How many wait to write to a table that another one holds.
WRITING = "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'RowExclusiveLock'"
LONG = Shape("openai", tokens=2_000, pace_ms=20)
SHORT = Shape("openai", tokens=12, pace_ms=5)


def entries_of(tokenweir: Tokenweir, *models: str, count: int = 1) -> list[list[dict[str, Any]]]:
    """The entries of each of these models, once there are `count` for each."""

    def of(model: str, entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        return [entry for entry in entries if entry["model"] == model]

    entries = tokenweir.until(lambda all_: all(len(of(m, all_)) >= count for m in models), timeout_s=PATIENCE_S)
    return [of(model, entries) for model in models]


@pytest.mark.parametrize("apart", [{"lease_s": SHORT_LEASE_S}], indirect=True, ids=["short lease"])
async def test_what_a_proxy_relayed_a_worker_settles(apart: Apart, provider: ScriptedProvider, ledger_url: str) -> None:
    """Also what another worker had taken, and was killed before the ledger had it."""
    proxy = apart.proxies[0].start()
    names = [provider.script(f"settled-{number}", SHORT) for number in range(3)]
    async with Stage(proxy, apart.key) as stage:
        answers = [await stage.whole(name, stream=number > 0) for number, name in enumerate(names)]
    assert [answer.status for answer in answers] == [200, 200, 200]
    await until(lambda: gauges(proxy)["tokenweir_exchanges_in_flight"] == 0)
    assert gauges(proxy)["tokenweir_journal_pending_records"] == 3, "they wait for a worker"
    await _taken_by_a_worker_that_is_killed(apart, ledger_url)
    worker = apart.worker()
    worker.signal(signal.SIGHUP)
    for (entry,) in entries_of(proxy, *names):
        assert (entry["outcome"], entry["usage_source"], entry["completion_tokens"]) == ("served", "reported", 12)
    await asyncio.to_thread(settle, proxy)
    billed = f'tokenweir_project_tokens_total{{project="{DEFAULT_PROJECT}",type="output"}} 36.0'
    await until(lambda: billed in exposition(worker))
    assert worker.stop() == 0
    assert "SIGHUP: only a proxy" in worker.log.read_text()
    assert proxy.stop() == 0
    assert proxy.command("ledger", "--json").stdout.count("\n") == 3


@pytest.mark.thorough
@pytest.mark.parametrize("apart", [{"lease_s": SHORT_LEASE_S}], indirect=True, ids=["short lease"])
async def test_workers_post_the_end_of_a_grant_once(apart: Apart) -> None:
    """It began, and perhaps ended, while no worker ran."""
    proxy = apart.proxies[0]
    made = proxy.change("grants", "add", "trial", "--account", "org_default", "--usd", "5", "--lasts", "1s")
    workers = [apart.worker() for _ in range(2)]
    entries = proxy.until(lambda all_: len(all_) > 1, timeout_s=PATIENCE_S)
    assert [(one["charge_usd"], one["details"]["grant"]) for one in entries] == [
        ("-5", made["grant_id"]), ("5", made["grant_id"]),
    ]  # fmt: skip
    assert [worker.stop() for worker in workers] == [0, 0]


async def _taken_by_a_worker_that_is_killed(apart: Apart, ledger_url: str) -> None:
    """It waits for the ledger with what it has taken from the queue."""
    with psycopg.connect(ledger_url, autocommit=True) as looker, psycopg.connect(ledger_url) as holder:
        holder.execute("LOCK TABLE ledger_entries IN EXCLUSIVE MODE")
        worker = apart.worker()
        async with asyncio.timeout(PATIENCE_S):
            while looker.execute(WRITING).fetchone() == (0,):
                await asyncio.sleep(0.02)
        worker.kill()


@pytest.mark.thorough
async def test_a_console_shows_what_other_machines_run(
    apart: Apart, provider: ScriptedProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADMIN", SECRET)
    apart.proxy(admin={"port": 0, "secret": "${ADMIN}"})
    relaying, watching = await asyncio.gather(*(asyncio.to_thread(one.start) for one in apart.proxies))
    provider.script("far", LONG)

    async def seen(wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                shown: dict[str, Any]
                _, shown = await asyncio.to_thread(answer, watching.console_url, "/v1/live", SECRET)
                if wanted(shown):
                    return shown
                await asyncio.sleep(0.2)

    async with Stage(relaying, apart.key) as stage:
        client, response = await stage.begin("far")
        shown = await seen(lambda one: any(stream["completion_tokens"] for stream in one["data"]))
        assert (shown["remote_nodes"], shown["remote_coverage"], shown["running"]) == (1, "complete", 1)
        (first,) = shown["data"]
        assert (first["id"], first["model"]) == (dict(response.headers)["x-tokenweir-exchange"], "far")
        assert first["node"]
        (later,) = (await seen(lambda one: one["data"][0]["completion_tokens"] > first["completion_tokens"]))["data"]
        assert float(later["charge_usd"]) > float(first["charge_usd"]) > 0
        stop = f"/v1/exchanges/{first['id']}/stop"
        asked = await asyncio.to_thread(lambda: opened(watching.console_url, stop, SECRET, {}).read())
        assert json.loads(asked)["status"] == "requested"
        assert b"stopped_by_operator" in (await client.read_body(response, timeout_s=PATIENCE_S)).body
        await seen(lambda one: one["running"] == 0)
        again = await asyncio.to_thread(lambda: opened(watching.console_url, stop, SECRET, {}).read())
        assert json.loads(again)["error"]["code"] == "exchange_not_running"


@pytest.mark.thorough
@pytest.mark.waits
@pytest.mark.parametrize("apart", [{"lease_s": SHORT_LEASE_S}], indirect=True, ids=["short lease"])
async def test_a_machine_that_never_comes_back_is_settled_by_another(apart: Apart, provider: ScriptedProvider) -> None:
    proxy = apart.proxies[0].start()
    apart.worker()
    provider.script("gone", LONG)
    async with Stage(proxy, apart.key) as stage:
        client, response = await stage.begin("gone")
        await asyncio.sleep(SHORT_LEASE_S)  # several renewals
        proxy.kill()
        body = (await client.read_body(response)).body
    shutil.rmtree(proxy.folder / "data")
    ((entry,),) = entries_of(proxy, "gone")
    assert (entry["outcome"], entry["usage_source"]) == ("crashed", "estimated")
    assert entry["details"]["swept"] is True
    assert 0 < entry["events"] <= len(sse.events(body)) + 1
    assert entry["completion_tokens"] > 0
    again = apart.proxy().start()
    await asyncio.sleep(2 * SHORT_LEASE_S)
    assert len(again.read_ledger()) == 1


@pytest.mark.thorough
@pytest.mark.waits
async def test_a_machine_that_was_only_asleep_gets_an_adjustment(apart: Apart, provider: ScriptedProvider) -> None:
    proxy = apart.proxies[0].start()
    apart.worker()
    provider.script("sleeper", Shape("openai", tokens=200, pace_ms=20))
    async with Stage(proxy, apart.key) as stage:
        client, response = await stage.begin("sleeper")
        await asyncio.sleep(1)
        proxy.signal(signal.SIGSTOP)
        ((swept,),) = entries_of(proxy, "sleeper")
        assert swept["details"]["swept"] is True
        proxy.signal(signal.SIGCONT)
        body = (await client.read_body(response)).body
        assert sse.done(body)
    ((terminal, late),) = entries_of(proxy, "sleeper", count=2)
    assert (terminal["kind"], late["kind"]) == ("usage", "adjustment")
    assert late["details"]["adjusts"] == terminal["entry_id"]
    assert terminal["completion_tokens"] + late["completion_tokens"] == 200
    await asyncio.to_thread(settle, proxy)


@pytest.mark.slow
async def test_a_kill_on_a_full_disk_after_the_ledger_has_it_is_no_conflict(
    apart: Apart, provider: ScriptedProvider
) -> None:
    """Seen: 8 to 41 false "conflict" letters, and `reconcile` red for ever. What the ledger got from memory is the
    machine's last word; what it finds on its disk after the kill says no more."""
    proxy = apart.proxies[0].start()
    assert proxy.child is not None
    names = [provider.script(f"full-{number}", Shape("openai", tokens=25, pace_ms=20)) for number in range(4)]
    async with Stage(proxy, apart.key) as stage:
        streams = [await stage.begin(name) for name in names]
        last = max((proxy.folder / "data" / "journal").glob("*.log"))
        resource.prlimit(proxy.child.pid, resource.RLIMIT_FSIZE, (last.stat().st_size, resource.RLIM_INFINITY))
        for client, response in streams:
            assert sse.done((await client.read_body(response)).body)
        apart.worker()
        settled = entries_of(proxy, *names)
        proxy.kill()
    proxy.start()
    await until(lambda: gauges(proxy)["tokenweir_journal_pending_records"] == 0)
    assert {(entry["outcome"], entry["completion_tokens"]) for (entry,) in settled} == {("served", 25)}
    assert len(proxy.read_ledger()) == 4
    assert proxy.command("dead-letters", "list", "--json").stdout == ""
    assert proxy.unreconciled() == []
