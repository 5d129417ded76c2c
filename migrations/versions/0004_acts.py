"""What operators do is put down; entries that end no exchange are found by their time."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True)
JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
TEXT = sa.String().with_variant(sa.String(collation="C"), "postgresql")
OTHERS = sa.text("kind <> 'usage'")


def upgrade() -> None:
    """The index has only the few of other kinds in it: it is small, and made in one reading of the table."""
    op.create_table(
        "acts",
        sa.Column("act_id", TEXT, nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("actor", TEXT, nullable=False),
        sa.Column("via", TEXT, nullable=False),
        sa.Column("origin", TEXT),
        sa.Column("action", TEXT, nullable=False),
        sa.Column("target", TEXT),
        sa.Column("details", JSON),
        sa.Column("result", TEXT, nullable=False),
        sa.Column("words", TEXT),
        sa.PrimaryKeyConstraint("act_id", name="pk_acts"),
    )
    op.create_index(
        "ix_ledger_entries_others",
        "ledger_entries",
        ["started_at"],
        sqlite_where=OTHERS,
        postgresql_where=OTHERS,
    )
