"""Keys are listed, and looked up by their previous secrets, without reading all of them; charges by account."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from proxy.migrations import steps

revision = "0008_from_0006"
down_revision = "0007_from_0006"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True)
TEXT = sa.String().with_variant(sa.String(collation="C"), "postgresql")

_CLOCK = "INSERT INTO account_clock SELECT id, settled_at FROM ledger_clock"
_NUSD = {"sqlite": "CAST(round(charged_usd * 1e9) AS INTEGER)", "postgresql": "charged_usd * 1000000000"}
_DAILY = """
INSERT INTO account_daily
SELECT account_id, day, sum(nusd) FROM (
    SELECT project_id AS account_id, day, {nusd} AS nusd
    FROM usage_daily JOIN api_keys ON api_keys.key_id = usage_daily.key_id
    UNION ALL
    SELECT parent_id, day, {nusd}
    FROM usage_daily JOIN api_keys ON api_keys.key_id = usage_daily.key_id
    JOIN accounts ON accounts.account_id = project_id
) AS charges GROUP BY account_id, day
"""


def upgrade() -> None:
    steps.create_index("ix_api_keys_created_at_key_id", "api_keys", ["created_at", "key_id"])
    steps.create_index("ix_api_keys_old_digest", "api_keys", ["old_digest"], where="old_digest IS NOT NULL")
    op.create_table(
        "account_daily",
        sa.Column("account_id", TEXT, nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("charged_nusd", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("account_id", "day", name="pk_account_daily"),
    )
    op.create_table(
        "account_clock",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("settled_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_account_clock"),
    )
    _add_up()


def _add_up() -> None:
    """The sums and the clock of one instant: on Postgres one statement, as only a statement has one snapshot. Only new
    tables are written, so nobody waits."""
    bind = op.get_bind()
    daily = _DAILY.format(nusd=_NUSD[bind.dialect.name])
    if bind.dialect.name == "postgresql":
        bind.exec_driver_sql(f"WITH clock AS ({_CLOCK} RETURNING id) {daily}")
    else:
        bind.exec_driver_sql(_CLOCK)
        bind.exec_driver_sql(daily)
