"""Keys are listed, and looked up by their previous secrets, without reading all of them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the indexes: two seconds for a million keys, in which no key can be changed."""
    op.create_index("ix_api_keys_created_at_key_id", "api_keys", ["created_at", "key_id"])
    rotated = sa.text("old_digest IS NOT NULL")
    op.create_index(
        "ix_api_keys_old_digest", "api_keys", ["old_digest"], sqlite_where=rotated, postgresql_where=rotated
    )
