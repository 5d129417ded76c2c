"""A running proxy reads its configuration again: by SIGHUP, and by `tokenweir reload`. Nothing is interrupted."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
import yaml

from proxy.billing.limits import Limits
from proxy.billing.money import nusd_from_usd
from proxy.demo.script import Shape
from proxy.runtime.machine.configuration_file import STATUS_FILE
from tests.crash.reloading import changed, reload, reloaded, status
from tests.crash.stage import WORKERS, Stage, begin_stopping, charge, members, probed, quick_key, until
from tests.support import sse
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import PRICE, Tokenweir

SHORT = Shape("openai", tokens=6)
SLOW = Shape("openai", tokens=40, pace_ms=20)
DEAR = {"input": 13.0, "cached_input": 7.0, "output": 41.0}
WRONG: tuple[tuple[Callable[[Any], object], str], ...] = (
    (lambda document: document["models"].update(x={"provider": "nobody"}), "models.x.provider: unknown provider"),
    (lambda document: document["providers"]["scripted"].update(base_url="ftp://x"), "providers.scripted.base_url"),
    (lambda document: document["models"].update(x={"provider": "scripted"}), "models.x.price: is missing"),
    (
        lambda document: document["models"].update(x={"provider": "scripted", "price": PRICE, "tokenizer": "t.json"}),
        "models.x.tokenizer",
    ),
)


@pytest.fixture
def running(tokenweir: Callable[..., Tokenweir]) -> Tokenweir:
    return tokenweir(models={"old/*": {"provider": "scripted", "price": PRICE}})


async def test_a_model_is_added_repriced_and_taken_away(running: Tokenweir, provider: ScriptedProvider) -> None:
    key, name = quick_key(running), provider.script("reload", SHORT)
    async with Stage(running, key) as stage:
        assert (await stage.whole(f"new/{name}")).status == 404
        changed(running, lambda document: document["models"].update({"new/*": {"provider": "scripted", "price": DEAR}}))
        code, said, _ = await asyncio.to_thread(reload, running)
        assert (code, "reloaded" in said, "2 models" in said) == (0, True, True)
        await until(lambda: '"prices.change", "target": "new/*"' in running.said("audit", "--json"))
        assert (await stage.whole(f"new/{name}")).status == 200
        assert (await stage.whole(f"old/{name}")).status == 200

        changed(running, lambda document: document["models"].pop("old/*"))
        assert (await reloaded(running))["error"] is None
        assert (await stage.whole(f"old/{name}")).status == 404
    entries = {one["model"]: one for one in running.entries(2)}
    assert Decimal(entries[f"new/{name}"]["charge_usd"]) == charge(entries[f"new/{name}"], DEAR)
    assert Decimal(entries[f"old/{name}"]["charge_usd"]) == charge(entries[f"old/{name}"], PRICE)


@pytest.mark.thorough
async def test_one_that_stops_says_so_at_once(running: Tokenweir, provider: ScriptedProvider) -> None:
    key, name = quick_key(running), provider.script("stopping", Shape("openai", tokens=4000, pace_ms=20))
    async with Stage(running, key) as stage:
        await stage.begin(f"old/{name}")
        await begin_stopping(running)
        code, _, errors = await asyncio.to_thread(reload, running)
        assert (code, errors) == (1, "tokenweir: nothing has changed: the process stops, and reloads nothing\n")
        running.signal(signal.SIGTERM)


async def test_what_runs_keeps_its_provider_and_its_price(running: Tokenweir, provider: ScriptedProvider) -> None:
    key, name = quick_key(running), provider.script("running", SLOW)

    def change(document: Any) -> None:
        document["providers"]["scripted"]["base_url"] = "http://127.0.0.1:9/v1"
        document["models"]["old/*"]["price"] = DEAR

    async with Stage(running, key) as stage:
        client, response = await stage.begin(f"old/{name}")
        changed(running, change)
        assert (await reloaded(running))["error"] is None
        assert sse.done((await client.read_body(response)).body)
        assert (await stage.whole(f"old/{name}")).status == 502, "a new request goes to the new address"
    (served,) = [one for one in running.entries(2) if one["outcome"] == "served"]
    assert Decimal(served["charge_usd"]) == charge(served, PRICE)


async def test_a_wrong_file_changes_nothing(running: Tokenweir, provider: ScriptedProvider) -> None:
    key, name, before = quick_key(running), provider.script("wrong", SHORT), status(running)
    right = running.config.read_text()
    for wrong, says in WRONG:
        running.config.write_text(right)
        changed(running, lambda document: document["models"].update({"new/*": {"provider": "scripted", "price": DEAR}}))
        changed(running, wrong)
        after = await reloaded(running)
        assert says in after["error"]
        assert after["digest"] == before["digest"]
        assert says in running.log.read_text()
    code, _, said = await asyncio.to_thread(reload, running)
    assert (code, says in said) == (1, True)
    assert "tokenweir_configuration_reload_failed 1.0" in probed(running, "/metrics")
    async with Stage(running, key) as stage:
        assert (await stage.whole(f"old/{name}")).status == 200
        assert (await stage.whole(f"new/{name}")).status == 404


@pytest.mark.thorough
async def test_which_configuration_runs_is_shown(running: Tokenweir) -> None:
    def lines() -> tuple[str, str]:
        digest = status(running)["digest"]
        return probed(running, "/readyz"), f'tokenweir_configuration_info{{digest="{digest}"}} 1.0'

    ready, info = lines()
    assert ready == f"ready\nconfiguration {status(running)['digest']}\n"
    assert info in probed(running, "/metrics")
    changed(running, lambda document: document.update(exchanges_max=64, write_stall_s=5))
    code, _, said = await asyncio.to_thread(reload, running)
    assert (code, said) == (0, "tokenweir: only a restart applies: write_stall_s, exchanges_max\n")
    assert lines()[0] != ready
    assert lines()[1] in probed(running, "/metrics")
    assert info not in probed(running, "/metrics")


@pytest.mark.thorough
async def test_a_secret_in_a_file_is_read_again(
    tokenweir: Callable[..., Tokenweir], provider: ScriptedProvider
) -> None:
    running = tokenweir(models={"old/*": {"provider": "scripted", "price": PRICE}}, start=False)
    secret = running.folder / "provider-key"
    secret.write_text(f"{running.environment.pop('TEST_PROVIDER_KEY')}\n")
    running.environment["TEST_PROVIDER_KEY_FILE"] = str(secret)
    key, name = quick_key(running.start()), provider.script("secret", SHORT)
    async with Stage(running, key) as stage:
        assert (await stage.whole(f"old/{name}")).status == 200
        secret.write_text("sk-canary-second")
        assert (await reloaded(running))["error"] is None
        assert (await stage.whole(f"old/{name}")).status == 200
        secret.write_text("sk-canary-third\n\n")
        assert f"TEST_PROVIDER_KEY_FILE: {secret}: begins or ends" in (await reloaded(running))["error"]
        assert (await stage.whole(f"old/{name}")).status == 200
    sent = [
        value for one in provider.log(name) for header, value in one["headers"] if header.lower() == "authorization"
    ]
    assert sent == [f"Bearer {running.PROVIDER_KEY}", "Bearer sk-canary-second", "Bearer sk-canary-second"]
    secret.unlink()
    assert b"canary" not in running.outputs()


@pytest.mark.thorough
async def test_a_provider_that_stays_the_same_keeps_its_breaker(running: Tokenweir) -> None:
    changed(
        running,
        lambda document: document["providers"].update(other={"base_url": "http://127.0.0.1:9/v1"}),
    )
    await reloaded(running)
    seen = probed(running, "/metrics")
    assert 'tokenweir_provider_breaker{provider="other",state="closed"} 1.0' in seen
    changed(running, lambda document: document["providers"].pop("other"))
    await reloaded(running)
    seen = probed(running, "/metrics")
    assert 'provider="other"' not in seen
    assert 'tokenweir_provider_breaker{provider="scripted",state="closed"} 1.0' in seen


@pytest.mark.thorough
async def test_without_a_proxy_nothing_is_signalled(running: Tokenweir) -> None:
    was = status(running)
    running.kill()
    code, _, said = await asyncio.to_thread(reload, running)
    assert (code, "no proxy runs with the data folder" in said) == (1, True)
    other = {**was, "pid": os.getpid()}  # its number went to a process that has nothing to do with it
    (running.folder / "data" / STATUS_FILE).write_text(json.dumps(other))
    assert (await asyncio.to_thread(reload, running))[0] == 1, "this process would have ended"
    running.start()
    assert running.stop() == 0
    assert not (running.folder / "data" / STATUS_FILE).exists()


@pytest.mark.thorough
async def test_another_file_than_the_running_one_is_refused(running: Tokenweir) -> None:
    other = {**status(running), "file": "/etc/other.yaml"}
    (running.folder / "data" / STATUS_FILE).write_text(json.dumps(other))
    code, _, said = await asyncio.to_thread(reload, running)
    assert (code, f"reads /etc/other.yaml, not {running.config}" in said) == (1, True)


def set_price(prices: dict[str, Any], document: Any) -> None:
    document["models"]["a/*"].update(prices)


@pytest.mark.thorough
async def test_counters_do_not_fall(running: Tokenweir, provider: ScriptedProvider) -> None:
    key, name = quick_key(running), provider.script("counted", SHORT)
    async with Stage(running, key) as stage:
        for number in range(1, 4):
            await stage.whole(f"old/{name}")
            running.entries(number)
            served = [line for line in probed(running, "/metrics").splitlines() if "exchanges_total{" in line]
            assert sum(float(line.split()[-1]) for line in served) == number
            await reloaded(running)


@pytest.mark.thorough
async def test_a_file_that_never_ends_keeps_nothing_waiting(running: Tokenweir) -> None:
    text = running.config.read_text()
    running.config.unlink()
    os.mkfifo(running.config)
    assert "is no regular file" in (await reloaded(running))["error"]
    running.config.unlink()
    running.config.write_text(text)
    assert (await reloaded(running))["error"] is None
    assert running.stop() == 0


@pytest.mark.thorough
async def test_limits_of_requests_and_of_the_stop_change(running: Tokenweir, provider: ScriptedProvider) -> None:
    """What runs keeps its reservation; the next stop has the new grace time."""
    slow, short = provider.script("endless", Shape("openai", tokens=4_000, pace_ms=20)), provider.script("short", SHORT)
    limited = Limits(budget_nusd=nusd_from_usd("0.01"))
    reserve = {"completion_tokens": 1_000_000}  # of which this budget pays 24,390

    def change(document: Any) -> None:
        document.update(request_bytes_max="2KiB", reserve=reserve, budgets={"exceeded_status": 429}, shutdown_grace_s=0)

    async with (
        Stage(running, quick_key(running)) as stage,
        Stage(running, quick_key(running, limited, alias="limited")) as other,
    ):
        client, response = await stage.begin(f"old/{slow}")
        assert (await stage.whole(f"old/{short}", user="x" * 4_000)).status == 200
        assert (await other.whole(f"old/{short}")).status == 200
        changed(running, change)
        after = await reloaded(running)
        assert (after["error"], after["need_restart"]) == (None, [])
        assert (await stage.whole(f"old/{short}", user="x" * 4_000)).status == 413
        assert (await other.whole(f"old/{short}")).status == 429
        assert (await other.whole(f"old/{short}", max_tokens=6)).status == 200
        assert running.stop(timeout_s=10) == 0, "not after the 30 s of the start"
        assert b"shutting_down" in (await client.read_body(response)).body
    outcomes = [one["outcome"] for one in running.read_ledger()]
    assert sorted(outcomes) == ["served", "served", "served", "shut_down"]


@pytest.mark.thorough
async def test_a_process_that_comes_back_has_what_the_others_have(
    tokenweir: Callable[..., Tokenweir], provider: ScriptedProvider
) -> None:
    """Not what they have refused, and not what nobody has reloaded."""
    fleet = tokenweir(models={"a/*": {"provider": "scripted", "price": PRICE}}, options=("--workers", str(WORKERS)))
    key, name = quick_key(fleet), provider.script("fleet", SHORT)

    async def kill_all() -> None:
        for child in members(fleet):
            child.kill()
            await until(lambda child=child: child.pid not in {one.pid for one in members(fleet)})  # type: ignore[misc]
        await until(lambda: len(members(fleet)) == WORKERS)
        await until(lambda: probed_or_none(fleet) is not None)

    async with Stage(fleet, key) as stage:
        changed(fleet, partial(add_model, "b/*"))
        await reloaded(fleet)
        await asyncio.sleep(0.3)  # the parent looks each 50 ms
        await kill_all()
        assert (await stage.whole(f"b/{name}")).status == 200, "what was reloaded"
        changed(fleet, WRONG[0][0])
        assert (await reloaded(fleet))["error"] is not None
        await kill_all()
        assert (await stage.whole(f"b/{name}")).status == 200, "what was refused does not apply"
        fleet.config.write_text(yaml.safe_dump(yaml.safe_load(fleet.config.read_text()) | {"models": {}}))
        before = status(fleet)
        await kill_all()
        assert (await stage.whole(f"b/{name}")).status == 200, "nobody has reloaded it"
        await until(lambda: status(fleet)["applied_at"] > before["applied_at"])
        assert status(fleet)["attempts"] == before["attempts"] == 2, "`reload` waits for the next number"
    assert fleet.stop() == 0


def probed_or_none(running: Tokenweir) -> str | None:
    try:
        return probed(running, "/readyz")
    except OSError:
        return None


def add_model(name: str, document: Any) -> None:
    document["models"][name] = {"provider": "scripted", "price": PRICE}


@pytest.mark.thorough
async def test_twenty_reloads_under_streams_touch_none(
    tokenweir: Callable[..., Tokenweir], provider: ScriptedProvider
) -> None:
    """Of two processes: no stream is touched, no request refused, no price wrong."""
    fleet = tokenweir(models={"a/*": {"provider": "scripted", "price": PRICE}}, options=("--workers", str(WORKERS)))
    key, before = quick_key(fleet), {child.pid for child in members(fleet)}
    slow, short = provider.script("steady", Shape("openai", tokens=60, pace_ms=40)), provider.script("short", SHORT)
    async with Stage(fleet, key) as stage:
        streams = await asyncio.gather(*(stage.begin(f"a/{slow}") for _ in range(200)))
        for number in range(20):
            prices = {"price": DEAR if number % 2 else PRICE}
            changed(fleet, partial(set_price, prices))
            after = await reloaded(fleet)
            assert (after["error"], after["attempts"]) == (None, number + 1)
            assert (await stage.whole(f"a/{short}")).status == 200
        for client, response in streams:
            assert sse.done((await client.read_body(response)).body)
    entries = await asyncio.to_thread(fleet.entries, 220, timeout_s=60)
    assert {one["outcome"] for one in entries} == {"served"}
    for one in entries:
        right = {charge(one, PRICE)} if one["model"] == f"a/{slow}" else {charge(one, PRICE), charge(one, DEAR)}
        assert Decimal(one["charge_usd"]) in right
    assert {child.pid for child in members(fleet)} == before
    assert fleet.stop() == 0


@pytest.mark.thorough
async def test_the_command_prints_the_result_of_each_process_and_fails_if_one_does_not_answer(
    tokenweir: Callable[..., Tokenweir], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = tokenweir(models={"a/*": {"provider": "scripted", "price": PRICE}}, options=("--workers", str(WORKERS)))

    def found() -> tuple[int, list[dict[str, Any]]]:
        code, printed = fleet.found("reload", "--json")
        return code, [json.loads(line) for line in printed.splitlines()]

    changed(fleet, partial(add_model, "b/*"))
    changed(fleet, lambda document: document.update(exchanges_max=64))
    code, results = await asyncio.to_thread(found)
    assert (code, [one["process"] for one in results]) == (0, list(range(WORKERS)))
    assert {one["pid"] for one in results} == {child.pid for child in members(fleet)}
    assert {(one["digest"], *one["need_restart"], one["error"]) for one in results} == {
        (status(fleet)["digest"], "exchanges_max", None)
    }
    monkeypatch.setattr("proxy.cli.reload.RELOAD_S", 1.0)
    silent = next(child for child in members(fleet) if child.pid == results[1]["pid"])
    silent.suspend()
    changed(fleet, partial(add_model, "c/*"))
    code, results = await asyncio.to_thread(found)
    assert (code, results[0]["error"], results[1]["error"]) == (1, None, "no answer within 1 s: see the log")
    silent.resume()
    code, printed = await asyncio.to_thread(fleet.found, "reload")
    assert (code, printed.count("3 models"), "process 1: reloaded" in printed) == (0, WORKERS, True)
    assert fleet.stop() == 0
    assert not list((fleet.folder / "data").glob("configuration*"))
