"""Authenticates a client's request. Invariant: every route for clients asks here, and nowhere else."""

from __future__ import annotations

from typing import Protocol

from aiohttp import web

from proxy.billing.keys import ApiKey
from proxy.billing.limits import Scope
from proxy.billing.pricing.rules import Payer
from proxy.http import errors
from proxy.http.credentials import is_signature, presented
from proxy.keys.secrets import parse


class Authenticator(Protocol):
    """Checks API keys: the keyring."""

    async def key(self, presented: str | None, address: str | None = None) -> ApiKey | str:
        """The key, or the reason for its refusal: missing, malformed, unknown, expired, revoked, blocked, too_many."""

    def scopes(self, key: ApiKey) -> tuple[Scope, ...]:
        """The levels that limit it."""

    def payer(self, key: ApiKey) -> Payer:
        """The key and its accounts."""

    def tells_cost(self, key: ApiKey) -> bool:
        """True if all answers tell what they cost."""


async def authenticated(keys: Authenticator, request: web.BaseRequest) -> ApiKey:
    """The key of the request. Raises ApiError if there is none that is accepted."""
    return await accepted(keys, presented(request, parse), request.remote)


async def accepted(keys: Authenticator, secret: str | None, address: str | None) -> ApiKey:
    """The key with this secret, as it is now. Raises ApiError if it is not accepted."""
    key = await keys.key(secret, address)
    if isinstance(key, str):
        raise errors.key_refused("signed" if secret is not None and is_signature(secret) else key)
    return key
