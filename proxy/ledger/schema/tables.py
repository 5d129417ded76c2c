"""The ledger's tables, for SQLite and Postgres.

Invariants: rows of `ledger_entries` are inserted and never changed, and deleted only when they are in an archive; a
balance is the sum of its entries, archived ones included; daily usage is the sum of the day's entries without top-ups.
`migrations/` creates these tables; a test compares the two.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Date,
    Double,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
)

from proxy.ledger.schema import account_tables as _account_tables  # noqa: F401  in the same metadata
from proxy.ledger.schema.column_types import Money, UtcTime, json_type, partial_index, text_type
from proxy.ledger.schema.column_types import metadata as metadata


def _sums() -> list[Column[Any]]:
    """The sums over entries, and their number."""
    return [
        Column("charged_usd", Money, key="charged_nusd", nullable=False),
        Column("cost_usd", Money, key="cost_nusd", nullable=False),
        Column("prompt_tokens", BigInteger, nullable=False),
        Column("cached_tokens", BigInteger, nullable=False),
        Column("completion_tokens", BigInteger, nullable=False),
        Column("reasoning_tokens", BigInteger, nullable=False),
        Column("total_tokens", BigInteger, nullable=False),
        Column("entries", BigInteger, nullable=False),
    ]


ledger_entries = Table(
    "ledger_entries",
    metadata,
    Column("entry_id", text_type(), nullable=False),
    Column("exchange_id", text_type(), nullable=False),
    Column("kind", text_type(), nullable=False),
    Column("key_id", text_type(), nullable=False),
    Column("key_alias", text_type(), nullable=False),
    Column("provider", text_type(), nullable=False),
    Column("model", text_type(), nullable=False),
    Column("upstream_model", text_type(), nullable=False),
    Column("endpoint", text_type(), nullable=False),
    Column("streamed", Boolean, nullable=False),
    Column("outcome", text_type(), nullable=False),
    Column("finish_reason", text_type()),
    Column("usage_source", text_type(), nullable=False),
    Column("estimator", text_type()),
    Column("prompt_tokens", BigInteger),
    Column("cached_tokens", BigInteger),
    Column("completion_tokens", BigInteger),
    Column("reasoning_tokens", BigInteger),
    Column("total_tokens", BigInteger),
    Column("events", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("cost_usd", Money, key="cost_nusd"),
    Column("charge_usd", Money, key="charge_nusd"),
    Column("price_version", text_type()),
    Column("provider_response_id", text_type()),
    Column("started_at", UtcTime, nullable=False),
    Column("first_token_ms", Double),
    Column("duration_ms", Double, nullable=False),
    Column("details", json_type(), nullable=False),
    Column("seq", Integer, nullable=False),
    # Distinguishes a redelivery (same content: ignored) from a conflict (other content: a dead letter).
    Column("content_hash", text_type(), nullable=False),
    # Rises strictly from one settling transaction of a shard to the next: the cursor of readers that follow the ledger.
    Column("settled_at", UtcTime, nullable=False),
    # The receipt: the journal and the record that this entry comes from. A journal deletes records with a receipt.
    Column("node", text_type()),
    Column("journal_seq", BigInteger),
    # The identity of an entry; `entry_id` is derived from it. It begins with Postgres's partition key, which makes it
    # unique in the whole table.
    PrimaryKeyConstraint("exchange_id", "kind", "seq"),
    Index("ix_ledger_entries_key_id_started_at", "key_id", "started_at"),
    Index("ix_ledger_entries_model_started_at", "model", "started_at"),
    Index("ix_ledger_entries_settled_at_entry_id", "settled_at", "entry_id"),
    Index("ix_ledger_entries_node_journal_seq", "node", "journal_seq"),
    # For counting the day's entries that are not requests (adjustments, attempts, top-ups).
    partial_index("ix_ledger_entries_others", "started_at", where="kind <> 'usage'"),
    # For counting the exchanges with an unknown charge or cost.
    partial_index(
        "ix_ledger_entries_unknown_amount",
        "started_at",
        where="kind = 'usage' AND (cost_usd IS NULL OR charge_usd IS NULL)",
    ),
    # For adding up the credit of many keys.
    partial_index("ix_ledger_entries_credits", "key_id", "charge_nusd", where="kind = 'credit'"),
    # For finding an exchange by the id that the client knows from the provider.
    partial_index(
        "ix_ledger_entries_provider_response_id",
        "provider_response_id",
        where="kind = 'usage' AND provider_response_id IS NOT NULL",
    ),
    postgresql_partition_by="RANGE (exchange_id)",  # by month: see partitions.py
)

# A row for each shard, its lock and its clock: a settling transaction updates it first, so it commits before the next
# one of the shard gets its `settled_at`. See clock.py.
ledger_clock = Table(
    "ledger_clock",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("settled_at", UtcTime, nullable=False),
)

balances = Table(
    "balances",
    metadata,
    Column("key_id", text_type(), primary_key=True),
    *_sums(),
)

# For dashboards: it grows with keys, models and days, not with entries.
usage_daily = Table(
    "usage_daily",
    metadata,
    # The UTC day of the entries' `started_at`.
    Column("day", Date, nullable=False),
    Column("key_id", text_type(), nullable=False),
    Column("model", text_type(), nullable=False),
    *_sums(),
    PrimaryKeyConstraint("key_id", "day", "model"),
    Index("ix_usage_daily_day", "day"),
)

# Charges by project and by organization, for their budgets: see account_sums.py.
account_daily = Table(
    "account_daily",
    metadata,
    Column("account_id", text_type(), nullable=False),
    # The UTC day of the entries' `started_at`.
    Column("day", Date, nullable=False),
    # In nUSD: exact on both databases.
    Column("charged_nusd", BigInteger, nullable=False),
    PrimaryKeyConstraint("account_id", "day"),
)

# One row: the entries settled until then are in account_daily.
account_clock = Table(
    "account_clock",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("settled_at", UtcTime, nullable=False),
)

# What clients sent as an end user, session, run or tag. Other tables, queues and files have only the value id.
dimension_values = Table(
    "dimension_values",
    metadata,
    # Random: it tells nothing of the value.
    Column("value_id", text_type(), primary_key=True),
    Column("project_id", text_type(), nullable=False),
    # end_user, session, run, or tag: and a name
    Column("dimension", text_type(), nullable=False),
    Column("value", text_type(), nullable=False),
    Column("created_at", UtcTime, nullable=False),
    UniqueConstraint("project_id", "dimension", "value"),
)

# The dimensions of the exchanges that are not archived: see dimensions/sums.py.
exchange_dimensions = Table(
    "exchange_dimensions",
    metadata,
    Column("dimension", text_type(), nullable=False),
    Column("value_id", text_type(), nullable=False),
    Column("exchange_id", text_type(), nullable=False),
    PrimaryKeyConstraint("dimension", "value_id", "exchange_id"),
    Index("ix_exchange_dimensions_exchange_id", "exchange_id"),
)

# Daily usage of the exchanges that have a dimension, by its value: see dimensions/sums.py.
dimension_daily = Table(
    "dimension_daily",
    metadata,
    Column("dimension", text_type(), nullable=False),
    # The UTC day of the entries' `started_at`.
    Column("day", Date, nullable=False),
    Column("value_id", text_type(), nullable=False),
    Column("key_id", text_type(), nullable=False),
    Column("model", text_type(), nullable=False),
    *_sums(),
    PrimaryKeyConstraint("dimension", "day", "value_id", "key_id", "model"),
    Index("ix_dimension_daily_value_id_day", "value_id", "day"),
)

# One row: the entries settled until then are in the two tables above.
dimension_clock = Table(
    "dimension_clock",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("settled_at", UtcTime, nullable=False),
)

dead_letters = Table(
    "dead_letters",
    metadata,
    # Derived from reason, payload and receipt: a repeated dead letter is counted, not added.
    Column("id", text_type(), primary_key=True),
    Column("exchange_id", text_type()),
    Column("kind", text_type()),
    Column("seq", Integer),
    Column("reason", text_type(), nullable=False),
    Column("payload", Text, nullable=False),
    Column("first_seen", UtcTime, nullable=False),
    Column("last_seen", UtcTime, nullable=False),
    Column("times_seen", BigInteger, nullable=False),
    # The receipt, as in ledger_entries.
    Column("node", text_type()),
    Column("journal_seq", BigInteger),
    # open: an operator must decide; retried or dropped: the decision. Only archived rows are deleted.
    Column("state", text_type(), nullable=False),
    Column("state_at", UtcTime, nullable=False),
    Index("ix_dead_letters_first_seen", "first_seen"),
    Index("ix_dead_letters_exchange_id", "exchange_id"),
    Index("ix_dead_letters_node_journal_seq", "node", "journal_seq"),
)

# The months that are closed, and every month before them. Rows are never deleted.
periods = Table(
    "periods",
    metadata,
    # 2026-11
    Column("month", text_type(), primary_key=True),
    # The ledger's clock at the closing: what settles later is on a later statement.
    Column("closed_at", UtcTime, nullable=False),
    Column("closed_by", text_type(), nullable=False),
    # Records that were not settled at the closing: see unsettled.py. Null: none.
    Column("left_behind", json_type()),
    # When the closed form in scope_months was complete; null: it is not, and statements are read from the entries.
    Column("issued_at", UtcTime),
    # Of all statements of the month: the number of entries, and the root of their Merkle tree in hexadecimal.
    Column("entries", BigInteger),
    Column("digest", text_type()),
    # The settings of statements at the closing, without the logo; null: there were none.
    Column("letterhead", json_type()),
)

# The closed form of a month: the contents of its statements, for each key and account that has entries.
scope_months = Table(
    "scope_months",
    metadata,
    Column("scope_id", text_type(), nullable=False),
    Column("month", text_type(), nullable=False),
    Column("name", text_type(), nullable=False),
    Column("entries", BigInteger, nullable=False),
    # The root of the Merkle tree over these entries, in hexadecimal.
    Column("digest", text_type(), nullable=False),
    # From the first month to the end of this one.
    Column("charged_usd", Money, key="charged_nusd", nullable=False),
    Column("credited_usd", Money, key="credited_nusd", nullable=False),
    Column("content", json_type(), nullable=False),
    PrimaryKeyConstraint("scope_id", "month"),
    Index("ix_scope_months_month", "month"),
)

# The months whose entries are in a file, each with all entries of exchanges that began before its end. No entry of
# such an exchange is stored any more. Rows are never deleted.
archives = Table(
    "archives",
    metadata,
    # 2026-11
    Column("month", text_type(), primary_key=True),
    # The last month with some of these entries on its statements.
    Column("statements_until", text_type(), nullable=False),
    Column("entries", BigInteger, nullable=False),
    # Its name, and the SHA-256 of its bytes in hexadecimal.
    Column("file", text_type(), nullable=False),
    Column("sha256", text_type(), nullable=False),
    Column("archived_at", UtcTime, nullable=False),
    Column("archived_by", text_type(), nullable=False),
    # When the last of the entries was deleted here; null: some are still there.
    Column("removed_at", UtcTime),
)

# Sums of archived entries, which the ledger's sums contain in addition to those of its entries.
archived_sums = Table(
    "archived_sums",
    metadata,
    Column("month", text_type(), nullable=False),
    Column("key_id", text_type(), nullable=False),
    Column("day", Date, nullable=False),
    Column("model", text_type(), nullable=False),
    # credit: top-ups; usage: all others, of exchanges that are dated after the month.
    Column("kind", text_type(), nullable=False),
    *_sums(),
    PrimaryKeyConstraint("month", "key_id", "day", "model", "kind"),
)

# The receipts of archived entries and dead letters, as ranges.
archived_receipts = Table(
    "archived_receipts",
    metadata,
    Column("node", text_type(), nullable=False),
    Column("first_seq", BigInteger, nullable=False),
    Column("last_seq", BigInteger, nullable=False),
    PrimaryKeyConstraint("node", "first_seq"),
)

# The audit log: one row per operation, written before the operation runs. Only archived rows are deleted.
acts = Table(
    "acts",
    metadata,
    # Begins with the time, so ids sort by time.
    Column("act_id", text_type(), primary_key=True),
    Column("at", UtcTime, nullable=False),
    # `admin`, a key's id, or the operating system's user of a command.
    Column("actor", text_type(), nullable=False),
    # api or cli.
    Column("via", text_type(), nullable=False),
    # The client's address, or the host name.
    Column("origin", text_type()),
    Column("action", text_type(), nullable=False),
    Column("target", text_type()),
    Column("details", json_type()),
    # begun: the result is unknown; done; refused; failed.
    Column("result", text_type(), nullable=False),
    # The message of a refusal, or the class of a failure.
    Column("words", text_type()),
)

# The sinks that entries are pushed to, and the progress of each.
sinks = Table(
    "sinks",
    metadata,
    Column("name", text_type(), primary_key=True),
    # The cursor: every entry up to this one, in the order of settling, was sent or is in sink_letters.
    Column("settled_at", UtcTime, nullable=False),
    Column("entry_id", text_type(), nullable=False),
    Column("sent", BigInteger, nullable=False),
    Column("last_sent_at", UtcTime),
    # The process that sends, and the end of its exclusive claim.
    Column("claimed_by", text_type()),
    Column("claimed_until", UtcTime, nullable=False),
    # Consecutive failures; 0 after a success.
    Column("failures", Integer, nullable=False),
    Column("failing_since", UtcTime),
    Column("next_at", UtcTime, nullable=False),
    Column("last_error", text_type()),
)

# Entries that a sink's server rejected because of their content.
sink_letters = Table(
    "sink_letters",
    metadata,
    Column("sink", text_type(), nullable=False),
    Column("entry_id", text_type(), nullable=False),
    Column("settled_at", UtcTime, nullable=False),
    Column("why", text_type(), nullable=False),
    Column("first_seen", UtcTime, nullable=False),
    # open: an operator must decide; again: to be sent once more; sent. Rows are never deleted.
    Column("state", text_type(), nullable=False),
    PrimaryKeyConstraint("sink", "entry_id"),
    Index("ix_sink_letters_sink_state", "sink", "state"),
)

# Files that keys have uploaded to a provider, and those with the results of their batches. Their contents are there.
stored_files = Table(
    "stored_files",
    metadata,
    Column("file_id", text_type(), primary_key=True),
    Column("api", text_type(), nullable=False),
    Column("provider", text_type(), nullable=False),
    Column("credential", text_type()),
    Column("key_id", text_type(), nullable=False),
    Column("project_id", text_type(), nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("purpose", text_type(), nullable=False),
    # Of the lines of a batch: their endpoint, models and counts.
    Column("input", json_type()),
    # The exchange id of the batch whose results it has.
    Column("made_by", text_type()),
    Index("ix_stored_files_key_id_created_at", "key_id", "created_at"),
    Index("ix_stored_files_project_id_created_at", "project_id", "created_at"),
)

# Batches, from their admission on: see gateway/batches.
stored_batches = Table(
    "stored_batches",
    metadata,
    Column("exchange_id", text_type(), primary_key=True),
    # The provider's; null: not known yet.
    Column("batch_id", text_type()),
    Column("api", text_type(), nullable=False),
    Column("provider", text_type(), nullable=False),
    Column("credential", text_type()),
    Column("key_id", text_type(), nullable=False),
    Column("key_alias", text_type(), nullable=False),
    Column("project_id", text_type(), nullable=False),
    Column("created_at", UtcTime, nullable=False),
    # creating, running, settled, lost.
    Column("state", text_type(), nullable=False),
    Column("endpoint", text_type(), nullable=False),
    Column("input_file", text_type()),
    Column("lines", BigInteger, nullable=False),
    # Reserved for all lines; null: no money limit applies.
    Column("held_usd", Money, key="reserved_nusd"),
    # A digest of the names of the lines.
    Column("names", text_type(), nullable=False),
    # The ids of the files with results.
    Column("files", json_type(), nullable=False),
    # Of each model: its names and the pinned prices.
    Column("terms", json_type(), nullable=False),
    # When the provider is asked next, and by which node.
    Column("next_at", UtcTime, nullable=False),
    Column("claimed_by", text_type()),
    UniqueConstraint("batch_id"),
    Index("ix_stored_batches_key_id_created_at", "key_id", "created_at"),
    Index("ix_stored_batches_project_id_created_at", "project_id", "created_at"),
    partial_index("ix_stored_batches_next_at", "next_at", where="state IN ('creating', 'running')"),
)

# The price list that all proxies apply, if they refresh their prices: one row.
price_lists = Table(
    "price_lists",
    metadata,
    Column("name", text_type(), primary_key=True),
    # Null: none was accepted yet.
    Column("version", text_type()),
    # Compressed. Null: the list of the installed package.
    Column("content", LargeBinary),
    Column("accepted_at", UtcTime),
    # The last successful check, and when the next one is due.
    Column("checked_at", UtcTime),
    Column("next_at", UtcTime, nullable=False),
    # Of the last successful check: a line for each model whose earlier prices stay.
    Column("refused", json_type(), nullable=False),
    # Why the last check failed; null: it did not.
    Column("error", text_type()),
)
