"""Grants: credit that begins, expires and recurs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019_from_0006"
down_revision = "0018_from_0006"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True)
TEXT = sa.String().with_variant(sa.String(collation="C"), "postgresql")
OPEN = "granted_nusd = 0 OR granted_nusd - burned_nusd <> expired_nusd"
HAS_NEXT = "next_at IS NOT NULL"


def upgrade() -> None:
    op.create_table(
        "grants",
        sa.Column("grant_id", TEXT, nullable=False),
        sa.Column("series_id", TEXT, nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("scope_id", TEXT, nullable=False),
        sa.Column("scope_name", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("amount_nusd", sa.BigInteger(), nullable=False),
        sa.Column("begins_at", TIME, nullable=False),
        sa.Column("expires_at", TIME),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("recurs", TEXT),
        sa.Column("time_zone", TEXT),
        sa.Column("lasts_s", sa.BigInteger()),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("revoked_at", TIME),
        sa.Column("granted_nusd", sa.BigInteger(), nullable=False),
        sa.Column("burned_nusd", sa.BigInteger(), nullable=False),
        sa.Column("expired_nusd", sa.BigInteger(), nullable=False),
        sa.Column("entries", sa.BigInteger(), nullable=False),
        sa.Column("next_at", TIME),
        sa.PrimaryKeyConstraint("grant_id", name="pk_grants"),
        sa.UniqueConstraint("series_id", "number", name="uq_grants_series_id_number"),
    )
    op.create_index("ix_grants_scope_id", "grants", ["scope_id"])
    for name, column, where in (("ix_grants_open", "begins_at", OPEN), ("ix_grants_next_at", "next_at", HAS_NEXT)):
        op.create_index(name, "grants", [column], sqlite_where=sa.text(where), postgresql_where=sa.text(where))
    op.create_table(
        "grant_moves",
        sa.Column("grant_id", TEXT, nullable=False),
        sa.Column("entry_id", TEXT, nullable=False),
        sa.Column("exchange_id", TEXT, nullable=False),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("settled_at", TIME, nullable=False),
        sa.Column("amount_nusd", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("grant_id", "entry_id", name="pk_grant_moves"),
    )
    op.create_index("ix_grant_moves_grant_id_settled_at", "grant_moves", ["grant_id", "settled_at"])
    op.create_index("ix_grant_moves_exchange_id", "grant_moves", ["exchange_id"])
    op.create_table(
        "grant_clock",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("settled_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_grant_clock"),
    )
    # No earlier entry burns a grant.
    op.get_bind().exec_driver_sql("INSERT INTO grant_clock SELECT id, settled_at FROM account_clock")
