"""Documents of an identity provider: fetched by HTTPS, decoded, and kept for a while.

Invariants: a request takes at most ANSWER_S, its answer at most ANSWER_BYTES_MAX. No redirect is followed, no cookie
kept, no compression accepted. An error names the URL without its query and quotes nothing of the answer.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import aiohttp
import msgspec

from proxy.foundation.addresses import is_tls_or_loopback
from proxy.foundation.secret import Secret
from proxy.foundation.tls import TlsFileError, client_context
from proxy.settings.faults import SettingsError
from proxy.settings.outbound import OutboundSettings

ANSWER_S = 10.0
# Configurations and key sets have up to 50 kB; this much is decoded in a few milliseconds.
ANSWER_BYTES_MAX = 256 << 10
# A document is fetched again after so long, or when it lacks what is looked for, but not more often than every RETRY_S.
FRESH_S = 600.0
RETRY_S = 10.0
# While its server is down, the last one is used for so long.
STALE_S = 86_400.0

_T = TypeVar("_T")


class IdentityProviderError(OSError):
    """The identity provider does not answer, or not as it must. The message is for the operator."""


@dataclass(frozen=True, slots=True)
class DocumentClient:
    """Fetches documents."""

    tls: ssl.SSLContext
    proxy_url: str | None = None
    proxy_credentials: Secret | None = None
    """`user:password`"""
    answer_s: float = ANSWER_S

    async def get(self, url: str) -> Any:
        """The JSON document at this URL. Raises IdentityProviderError."""
        status, document = await self._ask("GET", url, None, {})
        if status != 200:
            raise IdentityProviderError(f"{shown(url)}: answers {status}")
        return document

    async def post(self, url: str, form: Mapping[str, str], headers: Mapping[str, str]) -> tuple[int, Any]:
        """Status and JSON document of the answer. Raises IdentityProviderError."""
        return await self._ask("POST", url, form, headers)

    async def _ask(
        self, method: str, url: str, form: Mapping[str, str] | None, headers: Mapping[str, str]
    ) -> tuple[int, Any]:
        if not _is_safe(url):
            raise IdentityProviderError(f"{shown(url)}: is not https://")
        try:
            async with asyncio.timeout(self.answer_s):
                status, content = await self._answer(method, url, form, headers)
        except TimeoutError:
            raise IdentityProviderError(f"{shown(url)}: does not answer within {self.answer_s:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as failure:
            if isinstance(failure, IdentityProviderError):
                raise
            raise IdentityProviderError(f"{shown(url)}: {_reason(failure)}") from None
        try:
            return status, msgspec.json.decode(content)
        except (msgspec.DecodeError, RecursionError, ValueError):
            raise IdentityProviderError(f"{shown(url)}: answers {status} without a JSON document") from None

    async def _answer(
        self, method: str, url: str, form: Mapping[str, str] | None, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        sent = {"User-Agent": "tokenweir", "Accept": "application/json", "Accept-Encoding": "identity", **headers}
        to_proxy = {}
        if self.proxy_credentials is not None:
            to_proxy["Proxy-Authorization"] = f"Basic {b64encode(self.proxy_credentials.reveal().encode()).decode()}"
        async with (
            # One connection for one request: sign-ins are rare, and nothing stays open.
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=self.tls, force_close=True),
                cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False,
            ) as session,
            session.request(
                method, url, data=form, headers=sent, allow_redirects=False,
                proxy=self.proxy_url, proxy_headers=to_proxy,
            ) as answer,
        ):  # fmt: skip
            if 300 <= answer.status < 400:
                raise IdentityProviderError(f"{shown(url)}: answers {answer.status}, a redirect, which is not followed")
            if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
                raise IdentityProviderError(f"{shown(url)}: answers compressed, although the request did not allow it")
            content = bytearray()
            async for piece in answer.content.iter_any():
                content += piece
                if len(content) > ANSWER_BYTES_MAX:
                    raise IdentityProviderError(f"{shown(url)}: answers more than {ANSWER_BYTES_MAX >> 10} KiB")
            return answer.status, bytes(content)


def document_client(reached: OutboundSettings, path: str) -> DocumentClient:
    """The client for a server that is reached so. `path`: of the settings. Raises SettingsError for a certificate's
    file."""
    try:
        tls = client_context(reached.tls.ca_file, reached.tls.cert_file, reached.tls.key_file)
    except TlsFileError as wrong:
        raise SettingsError(f"{path}.tls.{wrong}") from None
    proxy = reached.proxy
    return DocumentClient(tls) if proxy is None else DocumentClient(tls, proxy.url, proxy.credentials)


class KeptDocument(Generic[_T]):
    """A document that is fetched when it is needed, by one caller at a time, and kept."""

    def __init__(self, fetch: Callable[[], Awaitable[_T]], *, clock: Callable[[], float] = time.monotonic) -> None:
        """`fetch`: raises IdentityProviderError. `clock`: seconds."""
        self._fetch = fetch
        self._clock = clock
        self._lock = asyncio.Lock()
        self._value: _T | None = None
        self._fetched_at = float("-inf")
        self._retry_at = float("-inf")
        self._failure: IdentityProviderError | None = None

    async def value(self, suffices: Callable[[_T], bool] = lambda _: True) -> _T:
        """The document: a fresh one that suffices, or else the newest. Raises IdentityProviderError if there is none
        younger than STALE_S."""
        if not self._is_enough(suffices):
            async with self._lock:
                if not self._is_enough(suffices) and self._clock() >= self._retry_at:
                    await self._renew()
        newest = self.newest
        if newest is None:
            raise self._failure or IdentityProviderError("was not fetched")
        return newest

    async def renew(self) -> None:
        """Fetch the document now. Raises IdentityProviderError."""
        async with self._lock:
            await self._renew()
        if self._failure is not None:
            raise self._failure

    @property
    def newest(self) -> _T | None:
        """The last one that was fetched; None if there is none younger than STALE_S."""
        return self._value if self._clock() < self._fetched_at + STALE_S else None

    def _is_enough(self, suffices: Callable[[_T], bool]) -> bool:
        return self._value is not None and self._clock() < self._fetched_at + FRESH_S and suffices(self._value)

    async def _renew(self) -> None:
        self._retry_at = self._clock() + RETRY_S
        try:
            self._value = await self._fetch()
        except IdentityProviderError as failure:
            self._failure, self._retry_at = failure, self._clock() + RETRY_S
        except BaseException:  # cancelled, because its caller left: the next caller may fetch at once
            self._retry_at = float("-inf")
            raise
        else:
            self._fetched_at, self._failure = self._clock(), None


def shown(url: str) -> str:
    """The URL without its query, at most 200 characters."""
    text = url.partition("?")[0][:200]
    return text if text.isprintable() else "its address"


def _is_safe(url: str) -> bool:
    try:
        return is_tls_or_loopback(url)
    except ValueError:
        return False


def _reason(failure: Exception) -> str:
    if isinstance(failure, aiohttp.ClientConnectorCertificateError):
        return "its certificate cannot be verified"
    if isinstance(failure, aiohttp.ClientHttpProxyError):
        return f"the HTTP proxy answers {failure.status}"
    if isinstance(failure, aiohttp.ClientProxyConnectionError):
        return f"the HTTP proxy cannot be reached: {failure.strerror or type(failure).__name__}"
    if isinstance(failure, aiohttp.ClientConnectorError):
        return f"cannot be reached: {failure.strerror or type(failure).__name__}"
    return f"answers no valid HTTP ({type(failure).__name__})"
