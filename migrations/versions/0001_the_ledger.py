"""The ledger: entries, balances, dead letters, keys."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

MONEY = sa.Numeric(24, 9)
TIME = sa.DateTime(timezone=True)
JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    """Create the tables of the first version."""
    _ledger_entries()
    _balances()
    _dead_letters()
    _api_keys()


def _ledger_entries() -> None:
    op.create_table(
        "ledger_entries",
        sa.Column("entry_id", sa.String(), nullable=False),
        sa.Column("exchange_id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("key_alias", sa.String(), nullable=False),
        sa.Column("provider", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("upstream_model", sa.String(), nullable=False),
        sa.Column("endpoint", sa.String(), nullable=False),
        sa.Column("streamed", sa.Boolean(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("finish_reason", sa.String()),
        sa.Column("usage_source", sa.String(), nullable=False),
        sa.Column("estimator", sa.String()),
        sa.Column("prompt_tokens", sa.BigInteger()),
        sa.Column("cached_tokens", sa.BigInteger()),
        sa.Column("completion_tokens", sa.BigInteger()),
        sa.Column("reasoning_tokens", sa.BigInteger()),
        sa.Column("total_tokens", sa.BigInteger()),
        sa.Column("events", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("cost_usd", MONEY),
        sa.Column("charge_usd", MONEY),
        sa.Column("price_version", sa.String()),
        sa.Column("provider_response_id", sa.String()),
        sa.Column("started_at", TIME, nullable=False),
        sa.Column("first_token_ms", sa.Double()),
        sa.Column("duration_ms", sa.Double(), nullable=False),
        sa.Column("details", JSON, nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("content_hash", sa.String(), nullable=False),
        sa.Column("settled_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("entry_id", name="pk_ledger_entries"),
        sa.UniqueConstraint("exchange_id", "kind", "seq", name="uq_ledger_entries_exchange_id_kind_seq"),
    )
    for columns in (["key_id", "started_at"], ["model", "started_at"], ["started_at"], ["settled_at", "entry_id"]):
        op.create_index("_".join(["ix_ledger_entries", *columns]), "ledger_entries", columns)


def _balances() -> None:
    op.create_table(
        "balances",
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("charged_usd", MONEY, nullable=False),
        sa.Column("cost_usd", MONEY, nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.Column("reasoning_tokens", sa.BigInteger(), nullable=False),
        sa.Column("total_tokens", sa.BigInteger(), nullable=False),
        sa.Column("entries", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key_id", name="pk_balances"),
    )


def _dead_letters() -> None:
    op.create_table(
        "dead_letters",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("exchange_id", sa.String()),
        sa.Column("kind", sa.String()),
        sa.Column("seq", sa.Integer()),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("first_seen", TIME, nullable=False),
        sa.Column("last_seen", TIME, nullable=False),
        sa.Column("times_seen", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_dead_letters"),
    )
    op.create_index("ix_dead_letters_first_seen", "dead_letters", ["first_seen"])


def _api_keys() -> None:
    op.create_table(
        "api_keys",
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("alias", sa.String(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("hint", sa.String(), nullable=False),
        sa.Column("models", JSON),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("expires_at", TIME),
        sa.Column("revoked_at", TIME),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key_id", name="pk_api_keys"),
        sa.UniqueConstraint("digest", name="uq_api_keys_digest"),
        sa.UniqueConstraint("revision", name="uq_api_keys_revision"),
    )
    op.create_index("ix_api_keys_alias", "api_keys", ["alias"])
