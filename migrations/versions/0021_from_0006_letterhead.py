"""The seller, the customers and the terms on the statements of a closed month."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from proxy.migrations import steps

revision = "0021_from_0006"
down_revision = "0020_from_0006"
branch_labels = None
depends_on = None

JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    steps.add_column("periods", sa.Column("letterhead", JSON))
