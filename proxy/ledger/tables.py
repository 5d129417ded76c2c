"""The ledger in SQL. Law: `ledger_entries` is only ever inserted into; a balance is the sum of its entries.

`migrations/` makes these tables; a test holds the two together.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Dialect,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    String,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import TypeDecorator, TypeEngine

from proxy.billing.money import NUSD_PER_USD


class Money(TypeDecorator[int]):
    """nUSD (int) here ⇄ NUMERIC(24, 9) USD in SQL.

    Exact on Postgres. SQLite keeps a NUMERIC with a fraction as a 64-bit float: exact below 2**23 USD (8.3 million),
    where floats lie closer together than nano-dollars. Sums made in SQL (balances) round twice more and are exact
    below 2**22 USD per key (4.1 million): more than one machine with an embedded ledger will bill.
    """

    impl = Numeric
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """The same column everywhere; only SQLite hands out floats."""
        floats: Numeric[float] = Numeric(24, 9, asdecimal=False)
        return dialect.type_descriptor(floats if dialect.name == "sqlite" else Numeric(24, 9))

    def process_bind_param(self, value: int | None, dialect: Dialect) -> float | Decimal | None:
        """nUSD → what the driver takes. int / int is rounded correctly, so the float is the nearest one."""
        if value is None:
            return None
        return value / NUSD_PER_USD if dialect.name == "sqlite" else Decimal(value).scaleb(-9)

    def process_result_value(self, value: Any, dialect: Dialect) -> int | None:
        """What the driver gives → nUSD, rounded to the nearest: undoes the float's error."""
        return None if value is None else int((Decimal(value) * NUSD_PER_USD).to_integral_value())


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class UtcTime(TypeDecorator[float]):
    """Unix seconds (float) here ⇄ a timestamp in UTC, to the microsecond, in SQL."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: float | None, dialect: Dialect) -> datetime | None:
        """Unix seconds → datetime. Raises OverflowError beyond the calendar."""
        return None if value is None else _EPOCH + timedelta(seconds=value)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> float | None:
        """datetime (SQLite gives it without its zone) → Unix seconds."""
        return None if value is None else value.replace(tzinfo=value.tzinfo or UTC).timestamp()


def _json() -> JSON:
    return JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")


metadata = MetaData(
    naming_convention={"pk": "pk_%(table_name)s", "uq": "uq_%(table_name)s_%(column_0_N_name)s"},
)

ledger_entries = Table(
    "ledger_entries",
    metadata,
    Column("entry_id", String, primary_key=True),
    Column("exchange_id", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("key_id", String, nullable=False),
    Column("key_alias", String, nullable=False),
    Column("provider", String, nullable=False),
    Column("model", String, nullable=False),
    Column("upstream_model", String, nullable=False),
    Column("endpoint", String, nullable=False),
    Column("streamed", Boolean, nullable=False),
    Column("outcome", String, nullable=False),
    Column("finish_reason", String),
    Column("usage_source", String, nullable=False),
    Column("estimator", String),
    Column("prompt_tokens", BigInteger),
    Column("cached_tokens", BigInteger),
    Column("completion_tokens", BigInteger),
    Column("reasoning_tokens", BigInteger),
    Column("total_tokens", BigInteger),
    Column("events", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("cost_usd", Money),
    Column("charge_usd", Money),
    Column("price_version", String),
    Column("provider_response_id", String),
    Column("started_at", UtcTime, nullable=False),
    Column("first_token_ms", Double),
    Column("duration_ms", Double, nullable=False),
    Column("details", _json(), nullable=False),
    Column("seq", Integer, nullable=False),
    # Tells a redelivery (same content: nothing happens) from a conflict (other content: an alarm).
    Column("content_hash", String, nullable=False),
    # Rises strictly from one settling transaction to the next: the cursor of whoever follows the ledger.
    Column("settled_at", UtcTime, nullable=False),
    UniqueConstraint("exchange_id", "kind", "seq"),
    Index("ix_ledger_entries_key_id_started_at", "key_id", "started_at"),
    Index("ix_ledger_entries_model_started_at", "model", "started_at"),
    Index("ix_ledger_entries_started_at", "started_at"),
    Index("ix_ledger_entries_settled_at_entry_id", "settled_at", "entry_id"),
)

balances = Table(
    "balances",
    metadata,
    Column("key_id", String, primary_key=True),
    Column("charged_usd", Money, nullable=False),
    Column("cost_usd", Money, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("reasoning_tokens", BigInteger, nullable=False),
    Column("total_tokens", BigInteger, nullable=False),
    Column("entries", BigInteger, nullable=False),
)

dead_letters = Table(
    "dead_letters",
    metadata,
    # Derived from reason and payload: the same letter that comes again is counted, not added.
    Column("id", String, primary_key=True),
    Column("exchange_id", String),
    Column("kind", String),
    Column("seq", Integer),
    Column("reason", String, nullable=False),
    Column("payload", Text, nullable=False),
    Column("first_seen", UtcTime, nullable=False),
    Column("last_seen", UtcTime, nullable=False),
    Column("times_seen", BigInteger, nullable=False),
    Index("ix_dead_letters_first_seen", "first_seen"),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("key_id", String, primary_key=True),
    Column("alias", String, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("hint", String, nullable=False),
    Column("models", _json()),
    Column("created_at", UtcTime, nullable=False),
    Column("expires_at", UtcTime),
    Column("revoked_at", UtcTime),
    # max + 1 at every change. Unique, so that two changes at once cannot take the same one on any database.
    Column("revision", BigInteger, nullable=False),
    UniqueConstraint("digest"),
    UniqueConstraint("revision"),
    Index("ix_api_keys_alias", "alias"),
)
