"""Who may: every key and account, in memory. Law: the answer to a request never waits for the database, except once,
briefly, for a key that may have been made a moment ago; what is known stays true while the database is away. What is
no key costs the database nothing that grows with how often it is presented.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from proxy.billing.keys import Account, ApiKey
from proxy.billing.limits import Scope
from proxy.foundation.outage import Listener, Outage
from proxy.keys.guesses import Guesses
from proxy.keys.secrets import digest, parse
from proxy.storage.executor import BoundedExecutor

# A key made or revoked by another process counts within a second.
POLL_S = 0.5

# Guessing keys, from however many addresses, costs the database at most ten reads of nothing a second.
EARLY_REFRESH_S_MIN = 0.1

# The longest that a request waits to find out whether its key has just been made.
EARLY_REFRESH_S_MAX = 1.0

# What was looked for and is no key is not looked for again before this; should it become one, the next poll brings it.
UNKNOWN_S = 5.0
# About 200 bytes each.
UNKNOWN_MAX = 10_000


class Refused(StrEnum):
    """Why a request has no key. Not all of it is for the client."""

    MISSING = "missing"
    MALFORMED = "malformed"
    UNKNOWN = "unknown"
    EXPIRED = "expired"
    REVOKED = "revoked"
    BLOCKED = "blocked"
    """the key, its project or its organization"""
    TOO_MANY = "too_many"
    """it is none, and its address has presented too many such: see `Keyring.retry_after_s`"""


class KeySource(Protocol):
    """Where keys and accounts are kept."""

    def changes_since(self, revision: int) -> Sequence[ApiKey | Account]:
        """Those with a later revision, in its order. Called on a thread. Raises OSError if it cannot tell now."""


class _Standing(NamedTuple):
    """What a key's accounts make of it."""

    blocked: bool
    scopes: tuple[Scope, ...]
    spends: bool


