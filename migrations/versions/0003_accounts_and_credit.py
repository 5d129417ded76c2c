"""Organizations, projects and their limits; the project of each key; budget alerts."""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

MONEY = sa.Numeric(24, 9)
TIME = sa.DateTime(timezone=True)
JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
TEXT = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    """Every key is kept, in a default project without limits."""
    _api_keys()
    _accounts()
    _budget_alerts()
    op.create_index("ix_dead_letters_exchange_id", "dead_letters", ["exchange_id"])


def _api_keys() -> None:
    # First, because it locks the table: no key can take a revision that `_accounts` uses.
    op.add_column("api_keys", sa.Column("project_id", TEXT, nullable=False, server_default="proj_default"))
    op.add_column("api_keys", sa.Column("limits", JSON))
    op.add_column("api_keys", sa.Column("on_exhausted", TEXT, nullable=False, server_default="finish"))
    op.add_column("api_keys", sa.Column("when_down", TEXT))
    op.add_column("api_keys", sa.Column("tags", JSON))
    op.add_column("api_keys", sa.Column("blocked_at", TIME))
    op.add_column("api_keys", sa.Column("old_digest", sa.LargeBinary()))
    op.add_column("api_keys", sa.Column("old_until", TIME))
    op.create_index("ix_api_keys_project_id", "api_keys", ["project_id"])


def _accounts() -> None:
    accounts = op.create_table(
        "accounts",
        sa.Column("account_id", TEXT, nullable=False),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("parent_id", TEXT),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("limits", JSON),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("blocked_at", TIME),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("account_id", name="pk_accounts"),
        sa.UniqueConstraint("revision", name="uq_accounts_revision"),
    )
    op.create_index("ix_accounts_parent_id", "accounts", ["parent_id"])
    last = op.get_bind().execute(sa.text("SELECT coalesce(max(revision), 0) FROM api_keys")).scalar_one()
    of_both = {"name": "default", "limits": None, "created_at": datetime.now(UTC), "blocked_at": None}
    op.bulk_insert(
        accounts,
        [
            {**of_both, "account_id": "org_default", "kind": "organization", "parent_id": None, "revision": last + 1},
            {
                **of_both,
                "account_id": "proj_default",
                "kind": "project",
                "parent_id": "org_default",
                "revision": last + 2,
            },
        ],
    )


def _budget_alerts() -> None:
    op.create_table(
        "budget_alerts",
        sa.Column("alert_id", TEXT, nullable=False),
        sa.Column("scope_id", TEXT, nullable=False),
        sa.Column("threshold", sa.Integer(), nullable=False),
        sa.Column("since", TIME, nullable=False),
        sa.Column("spent_usd", MONEY, nullable=False),
        sa.Column("budget_usd", MONEY, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("state", TEXT, nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("next_at", TIME, nullable=False),
        sa.Column("last_error", TEXT),
        sa.PrimaryKeyConstraint("alert_id", name="pk_budget_alerts"),
    )
    op.create_index("ix_budget_alerts_state_next_at", "budget_alerts", ["state", "next_at"])
