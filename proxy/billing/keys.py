"""Keys and accounts as values. An organization has projects, a project has keys; each of them may have limits.

Invariant: a value never contains a secret.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from proxy.billing.dimensions import KeyDimensions
from proxy.billing.limit_rules import LimitRule
from proxy.billing.limits import UNLIMITED, Limits, OnExhausted, OnStoreOutage, Scope
from proxy.billing.money import Nusd
from proxy.foundation.durations import DURATION_S_MAX, seconds_from
from proxy.foundation.times import iso_time

EXPIRES_DEFAULT = "90d"
GRACE_DEFAULT = "24h"
"""how long the old secret of a rotated key stays valid"""

IDENTITY_KEYS = "identity_"
"""prefix of the ids of keys of identities"""

DEFAULT_ORGANIZATION, DEFAULT_PROJECT = "org_default", "proj_default"
"""exist from the start, without limits; the default of a key"""


class AccountKind(StrEnum):
    """The levels above a key."""

    ORGANIZATION = "organization"
    PROJECT = "project"


@dataclass(frozen=True, slots=True)
class Account:
    """An organization or a project. Times: Unix seconds, UTC."""

    account_id: str
    kind: AccountKind
    parent_id: str | None
    """a project's organization; None of an organization"""
    name: str
    limits: Limits
    created_at: float
    blocked_at: float | None
    revision: int
    """see `ApiKey.revision`: accounts and keys share one counter"""

    @property
    def scope(self) -> Scope:
        """The level for limit counters."""
        return Scope(self.account_id, self.limits, self.created_at)


class KeyCap(NamedTuple):
    """The most that the keys that were made from a narrowed key may spend together."""

    value_id: str
    """the id of the cap, the same for all of these keys"""
    nusd: Nusd


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key. Times: Unix seconds, UTC."""

    key_id: str
    alias: str
    digest: bytes = field(repr=False)
    """keyed hash of the secret; 32 bytes"""
    hint: str
    """the end of the secret, to recognise the key: `tw-…abcd`"""
    models: frozenset[str] | None
    """the models that it may use; None: all"""
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    revision: int
    """a later change of any key or account has a higher number"""
    project_id: str = DEFAULT_PROJECT
    """never changes: the spend of a key is also spend of its project"""
    limits: Limits = UNLIMITED
    on_exhausted: OnExhausted = OnExhausted.FINISH
    on_store_outage: OnStoreOutage | None = None
    """None: the deployment's setting (closed, by default) if money is limited at any level; else open"""
    tags: tuple[str, ...] = ()
    blocked_at: float | None = None
    old_digest: bytes | None = field(default=None, repr=False)
    """digest of the secret before the last rotation"""
    old_until: float | None = None
    """Unix seconds until which the old secret is valid"""
    dimensions: KeyDimensions | None = None
    """the sources and the fixed values of dimensions; None: those of the deployment"""
    byok: str | None = None
    """the terms of billing for clients that send their own provider credential, see `byok.py`; None: the operator's
    credential is used"""
    caps: tuple[KeyCap, ...] = ()
    """the caps of a narrowed key, the outermost first; a stored key has none"""
    uses_stored: bool = True
    """False: a narrowed key that may not use responses, files and batches that the provider stores, nor read the
    exchanges of its parent"""
    holder: str | None = None
    """the id of the holder: a narrowed key has another one for other caveats, the key of a token another one for each
    person; None: a stored key"""
    branch_ids: tuple[str, ...] = ()
    """the ids of the branches that share an allowance of new values: for a narrowed key, the ids of the keys from which
    it was made that end with the first caveat or with a name, the outermost first; for the key of a token, the person;
    empty: a stored key"""

    @property
    def scope(self) -> Scope:
        """The level for limit counters."""
        return Scope(self.key_id, self.limits, self.created_at)

    @property
    def holder_id(self) -> str:
        """The id of those who know the secret, or of the person whose token it is."""
        return self.holder or self.key_id

    @property
    def is_narrowed(self) -> bool:
        """True if its holder has a narrowed key, and not the secret of the stored key."""
        return self.has_secret and self.holder is not None

    @property
    def has_secret(self) -> bool:
        """False for the key of an identity: its clients send tokens of an issuer."""
        return not self.key_id.startswith(IDENTITY_KEYS)

    def allows(self, model: str) -> bool:
        return self.models is None or model in self.models

    def shares(self, key_id: str, project_id: str) -> bool:
        """True if it may use the objects that this key of this project made at a provider: its own, and those of other
        keys of its project. The default project does not count: where projects are not used, it has all keys."""
        is_shared = self.key_id == key_id or (self.project_id == project_id != DEFAULT_PROJECT)
        return self.uses_stored and is_shared

    def live(self, now: float) -> bool:
        """True if it is neither revoked nor expired at `now`. A blocked key is live: it can be unblocked."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True, slots=True)
class KeyChanges:
    """Keys, accounts and limit rules for a reader that follows their changes."""

    rows: Sequence[ApiKey | Account | LimitRule]
    revision: int
    """`rows` has all changes up to this revision"""
    behind: bool
    """there are later changes"""


@dataclass(frozen=True, slots=True)
class IdentityKey:
    """The key of an identity in a project, with its first limits and models."""

    identity: str
    """the name in the settings: a-z 0-9 -"""
    project: Account
    limits: Limits = UNLIMITED
    models: frozenset[str] | None = None
    byok: str | None = None
    """see `ApiKey.byok`"""

    @property
    def key_id(self) -> str:
        """The id of the key; equal on all machines."""
        return f"{IDENTITY_KEYS}{self.identity}_{self.project.account_id}"

    @property
    def digest(self) -> bytes:
        """Longer than any digest of a secret, so that no secret has it."""
        return f"no secret, but tokens: {self.key_id}".encode()

    @property
    def hint(self) -> str:
        return f"token of {self.identity}"

    @property
    def alias(self) -> str:
        """The display name of the key, if no other key has it."""
        return f"{self.identity}@{self.project.name}"


def expires_at_from(text: str, now: float, longest_s: float | None = None) -> float | None:
    """`--expires`: "90d", "12h", … (at most ten years), or a date or time (2027-01-31) → Unix seconds; "never" → None.
    `longest_s`: the deployment's longest lifetime. Raises ValueError."""
    at = None if text == "never" else _expiry(text, now)
    if longest_s is not None and (at is None or at > now + longest_s):
        raise ValueError(f"expires: must be within {longest_s / 86_400:g} days (setting key_lifetime_max)")
    return at


def _expiry(text: str, now: float) -> float:
    moment = iso_time(text)
    if moment is None:
        try:
            return now + seconds_from(text)
        except ValueError as wrong:
            raise ValueError(f"{wrong}, or a date: 2027-01-31") from None
    if not now < moment <= now + DURATION_S_MAX:
        raise ValueError(f"{text!r} is not in the next ten years")
    return moment
