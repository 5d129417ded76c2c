"""Who asks the console. Law: the operator's secret or a live key, in a header, at every request; there are no cookies
that another site could make a browser send. What is neither is counted as a guess.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web

from proxy.billing.keys import ApiKey
from proxy.foundation.secret import Secret
from proxy.http import errors
from proxy.http.credentials import presented
from proxy.http.errors import ApiError

ADMIN = "admin"
"""whoever has the secret of the settings, in the list of acts"""


class Keys(Protocol):
    """The keyring, as the console sees it."""

    async def key(self, presented: str | None, address: str | None = None) -> ApiKey | str:
        """The key, or why it is refused."""


@dataclass(frozen=True, slots=True)
class Session:
    """Who it is. `key` None: the operator."""

    key: ApiKey | None
    address: str | None

    @property
    def actor(self) -> str:
        """As the list of acts names them."""
        return ADMIN if self.key is None else self.key.key_id

    def may_see(self, key_id: str) -> bool:
        """True if what is of this key is for them."""
        return self.key is None or self.key.key_id == key_id


class Sessions:
    """Tells who asks."""

    def __init__(self, keys: Keys, secret: Secret | None) -> None:
        """`secret` None: only keys can sign in."""
        self._keys = keys
        self._digest = None if secret is None else _digest(secret.reveal())

    async def of(self, request: web.BaseRequest) -> Session:
        """Raises ApiError 401, and 429 for who guesses."""
        text = presented(request)
        # Digests are compared: all of one length, so that time tells nothing of the secret's.
        if text and self._digest is not None and hmac.compare_digest(_digest(text), self._digest):
            return Session(None, request.remote)
        key = await self._keys.key(text, request.remote)
        if isinstance(key, str):
            raise errors.key_refused(key)
        return Session(key, request.remote)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def operator_only() -> ApiError:
    """403: a key has signed in where only the operator may."""
    message = "This is for the operator: a key may not."
    return ApiError(403, message, kind="permission_error", code="operator_only")
