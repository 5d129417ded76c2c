"""Every key and account, in memory.

Invariants: A known key never waits for the database, and stays valid while the database is unavailable. An unknown key
is refused only after a database read that began after the request arrived. Unknown keys share these reads, which begin
at least `LOOKUP_INTERVAL_S` after any other. Nothing here blocks the event loop.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from proxy.billing.keys import Account, ApiKey
from proxy.billing.limits import Scope
from proxy.billing.pricing.rules import Payer
from proxy.foundation.outage import Listener, Outage
from proxy.keys.guesses import Guesses
from proxy.keys.secrets import digest, parse
from proxy.storage.executor import BoundedExecutor

# A key that another process created or revoked is effective within a second.
POLL_S = 0.5

# Any number of unknown keys causes at most ten reads a second, each with an empty result.
LOOKUP_INTERVAL_S = 0.1

# The longest wait of a request with an unknown key: the interval, the current read, and its own.
LOOKUP_S_MAX = 2.0


class Refused(StrEnum):
    """The reason why authentication failed. The client does not see all of them."""

    MISSING = "missing"
    MALFORMED = "malformed"
    UNKNOWN = "unknown"
    EXPIRED = "expired"
    REVOKED = "revoked"
    BLOCKED = "blocked"
    """the key, its project or its organization"""
    TOO_MANY = "too_many"
    """an unknown key from an address with too many of them: see `Keyring.retry_after_s`"""
    UNAVAILABLE = "unavailable"
    """an unknown key, and the database could not be read: the key may be valid"""


class KeySource(Protocol):
    """The database of keys and accounts."""

    def changes_since(self, revision: int) -> Sequence[ApiKey | Account]:
        """Rows with a higher revision, ascending. Called on a thread. Raises OSError if the database is unavailable."""


class _KeyState(NamedTuple):
    """What follows from a key and its accounts."""

    blocked: bool
    scopes: tuple[Scope, ...]
    spends: bool
    payer: Payer


class Keyring:
    """All keys that ever existed, about 1 KiB each, and all accounts. Call `refresh` before the first request, then
    `run`."""

    def __init__(
        self,
        source: KeySource,
        *,
        pepper: bytes,
        unix_time: Callable[[], float],
        observer: Listener,
    ) -> None:
        """`observer`: called when an outage of the source begins and ends; known keys stay valid meanwhile."""
        assert pepper, "an empty pepper hashes nothing"
        self._source = source
        self._pepper = pepper
        self._unix_time = unix_time
        self._outage = Outage(observer)
        self._by_digest: dict[bytes, ApiKey] = {}
        """by the digests of the current and of the previous secret"""
        self._by_id: dict[str, ApiKey] = {}
        self._accounts: dict[str, Account] = {}
        self._states: dict[str, _KeyState] = {}
        """by key id; a cache, cleared by every change"""
        self._revision = 0
        self._guesses = Guesses()
        self._lookups: set[bytes] = set()
        """digests of the unknown keys whose look-up is running"""
        # Its own thread: a database that hangs must not block the threads that resolve host names.
        self._thread = BoundedExecutor(1, name="keyring")
        self._current_read: asyncio.Future[Sequence[ApiKey | Account]] | None = None
        self._reads_begun = 0
        """how many have begun"""
        self._read_at = float("-inf")
        """when the latest read began, in the event loop's time"""
        self._readable = False
        """True if the latest completed read succeeded"""

    def authenticate(self, presented: str | None, now: float) -> ApiKey | Refused:
        """The live key of the secret `presented`, without a database read. `now`: Unix seconds. A few microseconds."""
        if not presented:
            return Refused.MISSING
        secret = parse(presented)
        if secret is None:
            return Refused.MALFORMED
        hashed = digest(secret, self._pepper)
        key = self._by_digest.get(hashed)
        # The look-up is by a keyed hash, which a client cannot control; the comparison is repeated in constant time.
        if key is None:
            return Refused.UNKNOWN
        if not hmac.compare_digest(key.digest, hashed):
            if key.old_digest is None or not hmac.compare_digest(key.old_digest, hashed):
                return Refused.UNKNOWN
            if key.old_until is None or now >= key.old_until:
                return Refused.EXPIRED
        if not key.live(now):
            return Refused.EXPIRED if key.revoked_at is None else Refused.REVOKED
        return Refused.BLOCKED if self._state(key).blocked else key

    async def key(self, presented: str | None, address: str | None = None) -> ApiKey | Refused:
        """The live key of the secret `presented`, now. An unknown key is looked up if it is well-formed: it may be new.

        `address`: the client's, for the rate limit of failures; None: not limited.
        """
        result = self.authenticate(presented, self._unix_time())
        if result is Refused.UNKNOWN:
            assert presented
            return await self._looked_up(presented, address)
        return Refused.TOO_MANY if result is Refused.MALFORMED and not self._count_failure(address) else result

    def retry_after_s(self, address: str | None) -> float:
        """Seconds for which unknown keys from this address are refused; 0: they are looked up."""
        return self._guesses.retry_after_s(address, asyncio.get_running_loop().time())

    def known(self, key_id: str) -> ApiKey | None:
        """The key with this id, live or not; None: not in memory."""
        return self._by_id.get(key_id)

    def scopes(self, key: ApiKey) -> tuple[Scope, ...]:
        """The levels with limits: key, project, organization. The same object until a key or an account changes."""
        return self._state(key).scopes

    def payer(self, key: ApiKey) -> Payer:
        """The key and its accounts, for rules of prices."""
        return self._state(key).payer

    def spends(self, key: ApiKey) -> bool:
        """True if money is limited at any level."""
        return self._state(key).spends

    async def refresh(self) -> None:
        """Read all changes up to now."""
        await self._read_after(self._reads_begun)

    async def run(self) -> None:
        """Refresh until cancelled."""
        while True:
            await self.refresh()
            await asyncio.sleep(POLL_S)

    def close(self) -> None:
        """Wait for the current read. The last call."""
        self._thread.close()

    def _count_failure(self, address: str | None) -> bool:
        """Count an unknown key; False if the address has too many already."""
        now = asyncio.get_running_loop().time()
        if self._guesses.retry_after_s(address, now):
            return False
        self._guesses.count(address, now)
        return True

    async def _looked_up(self, presented: str, address: str | None) -> ApiKey | Refused:
        """As `key`, for an unknown key: after a read that begins now or later."""
        hashed = digest(presented, self._pepper)
        shared = hashed in self._lookups  # the first requests of a new key are often concurrent: they count as one
        if not shared and not self._count_failure(address):  # before the look-up, so that concurrent ones count
            return Refused.TOO_MANY
        self._lookups.add(hashed)
        try:
            readable = await self._look_up()
        finally:
            if not shared:
                self._lookups.discard(hashed)
        result = self.authenticate(presented, self._unix_time())
        if result is Refused.UNKNOWN:
            return result if readable else Refused.UNAVAILABLE
        if not shared:
            self._guesses.forgive(address)
        return result

    async def _look_up(self) -> bool:
        """Read all changes up to now, at the rate of look-ups; False after a failure or a timeout."""
        number = self._reads_begun
        try:
            async with asyncio.timeout(LOOKUP_S_MAX):
                await asyncio.sleep(self._read_at + LOOKUP_INTERVAL_S - asyncio.get_running_loop().time())
                await self._read_after(number)
        except TimeoutError:
            return False
        return self._readable

    async def _read_after(self, number: int) -> None:
        """Wait until a read after read `number` has ended; begin one if none is running. Callers share a read."""
        if self._reads_begun == number and self._current_read is not None:
            await asyncio.wait([self._current_read])
        if self._reads_begun == number:
            self._read()
        if self._current_read is not None:
            await asyncio.wait([self._current_read])

    def _read(self) -> None:
        """Begin a read of the source; none is running."""
        loop = asyncio.get_running_loop()
        self._reads_begun += 1
        self._read_at = loop.time()
        self._current_read = self._thread.run(self._source.changes_since, self._revision)
        self._current_read.add_done_callback(self._learn)

    def _state(self, key: ApiKey) -> _KeyState:
        return self._states.get(key.key_id) or self._new_state(self._by_id.get(key.key_id, key))

    def _new_state(self, key: ApiKey) -> _KeyState:
        project = self._accounts.get(key.project_id)
        organization = None if project is None or project.parent_id is None else self._accounts.get(project.parent_id)
        if project is None or organization is None:  # only after a partial restore of the database
            state = _KeyState(blocked=True, scopes=(), spends=True, payer=Payer(key.key_id, key.alias, key.project_id))
        else:
            levels = (key, project, organization)
            scopes = tuple(level.scope for level in levels if level.limits.any)
            blocked = any(level.blocked_at is not None for level in levels)
            payer = Payer(
                key.key_id, key.alias, project.account_id, project.name, organization.account_id, organization.name
            )
            state = _KeyState(blocked, scopes, any(scope.limits.spends for scope in scopes), payer)
        self._states[key.key_id] = state
        return state

    def _learn(self, reading: asyncio.Future[Sequence[ApiKey | Account]]) -> None:
        self._current_read = None
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
            self._states.clear()

    def _learn_key(self, key: ApiKey) -> None:
        if (previous := self._by_id.get(key.key_id)) is not None:
            for hashed in (previous.digest, previous.old_digest):
                self._by_digest.pop(hashed, None)  # type: ignore[arg-type]
        self._by_id[key.key_id] = key
        for hashed in (key.old_digest, key.digest):
            if hashed is not None:
                self._by_digest[hashed] = key
