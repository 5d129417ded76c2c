"""Proxies that take over from one another (`serve --take-over`), and clients that ask all the time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from proxy.demo.script import Shape
from tests.crash.stage import PATIENCE_S, until
from tests.support import sse
from tests.support.net import ask, chat_request, connect
from tests.support.tokenweir import STOP_S_MAX, Tokenweir

UNREACHABLE = {
    "ledger": "postgresql://127.0.0.1:1/x", "key_pepper": "5e" * 32, "allow_literal_secrets": True,
}  # fmt: skip
SHORT = Shape("openai", tokens=6)
SLOW = Shape("openai", tokens=60, pace_ms=20)
Start = Callable[..., Tokenweir]


class Generation(Tokenweir):
    """The same deployment, in a process of its own that takes over from the one before."""

    def __init__(self, before: Tokenweir, workers: int = 1) -> None:
        self.__dict__.update(before.__dict__)
        self.child = None
        self._arguments = (*before._arguments[:3], "--take-over", "--workers", str(workers))
        self._engine = self._reader = self._watch = None

    def stop(self, timeout_s: float = STOP_S_MAX) -> int:
        code = super().stop(timeout_s)
        self.close()
        return code


async def taken_over(running: Tokenweir, workers: int = 1) -> Tokenweir:
    new = Generation(running, workers)
    await asyncio.to_thread(new.start)
    assert (new.url, new.console_url) == (running.url, running.console_url)
    return new


async def ended(old: Tokenweir) -> None:
    assert old.child is not None
    await until(lambda: old.child is not None and old.child.poll() is not None)
    assert old._wait() == 0


class Traffic:
    """Clients that ask until they are stopped: each request on a new connection, or many on one that is kept."""

    def __init__(self, running: Tokenweir, key: str, model: str) -> None:
        self._url, self._key, self._model = running.url, key, model
        self.answered = 0
        self.stopping = False

    async def on_new_connections(self) -> None:
        while not self.stopping:
            async with await connect(self._url) as client:
                await self._ask(client)

    async def on_kept_connections(self) -> None:
        while not self.stopping:
            async with await connect(self._url) as client:
                closes = False
                while not (self.stopping or closes):
                    closes = await self._ask(client)

    async def _ask(self, client: Any) -> bool:
        """Whether the answer says that the connection is closed after it."""
        await client.send(chat_request(ask(self._model), key=self._key))
        response = await client.read(PATIENCE_S)
        assert response.status == 200, response.body
        assert sse.done(response.body)
        self.answered += 1
        return bool(response.header("connection") == "close")
