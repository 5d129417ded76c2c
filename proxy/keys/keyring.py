"""Who may: every key, in memory. Law: the answer to a request never waits for the database, except once, briefly,
for a key that may have been made a moment ago; what is known stays true while the database is away."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from typing import Protocol

from proxy.billing.keys import ApiKey
from proxy.keys.secrets import digest, parse

# A key made or revoked by another process counts within a second.
POLL_S = 0.5

# Guessing keys costs the database at most ten reads of nothing a second.
EARLY_REFRESH_S_MIN = 0.1

# The longest that a request waits to find out whether its key has just been made.
EARLY_REFRESH_S_MAX = 1.0


class Refused(StrEnum):
    """Why a request has no key. Not all of it is for the client: it learns only `401`."""

    MISSING = "missing"
    MALFORMED = "malformed"
    UNKNOWN = "unknown"
    EXPIRED = "expired"
    REVOKED = "revoked"


class KeySource(Protocol):
    """Where keys are kept."""

    def changes_since(self, revision: int) -> list[ApiKey]:
        """Keys with a later revision, in its order. Called on a thread. Raises OSError if it cannot tell now."""


class Keyring:
    """All keys that ever were, about 1 KiB each. `refresh` it before the first request, then `run` it."""

    def __init__(
        self,
        source: KeySource,
        *,
        pepper: bytes,
        unix_time: Callable[[], float],
        on_failure: Callable[[OSError], None],
    ) -> None:
        """`on_failure` learns when the source could not be read; the keyring goes on with what it has."""
        assert pepper, "an empty pepper hashes nothing"
        self._source = source
        self._pepper = pepper
        self._unix_time = unix_time
        self._on_failure = on_failure
        self._by_digest: dict[bytes, ApiKey] = {}
        self._revision = 0
        # Its own thread: a database that hangs must not take those on which names are resolved.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="keyring")
        self._reading: asyncio.Future[list[ApiKey]] | None = None
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
        if key is None or not hmac.compare_digest(key.digest, hashed):
            return Refused.UNKNOWN
        if key.live(now):
            return key
        return Refused.EXPIRED if key.revoked_at is None else Refused.REVOKED

    async def key(self, presented: str | None) -> ApiKey | Refused:
        """The same, now; but a well-formed key that is not known is looked for once, as it may be new."""
        found = self.authenticate(presented, self._unix_time())
        if found is not Refused.UNKNOWN:
            return found
        if self._reading is not None or asyncio.get_running_loop().time() >= self._read_at + EARLY_REFRESH_S_MIN:
            await self.refresh(wait_s_max=EARLY_REFRESH_S_MAX)
        return self.authenticate(presented, self._unix_time())

    async def refresh(self, *, wait_s_max: float | None = None) -> None:
        """Learn what changed. Whoever comes while that is under way shares it."""
        if self._reading is None:
            loop = asyncio.get_running_loop()
            self._read_at = loop.time()
            self._reading = loop.run_in_executor(self._thread, self._source.changes_since, self._revision)
            self._reading.add_done_callback(self._learn)
        await asyncio.wait([self._reading], timeout=wait_s_max)

    async def run(self) -> None:
        """Refresh for ever; ends by being cancelled."""
        while True:
            await self.refresh()
            await asyncio.sleep(POLL_S)

    def _learn(self, reading: asyncio.Future[list[ApiKey]]) -> None:
        self._reading = None
        try:
            changes = reading.result()
        except OSError as error:
            self._on_failure(error)
            return
        for key in changes:
            self._by_digest[key.digest] = key
            self._revision = max(self._revision, key.revision)
