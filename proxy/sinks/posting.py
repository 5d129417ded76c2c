"""One POST to somebody's server. Law: it is given a time, redirected nowhere, and read no further than a bound; words
of what failed hold no URL and nothing that the server said.

What is signed says so in its headers:

    X-Tokenweir-Id         what it is about: the same at every try
    X-Tokenweir-Timestamp  Unix seconds of this try
    X-Tokenweir-Signature  v1=hex(HMAC-SHA256(secret, timestamp + "." + body))
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime

import aiohttp
import msgspec

from proxy import __version__
from proxy.foundation.secret import Secret

# Enough for what Lago says of a hundred events.
ANSWER_BYTES_MAX = 256 * 1024
# A server that wants longer is asked again after this.
RETRY_AFTER_S_MAX = 3_600.0


class PostResult(msgspec.Struct, frozen=True):
    """What came of it."""

    status: int | None
    """None: nothing came"""
    why: str
    """in a word or two"""
    body: bytes = b""
    retry_after_s: float | None = None

    @property
    def arrived(self) -> bool:
        """True for any 2xx."""
        return self.status is not None and 200 <= self.status < 300


def open_session(answer_s: float) -> aiohttp.ClientSession:
    """For some POSTs of `answer_s` each, at most."""
    timeout = aiohttp.ClientTimeout(total=answer_s)
    return aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())


async def post(
    session: aiohttp.ClientSession, url: str, body: bytes, headers: Mapping[str, str], *, unix_s: float
) -> PostResult:
    """Never raises for what a server does."""
    sent = {"User-Agent": f"tokenweir/{__version__}", "Content-Type": "application/json", **headers}
    try:
        async with session.post(url, data=body, headers=sent, allow_redirects=False) as answer:
            said = await _beginning(answer)
            wait_s = retry_after_s(answer.headers.get("Retry-After"), unix_s)
            return PostResult(answer.status, f"HTTP {answer.status}", said, wait_s)
    except (aiohttp.ClientError, OSError, ValueError) as error:  # a TimeoutError is an OSError
        return PostResult(None, type(error).__name__)


async def _beginning(answer: aiohttp.ClientResponse) -> bytes:
    """All of a body, or as much of it as matters."""
    said = bytearray()
    async for piece in answer.content.iter_any():
        said += piece
        if len(said) >= ANSWER_BYTES_MAX:
            break
    return bytes(said[:ANSWER_BYTES_MAX])


def signed(secret: Secret, about: str, body: bytes, unix_s: float) -> dict[str, str]:
    """The headers of a signed message."""
    timestamp = str(int(unix_s))
    return {
        "X-Tokenweir-Id": about,
        "X-Tokenweir-Timestamp": timestamp,
        "X-Tokenweir-Signature": signature(secret, timestamp, body),
    }


def signature(secret: Secret, timestamp: str, body: bytes) -> str:
    """What shows that a message is ours, and when it was sent."""
    made = hmac.new(secret.reveal().encode(), timestamp.encode() + b"." + body, hashlib.sha256)
    return f"v1={made.hexdigest()}"


def retry_after_s(text: str | None, unix_s: float) -> float | None:
    """The header `Retry-After`, seconds or a date → seconds from now; None where it says nothing."""
    if text is None:
        return None
    try:
        moment = parsedate_to_datetime(text)
        wait_s = moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() - unix_s
    except (ValueError, OverflowError):
        wait_s = float(text) if text.isascii() and text.isdecimal() else -1.0
    return None if wait_s < 0 else min(wait_s, RETRY_AFTER_S_MAX)
