"""Keys and accounts as the rooms exchange them. Law: the secret itself is never part of a value.

An organization has projects, a project has keys; each of the three may have limits, and a request must pass them all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from proxy.billing.limits import UNLIMITED, Limits, OnExhausted, OnStoreOutage, Scope
from proxy.foundation.durations import seconds_from

EXPIRES_DEFAULT = "90d"
GRACE_DEFAULT = "24h"
"""how long the old secret of a rotated key goes on counting"""

DEFAULT_ORGANIZATION, DEFAULT_PROJECT = "org_default", "proj_default"
"""there from the beginning, without limits: where a key is that names no project"""


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
    """as of a key: accounts and keys count on together"""

    @property
    def scope(self) -> Scope:
        """As requests are counted at it."""
        return Scope(self.account_id, self.limits, self.created_at)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is known of one key. Times: Unix seconds, UTC."""

    key_id: str
    alias: str
    digest: bytes = field(repr=False)
    """keyed hash of the secret; 32 bytes"""
    hint: str
    """enough to recognise a key by, `tw-…abcd`"""
    models: frozenset[str] | None
    """the models it may ask for; None: all"""
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    revision: int
    """of the whole table at this row's last change; a later change has a higher one"""
    project_id: str = DEFAULT_PROJECT
    """never changes: what a key has spent, its project has spent"""
    limits: Limits = UNLIMITED
    on_exhausted: OnExhausted = OnExhausted.FINISH
    on_store_outage: OnStoreOutage | None = None
    """None: where money is limited at any level, the deployment's (closed, by default); else open"""
    tags: tuple[str, ...] = ()
    blocked_at: float | None = None
    old_digest: bytes | None = field(default=None, repr=False)
    """of the secret before the last rotation"""
    old_until: float | None = None
    """until then it counts, too"""

    @property
    def scope(self) -> Scope:
        """As requests are counted at it."""
        return Scope(self.key_id, self.limits, self.created_at)

    def allows(self, model: str) -> bool:
        """True if this key may ask for `model`."""
        return self.models is None or model in self.models

    def live(self, now: float) -> bool:
        """True if it is neither revoked nor expired at `now`. One that is blocked is live: it can be unblocked."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


def expires_at_from(text: str, now: float, longest_s: float | None = None) -> float | None:
    """`--expires`: "90d", "12h", … (at most ten years) → Unix seconds; "never" → None. `longest_s`: no key of this
    deployment lives longer. Raises ValueError."""
    lifetime_s = None if text == "never" else seconds_from(text)
    if longest_s is not None and (lifetime_s is None or lifetime_s > longest_s):
        raise ValueError(f"expires: no key lives longer than {longest_s / 86_400:g} days here (key_lifetime_max)")
    return None if lifetime_s is None else now + lifetime_s
