"""Access tokens of Google, by google-auth. Needs the extra `vertex`.

Invariants: a token is renewed some minutes before it expires. Requests go only to Google's servers and to those that
the operator's credentials name, and their certificates are verified.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import UTC
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import google.auth
from google.auth import exceptions
from google.oauth2 import credentials as user
from google.oauth2 import service_account

from proxy.foundation.tls import client_context
from proxy.gateway.upstream.cloud.fetched import Fetched, Lasting
from proxy.settings import SettingsError
from proxy.settings.cloud_auth import GoogleAuthSettings

_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
# A token lasts an hour. It is renewed before it expires, and not used in its last seconds, which a request may take.
_RENEW_S, _UNUSED_S = 300.0, 30.0
# The timeout of a server that issues tokens.
_ANSWER_S_MAX = 10.0
_ANSWER_BYTES_MAX = 1 << 20


class GoogleAuthorization:
    """The access tokens of one provider."""

    def __init__(self, settings: GoogleAuthSettings, provider: str) -> None:
        """Raises SettingsError if the file cannot be used."""
        self._request = _Transport()
        file = settings.credentials_file
        self._found = None if file is None else _in_file(file, provider)
        self._tokens = Fetched(self._fetch, f"Google credentials of provider {provider}")

    async def authorized(self, request: bytes, *_rest: bytes) -> bytes:
        """The request with a token. Raises CredentialFailedError."""
        _, added = await self._tokens.get()
        line, _, after = request.partition(b"\r\n")
        return b"%b\r\n%b%b" % (line, added, after)

    def is_revealed_by(self, body: bytes) -> bool:
        """True if `body` contains the token."""
        return (kept := self._tokens.last) is not None and kept[0] in body

    def _fetch(self) -> Lasting[tuple[bytes, bytes]]:
        """A new token, and its headers. Blocks. Raises any exception of google-auth."""
        if self._found is None:
            self._found, _ = google.auth.default(scopes=_SCOPES, request=self._request)
        found = self._found
        found.refresh(self._request)
        headers: dict[str, str] = {}
        found.apply(headers)
        lines = "".join(f"{name.title()}: {value}\r\n" for name, value in headers.items())
        ends_at = time.time() + 2 * _RENEW_S
        if found.expiry is not None:
            ends_at = found.expiry.replace(tzinfo=UTC).timestamp()
        return Lasting((str(found.token).encode(), lines.encode("latin-1")), ends_at - _RENEW_S, ends_at - _UNUSED_S)


def _in_file(file: Path, provider: str) -> Any:
    """The credentials in `file`. Raises SettingsError, which quotes nothing of the file."""
    field = f"providers.{provider}.auth.google.credentials_file"
    try:
        info = json.loads(file.read_text("utf-8"))
        kind = info["type"]
        if kind == "service_account":
            return service_account.Credentials.from_service_account_info(info, scopes=_SCOPES)
        if kind == "authorized_user":
            return user.Credentials.from_authorized_user_info(info, _SCOPES)
    except OSError as failure:
        raise SettingsError(f"{field}: cannot be read: {failure.strerror}") from None
    except (ValueError, KeyError, TypeError, exceptions.GoogleAuthError):
        raise SettingsError(f"{field}: has no Google credentials in JSON") from None
    raise SettingsError(
        f"{field}: must be a service account's key or a user's credentials; for other kinds, name the file in "
        f"GOOGLE_APPLICATION_CREDENTIALS instead"
    )


class _Answer(NamedTuple):
    """The response of a server that issues tokens."""

    status: int
    headers: Mapping[str, str]
    data: bytes


class _Transport:
    """Google-auth's transport to servers that issue tokens. Uses the standard library, which trusts the certificates of
    the system, as the proxy does."""

    def __init__(self) -> None:
        self._tls = client_context()

    def __call__(
        self,
        url: str,
        method: str = "GET",
        body: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        **_more: Any,
    ) -> _Answer:
        """Send a request. Raises TransportError."""
        if not url.startswith(("http://", "https://")):
            raise exceptions.TransportError("not a URL of http")
        content = body.encode() if isinstance(body, str) else body
        request = Request(url, content, dict(headers or {}), method=method)  # noqa: S310  http or https
        try:
            with urlopen(request, timeout=timeout or _ANSWER_S_MAX, context=self._tls) as answer:  # noqa: S310
                return _Answer(answer.status, dict(answer.headers), answer.read(_ANSWER_BYTES_MAX))
        except HTTPError as refused:
            with refused:
                return _Answer(refused.code, dict(refused.headers), refused.read(_ANSWER_BYTES_MAX))
        except (OSError, ValueError) as failure:
            raise exceptions.TransportError(type(failure).__name__) from failure
