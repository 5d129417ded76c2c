"""Authentication of console requests.

Invariants:
- Every request carries the admin secret or an active key in a header. There are no cookies, hence no CSRF.
- A wrong credential counts towards the rate limit of failed sign-ins.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

from aiohttp import web

from proxy.billing.keys import ApiKey
from proxy.foundation.secret import Secret
from proxy.http import errors
from proxy.http.credentials import presented
from proxy.http.errors import ApiError
from proxy.keys.keyring import Keyring
from proxy.keys.secrets import parse

ADMIN = "admin"
"""the operator's name in the audit log"""


@dataclass(frozen=True, slots=True)
class ConsoleSession:
    """An authenticated caller; `key` is None for the operator."""

    key: ApiKey | None
    address: str | None

    @property
    def actor(self) -> str:
        """The caller's name in the audit log."""
        return ADMIN if self.key is None else self.key.key_id

    def may_see(self, key_id: str) -> bool:
        """True if the caller may see the data of this key."""
        return self.key is None or self.key.key_id == key_id


class Sessions:
    """Authenticates requests."""

    def __init__(self, keyring: Keyring, secret: Secret | None) -> None:
        """`secret`: the admin secret; with None, only keys can sign in."""
        self._keyring = keyring
        self._digest = None if secret is None else _digest(secret.reveal())

    async def of(self, request: web.BaseRequest) -> ConsoleSession:
        """The caller. Raises ApiError 401, or 429 after too many failed sign-ins."""
        text = presented(request, parse)
        # Digests have one length, so the comparison time does not reveal the length of the secret.
        if text and self._digest is not None and hmac.compare_digest(_digest(text), self._digest):
            return ConsoleSession(None, request.remote)
        key = await self._keyring.key(text, request.remote)
        if isinstance(key, str):
            raise self._refusal(key)
        return ConsoleSession(key, request.remote)

    def _refusal(self, reason: str) -> ApiError:
        refusal = errors.key_refused(reason)
        if refusal.code != "invalid_api_key":
            return refusal
        none = "" if self._digest is not None else " No admin secret is set (admin.secret)."
        message = (
            f"Sign in with the admin secret, or with an API key for its own data: 'Authorization: Bearer …'.{none}"
        )
        return ApiError(401, message, kind="authentication_error", code=refusal.code)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def operator_only() -> ApiError:
    """403: the route is for the operator only."""
    message = "Only the operator may do this; sign in with the admin secret."
    return ApiError(403, message, kind="permission_error", code="operator_only")
