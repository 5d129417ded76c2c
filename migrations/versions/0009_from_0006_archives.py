"""Months whose entries are in an archive, and what the checks need of them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009_from_0006"
down_revision = "0008_from_0006"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True)
TEXT = sa.String().with_variant(sa.String(collation="C"), "postgresql")
MONEY = sa.Numeric(24, 9)
COUNTS = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "total_tokens", "entries")


def upgrade() -> None:
    op.create_table(
        "archives",
        sa.Column("month", TEXT, nullable=False),
        sa.Column("statements_until", TEXT, nullable=False),
        sa.Column("entries", sa.BigInteger(), nullable=False),
        sa.Column("file", TEXT, nullable=False),
        sa.Column("sha256", TEXT, nullable=False),
        sa.Column("archived_at", TIME, nullable=False),
        sa.Column("archived_by", TEXT, nullable=False),
        sa.Column("removed_at", TIME),
        sa.PrimaryKeyConstraint("month", name="pk_archives"),
    )
    op.create_table(
        "archived_sums",
        sa.Column("month", TEXT, nullable=False),
        sa.Column("key_id", TEXT, nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("model", TEXT, nullable=False),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("charged_usd", MONEY, nullable=False),
        sa.Column("cost_usd", MONEY, nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in COUNTS),
        sa.PrimaryKeyConstraint("month", "key_id", "day", "model", "kind", name="pk_archived_sums"),
    )
    op.create_table(
        "archived_receipts",
        sa.Column("node", TEXT, nullable=False),
        sa.Column("first_seq", sa.BigInteger(), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("node", "first_seq", name="pk_archived_receipts"),
    )
