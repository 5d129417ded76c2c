"""All faults at once, for as long as one likes: kill -9 and sleep of proxies and workers, Valkey and Postgres that die,
hang and forget, a network that is cut, clients that leave, and budgets."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from tests.crash.chaos import ENDS
from tests.distributed.cuts import all_cuts
from tests.distributed.site import AMPLE, FEW, FREE, HEALING_S, PROXIES, Site, site
from tests.support.examples import SEED

# Another run: TOKENWEIR_CHAOS_SEED=… TOKENWEIR_SOAK_S=… make faults; `make soak` is an hour of it.
SOAK_S = float(os.environ.get("TOKENWEIR_SOAK_S", "120"))
# Faults come for so long; then all have to come to rest, and the books are compared.
ROUND_S = 45.0
AT_ONCE = 3
"""faults that last at the same time, each of something else"""


class Soak:
    """The faults, and what they strike."""

    def __init__(self, site: Site, rng: Random) -> None:
        self.struck: Counter[str] = Counter()
        self._story: list[str] = []
        """what the round did, and when"""
        self._site = site
        self._rng = rng
        self._began = 0.0
        self._free = {name: asyncio.Lock() for name in (*site.processes, "valkey", "postgres", "network")}

    async def round(self) -> list[str]:
        """Faults under load, until they are over; what is wrong then."""
        async with self._site.traffic(self._rng) as seen:
            await seen.until_served()
            began = self._began = time.monotonic()
            self._story.clear()
            async with asyncio.TaskGroup() as strikers:
                for _ in range(AT_ONCE):
                    strikers.create_task(self._strike_until(began + ROUND_S))
            await self._site.ready()
            await seen.until_served((FREE, AMPLE, FEW))
        blind = dict.fromkeys(PROXIES, (began, time.monotonic()))
        wrong = [*seen.unpromised(blind), *self._site.wrong(seen, ends=ENDS)]
        return wrong and [*wrong, f"after {', '.join(self._story)}"]

    async def _strike_until(self, end_s: float) -> None:
        kinds: list[Callable[[], Awaitable[None]]] = [
            self._kill, self._kill, self._sleep, self._kill_valkey, self._flush, self._pause_valkey,
            self._crash_postgres, self._hang_postgres, self._cut, self._cut,
        ]  # fmt: skip
        while time.monotonic() < end_s:
            await asyncio.sleep(self._rng.uniform(0.1, 2.0))
            await self._rng.choice(kinds)()

    @asynccontextmanager
    async def _striking(self, what: str, target: str) -> AsyncIterator[None]:
        """Within, this is done to that, and nothing else is. Afterwards it is as it was."""
        async with self._free[target if target in self._free else "network"]:
            began_s = time.monotonic()
            self.struck[f"{what} of {target.split('-')[0]}"] += 1
            self._site.struck_s[target] = math.inf
            yield
            self._site.struck_s[target] = now_s = time.monotonic()
            self._story.append(f"{what} of {target} ({began_s - self._began:.1f} to {now_s - self._began:.1f} s)")

    async def _kill(self) -> None:
        """kill -9; whoever keeps it running starts it again, until it runs."""
        name = self._rng.choice(list(self._site.processes))
        async with self._striking("kill", name), asyncio.timeout(2 * HEALING_S):
            self._site.processes[name].kill()
            await asyncio.sleep(self._rng.choice((0.0, 1.0)))
            while not await asyncio.to_thread(self._started, name):
                await asyncio.sleep(0.5)

    def _started(self, name: str) -> bool:
        self._site.processes[name].close()
        try:
            self._site.start(name)
        except AssertionError:  # it has ended: its servers are away
            return False
        return True

    async def _sleep(self) -> None:
        """SIGSTOP and SIGCONT, now and then for longer than a lease."""
        name = self._rng.choice(list(self._site.processes))
        async with self._striking("sleep", name):
            self._site.processes[name].signal(signal.SIGSTOP)
            await asyncio.sleep(self._lasts_s())
            self._site.processes[name].signal(signal.SIGCONT)

    async def _kill_valkey(self) -> None:
        async with self._striking("kill", "valkey"):
            self._site.valkey.kill()
            await asyncio.sleep(self._lasts_s())
            await asyncio.to_thread(self._site.services.do, self._site.valkey.start)

    async def _flush(self) -> None:
        async with self._striking("flush", "valkey"):
            self._site.valkey.ask("FLUSHALL")

    async def _pause_valkey(self) -> None:
        async with self._striking("sleep", "valkey"):
            self._site.valkey.pause()
            await asyncio.sleep(self._lasts_s())
            self._site.valkey.resume()

    async def _crash_postgres(self) -> None:
        async with self._striking("kill", "postgres"):
            await asyncio.to_thread(self._site.postgres.stop_immediately)
            await asyncio.sleep(self._lasts_s())
            await asyncio.to_thread(self._site.services.do, self._site.postgres.start)

    async def _hang_postgres(self) -> None:
        async with self._striking("sleep", "postgres"):
            with self._site.postgres.hanging():
                await asyncio.sleep(self._lasts_s())

    async def _cut(self) -> None:
        cut = self._rng.choice(all_cuts(self._rng))
        async with self._striking("cut" if cut.cuts else "slow line", f"{cut.machine}'s network"):
            cut.begin(self._site)
            await asyncio.sleep(cut.lasts_s)
            cut.end(self._site)

    def _lasts_s(self) -> float:
        return self._rng.choice((0.2, 1.0, 3.0, 9.0))


async def soak(site: Site, for_s: float, rng: Random) -> tuple[list[str], str]:
    """Round after round; what is wrong, and the figures."""
    began, rounds, wrong = time.monotonic(), 0, list[str]()
    made = Soak(site, rng)
    while rounds == 0 or time.monotonic() - began < for_s:
        wrong += [f"round {rounds}: {what}" for what in await made.round()]
        rounds += 1
    wrong += site.proxies[PROXIES[0]].unreconciled()
    struck = ", ".join(f"{count} {kind}" for kind, count in sorted(made.struck.items()))
    figures = (
        f"soak: {made.struck.total()} faults in {rounds} rounds ({struck}), {len(wrong)} violations"
        f" ({site.exchanges} exchanges, {site.adjusted} adjusted, {site.spent} budgets spent;"
        f" {time.monotonic() - began:.0f} s)"
    )
    return wrong, figures


@pytest.fixture
def deployed(tmp_path: Path, postgres_cluster: Path) -> Iterator[Site]:
    """Two proxies and two workers, serving; Valkey keeps all but its last second."""
    with site(tmp_path, postgres_cluster, "--appendonly", "yes", "--appendfsync", "everysec") as made:
        yield made


@pytest.mark.slow
def test_all_faults_mixed(deployed: Site, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\nseed {SEED}")
        wrong, figures = deployed.run(soak(deployed, SOAK_S, Random(f"{SEED} soak")))
        print(figures, *wrong[:50], sep="\n")
    assert not wrong
    assert deployed.spent
