"""One worker brings the ledger to the budgets, the others stand by until it dies."""

from __future__ import annotations

import pytest

from proxy.billing.limits import Limits
from proxy.billing.money import Nusd
from proxy.demo.script import Shape
from tests.crash.chaos import exposition, gauges
from tests.crash.stage import Stage, quick_key, until
from tests.distributed.apart import Apart
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import Listening

pytestmark = pytest.mark.thorough

EACH = 5
BUDGET = Limits(budget_nusd=Nusd(10**12))


def applied(worker: Listening) -> float:
    """Entries that it brought."""
    found = [
        line for line in exposition(worker).splitlines() if line.startswith("tokenweir_budget_applied_entries_total")
    ]
    return float(found[0].split()[1])


async def test_one_of_two_workers_follows_and_the_other_takes_over(apart: Apart, provider: ScriptedProvider) -> None:
    proxy = apart.proxies[0]
    key = quick_key(proxy, BUDGET, alias="limited")
    workers = [apart.worker(), apart.worker()]
    proxy.start()
    async with Stage(proxy, key) as stage:

        async def served(count: int) -> None:
            for number in range(EACH):
                name = provider.script(f"followed-{count}-{number}", Shape("openai", tokens=5))
                assert (await stage.whole(name)).status == 200
            await until(lambda: gauges(proxy)["tokenweir_journal_pending_records"] == 0)

        await served(0)
        await until(lambda: sum(map(applied, workers)) == EACH)
        for count in range(1, 3):
            await served(count)
            await until(lambda: sum(map(applied, workers)) == (count + 1) * EACH)  # noqa: B023  awaited at once
        assert sorted(map(applied, workers)) == [0, 3 * EACH]
        leader, other = sorted(workers, key=applied, reverse=True)
        leader.kill()
        await served(3)
        await until(lambda: applied(other) == EACH)
