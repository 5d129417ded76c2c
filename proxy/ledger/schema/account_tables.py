"""The tables of organizations, projects and keys, with what they may spend.

Invariants: accounts, rules and grants are never deleted; what an entry has moved of a grant is never changed.
`migrations/` creates these tables; a test compares the two.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    UniqueConstraint,
)

from proxy.billing.keys import DEFAULT_PROJECT
from proxy.billing.limits import OnExhausted
from proxy.ledger.schema.column_types import Money, UtcTime, json_type, metadata, partial_index, text_type

# Organizations and projects. Two accounts named "default" are created with the table; none is ever deleted.
accounts = Table(
    "accounts",
    metadata,
    Column("account_id", text_type(), primary_key=True),
    Column("kind", text_type(), nullable=False),
    Column("parent_id", text_type()),
    Column("name", text_type(), nullable=False),
    # Only the limits that are set; null: none. Money: nUSD.
    Column("limits", json_type()),
    Column("created_at", UtcTime, nullable=False),
    Column("blocked_at", UtcTime),
    # Shared by keys and accounts: see api_keys.
    Column("revision", BigInteger, nullable=False),
    UniqueConstraint("revision"),
    Index("ix_accounts_parent_id", "parent_id"),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("key_id", text_type(), primary_key=True),
    Column("alias", text_type(), nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("hint", text_type(), nullable=False),
    Column("models", json_type()),
    Column("created_at", UtcTime, nullable=False),
    Column("expires_at", UtcTime),
    Column("revoked_at", UtcTime),
    # The maximum over keys and accounts + 1 at every change. Unique, so that two concurrent changes cannot take the
    # same one.
    Column("revision", BigInteger, nullable=False),
    Column("project_id", text_type(), nullable=False, server_default=DEFAULT_PROJECT),
    Column("limits", json_type()),
    Column("on_exhausted", text_type(), nullable=False, server_default=OnExhausted.FINISH.value),
    Column("on_store_outage", text_type()),
    Column("tags", json_type()),
    Column("blocked_at", UtcTime),
    # The secret before the last rotation, and the end of its validity.
    Column("old_digest", LargeBinary),
    Column("old_until", UtcTime),
    # The sources of dimensions that count, and fixed values. Null: every source.
    Column("dimensions", json_type()),
    # Of keys whose clients send their own provider credential: how their requests are billed.
    Column("byok", text_type()),
    UniqueConstraint("digest"),
    UniqueConstraint("revision"),
    Index("ix_api_keys_alias", "alias"),
    Index("ix_api_keys_project_id", "project_id"),
    Index("ix_api_keys_created_at_key_id", "created_at", "key_id"),
    partial_index("ix_api_keys_old_digest", "old_digest", where="old_digest IS NOT NULL"),
)

# The caps that clients set for their runs: see run_caps.py.
run_caps = Table(
    "run_caps",
    metadata,
    # Of the run.
    Column("value_id", text_type(), nullable=False),
    Column("key_id", text_type(), nullable=False),
    Column("cap_usd", Money, key="cap_nusd", nullable=False),
    Column("created_at", UtcTime, nullable=False),
    PrimaryKeyConstraint("value_id", "key_id"),
)

# Limits by rule: see billing/limit_rules.py. Rows are never deleted.
limit_rules = Table(
    "limit_rules",
    metadata,
    Column("rule_id", text_type(), primary_key=True),
    Column("name", text_type(), nullable=False),
    # Of a key or an account; null: all requests.
    Column("scope_id", text_type()),
    # Null: all.
    Column("models", json_type()),
    # Names of providers; null: all.
    Column("providers", json_type()),
    # Dimension → value id.
    Column("dimension_values", json_type()),
    # Dimensions.
    Column("split_by", json_type()),
    Column("required", Boolean, nullable=False),
    # Serves a request that the rule refuses; null: none.
    Column("fallback_model", text_type()),
    # As in accounts.
    Column("limits", json_type()),
    Column("created_at", UtcTime, nullable=False),
    Column("deleted_at", UtcTime),
    # One of those of keys and accounts, see api_keys: each change of a rule also gives it to the default organization.
    Column("revision", BigInteger, nullable=False),
    UniqueConstraint("revision"),
)

# Grants: see billing/grants.py. Of a series that recurs, a row for each that began. Rows are never deleted.
grants = Table(
    "grants",
    metadata,
    Column("grant_id", text_type(), primary_key=True),
    Column("series_id", text_type(), nullable=False),
    # In the series, from 1.
    Column("number", BigInteger, nullable=False),
    Column("scope_id", text_type(), nullable=False),
    Column("scope_name", text_type(), nullable=False),
    Column("name", text_type(), nullable=False),
    # Amounts in nUSD: exact on both databases.
    Column("amount_nusd", BigInteger, nullable=False),
    Column("begins_at", UtcTime, nullable=False),
    Column("expires_at", UtcTime),
    Column("priority", Integer, nullable=False),
    Column("recurs", text_type()),
    Column("time_zone", text_type()),
    Column("lasts_s", BigInteger),
    # By the ledger's clock.
    Column("created_at", UtcTime, nullable=False),
    Column("revoked_at", UtcTime),
    # The sums of its moves.
    Column("granted_nusd", BigInteger, nullable=False),
    Column("burned_nusd", BigInteger, nullable=False),
    Column("expired_nusd", BigInteger, nullable=False),
    # The number of moves that are entries of their own: granted and expired.
    Column("entries", BigInteger, nullable=False),
    # Of the last of its series: when the next one begins. Null: there is none, or it has begun.
    Column("next_at", UtcTime),
    UniqueConstraint("series_id", "number"),
    Index("ix_grants_scope_id", "scope_id"),
    partial_index(
        "ix_grants_open", "begins_at", where="granted_nusd = 0 OR granted_nusd - burned_nusd <> expired_nusd"
    ),
    partial_index("ix_grants_next_at", "next_at", where="next_at IS NOT NULL"),
)

# What each entry has granted, burned or expired of a grant. Rows are never changed or deleted.
grant_moves = Table(
    "grant_moves",
    metadata,
    Column("grant_id", text_type(), nullable=False),
    Column("entry_id", text_type(), nullable=False),
    Column("exchange_id", text_type(), nullable=False),
    # granted, burned, expired
    Column("kind", text_type(), nullable=False),
    # Of the entry.
    Column("settled_at", UtcTime, nullable=False),
    Column("amount_nusd", BigInteger, nullable=False),
    PrimaryKeyConstraint("grant_id", "entry_id"),
    Index("ix_grant_moves_grant_id_settled_at", "grant_id", "settled_at"),
    Index("ix_grant_moves_exchange_id", "exchange_id"),
)

# One row: the entries settled until then have burned their grants.
grant_clock = Table(
    "grant_clock",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("settled_at", UtcTime, nullable=False),
)

# Budget thresholds that were exceeded, once per window, and the delivery of their webhooks.
budget_alerts = Table(
    "budget_alerts",
    metadata,
    Column("alert_id", text_type(), primary_key=True),
    Column("scope_id", text_type(), nullable=False),
    # In percent of the budget.
    Column("threshold", Integer, nullable=False),
    # The beginning of the budget's window.
    Column("since", UtcTime, nullable=False),
    Column("spent_usd", Money, key="spent_nusd", nullable=False),
    Column("budget_usd", Money, key="budget_nusd", nullable=False),
    Column("created_at", UtcTime, nullable=False),
    # open: the webhook is to be sent; sent; given_up.
    Column("state", text_type(), nullable=False),
    Column("tries", Integer, nullable=False),
    Column("next_at", UtcTime, nullable=False),
    Column("last_error", text_type()),
    Index("ix_budget_alerts_state_next_at", "state", "next_at"),
)
