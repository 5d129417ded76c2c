"""Several proxies and workers that share a queue and a ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.crash.chaos import deployment
from tests.crash.stage import quick_key
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import Listening, Tokenweir
from tests.support.valkey import Valkey

# Long enough for a loaded machine to renew in, short enough to wait for.
LEASE_S = 3.0


@pytest.fixture
def ledger_url(postgres_ledger_url: str) -> str:
    return postgres_ledger_url


@pytest.fixture
def queue_url(valkey: Valkey) -> str:
    return valkey.url


class Apart:
    """Proxies and workers that share a queue and a ledger, and nothing else."""

    def __init__(
        self,
        folder: Path,
        provider: ScriptedProvider,
        ledger_url: str,
        queue_url: str,
        *,
        lease_s: float = LEASE_S,
        queue_shards: int = 1,
    ) -> None:
        self._lease_s, self._queue_shards = lease_s, queue_shards
        self._folder = folder
        self._provider = provider
        self._urls = {"ledger_url": ledger_url, "queue_url": queue_url}
        self._running: list[Listening] = []
        first = self._made("first")
        self.key = quick_key(first)
        """of all of them"""
        self.proxies = [first]

    def proxy(self, *options: str, **settings: Any) -> Tokenweir:
        """Another machine's proxy, not started yet; the first one is there already."""
        self.proxies.append(self._made(f"machine-{len(self.proxies)}", options, **settings))
        return self.proxies[-1]

    def worker(self) -> Listening:
        return self.unstarted_worker().start()

    def unstarted_worker(self) -> Listening:
        """Another worker, not started yet."""
        worker = self.proxies[0].worker()
        self._running.append(worker)
        return worker

    def close(self) -> None:
        for one in (*self.proxies, *self._running):
            if one.child is not None and one.child.poll() is None:
                one.kill()
        for proxy in self.proxies:
            proxy.close()

    def _made(self, name: str, options: tuple[str, ...] = (), **settings: Any) -> Tokenweir:
        return deployment(
            self._folder / name,
            self._provider,
            **self._urls,
            options=options,
            lease_s=self._lease_s,
            queue_shards=self._queue_shards,
            shutdown_grace_s=2.0,
            metrics={"projects_max": 1},
            **settings,
        )
