"""What a key may do, and why one is refused. Pure."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import NamedTuple

from proxy.billing.dimensions import Dimensions
from proxy.billing.keys import Account, ApiKey
from proxy.billing.limit_rules import LimitRule, scopes_of
from proxy.billing.limits import Scope
from proxy.billing.pricing.rules import Payer


class Refused(StrEnum):
    """The reason why authentication failed. The client does not see every reason."""

    MISSING = "missing"
    MALFORMED = "malformed"
    UNKNOWN = "unknown"
    EXPIRED = "expired"
    CAVEAT = "caveat"
    """a narrowed key with a caveat that is invalid or unknown, or two that contradict each other"""
    REPLACED = "replaced"
    """the secret before a rotation, after its grace"""
    REVOKED = "revoked"
    BLOCKED = "blocked"
    """the key, its project or its organization is blocked"""
    TOO_MANY = "too_many"
    """an unknown key from an address with too many of them: see `Keyring.retry_after_s`"""
    UNAVAILABLE = "unavailable"
    """an unknown key, and the database could not be read: the key may be valid"""
    JWT_INVALID = "jwt_invalid"
    """a token whose form, signature or times are wrong"""
    JWT_ELSEWHERE = "jwt_elsewhere"
    """a token of another issuer, or for another audience, than the configured ones"""
    JWT_EXPIRED = "jwt_expired"
    JWT_EARLY = "jwt_early"
    JWT_CLAIMS = "jwt_claims"
    """a claim lacks that the settings require, or has another value"""
    JWT_PROJECT = "jwt_project"
    """by its claims, the token belongs to no project"""
    ISSUER_UNAVAILABLE = "issuer_unavailable"
    """the issuer's keys could not be fetched: the token may be valid"""


NOT_USABLE = frozenset((Refused.EXPIRED, Refused.REVOKED, Refused.BLOCKED, Refused.REPLACED))
"""the reasons for which a known key is refused"""


class KeyAccess(NamedTuple):
    """The rights and limits of a key: its own, and those of its accounts."""

    blocked: bool
    scopes: tuple[Scope, ...]
    """the levels with limits: key, project, organization"""
    payer: Payer
    """the key and its accounts, for rules of prices"""
    cost_in_answers: bool
    """answers contain their cost"""
    rules: tuple[LimitRule, ...] = ()
    """the rules for requests of the key"""

    def levels(self, model: str, dimensions: Dimensions, providers: Collection[str] = ()) -> tuple[Scope, ...]:
        """The levels that a request counts against. `providers`: those that can serve the request."""
        return (*self.scopes, *scopes_of(self.rules, model, dimensions, providers)) if self.rules else self.scopes


def access_of(
    key: ApiKey, project: Account | None, organization: Account | None, rules: Collection[LimitRule]
) -> KeyAccess:
    """The rights of a key in its project and organization. None: the account is missing, and the key is blocked."""
    if project is None or organization is None:  # only after a partial restore of the database
        payer = Payer(key.key_id, key.alias, key.project_id)
        return KeyAccess(blocked=True, scopes=(), payer=payer, cost_in_answers=False)
    levels = (key, project, organization)
    scopes = tuple(level.scope for level in levels if level.limits.any)
    blocked = any(level.blocked_at is not None for level in levels)
    payer = Payer(key.key_id, key.alias, project.account_id, project.name, organization.account_id, organization.name)
    cost_in_answers = any(level.limits.cost_in_answers for level in levels)
    ids = (key.key_id, project.account_id, organization.account_id)
    return KeyAccess(blocked, scopes, payer, cost_in_answers, tuple(rule for rule in rules if rule.is_for(ids)))
