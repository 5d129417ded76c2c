"""Organizations and projects in SQL.

Invariants: those of ledger/limits.py; an account is never deleted and a project never moves to another organization,
so the spend of a project is part of the spend of its organization.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Row, insert, or_, select, update

from proxy.billing.keys import Account, AccountKind
from proxy.billing.limits import UNLIMITED, Limits
from proxy.foundation.names import UnknownNameError
from proxy.ledger.limits import (
    LIMITS,
    checked_name,
    checked_of_scope,
    limits_of,
    limits_row,
    next_revision,
    with_changes,
)
from proxy.ledger.schema.account_tables import accounts
from proxy.storage.database import Lock, hold, reading, writing

# In the message about an ambiguous name: ten thousand projects may be called "default".
IDS_SHOWN_MAX = 10

_COLUMNS = accounts.c
CHANGES = frozenset({"name", "limits"}) | LIMITS
"""the fields that `update` takes"""


class AccountError(ValueError):
    """An invalid change of accounts; the message is for the operator."""


class NameTakenError(AccountError):
    """Another organization, or another project of the same organization, has this name."""


class UnknownAccountError(AccountError, UnknownNameError):
    """No account has this id, and none or several have this name."""


class AccountStore:
    """Creates, lists and changes organizations and projects. Every method raises LedgerUnavailable."""

    def __init__(self, engine: Engine, *, clock: Callable[[], float]) -> None:
        """`clock`: Unix seconds."""
        self._engine = engine
        self._clock = clock

    def create_organization(self, *, account_id: str, name: str, limits: Limits = UNLIMITED) -> Account:
        """Create an organization. Raises NameTakenError, or ValueError that names the invalid field."""
        return self._create(account_id, AccountKind.ORGANIZATION, name, limits, None)

    def create_project(self, *, account_id: str, name: str, organization: str, limits: Limits = UNLIMITED) -> Account:
        """Create a project of this organization (id or name). Raises as above, or UnknownAccountError."""
        return self._create(account_id, AccountKind.PROJECT, name, limits, organization)

    def update(self, id_or_name: str, **changes: Any) -> Account:
        """Change `name`, `limits`, or single limits by their names. Equal values take no new revision.

        Raises UnknownAccountError, NameTakenError, or ValueError that names the invalid field.
        """
        assert changes.keys() <= CHANGES, f"not fields of an account: {changes.keys() - CHANGES}"

        def changed(account: Account) -> Account:
            name = checked_name("name", changes.get("name", account.name))
            return replace(account, name=name, limits=checked_of_scope(with_changes(account.limits, changes)))

        return self._change(id_or_name, changed)

    def block(self, id_or_name: str) -> Account:
        """Refuse the account's keys until it is unblocked. Idempotent. Raises UnknownAccountError."""
        now = self._clock()
        return self._change(id_or_name, lambda one: one if one.blocked_at is not None else replace(one, blocked_at=now))

    def unblock(self, id_or_name: str) -> Account:
        """Accept the account's keys again, except those that are blocked themselves or by another account.

        Raises UnknownAccountError.
        """
        return self._change(id_or_name, lambda one: replace(one, blocked_at=None))

    def every(self) -> list[Account]:
        """All accounts, oldest first."""
        with reading(self._engine) as connection:
            return sorted(read_accounts(connection), key=lambda one: (one.created_at, one.account_id))

    def with_ids(self, account_ids: Collection[str]) -> list[Account]:
        """The accounts with these ids, in any order."""
        with reading(self._engine) as connection:
            return read_accounts(connection, _COLUMNS.account_id.in_(account_ids))

    def one(self, id_or_name: str, kind: AccountKind | None = None) -> Account:
        """The account of this kind with this id, or else the only one with this name. Raises UnknownAccountError."""
        with reading(self._engine) as connection:
            return _one(connection, id_or_name, kind)

    def _create(
        self, account_id: str, kind: AccountKind, name: str, limits: Limits, organization: str | None
    ) -> Account:
        checked_name("name", name)
        checked_of_scope(limits)
        with writing(self._engine) as connection:
            hold(connection, Lock.KEYS)
            above = None if organization is None else _one(connection, organization, AccountKind.ORGANIZATION)
            account = Account(
                account_id=account_id,
                kind=kind,
                parent_id=None if above is None else above.account_id,
                name=name,
                limits=limits,
                created_at=self._clock(),
                blocked_at=None,
                revision=next_revision(connection),
            )
            _require_name(connection, account)
            connection.execute(insert(accounts).values(_row_of(account)))
        return account

    def _change(self, id_or_name: str, changed: Callable[[Account], Account]) -> Account:
        with writing(self._engine) as connection:
            hold(connection, Lock.KEYS)
            old = _one(connection, id_or_name, None)
            new = changed(old)
            if new == old:
                return old
            _require_name(connection, new)
            new = replace(new, revision=next_revision(connection))
            connection.execute(update(accounts).where(_COLUMNS.account_id == new.account_id).values(_row_of(new)))
        return new


def read_accounts(connection: Connection, *conditions: ColumnElement[bool], limit: int | None = None) -> list[Account]:
    """The accounts that meet the conditions, in the order of their last changes; the first `limit` of them."""
    rows = connection.execute(select(accounts).where(*conditions).order_by(_COLUMNS.revision).limit(limit))
    return [_account_of(row) for row in rows]


def _one(connection: Connection, id_or_name: str, kind: AccountKind | None) -> Account:
    field = "account" if kind is None else kind.value
    of_kind = [] if kind is None else [_COLUMNS.kind == kind.value]
    candidates = read_accounts(
        connection, or_(_COLUMNS.account_id == id_or_name, _COLUMNS.name == id_or_name), *of_kind
    )
    matches = [candidate for candidate in candidates if candidate.account_id == id_or_name] or candidates
    if not matches:
        raise UnknownAccountError(f"{field}: no {field} has the id or the name {id_or_name!r}")
    if len(matches) > 1:
        ids = ", ".join(
            f"{match.account_id} ({match.kind.value}{'' if match.parent_id is None else f' of {match.parent_id}'})"
            for match in matches[:IDS_SHOWN_MAX]
        )
        more = ", …" if len(matches) > IDS_SHOWN_MAX else ""
        raise UnknownAccountError(
            f"{field}: {len(matches)} {field}s have the name {id_or_name!r}; use one of the ids {ids}{more}"
        )
    return matches[0]


def _require_name(connection: Connection, account: Account) -> None:
    """Check that the account's name is free. Raises NameTakenError."""
    same = read_accounts(connection, _COLUMNS.kind == account.kind.value, _COLUMNS.name == account.name)
    others = {one.account_id for one in same if one.parent_id == account.parent_id} - {account.account_id}
    if others:
        raise NameTakenError(f"name: another {account.kind.value} already has the name {account.name!r}")


def _account_of(row: Row[Any]) -> Account:
    return Account(**{**row._asdict(), "kind": AccountKind(row.kind), "limits": limits_of(row.limits)})


def _row_of(account: Account) -> dict[str, Any]:
    row = {column.name: getattr(account, column.name) for column in accounts.columns}
    return {**row, "kind": account.kind.value, "limits": limits_row(account.limits)}
