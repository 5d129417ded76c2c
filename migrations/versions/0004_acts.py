"""The audit log; an index, by time, of the entries that are not requests."""

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
    """The index contains only the few entries of other kinds: it is small, and built in one scan of the table."""
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
