"""One list of all limits: those by rule, and those of keys, projects and organizations themselves.

Invariant: the limits of a key or an account are listed in the form of a rule that counts all its requests. The id of
that rule is the id of the key or account, and so the id of its counter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from proxy.billing.keys import Account, ApiKey
from proxy.billing.limit_rules import LimitRule
from proxy.billing.limits import UNLIMITED
from proxy.ledger.accounts.account_store import AccountStore
from proxy.ledger.accounts.key_store import KeyStore
from proxy.ledger.limit_rules import RuleStore

LimitKind = Literal["rule", "key", "project", "organization"]

# Keys that are read at a time.
_PAGE_KEYS = 1_000


class ListedLimit(NamedTuple):
    """One row of the list."""

    kind: LimitKind
    owner: str
    """the name by which the limit is changed: of the rule, the key or the account"""
    rule: LimitRule

    @classmethod
    def of_rule(cls, rule: LimitRule) -> ListedLimit:
        return cls("rule", rule.name, rule)

    @classmethod
    def of_owner(cls, owner: ApiKey | Account) -> ListedLimit:
        """The limits of a key or an account itself."""
        kind: LimitKind
        if isinstance(owner, ApiKey):
            kind, owner_id, name = "key", owner.key_id, owner.alias
        else:
            kind, owner_id, name = owner.kind.value, owner.account_id, owner.name
        rule = LimitRule(
            rule_id=owner_id, name=f"{kind} {name}", scope_id=owner_id, limits=owner.limits,
            created_at=owner.created_at, revision=owner.revision,
        )  # fmt: skip
        return cls(kind, name, rule)


class LimitList:
    """Lists limits. Every method raises LedgerUnavailable."""

    def __init__(self, rules: RuleStore, keys: KeyStore, accounts: AccountStore) -> None:
        self._rules, self._keys, self._accounts = rules, keys, accounts

    def of_rules(self) -> list[ListedLimit]:
        """The limits by rule, oldest first."""
        return [ListedLimit.of_rule(one) for one in self._rules.every()]

    def of_key(self, key: ApiKey) -> list[ListedLimit]:
        """The limits that requests of a key can count against: its own, those of its project and organization, and
        those by rule."""
        project = self._accounts.one(key.project_id)
        organization = self._accounts.one(project.parent_id or "")
        ids = key.key_id, project.account_id, organization.account_id
        found = [ListedLimit.of_owner(one) for one in (key, project, organization) if one.limits != UNLIMITED]
        return [*found, *(ListedLimit.of_rule(one) for one in self._rules.every() if one.is_for(ids))]

    def page(self, first: int, size: int) -> tuple[list[ListedLimit], int]:
        """At most `size` of all limits, from number `first` (0: the first one); and their total number. Order: rules,
        accounts, keys that are not revoked, the newest key first."""
        accounts = (ListedLimit.of_owner(one) for one in self._accounts.every() if one.limits != UNLIMITED)
        head = [*self.of_rules(), *accounts]
        found = head[first : first + size]
        keys, total = self._keys.limited(max(0, first - len(head)), size - len(found))
        return [*found, *map(ListedLimit.of_owner, keys)], len(head) + total

    def every(self) -> Iterator[ListedLimit]:
        """All limits, in the order of `page`. Read page by page, without a common snapshot."""
        first, total = 0, 1
        while first < total:
            found, total = self.page(first, _PAGE_KEYS)
            yield from found
            first += _PAGE_KEYS
