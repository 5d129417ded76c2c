"""The public keys of an issuer (a JSON Web Key Set), by which its tokens are verified.

Invariants: only asymmetric algorithms exist here. A key verifies only the algorithms of its type, its curve, and its
own `alg`; the token's header selects among the issuer's keys and brings none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from proxy.foundation.outage import Outage
from proxy.identity.documents import FRESH_S, RETRY_S, IdentityProviderError, KeptDocument

if TYPE_CHECKING:
    from jwt import PyJWK

ALGORITHMS: Mapping[str, tuple[str, str | None]] = {
    "RS256": ("RSA", None), "RS384": ("RSA", None), "RS512": ("RSA", None),
    "PS256": ("RSA", None), "PS384": ("RSA", None), "PS512": ("RSA", None),
    "ES256": ("EC", "P-256"), "ES384": ("EC", "P-384"), "ES512": ("EC", "P-521"), "EdDSA": ("OKP", "Ed25519"),
}  # fmt: skip
"""algorithm → type and curve of its keys"""

# Identity providers have two to ten keys.
KEYS_MAX = 100
# A modulus of 8,192 bits has 1,366 characters; larger ones only cost time.
_MEMBER_CHARS_MAX = 1_400
_EXPONENT_CHARS_MAX = 8

# The longest wait of a request for keys.
WAIT_S = 2.0

Jwk = Mapping[str, Any]


class IssuerKeys:
    """The keys, fetched when they are needed and kept; see `KeptDocument`."""

    def __init__(self, fetch: Callable[[], Awaitable[Any]], **options: Any) -> None:
        """`fetch`: the key set's document; raises IdentityProviderError. `options`: of `KeptDocument`."""

        async def keys() -> tuple[Jwk, ...]:
            return _keys(await fetch())

        self._kept = KeptDocument(keys, **options)

    async def check(self) -> None:
        """Fetch the keys. Raises IdentityProviderError."""
        await self._kept.value()

    async def of(self, key_id: str | None, algorithm: str) -> PyJWK | None:
        """The only key that the token can be signed with; None: there is none, or the token leaves it open. Raises
        IdentityProviderError."""
        keys = await self._kept.value(lambda kept: bool(_matching(kept, key_id, algorithm)))
        return _only(_matching(keys, key_id, algorithm), algorithm)

    def in_memory(self, key_id: str | None, algorithm: str) -> PyJWK | None:
        """See `of`; reads only the keys that were fetched last."""
        return _only(_matching(self._kept.newest or (), key_id, algorithm), algorithm)

    @property
    def has_any(self) -> bool:
        """Whether there are keys in memory."""
        return self._kept.newest is not None

    async def renew(self) -> None:
        """Fetch the keys now. Raises IdentityProviderError."""
        await self._kept.renew()


class FollowedKeys:
    """The keys of an issuer whose tokens come with requests. Only `run` fetches them, once for all
    requests. A request waits for a fetch only if its token names a key that is not in memory; then at most WAIT_S."""

    def __init__(self, keys: IssuerKeys, outage: Outage) -> None:
        self._keys = keys
        self._outage = outage
        self._wanted = asyncio.Event()
        self._fetched = asyncio.Event()
        """set and replaced at the end of each fetch"""
        self._may_wait = True
        """a fetch is running, or may begin now"""

    async def of(self, key_id: str | None, algorithm: str) -> PyJWK | None:
        """See `IssuerKeys.of`."""
        found = self._keys.in_memory(key_id, algorithm)
        if found is None and self._may_wait:
            self._wanted.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(WAIT_S):
                    await self._fetched.wait()
            found = self._keys.in_memory(key_id, algorithm)
        if found is None and (self._outage.lasts or not self._keys.has_any):
            raise IdentityProviderError("the issuer's keys cannot be fetched now")
        return found

    async def run(self) -> None:
        """Fetch until cancelled: every FRESH_S, or when a key is wanted that is not there; at most every RETRY_S."""
        while True:
            await self._outage.attempt(self._keys.renew, None)
            self._may_wait = False
            self._fetched.set()
            self._fetched = asyncio.Event()
            await asyncio.sleep(RETRY_S)
            self._wanted.clear()
            self._may_wait = True
            if not self._outage.lasts:
                with suppress(TimeoutError):
                    async with asyncio.timeout(FRESH_S):
                        await self._wanted.wait()


def _only(found: Sequence[Jwk], algorithm: str) -> PyJWK | None:
    if len(found) != 1:
        return None
    from jwt import PyJWK, PyJWTError  # 0.2 s, for those who use it

    try:
        return PyJWK(dict(found[0]), algorithm)
    except (PyJWTError, ValueError, TypeError):
        return None


def _keys(document: Any) -> tuple[Jwk, ...]:
    keys = document.get("keys") if isinstance(document, dict) else None
    usable = tuple(filter(_is_public, keys)) if isinstance(keys, list) and len(keys) <= KEYS_MAX else ()
    if not usable:
        raise IdentityProviderError("the identity provider's key set has no usable keys")
    return usable


def _is_public(key: Any) -> bool:
    """Whether it may verify signatures: a public key for them, of a size that cannot be used to waste time."""
    if not isinstance(key, dict) or "d" in key or key.get("use", "sig") != "sig":
        return False
    uses = key.get("key_ops", ["verify"])
    return (
        isinstance(uses, list)
        and "verify" in uses
        and all(len(key[name]) <= _MEMBER_CHARS_MAX for name in ("n", "x", "y") if isinstance(key.get(name), str))
        and len(str(key.get("e", ""))) <= _EXPONENT_CHARS_MAX
    )


def _matching(keys: Sequence[Jwk], key_id: str | None, algorithm: str) -> list[Jwk]:
    kind, curve = ALGORITHMS[algorithm]
    return [
        key
        for key in keys
        if key.get("kty") == kind
        and (curve is None or key.get("crv") == curve)
        and key.get("alg", algorithm) == algorithm
        and key_id in (None, key.get("kid"))
    ]
