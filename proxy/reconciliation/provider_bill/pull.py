"""Pulls a provider's usage and costs by its admin key: the same lines that file.py reads from a file.

Invariants: the result is every page of every endpoint, or PullError. Requests, retries, pages, bytes and the whole
duration are bounded. No redirect is followed, so the key goes to one host only. An error has neither the key nor any
text of an answer. An address is derived only from the provider's own host, so that an admin key is never sent to a
gateway.

Sources: OpenAI's Administration API in openai/openai-openapi (`/organization/usage/*`, `/organization/costs`: at most
31 daily buckets a page, `group_by` repeated); Anthropic's Admin API reference, "Get Messages Usage Report" and "Get
Cost Report" on platform.claude.com (as many, `group_by[]`; grouping by speed needs a beta header). Both page by
`has_more` and `next_page`, which is sent back as `page`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from proxy import __version__
from proxy.foundation.times import retry_after_s
from proxy.reconciliation.provider_bill import anthropic, openai
from proxy.reconciliation.provider_bill.bill import DAY_S, BillEndpoint
from proxy.reconciliation.provider_bill.file import DAYS_MAX
from proxy.settings import ProviderSettings

# The most daily buckets that both return in one page; OpenAI's costs would allow 180.
_DAYS_A_PAGE = 31


class PullError(ValueError):
    """Nothing was pulled. The message names the setting to check, and has neither a key nor any text of an answer."""


@dataclass(frozen=True, slots=True)
class AdminApi:
    """One provider's API of usage and costs."""

    host: str
    family: str
    """the dialect family"""
    endpoints: tuple[BillEndpoint, ...]
    period: Callable[[int, int], Mapping[str, str]]
    """the query of a period: Unix seconds, the end exclusive"""
    group_by: str
    """the name of this field in the query"""
    headers: Callable[[str], Mapping[str, str]]
    """the headers with this admin key"""

    def query(self, endpoint: BillEndpoint, begin_s: int, end_s: int) -> list[tuple[str, str]]:
        """The query of the first page."""
        buckets = {**self.period(begin_s, end_s), "bucket_width": "1d", "limit": str(_DAYS_A_PAGE)}
        return [*buckets.items(), *((self.group_by, name) for name in endpoint.group_by)]


def _iso(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


ADMIN_APIS = (
    AdminApi(
        host="api.openai.com",
        family="openai",
        endpoints=openai.ENDPOINTS,
        period=lambda begin_s, end_s: {"start_time": str(begin_s), "end_time": str(end_s)},
        group_by="group_by",
        headers=lambda key: {"Authorization": f"Bearer {key}"},
    ),
    AdminApi(
        host="api.anthropic.com",
        family="anthropic",
        endpoints=anthropic.ENDPOINTS,
        period=lambda begin_s, end_s: {"starting_at": _iso(begin_s), "ending_at": _iso(end_s)},
        group_by="group_by[]",
        headers=lambda key: {
            "x-api-key": key,
            "anthropic-version": "2023-06-01",
            "anthropic-beta": "fast-mode-2026-02-01",
        },
    ),
)


def admin_api_of(provider: ProviderSettings) -> tuple[AdminApi, str]:
    """The API of this provider, and the URL that its endpoints' paths follow. Raises PullError."""
    url = provider.admin_url or provider.base_url
    host = urlsplit(url).hostname
    at_host = [api for api in ADMIN_APIS if api.host == host]
    if provider.admin_url is None and not at_host:
        hosts = " or ".join(api.host for api in ADMIN_APIS)
        raise PullError(f"providers.{provider.name}.admin_url: is missing: base_url is not at {hosts}")
    families = {name.partition(".")[0] for name in provider.dialects}
    possible = at_host or [api for api in ADMIN_APIS if api.family in families]
    if len(possible) != 1:
        either = " or ".join(api.family for api in ADMIN_APIS)
        raise PullError(f"providers.{provider.name}.dialects: must have either {either}: admin_url does not say which")
    return possible[0], url


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
