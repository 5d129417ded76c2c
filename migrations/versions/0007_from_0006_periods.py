"""Periods that are closed, and the closed form of their statements."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0007_from_0006"
down_revision = "0006"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True)
TEXT = sa.String().with_variant(sa.String(collation="C"), "postgresql")
MONEY = sa.Numeric(24, 9)
JSON = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    """Create the tables `periods` and `scope_months`."""
    op.create_table(
        "periods",
        sa.Column("month", TEXT, nullable=False),
        sa.Column("closed_at", TIME, nullable=False),
        sa.Column("closed_by", TEXT, nullable=False),
        sa.Column("left_behind", JSON),
        sa.Column("issued_at", TIME),
        sa.Column("entries", sa.BigInteger()),
        sa.Column("digest", TEXT),
        sa.PrimaryKeyConstraint("month", name="pk_periods"),
    )
    op.create_table(
        "scope_months",
        sa.Column("scope_id", TEXT, nullable=False),
        sa.Column("month", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("entries", sa.BigInteger(), nullable=False),
        sa.Column("digest", TEXT, nullable=False),
        sa.Column("charged_usd", MONEY, nullable=False),
        sa.Column("credited_usd", MONEY, nullable=False),
        sa.Column("content", JSON, nullable=False),
        sa.PrimaryKeyConstraint("scope_id", "month", name="pk_scope_months"),
    )
    op.create_index("ix_scope_months_month", "scope_months", ["month"])
