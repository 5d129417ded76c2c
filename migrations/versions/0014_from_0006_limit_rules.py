"""Limits by rule."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0014_from_0006"
down_revision = "0013_from_0006"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True)
TEXT = sa.String().with_variant(sa.String(collation="C"), "postgresql")
JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    op.create_table(
        "limit_rules",
        sa.Column("rule_id", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("scope_id", TEXT),
        sa.Column("models", JSON),
        sa.Column("dimension_values", JSON),
        sa.Column("split_by", JSON),
        sa.Column("required", sa.Boolean(), nullable=False),
        sa.Column("limits", JSON),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("deleted_at", TIME),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("rule_id", name="pk_limit_rules"),
        sa.UniqueConstraint("revision", name="uq_limit_rules_revision"),
    )
