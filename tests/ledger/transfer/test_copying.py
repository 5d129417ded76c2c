"""A ledger is copied from SQLite to Postgres: every row, however often it is interrupted, into a new ledger alone."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Date,
    Double,
    Engine,
    LargeBinary,
    Table,
    delete,
    insert,
    inspect,
    select,
    text,
    update,
)

from proxy.ledger.schema.account_tables import accounts, api_keys, grant_clock
from proxy.ledger.schema.archive_guard import is_refused
from proxy.ledger.schema.column_types import Money, UtcTime
from proxy.ledger.schema.partitions import partitions
from proxy.ledger.schema.tables import (
    account_clock,
    archives,
    balances,
    dimension_clock,
    ledger_clock,
    ledger_entries,
    metadata,
    usage_daily,
)
from proxy.ledger.transfer import comparing
from proxy.ledger.transfer.comparing import DifferentLedgerError, LedgerSums
from proxy.ledger.transfer.copying import copy_ledger
from proxy.storage.database import LedgerUnavailable, open_engine, reading, writing
from tests.ledger.entries import a_ledger, a_store, an_entry, arriving, id_at
from tests.ledger.priced_entries import a_real_entry, settle

pytestmark = pytest.mark.io

ROWS = 5
"""of each table in the source, more than a batch"""


def a_value(column: Column[Any], number: int) -> Any:
    """A value that an inexact encoding changes; other values for other numbers."""
    match column.type:
        case Money():
            return 1_234_567_890_123_457 + number
        case UtcTime():
            return 1_793_000_000.123457 + number
        case JSON():
            return {"ä": [2**53 + 1 + number, 0.1, None, True, "\\u0000 €"], "b": {"": 1e-9}, "aa": -(2**63)}
        case Boolean():
            return number % 2 == 0
        case Date():
            return date(2026, 10, 1 + number)
        case Double():
            return 0.1 + number
        case LargeBinary():
            return bytes(range(256)) + bytes([number])
    if column.type.python_type is int:
        return (2**31 if str(column.type) == "INTEGER" else 2**63) - 1 - number
    months = {"month": f"2026-{number + 1:02}", "statements_until": "2026-12"}
    return months.get(column.name, f"{column.name} 'ä' \\ \U0001f600 {number}")


def a_row(table: Table, number: int) -> dict[str, Any]:
    row = {column.key: a_value(column, number) for column in table.columns}
    if number % 2:
        row |= {column.key: None for column in table.columns if column.nullable}
    return row


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Engine]:
    """A ledger with rows in every table."""
    engine = a_ledger(tmp_path)
    with writing(engine) as connection:
        for table in metadata.sorted_tables:
            connection.execute(delete(table))
            rows = [a_row(table, number) for number in range(ROWS)]
            connection.execute(
                insert(table),
                rows[:1] if table in (ledger_clock, account_clock, dimension_clock, grant_clock) else rows,
            )
    yield engine
    engine.dispose()


@pytest.fixture
def target(postgres_ledger_url: str) -> Iterator[Engine]:
    """A new ledger of its own: a copy sets the guard of archived months."""
    engine = open_engine(postgres_ledger_url)
    yield engine
    engine.dispose()


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "BATCH_ROWS", 2)


def ignored(*_: object) -> None:
    """Progress that nobody reads."""


def copied(source: Engine, target: Engine) -> LedgerSums:
    with writing(source) as connection:
        return copy_ledger(connection, target, ignored, ignored)


def rows_of(engine: Engine) -> dict[str, list[Any]]:
    """Every row of every table of the schema."""
    with reading(engine) as connection:
        return {
            table.name: list(connection.execute(select(table).order_by(*table.primary_key)))
            for table in metadata.sorted_tables
        }


def test_every_row_of_every_table_arrives_as_it_is(source: Engine, target: Engine) -> None:
    before = rows_of(source)
    sums = copied(source, target)
    assert rows_of(target) == rows_of(source) == before
    assert all(before.values()), "every table of the schema has rows"
    assert sums.rows == {name: len(rows) for name, rows in before.items()}
    assert sums.charge_nusd == sum(row.charge_nusd or 0 for row in before["ledger_entries"])
    with reading(target) as connection:
        there = {name for name in inspect(connection).get_table_names() if not name.startswith("ledger_entries_")}
        made_here = there - set(metadata.tables)
        sequences = inspect(connection).get_sequence_names()
    assert (made_here, sequences) == ({"alembic_version"}, []), "nothing else has to be copied, and no number be set"


@pytest.mark.thorough
def test_a_second_run_changes_nothing(source: Engine, target: Engine) -> None:
    first = copied(source, target)
    with reading(target) as connection:
        written = connection.execute(text("SELECT xmin::text FROM ledger_clock")).scalar_one()
    assert copied(source, target) == first
    with reading(target) as connection:
        assert connection.execute(text("SELECT xmin::text FROM ledger_clock")).scalar_one() == written


class Interrupted(Exception):
    pass


@pytest.mark.thorough
def test_an_interrupted_copy_goes_on(source: Engine, target: Engine) -> None:
    """Until it is whole, nothing can be settled in it; and it follows a source that went on."""
    tables = len(metadata.sorted_tables)
    for stop in [1, 4, 3 * tables, 5 * tables]:
        steps = iter(range(1, 10_000))

        def progress(*_: object, stop: int = stop, steps: Iterator[int] = steps) -> None:
            if next(steps) == stop:
                raise Interrupted

        with pytest.raises(Interrupted), writing(source) as connection:
            copy_ledger(connection, target, progress, ignored)
        with pytest.raises(LedgerUnavailable, match="a copy not finished"):
            a_store(target).settle(arriving(an_entry(stop)))
        with writing(source) as connection:
            connection.execute(update(balances).values(charged_nusd=stop))
            connection.execute(insert(ledger_entries), a_row(ledger_entries, 100 + stop))
            first = select(api_keys.c.key_id).order_by(api_keys.c.key_id).limit(1).scalar_subquery()
            connection.execute(delete(api_keys).where(api_keys.c.key_id == first))
            some = usage_daily.c.day <= date(2026, 10, 3)  # of both batches
            connection.execute(update(usage_daily).where(some).values(entries=usage_daily.c.entries - stop))
    copied(source, target)
    assert rows_of(target) == rows_of(source)


def test_a_database_in_use_is_left_alone(source: Engine, target: Engine) -> None:
    settle(target, a_real_entry())
    before = rows_of(target)
    with pytest.raises(DifferentLedgerError, match=r"in use, or is another ledger: table ledger_entries: the row"):
        copied(source, target)
    assert rows_of(target) == before


@pytest.mark.parametrize(
    "used",
    [
        insert(api_keys).values(a_row(api_keys, 50)),
        update(accounts).values(limits={"budget_nusd": 5}).where(accounts.c.account_id == "org_default"),
    ],
)
def test_so_is_one_that_has_only_keys_or_limits(source: Engine, target: Engine, used: Any) -> None:
    with writing(target) as connection:
        connection.execute(used)
    before = rows_of(target)
    with pytest.raises(DifferentLedgerError, match="in use, or is another ledger"):
        copied(source, target)
    assert rows_of(target) == before


@pytest.mark.thorough
def test_and_one_with_half_a_copy_of_another_ledger(source: Engine, target: Engine) -> None:
    copied(source, target)
    other = {**a_row(ledger_entries, 0), "charge_nusd": 1}
    with writing(target) as connection:
        connection.execute(delete(ledger_clock))
        connection.execute(delete(ledger_entries).where(ledger_entries.c.exchange_id == other["exchange_id"]))
        connection.execute(insert(ledger_entries), other)
    before = rows_of(target)
    with pytest.raises(DifferentLedgerError, match=r"^table ledger_entries: the row .* differs in charge_usd$"):
        copied(source, target)
    assert rows_of(target) == before


@pytest.mark.thorough
def test_a_value_that_the_database_changes_is_found(source: Engine, target: Engine) -> None:
    """By a nano-dollar, in one row. The copy stays unfinished."""
    with writing(target) as connection:
        connection.exec_driver_sql(
            "CREATE FUNCTION more() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN "
            "NEW.charged_usd := NEW.charged_usd + 0.000000001; RETURN NEW; END$$"
        )
        connection.exec_driver_sql(
            "CREATE TRIGGER more BEFORE INSERT ON usage_daily FOR EACH ROW WHEN (NEW.day = '2026-10-03') "
            "EXECUTE FUNCTION more()"
        )
    with pytest.raises(DifferentLedgerError, match=r"table usage_daily: the row .*2026-10-03.* differs in charged_usd"):
        copied(source, target)
    assert rows_of(target)["ledger_clock"] == []


def test_a_text_that_postgres_does_not_store_is_named(source: Engine, target: Engine) -> None:
    with writing(source) as connection:
        connection.execute(update(ledger_entries).values(model="a\0b").where(ledger_entries.c.seq == 2**31 - 2))
    with pytest.raises(
        DifferentLedgerError, match=r"table ledger_entries: Postgres cannot store the row exchange_id .*1"
    ):
        copied(source, target)


@pytest.mark.thorough
def test_each_month_of_entries_has_its_partition(tmp_path: Path, target: Engine) -> None:
    """But a month that a clock cannot have told, or that is archived: no entry of it is stored any more."""
    source = a_ledger(tmp_path)
    ids = [id_at(datetime(year, month, 3, tzinfo=UTC)) for year, month in ((2024, 1), (2024, 12), (2025, 2))]
    a_store(source).settle(arriving(*(an_entry(exchange=one) for one in ids), an_entry(7)))
    archived = {"month": "2024-01", "statements_until": "2024-01", "entries": 1, "file": "f", "sha256": "s"}
    with writing(source) as connection:
        connection.execute(insert(archives), {**archived, "archived_at": 1.0, "archived_by": "anna"})
    copied(source, target)
    with reading(target) as connection:
        assert {"ledger_entries_2024_12", "ledger_entries_2025_02"} <= set(partitions(connection))
        assert not {"ledger_entries_2024_01", "ledger_entries_1970_01"} & set(partitions(connection))
    with pytest.raises(Exception, match="archived") as refusal, writing(target) as connection:
        connection.execute(insert(ledger_entries), a_row(ledger_entries, 0) | {"exchange_id": ids[0], "seq": 5})
    assert is_refused(refusal.value)
    source.dispose()
