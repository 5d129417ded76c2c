"""Several machines that share budgets."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.budgets.deployed.limited import Limited, deployment
from tests.support.net import Response
from tests.support.provider import ScriptedProvider

LEASE_S, GRACE_S = 3.0, 7.0


class Machines:
    """Proxies of one deployment, each with a data directory of its own, and a worker."""

    def __init__(
        self,
        folder: Path,
        provider: ScriptedProvider,
        ledger_url: str,
        queue_url: str,
        count: int,
        *,
        lease_s: float = LEASE_S,
    ) -> None:
        urls = {"ledger_url": ledger_url, "queue_url": queue_url, "lease_s": lease_s, "shutdown_grace_s": 1.0}
        self.proxies = [
            Limited(deployment(folder / f"machine-{number}", provider, **urls), provider) for number in range(count)
        ]
        self.worker = self.proxies[0].tokenweir.worker()

    def start(self) -> None:
        for one in self.proxies:
            one.tokenweir.start()
        self.worker.start()

    def close(self) -> None:
        self.worker.close()
        for one in self.proxies:
            one.tokenweir.close()

    async def many(self, key: str, model: str, count: int, **options: object) -> list[Response]:
        """So many at once, spread over all of them."""
        turns = (self.proxies[number % len(self.proxies)] for number in range(count))
        return await asyncio.gather(*(one.post(key, model, **options) for one in turns))  # type: ignore[arg-type]


async def statuses_for(limited: Limited, key: str, tokens: int, seconds: float) -> set[int]:
    """Of requests for so many tokens, one after the other."""
    model, until = limited.model(tokens), time.monotonic() + seconds
    found = set()
    while time.monotonic() < until:
        found.add((await limited.post(key, model, max_tokens=tokens)).status)
        await asyncio.sleep(0.1)
    return found


@contextmanager
def asleep(limited: Limited) -> Iterator[None]:
    limited.tokenweir.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        limited.tokenweir.signal(signal.SIGCONT)
