"""What the tests of this folder do again and again: streams that are under way, and a look at what is left behind."""

from __future__ import annotations

import asyncio
import secrets
import signal
from collections.abc import Mapping
from contextlib import AsyncExitStack
from decimal import Decimal
from functools import partial
from typing import Any
from urllib.request import urlopen

import psutil

from proxy.billing.limits import UNLIMITED, Limits
from proxy.journal.journal import Journal
from proxy.keys.secrets import digest, hint, new_secret
from proxy.runtime.machine.ledger_stores import LedgerStores
from proxy.settings import load
from proxy.sinks.kinds import SINKS
from tests.support import waiting
from tests.support.net import RawClient, Response, ask, chat_request, connect
from tests.support.tokenweir import Tokenweir

PATIENCE_S = 40.0
until = partial(waiting.until, within_s=PATIENCE_S, poll_s=0.01)


WORKERS = 2
"""processes of a fleet"""


class Stage:
    """Clients of one deployment, each with a request of its own. Use as an async context manager."""

    def __init__(self, tokenweir: Tokenweir, key: str) -> None:
        self._tokenweir = tokenweir
        self._key = key
        self._clients: AsyncExitStack = AsyncExitStack()

    async def __aenter__(self) -> Stage:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._clients.aclose()

    async def ask(self, model: str, *, receive_buffer_bytes: int | None = None, **more: Any) -> RawClient:
        """A client that has sent its request, and has read nothing yet."""
        client = await connect(self._tokenweir.url, receive_buffer_bytes=receive_buffer_bytes)
        await self._clients.enter_async_context(client)
        await client.send(chat_request(ask(model, **more), key=self._key))
        return client

    async def begin(self, model: str, *, until: bytes = b"\n\n", **more: Any) -> tuple[RawClient, Response]:
        """A client in mid-stream: it has read its answer up to `until`."""
        client = await self.ask(model, **more)
        response = await client.read_head(PATIENCE_S)
        assert response.status == 200, await client.read_body(response)
        return client, await client.read_body(response, until=until, timeout_s=PATIENCE_S)

    async def whole(self, model: str, **more: Any) -> Response:
        """One request, to the end of its answer."""
        client = await self.ask(model, **more)
        return await client.read(PATIENCE_S)


def members(fleet: Tokenweir) -> list[psutil.Process]:
    """The processes of a fleet that relay, not the parent, nor the interpreter's own helper."""
    assert fleet.child is not None
    return [child for child in psutil.Process(fleet.child.pid).children() if _relays(child)]


def _relays(child: psutil.Process) -> bool:
    try:
        return "resource_tracker" not in " ".join(child.cmdline())
    except psutil.Error:  # it has just ended
        return False


async def told(tokenweir: Tokenweir, number: signal.Signals) -> int:
    """Send a signal, once, and wait for the end. The exit code."""
    assert tokenweir.child is not None
    tokenweir.child.send_signal(number)
    return await asyncio.to_thread(tokenweir._wait, PATIENCE_S)


async def begin_stopping(tokenweir: Tokenweir, number: signal.Signals = signal.SIGTERM) -> None:
    """Send a signal, and wait until it says that it stops."""
    assert tokenweir.child is not None
    assert tokenweir.child.stdout is not None
    tokenweir.child.send_signal(number)
    assert "stopping" in await asyncio.to_thread(tokenweir.child.stdout.readline)


def probed(running: Tokenweir, path: str) -> str:
    """What a path answers."""
    with urlopen(f"{running.url}{path}", timeout=5) as answer:
        return str(answer.read().decode())


def quick_key(tokenweir: Tokenweir, limits: Limits = UNLIMITED, *, alias: str = "test") -> str:
    """A new key, without starting a process."""
    return quick_keys(tokenweir, 1, limits, alias=alias)[0]


def quick_keys(tokenweir: Tokenweir, number: int, limits: Limits = UNLIMITED, *, alias: str = "new") -> list[str]:
    """So many new keys, as fast as they can be made."""
    store = LedgerStores.open(load(tokenweir.config, tokenweir.environment, sinks=SINKS))
    made = [new_secret().reveal() for _ in range(number)]
    for place, secret in enumerate(made):
        store.keys.create(
            key_id=f"key_{secrets.token_hex(10)}",
            alias=f"{alias}-{place}" if place else alias,
            digest=digest(secret, store.pepper()),
            hint=hint(secret),
            models=None,
            expires_at=None,
            limits=limits,
        )
    store.close()
    return made


def left_behind(tokenweir: Tokenweir) -> tuple[int, int, int]:
    """What the journal of a stopped proxy holds: exchanges open, records pending, places damaged."""
    journal = Journal.open(tokenweir.folder / "data" / "journal", bytes_max=1 << 30)
    left = len(journal.unfinished()), journal.depth, len(journal.damage)
    journal.close()
    return left


def charge(entry: dict[str, Any], price: Mapping[str, float]) -> Decimal:
    """USD of an entry's reported tokens at these rates, in USD per million."""
    rates = {name: Decimal(str(rate)) for name, rate in price.items()}
    tokens: Decimal = entry["prompt_tokens"] * rates["input"] + entry["completion_tokens"] * rates["output"]
    return tokens.scaleb(-6)


def entries_of(tokenweir: Tokenweir, *models: str, timeout_s: float = PATIENCE_S) -> list[dict[str, Any]]:
    """The one entry of each of these models, in this order, once all are in the ledger."""
    entries = tokenweir.until(lambda all_: set(models) <= {entry["model"] for entry in all_}, timeout_s=timeout_s)
    found = [entry for entry in entries if entry["model"] in models]
    by_model = {entry["model"]: entry for entry in found}
    assert len(by_model) == len(found), f"more than one entry for a request: {found}"
    return [by_model[model] for model in models]
