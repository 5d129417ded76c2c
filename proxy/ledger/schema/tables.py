"""The ledger's tables, for SQLite and Postgres.

Invariants: rows of `ledger_entries` are inserted and never changed, and deleted only when they are in an archive; a
balance is the sum of its entries, archived ones included; daily usage is the sum of the day's entries without top-ups.
`migrations/` creates these tables; a test compares the two.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Date,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from proxy.billing.keys import DEFAULT_PROJECT
from proxy.billing.limits import OnExhausted
from proxy.ledger.schema.column_types import Money, UtcTime


def _json() -> JSON:
    return JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")


def _text() -> String:
    """Text that sorts by its bytes on Postgres too, so that ids sort by time and a new version of the system's locales
    breaks no index."""
    return String().with_variant(String(collation="C"), "postgresql")


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


def _partial(name: str, *columns: str, where: str) -> Index:
    """An index of the rows that meet a condition."""
    return Index(name, *columns, sqlite_where=text(where), postgresql_where=text(where))


metadata = MetaData(
    naming_convention={"pk": "pk_%(table_name)s", "uq": "uq_%(table_name)s_%(column_0_N_name)s"},
)

ledger_entries = Table(
    "ledger_entries",
    metadata,
    Column("entry_id", _text(), nullable=False),
    Column("exchange_id", _text(), nullable=False),
    Column("kind", _text(), nullable=False),
    Column("key_id", _text(), nullable=False),
    Column("key_alias", _text(), nullable=False),
    Column("provider", _text(), nullable=False),
    Column("model", _text(), nullable=False),
    Column("upstream_model", _text(), nullable=False),
    Column("endpoint", _text(), nullable=False),
    Column("streamed", Boolean, nullable=False),
    Column("outcome", _text(), nullable=False),
    Column("finish_reason", _text()),
    Column("usage_source", _text(), nullable=False),
    Column("estimator", _text()),
    Column("prompt_tokens", BigInteger),
    Column("cached_tokens", BigInteger),
    Column("completion_tokens", BigInteger),
    Column("reasoning_tokens", BigInteger),
    Column("total_tokens", BigInteger),
    Column("events", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("cost_usd", Money, key="cost_nusd"),
    Column("charge_usd", Money, key="charge_nusd"),
    Column("price_version", _text()),
    Column("provider_response_id", _text()),
    Column("started_at", UtcTime, nullable=False),
    Column("first_token_ms", Double),
    Column("duration_ms", Double, nullable=False),
    Column("details", _json(), nullable=False),
    Column("seq", Integer, nullable=False),
    # Distinguishes a redelivery (same content: ignored) from a conflict (other content: a dead letter).
    Column("content_hash", _text(), nullable=False),
    # Rises strictly from one settling transaction of a shard to the next: the cursor of readers that follow the ledger.
    Column("settled_at", UtcTime, nullable=False),
    # The receipt: the journal and the record that this entry comes from. A journal deletes records with a receipt.
    Column("node", _text()),
    Column("journal_seq", BigInteger),
    # The identity of an entry; `entry_id` is derived from it. It begins with Postgres's partition key, which makes it
    # unique in the whole table.
    PrimaryKeyConstraint("exchange_id", "kind", "seq"),
    Index("ix_ledger_entries_key_id_started_at", "key_id", "started_at"),
    Index("ix_ledger_entries_model_started_at", "model", "started_at"),
    Index("ix_ledger_entries_settled_at_entry_id", "settled_at", "entry_id"),
    Index("ix_ledger_entries_node_journal_seq", "node", "journal_seq"),
    # For counting the day's entries that are not requests (adjustments, attempts, top-ups).
    _partial("ix_ledger_entries_others", "started_at", where="kind <> 'usage'"),
    # For counting the exchanges with an unknown charge or cost.
    _partial(
        "ix_ledger_entries_unknown_amount",
        "started_at",
        where="kind = 'usage' AND (cost_usd IS NULL OR charge_usd IS NULL)",
    ),
    # For adding up the credit of many keys.
    _partial("ix_ledger_entries_credits", "key_id", "charge_nusd", where="kind = 'credit'"),
    # For finding an exchange by the id that the client knows from the provider.
    _partial(
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
    Column("key_id", _text(), primary_key=True),
    *_sums(),
)

# For dashboards: it grows with keys, models and days, not with entries.
usage_daily = Table(
    "usage_daily",
    metadata,
    # The UTC day of the entries' `started_at`.
    Column("day", Date, nullable=False),
    Column("key_id", _text(), nullable=False),
    Column("model", _text(), nullable=False),
    *_sums(),
    PrimaryKeyConstraint("key_id", "day", "model"),
    Index("ix_usage_daily_day", "day"),
)

# Charges by project and by organization, for their budgets: see account_sums.py.
account_daily = Table(
    "account_daily",
    metadata,
    Column("account_id", _text(), nullable=False),
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
    Column("value_id", _text(), primary_key=True),
    Column("project_id", _text(), nullable=False),
    # end_user, session, run, or tag: and a name
    Column("dimension", _text(), nullable=False),
    Column("value", _text(), nullable=False),
    Column("created_at", UtcTime, nullable=False),
    UniqueConstraint("project_id", "dimension", "value"),
)

# The dimensions of the exchanges that are not archived: see dimensions/sums.py.
exchange_dimensions = Table(
    "exchange_dimensions",
    metadata,
    Column("dimension", _text(), nullable=False),
    Column("value_id", _text(), nullable=False),
    Column("exchange_id", _text(), nullable=False),
    PrimaryKeyConstraint("dimension", "value_id", "exchange_id"),
    Index("ix_exchange_dimensions_exchange_id", "exchange_id"),
)

# Daily usage of the exchanges that have a dimension, by its value: see dimensions/sums.py.
dimension_daily = Table(
    "dimension_daily",
    metadata,
    Column("dimension", _text(), nullable=False),
    # The UTC day of the entries' `started_at`.
    Column("day", Date, nullable=False),
    Column("value_id", _text(), nullable=False),
    Column("key_id", _text(), nullable=False),
    Column("model", _text(), nullable=False),
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
    Column("id", _text(), primary_key=True),
    Column("exchange_id", _text()),
    Column("kind", _text()),
    Column("seq", Integer),
    Column("reason", _text(), nullable=False),
    Column("payload", Text, nullable=False),
    Column("first_seen", UtcTime, nullable=False),
    Column("last_seen", UtcTime, nullable=False),
    Column("times_seen", BigInteger, nullable=False),
    # The receipt, as in ledger_entries.
    Column("node", _text()),
    Column("journal_seq", BigInteger),
    # open: an operator must decide; retried or dropped: the decision. Only archived rows are deleted.
    Column("state", _text(), nullable=False),
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
    Column("month", _text(), primary_key=True),
    # The ledger's clock at the closing: what settles later is on a later statement.
    Column("closed_at", UtcTime, nullable=False),
    Column("closed_by", _text(), nullable=False),
    # Records that were not settled at the closing: see unsettled.py. Null: none.
    Column("left_behind", _json()),
    # When the closed form in scope_months was complete; null: it is not, and statements are read from the entries.
    Column("issued_at", UtcTime),
    # Of all statements of the month: the number of entries, and the root of their Merkle tree in hexadecimal.
    Column("entries", BigInteger),
    Column("digest", _text()),
    # The settings of statements at the closing, without the logo; null: there were none.
    Column("letterhead", _json()),
)

# The closed form of a month: the contents of its statements, for each key and account that has entries.
scope_months = Table(
    "scope_months",
    metadata,
    Column("scope_id", _text(), nullable=False),
    Column("month", _text(), nullable=False),
    Column("name", _text(), nullable=False),
    Column("entries", BigInteger, nullable=False),
    # The root of the Merkle tree over these entries, in hexadecimal.
    Column("digest", _text(), nullable=False),
    # From the first month to the end of this one.
    Column("charged_usd", Money, key="charged_nusd", nullable=False),
    Column("credited_usd", Money, key="credited_nusd", nullable=False),
    Column("content", _json(), nullable=False),
    PrimaryKeyConstraint("scope_id", "month"),
    Index("ix_scope_months_month", "month"),
)

# The months whose entries are in a file, each with all entries of exchanges that began before its end. No entry of
# such an exchange is stored any more. Rows are never deleted.
archives = Table(
    "archives",
    metadata,
    # 2026-11
    Column("month", _text(), primary_key=True),
    # The last month with some of these entries on its statements.
    Column("statements_until", _text(), nullable=False),
    Column("entries", BigInteger, nullable=False),
    # Its name, and the SHA-256 of its bytes in hexadecimal.
    Column("file", _text(), nullable=False),
    Column("sha256", _text(), nullable=False),
    Column("archived_at", UtcTime, nullable=False),
    Column("archived_by", _text(), nullable=False),
    # When the last of the entries was deleted here; null: some are still there.
    Column("removed_at", UtcTime),
)

# Sums of archived entries, which the ledger's sums contain in addition to those of its entries.
archived_sums = Table(
    "archived_sums",
    metadata,
    Column("month", _text(), nullable=False),
    Column("key_id", _text(), nullable=False),
    Column("day", Date, nullable=False),
    Column("model", _text(), nullable=False),
    # credit: top-ups; usage: all others, of exchanges that are dated after the month.
    Column("kind", _text(), nullable=False),
    *_sums(),
    PrimaryKeyConstraint("month", "key_id", "day", "model", "kind"),
)

# The receipts of archived entries and dead letters, as ranges.
archived_receipts = Table(
    "archived_receipts",
    metadata,
    Column("node", _text(), nullable=False),
    Column("first_seq", BigInteger, nullable=False),
    Column("last_seq", BigInteger, nullable=False),
    PrimaryKeyConstraint("node", "first_seq"),
)

# Organizations and projects. Two accounts named "default" are created with the table; none is ever deleted.
accounts = Table(
    "accounts",
    metadata,
    Column("account_id", _text(), primary_key=True),
    Column("kind", _text(), nullable=False),
    Column("parent_id", _text()),
    Column("name", _text(), nullable=False),
    # Only the limits that are set; null: none. Money: nUSD.
    Column("limits", _json()),
    Column("created_at", UtcTime, nullable=False),
    Column("blocked_at", UtcTime),
    # Shared by keys and accounts: see api_keys.
    Column("revision", BigInteger, nullable=False),
    UniqueConstraint("revision"),
    Index("ix_accounts_parent_id", "parent_id"),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("key_id", _text(), primary_key=True),
    Column("alias", _text(), nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("hint", _text(), nullable=False),
    Column("models", _json()),
    Column("created_at", UtcTime, nullable=False),
    Column("expires_at", UtcTime),
    Column("revoked_at", UtcTime),
    # The maximum over keys and accounts + 1 at every change. Unique, so that two concurrent changes cannot take the
    # same one.
    Column("revision", BigInteger, nullable=False),
    Column("project_id", _text(), nullable=False, server_default=DEFAULT_PROJECT),
    Column("limits", _json()),
    Column("on_exhausted", _text(), nullable=False, server_default=OnExhausted.FINISH.value),
    Column("on_store_outage", _text()),
    Column("tags", _json()),
    Column("blocked_at", UtcTime),
    # The secret before the last rotation, and the end of its validity.
    Column("old_digest", LargeBinary),
    Column("old_until", UtcTime),
    # The sources of dimensions that count, and fixed values. Null: every source.
    Column("dimensions", _json()),
    # Of keys whose clients send their own provider credential: how their requests are billed.
    Column("byok", _text()),
    UniqueConstraint("digest"),
    UniqueConstraint("revision"),
    Index("ix_api_keys_alias", "alias"),
    Index("ix_api_keys_project_id", "project_id"),
    Index("ix_api_keys_created_at_key_id", "created_at", "key_id"),
    _partial("ix_api_keys_old_digest", "old_digest", where="old_digest IS NOT NULL"),
)

# The caps that clients set for their runs: see run_caps.py.
run_caps = Table(
    "run_caps",
    metadata,
    # Of the run.
    Column("value_id", _text(), nullable=False),
    Column("key_id", _text(), nullable=False),
    Column("cap_usd", Money, key="cap_nusd", nullable=False),
    Column("created_at", UtcTime, nullable=False),
    PrimaryKeyConstraint("value_id", "key_id"),
)

# Limits by rule: see billing/limit_rules.py. Rows are never deleted.
limit_rules = Table(
    "limit_rules",
    metadata,
    Column("rule_id", _text(), primary_key=True),
    Column("name", _text(), nullable=False),
    # Of a key or an account; null: all requests.
    Column("scope_id", _text()),
    # Null: all.
    Column("models", _json()),
    # Names of providers; null: all.
    Column("providers", _json()),
    # Dimension → value id.
    Column("dimension_values", _json()),
    # Dimensions.
    Column("split_by", _json()),
    Column("required", Boolean, nullable=False),
    # Serves a request that the rule refuses; null: none.
    Column("fallback_model", _text()),
    # As in accounts.
    Column("limits", _json()),
    Column("created_at", UtcTime, nullable=False),
    Column("deleted_at", UtcTime),
    # One of those of keys and accounts, see api_keys: each change of a rule also gives it to the default organization.
    Column("revision", BigInteger, nullable=False),
    UniqueConstraint("revision"),
)

# Grants: see billing/grants.py. Of a series that recurs, a row for each that began. Rows are never deleted.
grants = Table(
    "grants",
    metadata,
    Column("grant_id", _text(), primary_key=True),
    Column("series_id", _text(), nullable=False),
    # In the series, from 1.
    Column("number", BigInteger, nullable=False),
    Column("scope_id", _text(), nullable=False),
    Column("scope_name", _text(), nullable=False),
    Column("name", _text(), nullable=False),
    # Amounts in nUSD: exact on both databases.
    Column("amount_nusd", BigInteger, nullable=False),
    Column("begins_at", UtcTime, nullable=False),
    Column("expires_at", UtcTime),
    Column("priority", Integer, nullable=False),
    Column("recurs", _text()),
    Column("time_zone", _text()),
    Column("lasts_s", BigInteger),
    # By the ledger's clock.
    Column("created_at", UtcTime, nullable=False),
    Column("revoked_at", UtcTime),
    # The sums of its moves.
    Column("granted_nusd", BigInteger, nullable=False),
    Column("burned_nusd", BigInteger, nullable=False),
    Column("expired_nusd", BigInteger, nullable=False),
    # The number of moves that are entries of their own: granted and expired.
    Column("entries", BigInteger, nullable=False),
    # Of the last of its series: when the next one begins. Null: there is none, or it has begun.
    Column("next_at", UtcTime),
    UniqueConstraint("series_id", "number"),
    Index("ix_grants_scope_id", "scope_id"),
    _partial("ix_grants_open", "begins_at", where="granted_nusd = 0 OR granted_nusd - burned_nusd <> expired_nusd"),
    _partial("ix_grants_next_at", "next_at", where="next_at IS NOT NULL"),
)

# What each entry has granted, burned or expired of a grant. Rows are never changed or deleted.
grant_moves = Table(
    "grant_moves",
    metadata,
    Column("grant_id", _text(), nullable=False),
    Column("entry_id", _text(), nullable=False),
    Column("exchange_id", _text(), nullable=False),
    # granted, burned, expired
    Column("kind", _text(), nullable=False),
    # Of the entry.
    Column("settled_at", UtcTime, nullable=False),
    Column("amount_nusd", BigInteger, nullable=False),
    PrimaryKeyConstraint("grant_id", "entry_id"),
    Index("ix_grant_moves_grant_id_settled_at", "grant_id", "settled_at"),
    Index("ix_grant_moves_exchange_id", "exchange_id"),
)

# One row: the entries settled until then have burned their grants.
grant_clock = Table(
    "grant_clock",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("settled_at", UtcTime, nullable=False),
)

# Budget thresholds that were exceeded, once per window, and the delivery of their webhooks.
budget_alerts = Table(
    "budget_alerts",
    metadata,
    Column("alert_id", _text(), primary_key=True),
    Column("scope_id", _text(), nullable=False),
    # In percent of the budget.
    Column("threshold", Integer, nullable=False),
    # The beginning of the budget's window.
    Column("since", UtcTime, nullable=False),
    Column("spent_usd", Money, key="spent_nusd", nullable=False),
    Column("budget_usd", Money, key="budget_nusd", nullable=False),
    Column("created_at", UtcTime, nullable=False),
    # open: the webhook is to be sent; sent; given_up.
    Column("state", _text(), nullable=False),
    Column("tries", Integer, nullable=False),
    Column("next_at", UtcTime, nullable=False),
    Column("last_error", _text()),
    Index("ix_budget_alerts_state_next_at", "state", "next_at"),
)

# The audit log: one row per operation, written before the operation runs. Only archived rows are deleted.
acts = Table(
    "acts",
    metadata,
    # Begins with the time, so ids sort by time.
    Column("act_id", _text(), primary_key=True),
    Column("at", UtcTime, nullable=False),
    # `admin`, a key's id, or the operating system's user of a command.
    Column("actor", _text(), nullable=False),
    # api or cli.
    Column("via", _text(), nullable=False),
    # The client's address, or the host name.
    Column("origin", _text()),
    Column("action", _text(), nullable=False),
    Column("target", _text()),
    Column("details", _json()),
    # begun: the result is unknown; done; refused; failed.
    Column("result", _text(), nullable=False),
    # The message of a refusal, or the class of a failure.
    Column("words", _text()),
)

# The sinks that entries are pushed to, and the progress of each.
sinks = Table(
    "sinks",
    metadata,
    Column("name", _text(), primary_key=True),
    # The cursor: every entry up to this one, in the order of settling, was sent or is in sink_letters.
    Column("settled_at", UtcTime, nullable=False),
    Column("entry_id", _text(), nullable=False),
    Column("sent", BigInteger, nullable=False),
    Column("last_sent_at", UtcTime),
    # The process that sends, and the end of its exclusive claim.
    Column("claimed_by", _text()),
    Column("claimed_until", UtcTime, nullable=False),
    # Consecutive failures; 0 after a success.
    Column("failures", Integer, nullable=False),
    Column("failing_since", UtcTime),
    Column("next_at", UtcTime, nullable=False),
    Column("last_error", _text()),
)

# Entries that a sink's server rejected because of their content.
sink_letters = Table(
    "sink_letters",
    metadata,
    Column("sink", _text(), nullable=False),
    Column("entry_id", _text(), nullable=False),
    Column("settled_at", UtcTime, nullable=False),
    Column("why", _text(), nullable=False),
    Column("first_seen", UtcTime, nullable=False),
    # open: an operator must decide; again: to be sent once more; sent. Rows are never deleted.
    Column("state", _text(), nullable=False),
    PrimaryKeyConstraint("sink", "entry_id"),
    Index("ix_sink_letters_sink_state", "sink", "state"),
)

# Files that keys have uploaded to a provider, and those with the results of their batches. Their contents are there.
stored_files = Table(
    "stored_files",
    metadata,
    Column("file_id", _text(), primary_key=True),
    Column("api", _text(), nullable=False),
    Column("provider", _text(), nullable=False),
    Column("credential", _text()),
    Column("key_id", _text(), nullable=False),
    Column("project_id", _text(), nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("purpose", _text(), nullable=False),
    # Of the lines of a batch: their endpoint, models and counts.
    Column("input", _json()),
    # The exchange id of the batch whose results it has.
    Column("made_by", _text()),
    Index("ix_stored_files_key_id_created_at", "key_id", "created_at"),
    Index("ix_stored_files_project_id_created_at", "project_id", "created_at"),
)

# Batches, from their admission on: see gateway/batches.
stored_batches = Table(
    "stored_batches",
    metadata,
    Column("exchange_id", _text(), primary_key=True),
    # The provider's; null: not known yet.
    Column("batch_id", _text()),
    Column("api", _text(), nullable=False),
    Column("provider", _text(), nullable=False),
    Column("credential", _text()),
    Column("key_id", _text(), nullable=False),
    Column("key_alias", _text(), nullable=False),
    Column("project_id", _text(), nullable=False),
    Column("created_at", UtcTime, nullable=False),
    # creating, running, settled, lost.
    Column("state", _text(), nullable=False),
    Column("endpoint", _text(), nullable=False),
    Column("input_file", _text()),
    Column("lines", BigInteger, nullable=False),
    # Reserved for all lines; null: no money limit applies.
    Column("held_usd", Money, key="reserved_nusd"),
    # A digest of the names of the lines.
    Column("names", _text(), nullable=False),
    # The ids of the files with results.
    Column("files", _json(), nullable=False),
    # Of each model: its names and the pinned prices.
    Column("terms", _json(), nullable=False),
    # When the provider is asked next, and by which node.
    Column("next_at", UtcTime, nullable=False),
    Column("claimed_by", _text()),
    UniqueConstraint("batch_id"),
    Index("ix_stored_batches_key_id_created_at", "key_id", "created_at"),
    Index("ix_stored_batches_project_id_created_at", "project_id", "created_at"),
    _partial("ix_stored_batches_next_at", "next_at", where="state IN ('creating', 'running')"),
)

# The price list that all proxies apply, if they refresh their prices: one row.
price_lists = Table(
    "price_lists",
    metadata,
    Column("name", _text(), primary_key=True),
    # Null: none was accepted yet.
    Column("version", _text()),
    # Compressed. Null: the list of the installed package.
    Column("content", LargeBinary),
    Column("accepted_at", UtcTime),
    # The last successful check, and when the next one is due.
    Column("checked_at", UtcTime),
    Column("next_at", UtcTime, nullable=False),
    # Of the last successful check: a line for each model whose earlier prices stay.
    Column("refused", _json(), nullable=False),
    # Why the last check failed; null: it did not.
    Column("error", _text()),
)
