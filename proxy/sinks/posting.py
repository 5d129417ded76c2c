"""HTTP POST to an external server.

Invariants:
- A request has a timeout, follows no redirect, and reads at most ANSWER_BYTES_MAX of the answer.
- The text of a failure contains neither the URL nor anything from the answer.
"""

from __future__ import annotations

from collections.abc import Mapping

import aiohttp

from proxy import __version__
from proxy.foundation.times import retry_after_s
from proxy.sinks.format import PostResult

# Enough for Lago's error report on a batch of a hundred events.
ANSWER_BYTES_MAX = 256 * 1024
# Upper bound for a server's `Retry-After`.
RETRY_AFTER_S_MAX = 3_600.0


def open_session(answer_s: float) -> aiohttp.ClientSession:
    """A session for a few POSTs with a timeout of `answer_s` each."""
    timeout = aiohttp.ClientTimeout(total=answer_s)
    return aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())


async def post(
    session: aiohttp.ClientSession, url: str, body: bytes, headers: Mapping[str, str], *, unix_s: float
) -> PostResult:
    """Sends one POST. A failure of the server or the network is returned, not raised."""
    sent = {"User-Agent": f"tokenweir/{__version__}", "Content-Type": "application/json", **headers}
    try:
        async with session.post(url, data=body, headers=sent, allow_redirects=False) as answer:
            content = await _beginning(answer)
            wait_s = bounded_retry_after_s(answer.headers.get("Retry-After"), unix_s)
            return PostResult(answer.status, f"HTTP {answer.status}", content, wait_s)
    except (aiohttp.ClientError, OSError, ValueError) as error:  # a TimeoutError is an OSError
        return PostResult(None, type(error).__name__)


async def _beginning(answer: aiohttp.ClientResponse) -> bytes:
    """The first ANSWER_BYTES_MAX of the body."""
    content = bytearray()
    async for piece in answer.content.iter_any():
        content += piece
        if len(content) >= ANSWER_BYTES_MAX:
            break
    return bytes(content[:ANSWER_BYTES_MAX])


def bounded_retry_after_s(text: str | None, unix_s: float) -> float | None:
    """The header `Retry-After` → seconds from now, at most RETRY_AFTER_S_MAX; None if absent or invalid."""
    wait_s = None if text is None else retry_after_s(text, unix_s)
    return None if wait_s is None else min(wait_s, RETRY_AFTER_S_MAX)
