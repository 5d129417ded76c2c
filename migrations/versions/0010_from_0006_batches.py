"""Files and batches at providers: who made them, and what is still to be settled."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0010_from_0006"
down_revision = "0009_from_0006"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True)
TEXT = sa.String().with_variant(sa.String(collation="C"), "postgresql")
JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
OPEN = sa.text("state IN ('creating', 'running')")


def upgrade() -> None:
    op.create_table(
        "stored_files",
        sa.Column("file_id", TEXT, nullable=False),
        sa.Column("api", TEXT, nullable=False),
        sa.Column("provider", TEXT, nullable=False),
        sa.Column("credential", TEXT),
        sa.Column("key_id", TEXT, nullable=False),
        sa.Column("project_id", TEXT, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("purpose", TEXT, nullable=False),
        sa.Column("input", JSON),
        sa.Column("made_by", TEXT),
        sa.PrimaryKeyConstraint("file_id", name="pk_stored_files"),
    )
    op.create_table(
        "stored_batches",
        sa.Column("exchange_id", TEXT, nullable=False),
        sa.Column("batch_id", TEXT),
        sa.Column("api", TEXT, nullable=False),
        sa.Column("provider", TEXT, nullable=False),
        sa.Column("credential", TEXT),
        sa.Column("key_id", TEXT, nullable=False),
        sa.Column("key_alias", TEXT, nullable=False),
        sa.Column("project_id", TEXT, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("state", TEXT, nullable=False),
        sa.Column("endpoint", TEXT, nullable=False),
        sa.Column("input_file", TEXT),
        sa.Column("lines", sa.BigInteger(), nullable=False),
        sa.Column("held_usd", sa.Numeric(24, 9)),
        sa.Column("names", TEXT, nullable=False),
        sa.Column("files", JSON, nullable=False),
        sa.Column("terms", JSON, nullable=False),
        sa.Column("next_at", TIME, nullable=False),
        sa.Column("claimed_by", TEXT),
        sa.PrimaryKeyConstraint("exchange_id", name="pk_stored_batches"),
        sa.UniqueConstraint("batch_id", name="uq_stored_batches_batch_id"),
    )
    op.create_index("ix_stored_files_key_id_created_at", "stored_files", ["key_id", "created_at"])
    op.create_index("ix_stored_files_project_id_created_at", "stored_files", ["project_id", "created_at"])
    op.create_index("ix_stored_batches_key_id_created_at", "stored_batches", ["key_id", "created_at"])
    op.create_index("ix_stored_batches_project_id_created_at", "stored_batches", ["project_id", "created_at"])
    op.create_index(
        "ix_stored_batches_next_at", "stored_batches", ["next_at"], sqlite_where=OPEN, postgresql_where=OPEN
    )
