"""Accepts and authenticates requests.

Invariants: every route for clients authenticates here, and nowhere else. A client's own provider credential is accepted
only with a key that is marked for it, and such a key never gets the operator's credential.
"""

from __future__ import annotations

from aiohttp import web

from proxy.billing.keys import ApiKey
from proxy.http import errors
from proxy.http.credentials import ProviderCredential, is_signature, presented, provider_credential
from proxy.http.errors import AboutRequest
from proxy.http.headers import PROVIDER_KEY_HEADER
from proxy.identity.tokens import JWT_START
from proxy.keys.access import NOT_USABLE
from proxy.keys.keyring import Keyring
from proxy.keys.secrets import PREFIX, is_ours


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
    key = await accepted(keys, presented(request, is_ours), request.remote)
    if PROVIDER_KEY_HEADER in request.headers and key.byok is None:
        raise errors.byok_not_allowed()
    return key


def own_credential(request: web.BaseRequest) -> ProviderCredential:
    """The client's own provider credential. Raises ApiError if it is missing or not valid."""
    credential = provider_credential(request, is_ours)
    if credential is None:
        raise errors.byok_missing()
    return credential


def refuse_byok(key: ApiKey, what: str) -> None:
    """Raises ApiError if the key is for clients with their own credential. `what`: the subject of the message."""
    if key.byok is not None:
        raise errors.byok_unsupported(what)


async def accepted(keys: Keyring, secret: str | None, address: str | None) -> ApiKey:
    """The key with this secret, what this narrowed key may do, or the key of the identity with this token. Raises
    ApiError if it is not valid now."""
    if secret is not None and secret.startswith(PREFIX) and "." in secret:
        key = await keys.narrowed_key(secret, address)
    elif keys.tokens is not None and secret is not None and secret.startswith(JWT_START):
        key = await keys.tokens.key(secret, address)
    else:
        key = await keys.key(secret, address)
    if isinstance(key, str):
        refusal = errors.key_refused("signed" if secret is not None and is_signature(secret) else key)
        refusal.about = about_key(keys.refused_key(secret) if key in NOT_USABLE else None)
        raise refusal
    return key


def about_key(key: ApiKey | None, endpoint: str | None = None, model: str | None = None) -> AboutRequest:
    """The facts about a request with this key that a refusal is recorded with. `key`: None: it is unknown."""
    key_id, alias = (None, None) if key is None else (key.key_id, key.alias)
    return AboutRequest(key_id, alias, endpoint, model)
