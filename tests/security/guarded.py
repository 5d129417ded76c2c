"""The deployment that the security tests share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.net import Response, ask, connect, post_chat
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import Tokenweir

REQUEST_BYTES_MAX = 200_000

# Few enough that a test can fill them; no other test holds more than one.
EXCHANGES_MAX = 6


@dataclass(frozen=True, slots=True)
class Guarded:
    """A running proxy, a key for it, and what is behind it."""

    tokenweir: Tokenweir
    provider: ScriptedProvider
    key: str
    raw_port: int
    """where a `RawProvider` answers to the model `raw`; nobody listens there unless a test does"""

    @property
    def url(self) -> str:
        """Where it listens."""
        return self.tokenweir.url

    async def ask(self, model: str, *, headers: Mapping[str, str] | None = None, **more: Any) -> Response:
        """What its key is answered for one chat with `model`."""
        return await post_chat(self.url, ask(model, **more), key=self.key, headers=headers)

    async def send(self, wire: bytes, *, source: str | None = None) -> Response:
        """The first answer to these bytes."""
        async with await connect(self.url, source=source) as client:
            await client.send(wire)
            return await client.read()
