"""Sinks: the progress of each, and the entries that it rejected."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True)
TEXT = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    """Create the tables `sinks` and `sink_letters`."""
    op.create_table(
        "sinks",
        sa.Column("name", TEXT, nullable=False),
        sa.Column("settled_at", TIME, nullable=False),
        sa.Column("entry_id", TEXT, nullable=False),
        sa.Column("sent", sa.BigInteger(), nullable=False),
        sa.Column("last_sent_at", TIME),
        sa.Column("claimed_by", TEXT),
        sa.Column("claimed_until", TIME, nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("failing_since", TIME),
        sa.Column("next_at", TIME, nullable=False),
        sa.Column("last_error", TEXT),
        sa.PrimaryKeyConstraint("name", name="pk_sinks"),
    )
    op.create_table(
        "sink_letters",
        sa.Column("sink", TEXT, nullable=False),
        sa.Column("entry_id", TEXT, nullable=False),
        sa.Column("settled_at", TIME, nullable=False),
        sa.Column("why", TEXT, nullable=False),
        sa.Column("first_seen", TIME, nullable=False),
        sa.Column("state", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("sink", "entry_id", name="pk_sink_letters"),
    )
    op.create_index("ix_sink_letters_sink_state", "sink_letters", ["sink", "state"])
