"""Idempotency: of repeated requests with one `Idempotency-Key`, one is executed and billed.

Invariants: One exchange claims a name, atomically. It keeps the claim until the claim expires, or until the exchange
ends without a charge. A store has only digests of the client's token and of its request. It has responses only if the
operator enables this, and only encrypted.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from msgspec import Struct, structs

_NONCE_BYTES = 12


class ClaimsUnavailable(OSError):  # noqa: N818  named like the other `…Unavailable`
    """The claim store cannot be reached."""


class IdempotencyRecord(Struct, frozen=True, gc=False):
    """The exchange that claimed a name."""

    exchange_id: str
    same_body: bool
    ended: bool
    answer: bytes | None
    """the whole JSON response body, if it was stored"""


class ClaimStore(Protocol):
    """Claimed names. Every method but `aclose` raises ClaimsUnavailable."""

    async def claim(self, name: str, body: str, exchange_id: str) -> IdempotencyRecord | None:
        """Claim the name; None on success. Otherwise the record of the exchange that has the claim, with its sealed
        response. Idempotent."""

    async def end(self, name: str, exchange_id: str, answer: bytes | None) -> None:
        """Record the end of the exchange, with its sealed response if responses are stored."""

    async def release(self, name: str, exchange_id: str) -> None:
        """Delete the claim: nothing was billed."""

    async def aclose(self) -> None:
        """Close the store's connections and files. Never raises."""


def name_of(holder_id: str, token: str) -> str:
    """The name of a claim, 32 hex digits. A token that another key sends gives another name. `holder_id`: see
    `ApiKey`."""
    return hashlib.blake2b(f"{holder_id}\0{token}".encode(), digest_size=16).hexdigest()


def digest_of(pieces: Iterable[bytes | memoryview]) -> str:
    """Digest of a request, to detect a token that is reused for another one. 32 hex digits."""
    digest = hashlib.blake2b(digest_size=16)
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


class Seal:
    """Encryption of stored responses: AES-256-GCM with a key derived from the pepper."""

    def __init__(self, pepper: bytes) -> None:
        self._cipher = AESGCM(hashlib.blake2b(key=pepper, person=b"tw-replay", digest_size=32).digest())

    def seal(self, name: str, answer: bytes) -> bytes:
        """Encrypt a response; it can be decrypted only with its `name`."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, answer, name.encode())

    def open(self, name: str, sealed: bytes) -> bytes | None:
        """Decrypt a response; None: sealed with another pepper, or for another name."""
        try:
            return self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], name.encode())
        except (InvalidTag, ValueError):
            return None


class Claims:
    """Claims, with digests and encryption applied."""

    def __init__(
        self, store: ClaimStore, *, pepper: bytes, answer_bytes_max: int, on_failure: Callable[[OSError], None]
    ) -> None:
        """`answer_bytes_max`: the longest response to store; 0: none. `on_failure`: called when `end` fails."""
        self.answer_bytes_max = answer_bytes_max
        self._store = store
        self._seal = Seal(pepper)
        self._on_failure = on_failure

    async def claim(self, holder_id: str, token: str, digest: str, exchange_id: str) -> IdempotencyRecord | None:
        """Claim the token for the request with this digest; None on success. Otherwise the record of the exchange that
        has the claim, with its response decrypted. Raises ClaimsUnavailable."""
        name = name_of(holder_id, token)
        earlier = await self._store.claim(name, digest, exchange_id)
        if earlier is None or earlier.answer is None:
            return earlier
        return structs.replace(earlier, answer=self._seal.open(name, earlier.answer))

    async def end(self, holder_id: str, token: str, exchange_id: str, *, billed: bool, answer: bytes | None) -> None:
        """Record the end of the exchange. Never raises: after a failure, the exchange counts as running until the claim
        expires."""
        name = name_of(holder_id, token)
        try:
            if billed:
                await self._store.end(name, exchange_id, None if answer is None else self._seal.seal(name, answer))
            else:
                await self._store.release(name, exchange_id)
        except ClaimsUnavailable as error:
            self._on_failure(error)

    async def aclose(self) -> None:
        """Close the store."""
        await self._store.aclose()
