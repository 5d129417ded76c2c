"""A key's policy for an outage of the budget store has the name and the values of its setting."""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Rename the column, which rewrites no table, and map the values of the keys that have one."""
    op.execute("ALTER TABLE api_keys RENAME COLUMN when_down TO on_store_outage")
    op.execute("UPDATE api_keys SET on_store_outage = 'fail_' || on_store_outage WHERE on_store_outage IS NOT NULL")
