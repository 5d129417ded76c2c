"""End users, sessions, runs and tags: their values, the exchanges that have them, and their daily usage."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from proxy.migrations import steps

revision = "0013_from_0006"
down_revision = "0012_from_0006"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True)
TEXT = sa.String().with_variant(sa.String(collation="C"), "postgresql")
JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
MONEY = sa.Numeric(24, 9)
COUNTS = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "total_tokens", "entries")


def upgrade() -> None:
    steps.add_column("api_keys", sa.Column("dimensions", JSON))
    op.create_table(
        "dimension_values",
        sa.Column("value_id", TEXT, nullable=False),
        sa.Column("project_id", TEXT, nullable=False),
        sa.Column("dimension", TEXT, nullable=False),
        sa.Column("value", TEXT, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("value_id", name="pk_dimension_values"),
        sa.UniqueConstraint("project_id", "dimension", "value", name="uq_dimension_values_project_id_dimension_value"),
    )
    op.create_table(
        "exchange_dimensions",
        sa.Column("dimension", TEXT, nullable=False),
        sa.Column("value_id", TEXT, nullable=False),
        sa.Column("exchange_id", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("dimension", "value_id", "exchange_id", name="pk_exchange_dimensions"),
    )
    op.create_index("ix_exchange_dimensions_exchange_id", "exchange_dimensions", ["exchange_id"])
    op.create_table(
        "dimension_daily",
        sa.Column("dimension", TEXT, nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("value_id", TEXT, nullable=False),
        sa.Column("key_id", TEXT, nullable=False),
        sa.Column("model", TEXT, nullable=False),
        sa.Column("charged_usd", MONEY, nullable=False),
        sa.Column("cost_usd", MONEY, nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in COUNTS),
        sa.PrimaryKeyConstraint("dimension", "day", "value_id", "key_id", "model", name="pk_dimension_daily"),
    )
    op.create_index("ix_dimension_daily_value_id_day", "dimension_daily", ["value_id", "day"])
    op.create_table(
        "dimension_clock",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("settled_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_dimension_clock"),
    )
    # No earlier entry has dimensions.
    op.get_bind().exec_driver_sql("INSERT INTO dimension_clock SELECT id, settled_at FROM account_clock")
