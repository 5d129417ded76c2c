"""Accepts and authenticates requests. Invariant: every route for clients authenticates here, and nowhere else."""

from __future__ import annotations

from aiohttp import web

from proxy.billing.keys import ApiKey
from proxy.http import errors
from proxy.http.credentials import is_signature, presented
from proxy.identity.tokens import JWT_START
from proxy.keys.keyring import Keyring
from proxy.keys.secrets import parse


class Accepting:
    """Whether a process accepts new requests. One object for all its handlers, which `check` it first."""

    def __init__(self, reason: str | None = None) -> None:
        self.reason = reason
        """why new requests are refused; None: they are accepted"""

    def check(self) -> None:
        """Raises ApiError if new requests are refused."""
        if self.reason is not None:
            raise errors.overloaded(self.reason, code="not_accepting")


async def authenticated(keys: Keyring, request: web.BaseRequest) -> ApiKey:
    """The key of the request. Raises ApiError if it has no valid key."""
    return await accepted(keys, presented(request, parse), request.remote)


async def accepted(keys: Keyring, secret: str | None, address: str | None) -> ApiKey:
    """The key with this secret, or of the identity with this token. Raises ApiError if it is not valid now."""
    if keys.tokens is not None and secret is not None and secret.startswith(JWT_START):
        key = await keys.tokens.key(secret, address)
    else:
        key = await keys.key(secret, address)
    if isinstance(key, str):
        raise errors.key_refused("signed" if secret is not None and is_signature(secret) else key)
    return key