class Keyring:
    """All keys that ever were, about 1 KiB each, and all accounts. `refresh` it before the first request, then `run`
    it."""

    def __init__(
        self,
        source: KeySource,
        *,
        pepper: bytes,
        unix_time: Callable[[], float],
        observer: Listener,
    ) -> None:
        """`observer` is told of outages of the source; known keys stay valid meanwhile."""
        assert pepper, "an empty pepper hashes nothing"
        self._source = source
        self._pepper = pepper
        self._unix_time = unix_time
        self._outage = Outage(observer)
        self._by_digest: dict[bytes, ApiKey] = {}
        """by the digests of its secret and of the one before"""
        self._by_id: dict[str, ApiKey] = {}
        self._accounts: dict[str, Account] = {}
        self._standings: dict[str, _Standing] = {}
        """key id → as long as nothing has changed"""
        self._revision = 0
        self._guesses = Guesses()
        self._unknown: dict[bytes, float] = {}
        """digest → when it was last looked for and not found, in the event loop's time, in this order"""
        # Its own thread: a database that hangs must not take those on which names are resolved.
        self._thread = BoundedExecutor(1, name="keyring")
        self._reading: asyncio.Future[Sequence[ApiKey | Account]] | None = None
        self._read_at = float("-inf")
        """when the last reading of the source began, in the event loop's time"""

    def authenticate(self, presented: str | None, now: float) -> ApiKey | Refused:
        """The live key behind `presented`, as far as is known. `now`: Unix seconds. A few microseconds."""
        if not presented:
            return Refused.MISSING
        secret = parse(presented)
        if secret is None:
            return Refused.MALFORMED
        hashed = digest(secret, self._pepper)
        key = self._by_digest.get(hashed)
        # The look-up is by a keyed hash, whose bytes nobody outside can steer; compared once more in constant time.
        if key is None:
            return Refused.UNKNOWN
        if not hmac.compare_digest(key.digest, hashed):
            if key.old_digest is None or not hmac.compare_digest(key.old_digest, hashed):
                return Refused.UNKNOWN
            if key.old_until is None or now >= key.old_until:
                return Refused.EXPIRED
        if not key.live(now):
            return Refused.EXPIRED if key.revoked_at is None else Refused.REVOKED
        return Refused.BLOCKED if self._standing(key).blocked else key

    async def key(self, presented: str | None, address: str | None = None) -> ApiKey | Refused:
        """The same, now; but a well-formed key that is not known is looked for once, as it may be new.

        `address`: where it comes from; what is no key counts there. None: nobody knows, and nothing counts.
        """
        found = self.authenticate(presented, self._unix_time())
        if found is not Refused.UNKNOWN and found is not Refused.MALFORMED:
            return found
        assert presented
        now = asyncio.get_running_loop().time()
        if self._guesses.retry_after_s(address, now):
            return Refused.TOO_MANY
        self._guesses.count(address, now)  # now, not after a look: of many at once each must see those before it
        if found is Refused.UNKNOWN:
            found = await self._looked_for(presented, now)
            if found is not Refused.UNKNOWN:
                self._guesses.forgive(address)
        return found

    def retry_after_s(self, address: str | None) -> float:
        """How long this address may present only what is a key; seconds, 0: it may guess."""
        return self._guesses.retry_after_s(address, asyncio.get_running_loop().time())

    def known(self, key_id: str) -> ApiKey | None:
        """The key with this id, live or not, as far as is known."""
        return self._by_id.get(key_id)

    def scopes(self, key: ApiKey) -> tuple[Scope, ...]:
        """The levels at which it is counted, as they are now: key, project, organization, if anything is limited
        there. A look-up, as long as nothing has changed."""
        return self._standing(key).scopes

    def spends(self, key: ApiKey) -> bool:
        """True if money is limited at any level."""
        return self._standing(key).spends

    async def refresh(self, *, wait_s_max: float | None = None) -> None:
        """Learn what changed. Whoever comes while that is under way shares it."""
        if self._reading is None:
            self._read_at = asyncio.get_running_loop().time()
            self._reading = self._thread.run(self._source.changes_since, self._revision)
            self._reading.add_done_callback(self._learn)
        await asyncio.wait([self._reading], timeout=wait_s_max)

    async def run(self) -> None:
        """Refresh for ever; ends by being cancelled."""
        while True:
            await self.refresh()
            await asyncio.sleep(POLL_S)

    def close(self) -> None:
        """Wait for a reading that is under way; after the last call."""
        self._thread.close()

    async def _looked_for(self, presented: str, now: float) -> ApiKey | Refused:
        """A well-formed key that is not known, once it was looked for; if that was done lately, or may not be done yet,
        as it is."""
        hashed = digest(presented, self._pepper)
        if now < self._unknown.get(hashed, float("-inf")) + UNKNOWN_S:
            return Refused.UNKNOWN
        if self._reading is None and now < self._read_at + EARLY_REFRESH_S_MIN:
            return Refused.UNKNOWN
        await self.refresh(wait_s_max=EARLY_REFRESH_S_MAX)
        found = self.authenticate(presented, self._unix_time())
        self._unknown.pop(hashed, None)
        if found is Refused.UNKNOWN:
            self._unknown[hashed] = now
            if len(self._unknown) > UNKNOWN_MAX:
                del self._unknown[next(iter(self._unknown))]
        return found

    def _standing(self, key: ApiKey) -> _Standing:
        return self._standings.get(key.key_id) or self._made_standing(self._by_id.get(key.key_id, key))

    def _made_standing(self, key: ApiKey) -> _Standing:
        project = self._accounts.get(key.project_id)
        organization = None if project is None or project.parent_id is None else self._accounts.get(project.parent_id)
        if project is None or organization is None:  # never, unless the database was restored in part
            standing = _Standing(blocked=True, scopes=(), spends=True)
        else:
            levels = (key, project, organization)
            scopes = tuple(level.scope for level in levels if level.limits.any)
            blocked = any(level.blocked_at is not None for level in levels)
            standing = _Standing(blocked, scopes, any(scope.limits.spends for scope in scopes))
        self._standings[key.key_id] = standing
        return standing

    def _learn(self, reading: asyncio.Future[Sequence[ApiKey | Account]]) -> None:
        self._reading = None
        try:
            changes = reading.result()
        except OSError as error:
            self._outage.began(error)
            return
        self._outage.over()
        for change in changes:
            if isinstance(change, ApiKey):
                self._learn_key(change)
            else:
                self._accounts[change.account_id] = change
            self._revision = max(self._revision, change.revision)
        if changes:
            self._standings.clear()

    def _learn_key(self, key: ApiKey) -> None:
        if (former := self._by_id.get(key.key_id)) is not None:
            for hashed in (former.digest, former.old_digest):
                self._by_digest.pop(hashed, None)  # type: ignore[arg-type]
        self._by_id[key.key_id] = key
        for hashed in (key.old_digest, key.digest):
            if hashed is not None:
                self._by_digest[hashed] = key
