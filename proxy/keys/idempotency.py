"""Requests that come twice: whoever says that two are the same, by an `Idempotency-Key`, is billed for one.

Law: a name is claimed atomically, by one exchange; it is that exchange's until it is forgotten, or until it turns out
that nothing was billed. What is kept holds neither the client's token nor its request, only digests; an answer only
where the operator wants it, and encrypted.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from msgspec import structs

from proxy.billing.idempotency_record import IdempotencyRecord

_NONCE_BYTES = 12


class ClaimsUnavailable(OSError):  # noqa: N818  a state of the world, named like its siblings
    """Nobody can say whether this request came before."""


class ClaimStore(Protocol):
    """Who has which name. Every method raises ClaimsUnavailable."""

    async def claim(self, name: str, body: str, exchange_id: str) -> IdempotencyRecord | None:
        """Take the name, or say who has it (its answer sealed). The same exchange may ask again."""

    async def end(self, name: str, exchange_id: str, answer: bytes | None) -> None:
        """The exchange has ended, with this (sealed) answer if it is kept."""

    async def release(self, name: str, exchange_id: str) -> None:
        """Nothing was billed: the name is free."""

    async def aclose(self) -> None:
        """Let go of what it holds open. Never raises."""


def name_of(key_id: str, token: str) -> str:
    """Under which a request is remembered: another key's token is another name. 32 hex digits."""
    return hashlib.blake2b(f"{key_id}\0{token}".encode(), digest_size=16).hexdigest()


def body_of(body: bytes) -> str:
    """What tells one request from another. 32 hex digits."""
    return hashlib.blake2b(body, digest_size=16).hexdigest()


class Seal:
    """Answers, unreadable to whoever has the store: AES-256-GCM under a key made of the pepper."""

    def __init__(self, pepper: bytes) -> None:
        self._cipher = AESGCM(hashlib.blake2b(key=pepper, person=b"tw-replay", digest_size=32).digest())

    def seal(self, name: str, answer: bytes) -> bytes:
        """Bound to its name: in another's place it cannot be read."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, answer, name.encode())

    def open(self, name: str, sealed: bytes) -> bytes | None:
        """None: it is not ours, or not of this name."""
        try:
            return self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], name.encode())
        except (InvalidTag, ValueError):
            return None


class Claims:
    """The claims of this node's requests."""

    def __init__(
        self, store: ClaimStore, *, pepper: bytes, answer_bytes_max: int, on_failure: Callable[[OSError], None]
    ) -> None:
        """`answer_bytes_max`: longest answer that is kept; 0: none is. `on_failure`: what could not be written."""
        self.answer_bytes_max = answer_bytes_max
        self._store = store
        self._seal = Seal(pepper)
        self._on_failure = on_failure

    async def claim(self, key_id: str, token: str, body: bytes, exchange_id: str) -> IdempotencyRecord | None:
        """Take this request, or say who has it, with the answer in clear. Raises ClaimsUnavailable."""
        name = name_of(key_id, token)
        earlier = await self._store.claim(name, body_of(body), exchange_id)
        if earlier is None or earlier.answer is None:
            return earlier
        return structs.replace(earlier, answer=self._seal.open(name, earlier.answer))

    async def end(self, key_id: str, token: str, exchange_id: str, *, billed: bool, answer: bytes | None) -> None:
        """The exchange has ended. Never raises: until the claim is forgotten, it is then taken for running."""
        name = name_of(key_id, token)
        try:
            if billed:
                await self._store.end(name, exchange_id, None if answer is None else self._seal.seal(name, answer))
            else:
                await self._store.release(name, exchange_id)
        except ClaimsUnavailable as error:
            self._on_failure(error)

    async def aclose(self) -> None:
        """Let go of the store."""
        await self._store.aclose()
