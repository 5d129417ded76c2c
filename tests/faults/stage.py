"""One run of the sweep: a deployment, one fault at one point while it works, a healthy start, and the books.

Law: nothing here believes the proxy: what the client got and what the provider saw are compared with the ledger.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from proxy.billing.limits import Limits
from proxy.billing.reservation import CounterState
from proxy.budgets.open_budgets import open_budgets
from proxy.demo.script import Shape
from proxy.settings import load
from proxy.storage.database import open_engine
from tests.crash.chaos import ENDS, Call, deployment, settle, wrong_in
from tests.crash.stage import quick_key
from tests.faults.points import Fault, Point
from tests.support.ledger_tables import Balance, read_balances
from tests.support.net import ask
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import Listening, Tokenweir

# One request may stand still for as long as a delay lasts, several times.
REQUEST_S_MAX = 10.0
RESTING_S = 30.0
# More than all of a sweep costs; every point of admission is on the way.
BUDGET = Limits(budget_nusd=10**12, rpm=10**6, parallel=1_000)


@dataclass(slots=True)
class Swept:
    """One deployment that is struck again and again."""

    proxy: Tokenweir
    key: str
    provider: ScriptedProvider
    worker: Listening | None = None
    """the one that is struck, if it is not the proxy"""
    beside: Listening | None = None
    """what runs beside it all the time"""
    rounds: int = 0
    before: int = 0
    """entries that were there before this round"""

    def close(self) -> None:
        for one in (self.worker, self.beside):
            if one is not None and one.child is not None and one.child.poll() is None:
                one.kill()
        self.proxy.close()

    @property
    def struck(self) -> Listening:
        """Where the fault strikes."""
        return self.worker or self.proxy

    async def round(self, point: Point | None, fault: Fault | None) -> list[str]:
        """What is wrong after one fault. No point: nothing strikes, and what is reached is written down."""
        self.rounds += 1
        armed = self.proxy.folder / "armed"
        armed.write_bytes(b"\0")
        struck = self.struck
        name = "-" if point is None else str(point)
        struck.program = ("-m", "tests.faults.child", str(armed), str(self.seen), name, str(fault or "-"))
        await asyncio.to_thread(struck.start)
        os.pwrite(fd := os.open(armed, os.O_RDWR), b"\1", 0)
        os.close(fd)
        self.provider.reset()
        calls = await self._work()
        if point is None:
            await asyncio.to_thread(settle, self.proxy)
        await asyncio.to_thread(self._heal)
        # A connection to the provider that cannot be made is the provider's failure, whoever made it fail.
        connecting = point is not None and fault is Fault.FAIL and point.file == "gateway/upstream/client.py"
        return self._wrong(calls, ENDS | {"upstream_failed"} if connecting else ENDS)

    @property
    def seen(self) -> Path:
        return self.proxy.folder / "seen"

    async def _work(self) -> list[Call]:
        """A stream, one that is left, a drained one, and a plain answer, at once."""
        kinds: list[Any] = ["stream", "leaves", "drains", "plain"]
        calls = [Call(f"{kind}-{self.rounds}", kind) for kind in kinds]
        for call in calls:
            self.provider.script(call.name, Shape("openai", tokens=8, pace_ms=3))
        timeout = aiohttp.ClientTimeout(total=REQUEST_S_MAX)
        headers = {"Authorization": f"Bearer {self.key}"}
        async with aiohttp.ClientSession(timeout=timeout, headers=headers) as session:
            await asyncio.gather(*(self._ask(session, call) for call in calls))
            await asyncio.sleep(0.3)  # what comes after the answers: settling, shipping, renewing
        return calls

    async def _ask(self, session: aiohttp.ClientSession, call: Call) -> None:
        asked = f"drain/{call.name}" if call.kind == "drains" else call.name
        body = ask(asked, stream=call.kind != "plain")
        with suppress(aiohttp.ClientError, ConnectionError, TimeoutError):
            async with session.post(f"{self.proxy.base_url}/chat/completions", json=body) as answer:
                call.exchange_id = answer.headers.get("x-tokenweir-exchange")
                answer.raise_for_status()  # an error is the proxy's own word: nothing was delivered
                async for piece in answer.content.iter_any():
                    call.body += piece
                    if call.kind in ("leaves", "drains") and call.events >= 3:
                        answer.close()
                        return
                call.whole = True

    def _heal(self) -> None:
        """End what was struck, and start it healthy."""
        struck = self.struck
        assert struck.child is not None
        if struck.child.poll() is None:
            struck.kill()
        else:
            struck._wait()
        struck.program = None
        struck.start()
        settle(self.proxy)
        struck.kill()  # the next round starts it anew; what is settled stays so

    async def unsettled_holds(self) -> list[str]:
        """What is wrong with the budget of the one key, once everything that runs is healthy. Ends all of it."""
        for one in {id(one): one for one in (self.proxy, self.struck, self.beside) if one is not None}.values():
            if one.child is None or one.child.poll() is not None:
                await asyncio.to_thread(one.start)
        engine = open_engine(self.proxy.ledger_url)
        [balance] = await asyncio.to_thread(read_balances, engine)
        engine.dispose()
        until = time.monotonic() + RESTING_S
        while found := await self._not_resting(balance):
            if time.monotonic() > until:
                return [f"budget: {found}, {balance.charged_nusd} charged"]
            await asyncio.sleep(0.2)
        return []

    async def unreconciled(self) -> list[str]:
        """What `tokenweir reconcile` finds, once nothing waits: what a killed worker had taken is claimed by another
        after a lease."""
        until = time.monotonic() + RESTING_S
        while (found := await asyncio.to_thread(self.proxy.unreconciled)) and time.monotonic() < until:
            await asyncio.sleep(0.5)
        return found

    async def _not_resting(self, balance: Balance) -> list[CounterState]:
        """The key's gate, unless it stands as the ledger says (or what was spent is not known any more), and nothing is
        held there."""
        store = open_budgets(load(self.proxy.config, self.proxy.environment), "test")
        try:
            found = await store.counter_states([balance.key_id])
        finally:
            await store.aclose()
        return [
            one
            for one in found
            if (one.reserved, one.open, one.closed) != (0, 0, 0) or one.spent not in (None, balance.charged_nusd)
        ]

    def _wrong(self, calls: list[Call], ends: frozenset[str]) -> list[str]:
        entries = self.proxy.read_ledger()
        new = entries[self.before :]
        self.before = len(entries)
        seen: Mapping[str, Any] = {one["body"]["model"]: one for one in self.provider.log()}
        return wrong_in(calls, seen, new, ends=ends)


def reached(swept: Swept) -> Iterator[Point]:
    """The points that the recording rounds wrote down, each once."""
    yield from sorted({Point.of(line) for line in swept.seen.read_text().split()})


def embedded(folder: Path, provider: ScriptedProvider) -> Swept:
    """One machine."""
    proxy = deployment(folder, provider, shutdown_grace_s=1.0)
    return Swept(proxy, quick_key(proxy, BUDGET), provider)


def apart(folder: Path, provider: ScriptedProvider, ledger_url: str, queue_url: str, *, strike_worker: bool) -> Swept:
    """A proxy and a worker with a queue between them; one of them is struck, the other runs all the time."""
    proxy = deployment(
        folder,
        provider,
        shutdown_grace_s=1.0,
        ledger_url=ledger_url,
        queue_url=queue_url,
        lease_s=3.0 if strike_worker else 60.0,
    )
    key = quick_key(proxy, BUDGET)
    worker = proxy.worker()
    (proxy if strike_worker else worker).start()
    swept = Swept(proxy, key, provider, worker if strike_worker else None)
    swept.beside = None if strike_worker else worker
    return swept
