"""Receipts, the settling clock, daily usage; monthly partitions of the entries on Postgres."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

MONEY = sa.Numeric(24, 9)
TIME = sa.DateTime(timezone=True)
JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
TEXT = sa.String().with_variant(sa.String(collation="C"), "postgresql")

SUMS = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "total_tokens")
KEYS_TEXT = {"balances": ["key_id"], "api_keys": ["key_id", "alias", "hint"]}


def upgrade() -> None:
    """Prepare the tables for several machines. Every row is kept."""
    _ledger_entries()
    _ledger_clock()
    _usage_daily()
    _dead_letters()
    if _postgres():
        for table, columns in KEYS_TEXT.items():
            for column in columns:
                op.alter_column(table, column, type_=TEXT, existing_type=sa.String())


def _postgres() -> bool:
    return op.get_context().dialect.name == "postgresql"


def _set_aside(table: str, indexes: list[list[str]], constraints: list[str]) -> str:
    """Rename the table, and drop its indexes and constraints to free their names → its new name."""
    for columns in indexes:
        op.drop_index("_".join(["ix", table, *columns]), table)
    if _postgres():  # where a constraint's name is also its index's, unique in the schema
        for constraint in constraints:
            op.drop_constraint(constraint, table)
    op.rename_table(table, f"{table}_0001")
    return f"{table}_0001"


def _copy(old: str, new: str, more: dict[str, str]) -> None:
    """Copy every row of `old` to `new`, with expressions for the new columns `more`; then drop `old`."""
    kept = [column["name"] for column in sa.inspect(op.get_bind()).get_columns(old)]
    into, values = ", ".join([*kept, *more]), ", ".join([*kept, *more.values()])
    op.execute(f"INSERT INTO {new} ({into}) SELECT {values} FROM {old}")  # noqa: S608  names of ours
    op.drop_table(old)


def _ledger_entries() -> None:
    old = _set_aside(
        "ledger_entries",
        [["key_id", "started_at"], ["model", "started_at"], ["started_at"], ["settled_at", "entry_id"]],
        ["pk_ledger_entries", "uq_ledger_entries_exchange_id_kind_seq"],
    )
    op.create_table(
        "ledger_entries",
        sa.Column("entry_id", TEXT, nullable=False),
        sa.Column("exchange_id", TEXT, nullable=False),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("key_id", TEXT, nullable=False),
        sa.Column("key_alias", TEXT, nullable=False),
        sa.Column("provider", TEXT, nullable=False),
        sa.Column("model", TEXT, nullable=False),
        sa.Column("upstream_model", TEXT, nullable=False),
        sa.Column("endpoint", TEXT, nullable=False),
        sa.Column("streamed", sa.Boolean(), nullable=False),
        sa.Column("outcome", TEXT, nullable=False),
        sa.Column("finish_reason", TEXT),
        sa.Column("usage_source", TEXT, nullable=False),
        sa.Column("estimator", TEXT),
        *[sa.Column(name, sa.BigInteger()) for name in SUMS],
        sa.Column("events", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("cost_usd", MONEY),
        sa.Column("charge_usd", MONEY),
        sa.Column("price_version", TEXT),
        sa.Column("provider_response_id", TEXT),
        sa.Column("started_at", TIME, nullable=False),
        sa.Column("first_token_ms", sa.Double()),
        sa.Column("duration_ms", sa.Double(), nullable=False),
        sa.Column("details", JSON, nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("content_hash", TEXT, nullable=False),
        sa.Column("settled_at", TIME, nullable=False),
        sa.Column("node", TEXT),
        sa.Column("journal_seq", sa.BigInteger()),
        sa.PrimaryKeyConstraint("exchange_id", "kind", "seq", name="pk_ledger_entries"),
        postgresql_partition_by="RANGE (exchange_id)",
    )
    if _postgres():
        op.execute("CREATE TABLE ledger_entries_default PARTITION OF ledger_entries DEFAULT")
    _copy(old, "ledger_entries", {})
    for columns in (
        ["key_id", "started_at"], ["model", "started_at"], ["settled_at", "entry_id"], ["node", "journal_seq"],
    ):  # fmt: skip
        op.create_index("_".join(["ix_ledger_entries", *columns]), "ledger_entries", columns)


def _ledger_clock() -> None:
    op.create_table(
        "ledger_clock",
        sa.Column("id", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("settled_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_ledger_clock"),
    )
    op.execute(
        "INSERT INTO ledger_clock (id, settled_at) "
        "SELECT 1, coalesce(max(settled_at), '1970-01-01 00:00:00.000000') FROM ledger_entries"
        if not _postgres()
        else "INSERT INTO ledger_clock SELECT 1, coalesce(max(settled_at), to_timestamp(0)) FROM ledger_entries"
    )


def _usage_daily() -> None:
    op.create_table(
        "usage_daily",
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("key_id", TEXT, nullable=False),
        sa.Column("model", TEXT, nullable=False),
        sa.Column("charged_usd", MONEY, nullable=False),
        sa.Column("cost_usd", MONEY, nullable=False),
        *[sa.Column(name, sa.BigInteger(), nullable=False) for name in SUMS],
        sa.Column("entries", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key_id", "day", "model", name="pk_usage_daily"),
    )
    op.create_index("ix_usage_daily_day", "usage_daily", ["day"])
    day = "(started_at AT TIME ZONE 'UTC')::date" if _postgres() else "date(started_at)"
    sums = ", ".join([_money("charge_usd"), _money("cost_usd"), *(f"coalesce(sum({name}), 0)" for name in SUMS)])
    op.execute(
        f"INSERT INTO usage_daily SELECT {day}, key_id, model, {sums}, count(*) "  # noqa: S608  names of ours
        "FROM ledger_entries GROUP BY 1, 2, 3"
    )


def _money(column: str) -> str:
    """The sum of a money column. SQLite stores floats, so whole nano-USD are summed there."""
    if _postgres():
        return f"coalesce(sum({column}), 0)"
    return f"coalesce(sum(CAST(round({column} * 1e9) AS INTEGER)), 0) / 1e9"


def _dead_letters() -> None:
    old = _set_aside("dead_letters", [["first_seen"]], ["pk_dead_letters"])
    op.create_table(
        "dead_letters",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("exchange_id", TEXT),
        sa.Column("kind", TEXT),
        sa.Column("seq", sa.Integer()),
        sa.Column("reason", TEXT, nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("first_seen", TIME, nullable=False),
        sa.Column("last_seen", TIME, nullable=False),
        sa.Column("times_seen", sa.BigInteger(), nullable=False),
        sa.Column("node", TEXT),
        sa.Column("journal_seq", sa.BigInteger()),
        sa.Column("state", TEXT, nullable=False),
        sa.Column("state_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_dead_letters"),
    )
    _copy(old, "dead_letters", {"state": "'open'", "state_at": "first_seen"})
    op.create_index("ix_dead_letters_first_seen", "dead_letters", ["first_seen"])
    op.create_index("ix_dead_letters_node_journal_seq", "dead_letters", ["node", "journal_seq"])
