"""Fallback models of limits by rule."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016_from_0006"
down_revision = "0015_from_0006"
branch_labels = None
depends_on = None

TEXT = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("limit_rules", sa.Column("fallback_model", TEXT))
