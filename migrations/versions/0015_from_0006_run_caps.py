"""The caps that clients set for their runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015_from_0006"
down_revision = "0014_from_0006"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True)
TEXT = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "run_caps",
        sa.Column("value_id", TEXT, nullable=False),
        sa.Column("key_id", TEXT, nullable=False),
        sa.Column("cap_usd", sa.Numeric(24, 9), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("value_id", "key_id", name="pk_run_caps"),
    )
