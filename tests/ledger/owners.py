"""Two keys of a project of an organization, whose statements are read."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import Engine, insert

from proxy.ledger.schema.account_tables import accounts, api_keys
from proxy.reports.statement import StatementOwner
from proxy.storage.database import writing

KEY, PROJECT, ORGANIZATION = (
    StatementOwner("key-1", "key", "anna"),
    StatementOwner("proj-1", "project", "web"),
    StatementOwner("org-1", "organization", "acme"),
)
OWNERS = (KEY, PROJECT, ORGANIZATION)


def at(text: str) -> float:
    """Unix seconds."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def insert_owners(engine: Engine) -> None:
    """And a second key, bert's."""
    row = {"created_at": 1.0, "limits": None, "blocked_at": None}
    above = [("org-1", "organization", None, "acme"), ("proj-1", "project", "org-1", "web")]
    with writing(engine) as connection:
        for revision, (account_id, kind, parent_id, name) in enumerate(above, 11):
            one = {"account_id": account_id, "kind": kind, "parent_id": parent_id, "name": name}
            connection.execute(insert(accounts), {**row, **one, "revision": revision})
        for revision, (key_id, alias) in enumerate([("key-1", "anna"), ("key-2", "bert")], 21):
            key = {"key_id": key_id, "alias": alias, "digest": alias.encode(), "hint": "", "created_at": 1.0}
            connection.execute(insert(api_keys), {**key, "revision": revision, "project_id": "proj-1"})
