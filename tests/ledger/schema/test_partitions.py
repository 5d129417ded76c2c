"""A month's entries lie in the month's partition, and no entry is ever without a place."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine, text

from proxy.billing.entries import LedgerEntry
from proxy.foundation.ids import exchange_id
from proxy.ledger.schema.migrate import check
from proxy.ledger.schema.partitions import first_id, make_partitions, partition_name
from proxy.ledger.settling.store import Settled
from proxy.storage.database import open_engine, reading
from tests.ledger.entries import a_ledger, a_store, an_entry, arriving, assert_sums, emptied, id_at, stored
from tests.support.postgres import Server

pytestmark = pytest.mark.io

DAY_S = 86_400.0


@pytest.fixture(scope="module")
def url(postgres: Server, migrated: str) -> Iterator[str]:
    """A migrated ledger on Postgres. It keeps its partitions: each test makes those of other years."""
    name = postgres.new_database(migrated)
    yield postgres.url(name)
    postgres.drop_database(name)


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = open_engine(url)
    emptied(engine)
    yield engine
    engine.dispose()


def entry_at(moment: datetime, number: int = 0) -> LedgerEntry:
    return an_entry(number, exchange=id_at(moment, number), started_at=moment.timestamp())


def places(engine: Engine) -> dict[str, str]:
    """exchange_id → the partition it lies in."""
    with reading(engine) as connection:
        return {
            row[0]: row[1]
            for row in connection.execute(text("SELECT exchange_id, tableoid::regclass::text FROM ledger_entries"))
        }


def today() -> datetime:
    return datetime.now(UTC)


@given(st.integers(1_577_836_800_000, 3_786_912_000_000), st.integers(0, (1 << 62) - 1))
def test_ids_of_a_month_are_between_its_bounds(unix_ms: int, low_bits: int) -> None:
    moment = datetime.fromtimestamp(unix_ms / 1000, UTC)
    begin = moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    end = (begin + timedelta(days=31)).replace(day=1)
    assert first_id(begin) <= id_at(moment, low_bits) < first_id(end)


def test_what_the_gateway_makes_now_lies_in_this_month(engine: Engine) -> None:
    entry = an_entry(exchange=exchange_id(), started_at=time.time())
    a_store(engine).settle(arriving(entry))
    assert places(engine) == {entry.exchange_id: partition_name(today())}


def test_an_odd_id_has_a_place_too(engine: Engine) -> None:
    odd = [an_entry(exchange=name) for name in ("", "zebra", "ÿ", id_at(datetime(1971, 1, 1, tzinfo=UTC)))]
    a_store(engine).settle(arriving(*odd))
    assert set(places(engine).values()) == {"ledger_entries_default"}
    assert_sums(engine)


@pytest.mark.parametrize(("now", "first", "last"), [
    (datetime(2031, 1, 31, 23, 59, 59, tzinfo=UTC), "2030_12", "2031_04"),
    (datetime(2031, 10, 1, tzinfo=UTC), "2031_09", "2032_01"),
    (datetime(2035, 12, 31, tzinfo=UTC), "2035_11", "2036_03"),
])  # fmt: skip
def test_last_month_to_three_months_ahead(engine: Engine, now: datetime, first: str, last: str) -> None:
    made = make_partitions(engine, now.timestamp())
    assert len(made) == 5
    assert (made[0], made[-1]) == (f"ledger_entries_{first}", f"ledger_entries_{last}")
    assert make_partitions(engine, now.timestamp()) == []


def test_entries_move_from_the_default_partition_when_their_month_gets_its_own(engine: Engine, url: str) -> None:
    """After months without a worker, or with a clock that was wrong."""
    begin = datetime(2041, 5, 1, tzinfo=UTC)
    moments = [begin - timedelta(milliseconds=1), begin, begin + timedelta(days=20), begin + timedelta(days=31)]
    entries = [entry_at(moment, number) for number, moment in enumerate(moments)]
    store = a_store(engine)
    store.settle(arriving(*entries))
    assert set(places(engine).values()) == {"ledger_entries_default"}
    make_partitions(engine, begin.timestamp())
    months = ("2041_04", "2041_05", "2041_05", "2041_06")
    assert places(engine) == {
        entry.exchange_id: f"ledger_entries_{month}" for entry, month in zip(entries, months, strict=True)
    }
    assert store.settle(arriving(*entries)) == Settled(repeated=4)
    assert sorted(stored(engine), key=lambda entry: entry.exchange_id) == entries
    assert_sums(engine)
    assert check(url) == []


def test_settling_goes_on_while_several_make_partitions(engine: Engine) -> None:
    store = a_store(engine)
    begin = datetime(2051, 1, 1, tzinfo=UTC)
    with ThreadPoolExecutor(4) as pool:
        making = [pool.submit(make_partitions, engine, begin.timestamp() + 31 * DAY_S * step) for step in (0, 1, 2, 3)]
        number = 0
        while not all(one.done() for one in making) or number < 20:
            store.settle(arriving(entry_at(begin + timedelta(days=number % 120), number), an_entry(number)))
            number += 1
        made = [name for one in making for name in one.result()]
    assert sorted(made) == sorted(set(made))
    assert len(made) == 8
    assert len(stored(engine)) == 2 * number
    assert_sums(engine)


def test_there_is_nothing_to_make_on_sqlite(tmp_path: Path) -> None:
    engine = a_ledger(tmp_path)
    assert make_partitions(engine, time.time()) == []
    engine.dispose()
