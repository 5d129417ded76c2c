"""Keys whose clients send their own provider credential."""

from __future__ import annotations

import sqlalchemy as sa

from proxy.migrations import steps

revision = "0017_from_0006"
down_revision = "0016_from_0006"
branch_labels = None
depends_on = None

TEXT = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    steps.add_column("api_keys", sa.Column("byok", TEXT))
