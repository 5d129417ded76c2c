"""Budgets that proxies on several machines share through one Redis: through losses of either, nobody overspends."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import AsyncExitStack, closing
from pathlib import Path

import pytest

from tests.budgets.deployed.limited import SOON_S, Limited, begin, code, reservation, served
from tests.budgets.deployed.machines import GRACE_S, LEASE_S, Machines, asleep
from tests.support.provider import ScriptedProvider
from tests.support.sse import done
from tests.support.valkey import Valkey

FITS_TEN = ("--budget", "0.001", "--budget-window", "none")


@pytest.fixture
def machines(tmp_path: Path, provider: ScriptedProvider, ledger_url: str, queue_url: str) -> Iterator[Machines]:
    with closing(Machines(tmp_path, provider, ledger_url, queue_url, 2)) as made:
        made.start()
        yield made
        for one in made.proxies:
            assert "Traceback" not in one.tokenweir.log.read_text(), one.tokenweir.log.read_text()[-3000:]


@pytest.mark.thorough
@pytest.mark.waits
async def test_a_server_that_forgets_everything_opens_nothing_and_locks_nobody_out(
    machines: Machines, valkey: Valkey
) -> None:
    first, second = machines.proxies
    key_id, key = first.key(*FITS_TEN)
    slow = first.model(100, pace_ms=30)
    async with AsyncExitStack() as stack:
        running = asyncio.gather(*(first.post(key, slow, stream=True) for _ in range(4)))
        stack.callback(running.cancel)
        await first.until_counter(key_id, lambda one: one.open >= 4)
        assert served(await machines.many(key, first.model(100), 3)) == 3
        valkey.ask("FLUSHALL")
        assert served(await machines.many(key, first.model(100), 30)) == 3, "four run, three are spent"
        assert served(await running) == 4
    first.entries(key_id, 10)
    assert (await second.at_rest(key_id)).spent == 1_000_000


@pytest.mark.slow
async def test_a_machine_that_never_comes_back_lets_go(machines: Machines) -> None:
    first, second = machines.proxies
    key_id, key = first.key("--budget", "0.01", "--budget-window", "none")
    async with AsyncExitStack() as stack:
        await reservation(first, key, stack, 100)
        assert (await second.post(key, second.model())).status == 402
        first.tokenweir.kill()
        shutil.rmtree(first.tokenweir.folder / "data")
        await second.until_served(key, second.model(100), within_s=LEASE_S + GRACE_S)
    counter = await second.at_rest(key_id, within_s=LEASE_S + GRACE_S)
    assert counter.spent is not None
    left = (10_000_000 - counter.spent) // 100_000
    assert left >= 60
    assert served(await second.many(key, second.model(100), left + 10)) == left


@pytest.mark.thorough
async def test_while_redis_is_down_each_key_goes_by_its_policy(machines: Machines, valkey: Valkey) -> None:
    first, second = machines.proxies
    await a_repeat_at_another_proxy(first, second)
    (_, budget), (_, rate) = first.key(*FITS_TEN), first.key("--rpm", "100")
    open_id, open_ = first.key(*FITS_TEN, "--on-store-outage", "fail_open")
    _, free = first.key()
    model = first.model(100)
    for key in (budget, rate, open_, free):
        assert (await first.post(key, model)).status == 200
    valkey.kill()
    refused = await first.post(budget, model)
    assert (refused.status, code(refused), refused.header("retry-after")) == (503, "budget_unknown", "1")
    assert [(await first.post(key, model)).status for key in (rate, open_, free)] == [200] * 3
    too_dear = await first.post(open_, model, max_tokens=1_100_000)  # more than the local allowance of 1 USD
    assert too_dear.status == 503
    valkey.start()
    await first.until_served(budget, model)
    first.entries(open_id, 2)
    assert (await first.post(open_, model)).status == 200
    assert (await first.at_rest(open_id)).spent == 300_000, "what was served meanwhile counts"


@pytest.mark.thorough
@pytest.mark.waits
async def test_whose_lease_ended_in_its_sleep_is_cut_when_its_money_is_gone(machines: Machines) -> None:
    """Its exchange was settled at what it had delivered; what is left was granted to another."""
    first, second = machines.proxies
    async with AsyncExitStack() as stack:
        key_id, key = first.key(*FITS_TEN, "--on-exhausted", "cut")
        rest = await begin(first, key, stack, first.model(400, pace_ms=50), 1_000)  # of a budget for 1,000 tokens
        await first.until_counter(key_id, lambda one: one.reserved >= 1_000_000)
        await asyncio.sleep(1.0)  # the lease registry and the other proxy know of it
        with asleep(first):
            counter = await second.until_counter(key_id, lambda one: not one.reserved, within_s=LEASE_S + GRACE_S)
            spent = counter.spent or 0
            assert 0 < spent < 400_000
            left = (1_000_000 - spent) // 1_000
            assert (await second.post(key, second.model(left), max_tokens=left)).status == 200
        assert not done((await rest()).body)
    swept, other, late = first.entries(key_id, 3)
    assert swept["details"]["swept"] is True
    assert (await second.at_rest(key_id)).spent is not None
    charged = [round(float(one["charge_usd"]) * 1e9) for one in (swept, other, late)]
    assert sum(charged) <= 1_000_000 + 400_000 - spent


async def a_repeat_at_another_proxy(first: Limited, second: Limited) -> None:
    key_id, key = first.key()
    model = first.model(20)
    token = {"Idempotency-Key": "t-1"}
    assert (await first.post(key, model, headers=token)).status == 200
    async with asyncio.timeout(SOON_S):  # its client may hear the end before the store does
        while code(again := await second.post(key, model, headers=token)) == "idempotency_running":
            await asyncio.sleep(0.02)
    assert (again.status, code(again)) == (409, "idempotency_served")
    first.entries(key_id, 1)
