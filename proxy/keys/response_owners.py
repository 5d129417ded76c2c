"""Owners of responses that a provider stores, so that other keys cannot read them through the operator's account.

Invariants: the store has a digest of the response's id, and counts of its progress, never its content. The last owner
of an id counts, because some providers number their responses anew after a restart. An owner that this process
remembers needs no look-up.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from typing import Protocol

import msgspec

from proxy.billing.keys import ApiKey
from proxy.foundation.outage import Outage

# OpenAI stores responses for 30 days.
OWNERS_S = 30 * 86_400.0
# Of the responses of this process, the last ones; about 500 bytes each.
KEPT_MAX = 10_000


class ResponseOwner(msgspec.Struct, frozen=True, gc=False):
    """The maker of a response that a provider stores under its id."""

    key_id: str
    project_id: str
    provider: str
    dialect: str
    """the dialect of the request that made the response: `openai.responses`"""
    credential: str | None = None
    """the name of the provider's credential, if it has several"""
    exchange_id: str = ""
    runs: bool = False
    """the response is made in the background, and its exchange is still open"""

    def shares_with(self, key: ApiKey) -> bool:
        """True for the key that made it, and for keys of its project."""
        return key.shares(self.key_id, self.project_id)


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ResponseOwner).decode


class OwnerStore(Protocol):
    """Owners by name. Every method raises OSError."""

    async def remember(self, name: str, owner: bytes) -> None:
        """Set the owner."""

    async def recall(self, name: str) -> bytes | None:
        """The owner; None if there is none, or it has expired."""

    async def forget(self, name: str) -> None:
        """Delete the owner."""


def name_of(response_id: str) -> str:
    """The name of a response in the store: 32 hex digits."""
    return hashlib.blake2b(response_id.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def _note_of(response_id: str) -> str:
    return name_of(f"{response_id}\0seen")


class ResponseOwners:
    """The owners of responses, and notes on the progress of responses that are still generated."""

    def __init__(self, store: OwnerStore, outage: Outage) -> None:
        """`outage`: reports that owners cannot be stored; then only this process has them."""
        self._store = store
        self._outage = outage
        self._kept: OrderedDict[str, ResponseOwner] = OrderedDict()
        self._last: asyncio.Task[None] | None = None  # the writes follow one another

    def made(self, response_id: str, owner: ResponseOwner) -> None:
        """Remember the owner: here at once, in the store soon."""
        name = name_of(response_id)
        self._kept[name] = owner
        self._kept.move_to_end(name)
        if len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
        self._last = asyncio.get_running_loop().create_task(self._write(name, owner, self._last))

    async def _write(self, name: str, owner: ResponseOwner, before: asyncio.Task[None] | None) -> None:
        if before is not None and not before.done():
            await asyncio.wait([before])
        try:
            await self._store.remember(name, _encode(owner))
        except OSError as error:
            self._outage.began(error)
        else:
            self._outage.over()

    async def owner(self, response_id: str) -> ResponseOwner | None:
        """The owner; None: unknown. Raises OSError."""
        name = name_of(response_id)
        kept = self._kept.get(name)
        if kept is not None:
            return kept
        found = await self._store.recall(name)
        try:
            return None if found is None else _decode(found)
        except msgspec.MsgspecError:  # of another version
            return None

    async def forget(self, response_id: str) -> None:
        """Delete the owner of a response that no longer exists. Never raises: an owner without a response is harmless,
        and expires."""
        name = name_of(response_id)
        self._kept.pop(name, None)
        if self._last is not None:  # else an owner could be written after it was forgotten
            await asyncio.wait([self._last])
        try:
            await self._store.forget(name)
        except OSError as error:
            self._outage.began(error)

    async def note(self, response_id: str, seen: bytes) -> None:
        """Store a note on the progress of a response that is still generated. Raises OSError."""
        await self._store.remember(_note_of(response_id), seen)

    async def noted(self, response_id: str) -> bytes | None:
        """The last note of any process on a response. Raises OSError."""
        return await self._store.recall(_note_of(response_id))

    async def aclose(self) -> None:
        """Wait for the last writes."""
        if self._last is not None:
            await asyncio.wait([self._last])
