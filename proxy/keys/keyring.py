"""The keys and accounts of recent requests and recent changes, in memory.

Invariants: A key in memory never waits for the database, and stays valid while the database is unavailable. Another key
is refused only after a database read that began after the request arrived. Requests with unknown keys share these
reads, which begin at least `LOOKUP_INTERVAL_S` after any other. Every read includes all changes of keys since the
previous one. Neither memory nor a read grows with the number of keys. Nothing here blocks the event loop.
"""

from __future__ import annotations

import asyncio
import hmac
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from proxy.billing.keys import Account, AccountKind, ApiKey, IdentityKey, KeyChanges
from proxy.billing.limit_rules import LimitRule
from proxy.billing.limits import Scope
from proxy.billing.pricing.rules import Payer
from proxy.foundation.outage import Outage, OutageListener
from proxy.keys import narrowing
from proxy.keys.access import KeyAccess, Refused, access_of
from proxy.keys.guesses import Guesses
from proxy.keys.narrowing import InvalidCaveatError, PresentedKey
from proxy.keys.secrets import digest, parse
from proxy.ledger.accounts.key_store import KeyStore
from proxy.storage.executor import BoundedExecutor

# A key that another process created or revoked is effective within a second.
POLL_S = 0.5

# Keys in memory, up to 2 KiB each. With more keys, those of the latest requests and changes; the first request of
# another one waits for a look-up, which takes milliseconds.
KEYS_MAX = 100_000

# Any number of unknown keys causes at most fifty reads a second, each by an index.
LOOKUP_INTERVAL_S = 0.02

# Narrowed keys whose verification is kept, about 1 KiB each.
NARROWED_MAX = 5_000

# The longest wait of a request with an unknown key: the interval, the current read, and its own.
LOOKUP_S_MAX = 2.0


class TokenKeys(Protocol):
    """Finds the keys of clients that send tokens of an issuer."""

    async def key(self, token: str, address: str | None) -> ApiKey | Refused:
        """The live key of the identity and the project of a token, with the dimensions that the token gives. Like
        `Keyring.key`."""


