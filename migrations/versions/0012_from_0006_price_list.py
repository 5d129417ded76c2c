"""The price list that all proxies apply, if they refresh their prices."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0012_from_0006"
down_revision = "0011_from_0006"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True)
TEXT = sa.String().with_variant(sa.String(collation="C"), "postgresql")
JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    op.create_table(
        "price_lists",
        sa.Column("name", TEXT, nullable=False),
        sa.Column("version", TEXT),
        sa.Column("content", sa.LargeBinary()),
        sa.Column("accepted_at", TIME),
        sa.Column("checked_at", TIME),
        sa.Column("next_at", TIME, nullable=False),
        sa.Column("refused", JSON, nullable=False),
        sa.Column("error", TEXT),
        sa.PrimaryKeyConstraint("name", name="pk_price_lists"),
    )
