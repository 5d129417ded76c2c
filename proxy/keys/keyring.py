"""Every key and account, in memory.

Invariants: A known key never waits for the database, and stays valid while the database is away. A key that is not
known is refused only after a reading of the database that began after the request had come. Unknown keys share these
readings, which begin at least `LOOKUP_INTERVAL_S` after any other. Nothing here blocks the event loop.
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

# Unknown keys, however many from however many addresses, cost the database at most ten reads a second, of nothing.
LOOKUP_INTERVAL_S = 0.1

# The longest that a request with an unknown key waits: the interval, the reading under way, and its own.
LOOKUP_S_MAX = 2.0


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
    """it is not known, and its address has presented too many such: see `Keyring.retry_after_s`"""
    UNAVAILABLE = "unavailable"
    """it is not known, and the database could not be read: it may be a key"""


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
        self._sought: set[bytes] = set()
        """digests of the unknown keys that are being looked up"""
        # Its own thread: a database that hangs must not take those on which names are resolved.
        self._thread = BoundedExecutor(1, name="keyring")
        self._reading: asyncio.Future[Sequence[ApiKey | Account]] | None = None
        self._readings = 0
        """how many have begun"""
        self._read_at = float("-inf")
        """when the last of them began, in the event loop's time"""
        self._readable = False
        """the last of them that ended has succeeded"""

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
        """The same, now; but a well-formed key that is not known is looked up, since it may be new.

        `address`: the client's; unknown keys are counted there. None: it has none, and nothing is counted.
        """
        found = self.authenticate(presented, self._unix_time())
        if found is Refused.UNKNOWN:
            assert presented
            return await self._looked_up(presented, address)
        return Refused.TOO_MANY if found is Refused.MALFORMED and not self._counted(address) else found

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

    async def refresh(self) -> None:
        """Learn all that has changed up to now."""
        await self._read_after(self._readings)

    async def run(self) -> None:
        """Refresh for ever; ends by being cancelled."""
        while True:
            await self.refresh()
            await asyncio.sleep(POLL_S)

    def close(self) -> None:
        """Wait for a reading that is under way; after the last call."""
        self._thread.close()

    def _counted(self, address: str | None) -> bool:
        """Count an unknown key there; False if there were too many."""
        now = asyncio.get_running_loop().time()
        if self._guesses.retry_after_s(address, now):
            return False
        self._guesses.count(address, now)
        return True

    async def _looked_up(self, presented: str, address: str | None) -> ApiKey | Refused:
        """A well-formed key that is not known, after a reading that began now or later."""
        hashed = digest(presented, self._pepper)
        shared = hashed in self._sought  # a new key's first requests are often many at once: they count as one
        if not shared and not self._counted(address):  # before the look-up: of many at once each sees those before it
            return Refused.TOO_MANY
        self._sought.add(hashed)
        try:
            readable = await self._read_anew()
        finally:
            if not shared:
                self._sought.discard(hashed)
        found = self.authenticate(presented, self._unix_time())
        if found is Refused.UNKNOWN:
            return found if readable else Refused.UNAVAILABLE
        if not shared:
            self._guesses.forgive(address)
        return found

    async def _read_anew(self) -> bool:
        """Learn all that has changed up to now, as often as look-ups may; False if that fails or takes too long."""
        number = self._readings
        try:
            async with asyncio.timeout(LOOKUP_S_MAX):
                await asyncio.sleep(self._read_at + LOOKUP_INTERVAL_S - asyncio.get_running_loop().time())
                await self._read_after(number)
        except TimeoutError:
            return False
        return self._readable

    async def _read_after(self, number: int) -> None:
        """Return once a reading later than this one has ended; it is shared, and begun here if nobody else does."""
        if self._readings == number and self._reading is not None:
            await asyncio.wait([self._reading])
        if self._readings == number:
            self._read()
        if self._reading is not None:
            await asyncio.wait([self._reading])

    def _read(self) -> None:
        """Begin a reading of the source; none is under way."""
        loop = asyncio.get_running_loop()
        self._readings += 1
        self._read_at = loop.time()
        self._reading = self._thread.run(self._source.changes_since, self._revision)
        self._reading.add_done_callback(self._learn)

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
        self._readable = False
        try:
            changes = reading.result()
        except OSError as error:
            self._outage.began(error)
            return
        self._outage.over()
        self._readable = True
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