class Keyring:
    """The keys in memory. Call `start` first, then `run`."""

    tokens: TokenKeys | None = None
    """None: no identities are configured"""

    def __init__(
        self,
        source: KeyStore,
        *,
        pepper: bytes,
        unix_time: Callable[[], float],
        observer: OutageListener,
    ) -> None:
        """`source`: called on a thread. `observer`: called when an outage of the source begins and ends."""
        assert pepper, "an empty pepper hashes nothing"
        self._source = source
        self._pepper = pepper
        self._unix_time = unix_time
        self._outage = Outage(observer)
        self._by_digest: dict[bytes, ApiKey] = {}
        """keys by the digests of their current and of their previous secrets"""
        self._by_id: OrderedDict[str, ApiKey] = OrderedDict()
        """keys by id; the one that was used or changed last is at the end"""
        self._accounts: dict[str, Account] = {}
        self._rules: dict[str, LimitRule] = {}
        """the limit rules that are not deleted, by id"""
        self._accesses: dict[str, KeyAccess] = {}
        """computed values by key id: a cache, from which a change removes those that it affects"""
        self._revision: int | None = None
        """the revision up to which all changes were read; None: nothing was read yet"""
        self._behind = True
        """True if the source has more changes than the latest read returned"""
        self._guesses = Guesses()
        self._lookups: Counter[bytes | str] = Counter()
        """digests, or ids, of the unknown keys that are being looked up → number of waiting requests"""
        self._narrowed: OrderedDict[bytes, tuple[ApiKey, ApiKey | Refused]] = OrderedDict()
        """digest of a verified narrowed key → its parent, and the narrowed key or why it is refused"""
        self._looked_up = asyncio.Event()
        """an event that is set and replaced when any look-up ends"""
        # Its own thread: a database that hangs must not block the threads that resolve host names.
        self._thread = BoundedExecutor(1, name="keyring")
        self._current_read: asyncio.Future[KeyChanges] | None = None
        self._reads_begun = 0
        """number of reads that have begun"""
        self._read_at = float("-inf")
        """the event loop's time at which the latest read began"""
        self._readable = False
        """True if the latest completed read succeeded"""
        self._of_identities: dict[str, asyncio.Future[ApiKey]] = {}
        """ids of keys that are read or created now"""

    def authenticate(self, presented: str | None, now: float) -> ApiKey | Refused:
        """The live key of the secret `presented`, without a database read; UNKNOWN: the key is not in memory. `now`:
        Unix seconds. Takes a few microseconds."""
        if not presented:
            return Refused.MISSING
        if not presented.isascii():
            return Refused.MALFORMED
        hashed = digest(presented, self._pepper)
        key = self._by_digest.get(hashed)
        # The look-up is by a keyed hash, which a client cannot control; the comparison is repeated in constant time.
        if key is None:
            return Refused.MALFORMED if parse(presented) is None else Refused.UNKNOWN
        self._by_id.move_to_end(key.key_id)
        if not hmac.compare_digest(key.digest, hashed):
            if key.old_digest is None or not hmac.compare_digest(key.old_digest, hashed):
                return Refused.UNKNOWN
            if key.old_until is None or now >= key.old_until:
                return Refused.REPLACED if key.live(now) else Refused.EXPIRED
        return self._usable(key, now)

    def refused_key(self, presented: str | None) -> ApiKey | None:
        """The key that `key` or `narrowed_key` has just refused with a reason of NOT_USABLE; None: it is not in memory
        any more, or is the key of an identity."""
        if presented is None or not presented.isascii():
            return None
        found = self._by_digest.get(digest(presented, self._pepper))
        if found is None and (parts := narrowing.parse(presented)) is not None:
            found = self._by_id.get(parts.key_id)
        return found

    def _usable(self, key: ApiKey, now: float) -> ApiKey | Refused:
        if not key.live(now):
            return Refused.EXPIRED if key.revoked_at is None else Refused.REVOKED
        return Refused.BLOCKED if self.access(key).blocked else key

    async def key(self, presented: str | None, address: str | None = None) -> ApiKey | Refused:
        """The live key of the secret `presented`, now. An unknown but well-formed key is looked up, because it may be
        new. `address`: the client's, for the rate limit of failures; None: not limited."""
        result = self.authenticate(presented, self._unix_time())
        if result is Refused.UNKNOWN:
            assert presented
            return await self._look_up(presented, address)
        return self.counted(result, address) if result is Refused.MALFORMED else result

    async def narrowed_key(self, presented: str, address: str | None = None) -> ApiKey | Refused:
        """What the narrowable or narrowed key `presented` may do now. Its parent is looked up if it is not in memory,
        or has another secret there. `address`: as in `key`."""
        hashed = digest(presented, self._pepper) if presented.isascii() else b""
        parent, found = self._narrowed.get(hashed, (None, Refused.UNKNOWN))
        if parent is not None and self._by_id.get(parent.key_id) is parent:
            self._narrowed.move_to_end(hashed)
            return self._usable_narrowed(parent, found)
        parts = narrowing.parse(presented)
        if parts is None:
            return self.counted(Refused.MALFORMED, address)
        result = self._authenticate_narrowed(parts, hashed)
        if result is not Refused.UNKNOWN:
            return result
        if self.retry_after_s(address):
            return Refused.TOO_MANY
        if not await self._read_wanted(parts.key_id):
            return Refused.UNAVAILABLE
        result = self._authenticate_narrowed(parts, hashed)
        return self.counted(result, address) if result is Refused.UNKNOWN else result

    def _authenticate_narrowed(self, parts: PresentedKey, hashed: bytes) -> ApiKey | Refused:
        """UNKNOWN: the parent is not in memory, or none of its secrets begins the chain."""
        parent = self._by_id.get(parts.key_id)
        if parent is None or not parent.has_secret:
            return Refused.UNKNOWN
        found = self._verify_narrowed(parts, parent)
        if found is not Refused.UNKNOWN:  # guesses take no place
            self._narrowed[hashed] = parent, found
            if len(self._narrowed) > NARROWED_MAX:
                self._narrowed.popitem(last=False)
        return self._usable_narrowed(parent, found)

    def _usable_narrowed(self, parent: ApiKey, found: ApiKey | Refused) -> ApiKey | Refused:
        self._by_id.move_to_end(parent.key_id)
        return found if isinstance(found, Refused) else self._usable(found, self._unix_time())

    def _verify_narrowed(self, parts: PresentedKey, parent: ApiKey) -> ApiKey | Refused:
        for hashed, until in ((parent.digest, None), (parent.old_digest, parent.old_until or 0.0)):
            if hashed is None:
                continue
            chain = narrowing.verified(parts, narrowing.root_key(hashed, self._pepper))
            if chain is not None:
                try:
                    return narrowing.narrowed_key(parent, parts.caveats, chain, until)
                except InvalidCaveatError:
                    return Refused.CAVEAT
        return Refused.UNKNOWN

    def counted(self, refused: Refused, address: str | None) -> Refused:
        """Count a guess. Returns TOO_MANY if the address has too many already, else `refused`."""
        return refused if self._count_failure(address) else Refused.TOO_MANY

    async def project(self, id_or_name: str) -> Account | None:
        """The project with this id, or else the only one with this name; None: there is none, or it cannot be read. It
        may be new."""
        return self._project(id_or_name) or (self._project(id_or_name) if await self._read_lookups() else None)

    def _project(self, id_or_name: str) -> Account | None:
        found = self._accounts.get(id_or_name)
        if found is not None and found.kind is AccountKind.PROJECT:
            return found
        named = [one for one in self._accounts.values() if one.name == id_or_name and one.kind is AccountKind.PROJECT]
        return named[0] if len(named) == 1 else None

    async def of_identity(self, wanted: IdentityKey) -> ApiKey | Refused:
        """The live key of an identity in a project. One that is not in memory is read, or created; UNAVAILABLE: the
        database cannot be used."""
        key = self._by_id.get(wanted.key_id)
        if key is None:
            try:
                async with asyncio.timeout(LOOKUP_S_MAX):
                    await asyncio.shield(self._reading_of_identity(wanted))
            except (OSError, TimeoutError):
                return Refused.UNAVAILABLE
            key = self._by_id[wanted.key_id]
        else:
            self._by_id.move_to_end(wanted.key_id)
        return self._usable(key, self._unix_time())

    def _reading_of_identity(self, wanted: IdentityKey) -> asyncio.Future[ApiKey]:
        """Requests that arrive together share the reading, which continues if their clients leave."""
        running = self._of_identities.get(wanted.key_id)
        if running is None:
            running = self._of_identities[wanted.key_id] = self._thread.run(self._source.of_identity, wanted)
            running.add_done_callback(partial(self._learn_identity, wanted.key_id))
        return running

    def _learn_identity(self, key_id: str, reading: asyncio.Future[ApiKey]) -> None:
        del self._of_identities[key_id]
        if not reading.cancelled() and reading.exception() is None:
            self._learn_all([reading.result()])

    def retry_after_s(self, address: str | None) -> float:
        """Seconds for which unknown keys from this address are refused; 0: unknown keys are looked up."""
        return self._guesses.retry_after_s(address, asyncio.get_running_loop().time())

    def known(self, key_id: str) -> ApiKey | None:
        """The key with this id, live or not; None: not in memory."""
        return self._by_id.get(key_id)

    def access(self, key: ApiKey) -> KeyAccess:
        """The current rights and limits of the key. Returns the same object until a key or an account changes."""
        return self._accesses.get(key.key_id) or self._compute(key)

    def organization_of(self, key_id: str) -> str | None:
        """The id of the organization of the key with this id; None: the key is not in memory."""
        key = self._by_id.get(key_id)
        return None if key is None else self.payer(key).organization_id or None

    def scopes(self, key: ApiKey) -> tuple[Scope, ...]:
        """See `KeyAccess`."""
        return self.access(key).scopes

    def payer(self, key: ApiKey) -> Payer:
        """See `KeyAccess`."""
        return self.access(key).payer

    async def start(self) -> None:
        """Read the keys for the first time. Raises OSError: without accounts, each key would seem to be blocked."""
        self._read()
        assert self._current_read is not None
        await self._current_read
        if self._behind:
            await self.refresh()

    async def remember(self, key_ids: Collection[str]) -> None:
        """Read the keys with these ids that are not in memory; none during an outage."""
        if all(key_id in self._by_id for key_id in key_ids):
            return
        await self.refresh()  # their accounts may be as new
        missing = [key_id for key_id in key_ids if key_id not in self._by_id]
        if missing and self._readable:
            with suppress(OSError):  # which `refresh` reports
                self._learn_all(await self._thread.run(self._source.with_ids, missing))

    async def refresh(self) -> None:
        """Read all changes up to now."""
        await self._read_after(self._reads_begun)

    async def run(self) -> None:
        """Refresh until cancelled."""
        while True:
            await self.refresh()
            await asyncio.sleep(POLL_S)

    def close(self) -> None:
        """Wait for the current read. Call it last."""
        self._thread.close()

    def _count_failure(self, address: str | None, *, decided: bool = True) -> bool:
        """Count an unknown key; False if the address has too many already. `decided`: see `Guesses.count`."""
        now = asyncio.get_running_loop().time()
        if self._guesses.retry_after_s(address, now):
            return False
        self._guesses.count(address, now, decided=decided)
        return True

    async def _look_up(self, presented: str, address: str | None) -> ApiKey | Refused:
        """Look up a key that is not in memory, after a read that begins now or later. Returns the result of `key`."""
        hashed = digest(presented, self._pepper)
        try:
            async with asyncio.timeout(LOOKUP_S_MAX):
                # The first requests of a new key are often concurrent: they count as one. Other keys count before their
                # look-ups, so that concurrent guesses count; beyond the limit they wait for them: each may be a key.
                while hashed not in self._lookups and not self._count_failure(address, decided=False):
                    if not self._guesses.uncertain(address):
                        return Refused.TOO_MANY
                    await self._looked_up.wait()
                    result = self.authenticate(presented, self._unix_time())
                    if result is not Refused.UNKNOWN:
                        return result
        except TimeoutError:
            return Refused.UNAVAILABLE
        if hashed in self._lookups:
            return await self._read_key(presented, hashed)
        result = Refused.UNKNOWN  # also of a client that leaves
        try:
            result = await self._read_key(presented, hashed)
        finally:
            self._guesses.decide(address, failed=result is Refused.UNKNOWN)
            self._looked_up.set()
            self._looked_up = asyncio.Event()
        return result

    async def _read_key(self, presented: str, hashed: bytes) -> ApiKey | Refused:
        readable = await self._read_wanted(hashed)
        result = self.authenticate(presented, self._unix_time())
        return Refused.UNAVAILABLE if result is Refused.UNKNOWN and not readable else result

    async def _read_wanted(self, wanted: bytes | str) -> bool:
        """Look up the key with this digest or id. See `_read_lookups`."""
        self._lookups[wanted] += 1
        try:
            return await self._read_lookups()
        finally:
            self._lookups[wanted] -= 1
            if not self._lookups[wanted]:
                del self._lookups[wanted]

    async def _read_lookups(self) -> bool:
        """Read all changes up to now, and the keys that are being looked up, at the rate of look-ups; False after a
        failure or a timeout."""
        number = self._reads_begun
        try:
            async with asyncio.timeout(LOOKUP_S_MAX):
                await asyncio.sleep(self._read_at + LOOKUP_INTERVAL_S - asyncio.get_running_loop().time())
                await self._read_after(number)
        except TimeoutError:
            return False
        return self._readable

    async def _read_after(self, number: int) -> None:
        """Wait until a read after read `number` has ended; begin one if none is running. Callers share a read, which
        continues until it has all changes."""
        if self._reads_begun == number and self._current_read is not None:
            await asyncio.wait([self._current_read])
        if self._reads_begun == number:
            self._read()
        while True:
            if self._current_read is not None:
                await asyncio.wait([self._current_read])
            if not (self._behind and self._readable):
                return
            if self._current_read is None:
                self._read()

    def _read(self) -> None:
        """Begin a read of the source; none is running."""
        self._reads_begun += 1
        self._read_at = asyncio.get_running_loop().time()
        if self._revision is None:
            self._current_read = self._thread.run(self._source.latest, KEYS_MAX)
        else:
            digests = [one for one in self._lookups if isinstance(one, bytes)]
            key_ids = [one for one in self._lookups if isinstance(one, str)]
            self._current_read = self._thread.run(self._source.changes_since, self._revision, digests, key_ids)
        self._current_read.add_done_callback(self._learn)

    def _compute(self, key: ApiKey) -> KeyAccess:
        known = self._by_id.get(key.key_id)
        project = self._accounts.get(key.project_id)
        organization = None if project is None or project.parent_id is None else self._accounts.get(project.parent_id)
        access = access_of(known or key, project, organization, self._rules.values())
        if known is not None:
            self._accesses[key.key_id] = access
        return access

    def _learn(self, reading: asyncio.Future[KeyChanges]) -> None:
        self._current_read = None
        self._readable = False
        if reading.cancelled():  # closed before the read began
            return
        try:
            changes = reading.result()
        except OSError as error:
            self._outage.began(error)
            return
        self._outage.over()
        self._readable = True
        self._behind = changes.behind or (self._revision is None and bool(self._lookups))  # `latest` looks nothing up
        self._revision = changes.revision
        self._learn_all(changes.rows)

    def _learn_all(self, rows: Sequence[ApiKey | Account | LimitRule]) -> None:
        for row in rows:
            if isinstance(row, ApiKey):
                self._learn_key(row)
            elif isinstance(row, LimitRule):
                self._rules[row.rule_id] = row
                if row.deleted_at is not None:
                    del self._rules[row.rule_id]
                self._accesses.clear()
            elif self._accounts.get(row.account_id) != row:
                self._accounts[row.account_id] = row
                self._accesses.clear()  # of its keys, which are not known here
        while len(self._by_id) > KEYS_MAX:
            _, oldest = self._by_id.popitem(last=False)
            self._forget_digests(oldest)
            self._accesses.pop(oldest.key_id, None)

    def _learn_key(self, key: ApiKey) -> None:
        if (previous := self._by_id.get(key.key_id)) is not None:
            if previous.revision >= key.revision:  # a look-up overtook it
                return
            self._forget_digests(previous)
        self._by_id[key.key_id] = key
        self._by_id.move_to_end(key.key_id)
        self._accesses.pop(key.key_id, None)
        for hashed in (key.old_digest, key.digest):
            if hashed is not None:
                self._by_digest[hashed] = key

    def _forget_digests(self, key: ApiKey) -> None:
        for hashed in (key.digest, key.old_digest):
            self._by_digest.pop(hashed, None)  # type: ignore[arg-type]
