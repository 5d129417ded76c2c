"""Types that carry money and time."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Dialect
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.dialects.sqlite.base import DATETIME, SQLiteDialect

from proxy.billing.entries import ENTRY_FIELDS, STORED_NAMES
from proxy.ledger.schema.column_types import Money, UtcTime
from proxy.ledger.schema.tables import ledger_entries

# As `Money` promises for SQLite.
EXACT_NUSD = 2**23 * 10**9


@given(st.integers(-EXACT_NUSD, EXACT_NUSD))
def test_money_comes_back_from_sqlite_s_floats(nusd: int) -> None:
    dialect = SQLiteDialect()
    stored = Money().process_bind_param(nusd, dialect)
    assert isinstance(stored, float)
    assert Money().process_result_value(stored, dialect) == nusd


@given(st.integers(-(10**24) + 1, 10**24 - 1))
def test_money_is_a_decimal_for_postgres(nusd: int) -> None:
    dialect: Dialect = PGDialect()  # type: ignore[no-untyped-call]
    stored = Money().process_bind_param(nusd, dialect)
    assert stored == Decimal(nusd) / 10**9
    assert Money().process_result_value(stored, dialect) == nusd


@given(st.floats(0, 4e9))
def test_times_are_exact_to_the_microsecond(unix_s: float) -> None:
    kept = UtcTime().process_result_value(UtcTime().process_bind_param(unix_s, SQLiteDialect()), SQLiteDialect())
    assert kept == pytest.approx(unix_s, abs=1e-6)


@given(st.floats(0, 4e9) | st.integers(0, 2**32).map(float))
def test_sqlite_s_times_are_the_text_that_sqlalchemy_reads(unix_s: float) -> None:
    dialect = SQLiteDialect()
    time_type = UtcTime()
    by_sqlalchemy = DATETIME().bind_processor(dialect)
    assert time_type.bind_processor(dialect)(unix_s) == by_sqlalchemy(time_type.process_bind_param(unix_s, dialect))


def test_the_columns_are_the_entry_s_fields() -> None:
    more = ["content_hash", "settled_at", "node", "journal_seq"]
    assert [c.key for c in ledger_entries.columns] == [*ENTRY_FIELDS, *more]
    assert [c.name for c in ledger_entries.columns] == [*STORED_NAMES.values(), *more]
