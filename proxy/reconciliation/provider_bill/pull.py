"""Pulls a provider's usage and costs by its admin key: the same lines that file.py reads from a file.

Invariants: the result is every page of every endpoint, or PullError. Requests, retries, pages, bytes and the whole
duration are bounded. No redirect is followed, so the key goes to one host only. An error has neither the key nor any
text of an answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from proxy import __version__
from proxy.foundation.times import retry_after_s
from proxy.reconciliation.provider_bill.admin_api import PullError, admin_api_of
from proxy.reconciliation.provider_bill.bill import DAY_S, BillEndpoint
from proxy.reconciliation.provider_bill.file import DAYS_MAX
from proxy.settings import ProviderSettings

# Longer than any of their cursors.
_CURSOR_CHARS_MAX = 4_096
_REDIRECTS = range(300, 400)
_TOO_MANY_REQUESTS = 429


@dataclass(frozen=True, slots=True)
class PullLimits:
    """The bounds of one pull."""

    request_s: float = 30.0
    pull_s: float = 600.0
    tries: int = 5
    """tries for one page, while the provider is overloaded or unreachable"""
    backoff_s: float = 1.0
    """wait before the second try; doubled for each further try"""
    wait_s: float = 60.0
    """the longest `Retry-After` that is waited for; a longer one ends the pull"""
    pages: int = 500
    page_bytes: int = 8 << 20
    pull_bytes: int = 64 << 20


LIMITS = PullLimits()


def whole_days(since: float | None, until: float | None, now: float) -> tuple[int, int]:
    """The whole days (UTC) from `since` to `until` that are over: Unix seconds, the end exclusive.

    Default: yesterday, or the day before `until`. Raises PullError if there is none, or too many.
    """
    end_s = int(min(now if until is None else until, now) // DAY_S) * DAY_S
    begin_s = end_s - DAY_S if since is None else int(-(-since // DAY_S)) * DAY_S
    if begin_s >= end_s:
        raise PullError("--since and --until: have no whole day (UTC) between them that is over")
    if end_s - begin_s > DAYS_MAX * DAY_S:
        raise PullError(f"--since and --until: must be at most {DAYS_MAX} days apart")
    return begin_s, end_s


async def pull(
    provider: ProviderSettings,
    begin_s: int,
    end_s: int,
    *,
    limits: PullLimits | None = None,
    unix_time: Callable[[], float] = time.time,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> bytes:
    """The pages of these days (Unix seconds, the end exclusive), one line each. Raises PullError."""
    bounds = limits or LIMITS
    if provider.admin_key is None:
        raise PullError(f"providers.{provider.name}.admin_key: is missing: usage and costs are pulled with it")
    api, url = admin_api_of(provider)
    headers = {"User-Agent": f"tokenweir/{__version__}", **api.headers(provider.admin_key.reveal())}
    timeout = aiohttp.ClientTimeout(total=bounds.request_s)
    try:
        async with (
            asyncio.timeout(bounds.pull_s),
            aiohttp.ClientSession(headers=headers, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session,
        ):
            pages = _Pages(session, f"{url}/", f"providers.{provider.name}", bounds, unix_time, sleep)
            lines = [
                _line(endpoint, begin_s, end_s, page)
                for endpoint in api.endpoints
                async for page in pages.of(endpoint.path, api.query(endpoint, begin_s, end_s))
            ]
    except TimeoutError:
        raise PullError(f"providers.{provider.name}: the pull took longer than {bounds.pull_s:g} s") from None
    return b"".join(lines)


def _line(endpoint: BillEndpoint, begin_s: int, end_s: int, page: bytes) -> bytes:
    compact = msgspec.Raw(msgspec.json.format(page, indent=-1))
    return msgspec.json.encode({"path": endpoint.path, "begin_s": begin_s, "end_s": end_s, "page": compact}) + b"\n"


@dataclass(frozen=True, slots=True)
class _Retry:
    """A failed try that will be repeated."""

    why: str
    wait_s: float = 0.0
    """the `Retry-After` of the provider"""


@dataclass(slots=True)
class _Pages:
    """Requests pages, within the bounds of the whole pull."""

    session: aiohttp.ClientSession
    url: str
    setting: str
    limits: PullLimits
    unix_time: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]
    requested: int = 0
    received: int = 0
    """bytes"""

    async def of(self, path: str, query: Sequence[tuple[str, str]]) -> AsyncIterator[bytes]:
        """The pages of one endpoint, checked to be pages. Raises PullError."""
        cursor, seen = None, set[str]()
        while True:
            page = await self._get(path, query if cursor is None else [*query, ("page", cursor)])
            cursor = self._next_page(path, page)
            yield page
            if cursor is None:
                return
            if cursor in seen:
                raise self._error(path, "repeats a next_page: its pages would never end")
            seen.add(cursor)

    async def _get(self, path: str, query: Sequence[tuple[str, str]]) -> bytes:
        """One page. Raises PullError."""
        self.requested += 1
        if self.requested > self.limits.pages:
            raise self._error(path, f"more than {self.limits.pages} pages: pull a shorter period")
        number = 1
        while isinstance(answer := await self._try(path, query), _Retry):
            if answer.wait_s > self.limits.wait_s:
                raise self._error(path, f"{answer.why}, to be repeated in {answer.wait_s:.0f} s")
            if number == self.limits.tries:
                raise self._error(path, f"{answer.why}, after {number} tries")
            await self.sleep(max(answer.wait_s, self.limits.backoff_s * 2 ** (number - 1)))
            number += 1
        return answer

    async def _try(self, path: str, query: Sequence[tuple[str, str]]) -> bytes | _Retry:
        try:
            async with self.session.get(self.url + path, params=query, allow_redirects=False) as answer:
                if answer.status == 200:
                    return await self._body(path, answer)
                if answer.status != _TOO_MANY_REQUESTS and answer.status < 500:
                    raise self._error(path, self._refusal(answer.status))
                wait_s = retry_after_s(answer.headers.get("Retry-After", ""), self.unix_time())
                return _Retry(f"HTTP {answer.status}", wait_s or 0.0)
        except TimeoutError:
            return _Retry(f"no whole answer within {self.limits.request_s:g} s")
        except aiohttp.ClientPayloadError:
            return _Retry("the answer was cut off")
        except (aiohttp.ClientError, OSError) as failure:
            return _Retry(f"no answer ({type(failure).__name__})")

    async def _body(self, path: str, answer: aiohttp.ClientResponse) -> bytes:
        content = bytearray()
        async for piece in answer.content.iter_any():
            content += piece
            if len(content) > self.limits.page_bytes:
                raise self._error(path, f"a page of more than {self.limits.page_bytes} bytes: pull a shorter period")
        self.received += len(content)
        if self.received > self.limits.pull_bytes:
            raise self._error(path, f"more than {self.limits.pull_bytes} bytes in all: pull a shorter period")
        return bytes(content)

    def _next_page(self, path: str, content: bytes) -> str | None:
        """The cursor of the next page; None: this is the last one. Raises PullError if this is no page."""
        page = self._decoded(path, content)
        more, cursor = page.get("has_more"), page.get("next_page")
        if not isinstance(page.get("data"), list) or not isinstance(more, bool):
            raise self._error(path, "the answer is not a page with data and has_more")
        if not more:
            return None
        if not isinstance(cursor, str) or not 0 < len(cursor) <= _CURSOR_CHARS_MAX:
            raise self._error(path, "has more pages, but no next_page")
        return cursor

    def _decoded(self, path: str, content: bytes) -> Mapping[str, Any]:
        try:
            return msgspec.json.decode(content, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError, ValueError):
            what = "HTML" if content.lstrip()[:1] == b"<" else "not a JSON object"
            raise self._error(path, f"the answer is {what}: check {self.setting}.admin_url") from None

    def _refusal(self, status: int) -> str:
        if status in _REDIRECTS:
            return f"HTTP {status}, a redirect, which is not followed: check {self.setting}.admin_url"
        hint = {
            401: f": {self.setting}.admin_key is not accepted; it must be an admin key, not an API key",
            403: f": {self.setting}.admin_key has no permission to read usage and costs",
            404: f": check {self.setting}.admin_url",
        }
        return f"HTTP {status}{hint.get(status, '')}"

    def _error(self, path: str, why: str) -> PullError:
        return PullError(f"{self.setting}: {path}: {why}")
