"""The client of the gateway.

Invariants: the received bytes are unchanged, or decompressed if the gateway declares a compression. The client follows
no redirect and repeats no request.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass

import aiohttp

from proxy.conformance.cases import Case
from proxy.conformance.wires import CHAT

# Longer than any answer of the suite takes.
ANSWER_S_MAX = 60.0
# Many times more than any.
BODY_BYTES_MAX = 4 * 1024 * 1024
# A client that leaves before the answer.
IMPATIENCE_S = 0.3
# What each event has: an end, or in a binary stream the name of its type.
_EVENT_MARKS = (b"\n\n", b"\r\n\r\n", b":event-type")


@dataclass(slots=True)
class Received:
    """The answer that the client received to one request."""

    status: int = 0
    """HTTP status; 0: no answer"""
    body: bytes = b""
    took_s: float = 0
    """time from the first to the last bytes of the body"""
    failure: str = ""
    """the reason, if the connection ended before the end of the answer"""


class GatewayClient:
    """Sends requests to one gateway."""

    def __init__(self, session: aiohttp.ClientSession, gateway: str, key: str) -> None:
        """`gateway`: the URL, with or without `/v1` at its end."""
        self._session = session
        self._gateway = gateway.rstrip("/").removesuffix("/v1")
        self._key = key

    async def ask(self, case: Case, stop: asyncio.Event | None = None) -> Received:
        """Send one request and behave like the client of `case`. Sets `stop` when the gateway has to be killed."""
        received = Received()
        client = case.client
        leaves_s = IMPATIENCE_S if client.leaves_after == 0 else ANSWER_S_MAX
        try:
            async with asyncio.timeout(leaves_s), self._request(case) as answer:
                received.status = answer.status
                await _read(answer, case, received, stop)
        except TimeoutError:
            received.failure = "" if client.leaves_after == 0 else "timeout"
        except (aiohttp.ClientError, ConnectionError) as broken:
            received.failure = type(broken).__name__
        return received

    def _request(self, case: Case) -> aiohttp.client._RequestContextManager:
        client = case.client
        return self._session.post(
            self._gateway + case.wire.target(case.model, streams=client.streams),
            json=case.wire.request(case.model, streams=client.streams, include_usage=client.include_usage),
            headers=case.wire.credentials(self._key),
            allow_redirects=False,
        )

    async def listens(self) -> bool:
        """True if the gateway answers any request."""
        with suppress(aiohttp.ClientError, TimeoutError, ConnectionError):
            url, headers = f"{self._gateway}/v1/models", CHAT.credentials(self._key)
            async with asyncio.timeout(1), self._session.get(url, headers=headers, allow_redirects=False):
                return True
        return False


async def _read(answer: aiohttp.ClientResponse, case: Case, received: Received, stop: asyncio.Event | None) -> None:
    """Read to the end, or until the client has to disconnect."""
    began_s = 0.0
    async for piece in answer.content.iter_any():
        now_s = time.monotonic()
        began_s = began_s or now_s
        received.body += piece
        if len(received.body) > BODY_BYTES_MAX:
            received.failure = "endless answer"
            answer.close()
            return
        received.took_s = now_s - began_s
        events = max(map(received.body.count, _EVENT_MARKS))
        if stop is not None and events >= (case.kills_after or 0):
            stop.set()
        if case.client.leaves_after and events >= case.client.leaves_after:
            answer.close()
            return


def session() -> aiohttp.ClientSession:
    """HTTP session of a run. A connection is closed after each answer, because a kill of the gateway breaks it."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(force_close=True, limit=0),
        timeout=aiohttp.ClientTimeout(total=None),
        headers={"Accept-Encoding": "identity"},
        read_bufsize=2**20,
    )
