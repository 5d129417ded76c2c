"""The owners of entries: keys, and the accounts above them.

Invariant: names and tags are the current ones; ids are those of the time of the entry, because a key never moves to
another project.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import cache

import msgspec
from sqlalchemy import BindParameter, Connection, Engine, bindparam, select

from proxy.billing.keys import AccountKind
from proxy.billing.pricing.rules import Payer
from proxy.ledger.schema.account_tables import accounts, api_keys
from proxy.ledger.settling.spend import IDS_MAX, batches
from proxy.storage.database import reading

_PROJECTS, _ABOVE = accounts.alias("projects"), accounts.alias("above")
_IDS: BindParameter[str] = bindparam("ids", expanding=True)


class Owner(msgspec.Struct, frozen=True):
    """A key or an account, with the accounts above it."""

    scope_id: str
    name: str
    project_id: str | None
    project: str | None
    organization_id: str | None
    organization: str | None
    tags: tuple[str, ...] = ()


def payer_of(engine: Engine) -> Callable[[str], Payer]:
    """A function from a key id to the payer, by current names; it reads each key once and raises LedgerUnavailable."""

    @cache
    def payer(key_id: str) -> Payer:
        owner = owners_of(engine, [key_id]).get(key_id)
        if owner is None:
            return Payer(key_id)
        accounts = (owner.project_id, owner.project, owner.organization_id, owner.organization)
        return Payer(key_id, owner.name, *(text or "" for text in accounts))

    return payer


def owners_of(engine: Engine, scope_ids: Collection[str]) -> dict[str, Owner]:
    """The owners with these ids; unknown ids are left out. Raises LedgerUnavailable."""
    with reading(engine) as connection:
        return {owner.scope_id: owner for ids in batches(scope_ids, IDS_MAX) for owner in _owners(connection, ids)}


def _owners(connection: Connection, scope_ids: Collection[str]) -> Iterator[Owner]:
    projects, above, keys = _PROJECTS.c, _ABOVE.c, api_keys.c
    of_keys = (
        select(keys.key_id, keys.alias, projects.account_id, projects.name, above.account_id, above.name, keys.tags)
        .select_from(
            api_keys.outerjoin(_PROJECTS, keys.project_id == projects.account_id).outerjoin(
                _ABOVE, projects.parent_id == above.account_id
            )
        )
        .where(keys.key_id.in_(_IDS))
    )
    for row in connection.execute(of_keys, {"ids": scope_ids}):
        yield Owner(row[0], row[1], row[2], row[3], row[4], row[5], tuple(row.tags or ()))
    of_accounts = (
        select(projects.account_id, projects.name, projects.kind, above.account_id, above.name)
        .select_from(_PROJECTS.outerjoin(_ABOVE, projects.parent_id == above.account_id))
        .where(projects.account_id.in_(_IDS))
    )
    for scope_id, name, kind, above_id, above_name in connection.execute(of_accounts, {"ids": scope_ids}):
        if kind == AccountKind.ORGANIZATION.value:
            yield Owner(scope_id, name, None, None, scope_id, name)
        else:
            yield Owner(scope_id, name, scope_id, name, above_id, above_name)
