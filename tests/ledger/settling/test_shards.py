"""Shards of the ledger on Postgres: they settle beside each other, and a reader misses no entry of any of them."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import pytest
from sqlalchemy import Engine, delete, select

from proxy.billing.entries import LedgerEntry
from proxy.billing.period import month_of
from proxy.billing.reservation import SpendDelta
from proxy.ledger.periods.closing import close, read_periods
from proxy.ledger.schema.tables import ledger_clock, ledger_entries
from proxy.ledger.settling import account_sums
from proxy.ledger.settling.account_sums import add_up
from proxy.ledger.settling.clock import add_clocks, clock_id, level_clocks
from proxy.ledger.settling.spend import changes, ledger_time, sums
from proxy.ledger.settling.store import LedgerStore, Settled
from proxy.reports.entry_reader import EntryFilter, EntryReader
from proxy.reports.totals import read_balances
from proxy.storage.database import LedgerUnavailable, open_engine, reading, writing
from tests.ledger.entries import a_store, an_entry, arriving, assert_sums, emptied, stored
from tests.support.examples import repeats

_T = TypeVar("_T")

SHARDS = 3
# Longer than a transaction that waits for nobody takes.
SOON_S = 10.0
MOMENT_S = 0.1
BEGAN = 1_700_000_000.0


@pytest.fixture
def engine(kept_on_postgres: str) -> Iterator[Engine]:
    """A ledger of several shards."""
    engine = open_engine(kept_on_postgres)
    emptied(engine)
    add_clocks(engine, SHARDS)
    yield engine
    engine.dispose()


@pytest.fixture
def shards(engine: Engine) -> list[LedgerStore]:
    store = a_store(engine)
    return [store.of_shard(shard) for shard in range(SHARDS)]


@contextmanager
def running(store: LedgerStore, *entries: LedgerEntry) -> Iterator[None]:
    """A settling transaction of a shard that has inserted, and has not committed."""
    with store._settling(store._own_clock) as settling:
        settling.insert(arriving(*entries))
        yield


def after_waiting_for(store: LedgerStore, entry: LedgerEntry, work: Callable[[], _T]) -> _T:
    """What comes of `work`, which waits for the transaction of a shard that settles `entry`."""
    with ThreadPoolExecutor(1) as thread:
        with running(store, entry):
            waiting = thread.submit(work)
            with pytest.raises(TimeoutError):
                waiting.result(MOMENT_S)
        return waiting.result(SOON_S)


def clocks(engine: Engine) -> dict[int, float]:
    with reading(engine) as connection:
        return {row.id: row.settled_at for row in connection.execute(select(ledger_clock))}


def an_own(number: int) -> LedgerEntry:
    """An entry of a key that no other entry has."""
    return an_entry(number, key_id=f"key_{number}")


def ids(*numbers: int) -> list[str]:
    return [an_entry(number).exchange_id for number in numbers]


def test_shards_do_not_wait_for_each_other(engine: Engine, shards: list[LedgerStore]) -> None:
    with running(shards[0], an_own(1)):
        assert len(shards[1].settle(arriving(an_own(2))).inserted) == 1
    level_clocks(engine)
    assert len(stored(engine)) == 2
    assert_sums(engine)


def test_a_shard_waits_for_itself(shards: list[LedgerStore]) -> None:
    settled = after_waiting_for(shards[0], an_own(1), lambda: shards[0].settle(arriving(an_own(2))))
    assert settled == Settled(inserted=(an_own(2),))


def test_neither_follower_nor_reader_misses_what_commits_late(engine: Engine, shards: list[LedgerStore]) -> None:
    """The entry of the running transaction is settled before the other one, and can be seen only after it."""
    reader = EntryReader(engine, EntryFilter())
    with running(shards[0], an_own(1)):
        shards[1].settle(arriving(an_own(2)))
        level_clocks(engine)
        early, until_us, _ = changes(engine, 0, 1_000)
        assert early == list(reader.new_entries()) == []
    level_clocks(engine)
    followed, _, _ = changes(engine, until_us, 1_000)
    for found in (followed, reader.new_entries()):
        assert [one.exchange_id for one in found] == ids(1, 2)


def test_a_total_is_that_of_the_ledgers_time(engine: Engine, shards: list[LedgerStore]) -> None:
    """What a shard that is ahead has settled comes as a change, and only so."""
    wants = [("key-1", 0.0), ("key-1/credit", 0.0)]
    shards[0].settle(arriving(an_entry(1, key_id="key-1", charge_nusd=5)))
    level_clocks(engine)
    with running(shards[2], an_entry(2, key_id="key-2")):
        shards[1].settle(arriving(an_entry(3, key_id="key-1", charge_nusd=70)))
        level_clocks(engine)
        totals = sums(engine, wants)
    assert [one.amount for one in totals] == [5, 5]
    (as_of_us,) = {one.as_of_us for one in totals}
    level_clocks(engine)
    later, _, _ = changes(engine, as_of_us, 100)
    assert [one.nusd for one in later if "key-1" in one.counter_ids] == [70]
    assert [one.amount for one in sums(engine, wants)] == [75, 75]


def test_balances_are_those_of_the_ledgers_time(engine: Engine, shards: list[LedgerStore]) -> None:
    shards[0].settle(arriving(an_entry(1, key_id="key-1", charge_nusd=5, cost_nusd=3)))
    level_clocks(engine)
    with running(shards[2], an_own(2)):
        more = [an_entry(3, key_id="key-1", charge_nusd=70, cost_nusd=20), an_own(4)]
        shards[1].settle(arriving(*more, an_entry(5, key_id="key-1", charge_nusd=None, cost_nusd=None)))
        level_clocks(engine)
        with reading(engine) as connection:
            assert read_balances(connection) == {"key-1": (5, 3)}
    level_clocks(engine)
    with reading(engine) as connection:
        assert read_balances(connection)["key-1"] == (75, 23)


def test_idle_clocks_follow_the_newest(engine: Engine, shards: list[LedgerStore]) -> None:
    shards[1].settle(arriving(an_own(1)))
    assert len(set(clocks(engine).values())) == 2
    level_clocks(engine)
    assert len(set(clocks(engine).values())) == 1
    assert ledger_time(engine) == round(max(clocks(engine).values()) * 1e6)


def test_what_is_exclusive_waits_for_all_shards_and_sees_what_they_did(
    engine: Engine, shards: list[LedgerStore]
) -> None:
    def exclusive() -> tuple[float, int]:
        with a_store(engine).settling() as settling:
            found = settling.connection.execute(select(ledger_entries.c.settled_at)).scalars().all()
            assert max(found) < settling.now
            return settling.now, len(found)

    now, found = after_waiting_for(shards[2], an_own(1), exclusive)
    assert found == 1
    assert set(clocks(engine).values()) == {now}


def test_a_closing_is_one_moment_of_all_clocks(engine: Engine, shards: list[LedgerStore]) -> None:
    """An entry is settled before the closing, and is in its snapshot, or after it."""
    began = an_entry(1, key_id="key_1", started_at=BEGAN)
    assert after_waiting_for(shards[1], began, lambda: close(a_store(engine), month_of(BEGAN), by="anna"))
    for shard in shards:
        shard.settle(arriving(an_own(10 + shards.index(shard))))
    with reading(engine) as connection:
        closed_at = read_periods(connection)[-1].closed_at
        times = dict(connection.execute(select(ledger_entries.c.exchange_id, ledger_entries.c.settled_at)).all())
    assert {exchange_id for exchange_id, at in times.items() if at <= closed_at} == set(ids(1))


def test_an_entry_that_two_shards_insert_is_there_once(engine: Engine, shards: list[LedgerStore]) -> None:
    settled = after_waiting_for(shards[0], an_own(1), lambda: shards[1].settle(arriving(an_own(1), an_own(2))))
    assert settled == Settled(inserted=(an_own(2),), repeated=1)
    assert_sums(engine)


def test_a_clock_is_added_at_the_newest_time(engine: Engine, shards: list[LedgerStore]) -> None:
    shards[1].settle(arriving(an_own(1)))
    before = clocks(engine)
    add_clocks(engine, SHARDS + 1)
    add_clocks(engine, 1)
    assert clocks(engine) == before | {clock_id(SHARDS): max(before.values())}


def test_clocks_are_added_while_nothing_settles(engine: Engine, shards: list[LedgerStore]) -> None:
    after_waiting_for(shards[0], an_own(1), lambda: add_clocks(engine, SHARDS + 1))
    found = clocks(engine)
    assert found[clock_id(SHARDS)] == max(found.values()) > min(found.values())


def test_a_ledger_without_clocks_is_damaged(engine: Engine, shards: list[LedgerStore]) -> None:
    with writing(engine) as connection:
        connection.execute(delete(ledger_clock).where(ledger_clock.c.id == clock_id(1)))
    with pytest.raises(LedgerUnavailable, match="ledger_clock is missing"):
        shards[1].settle(arriving(an_own(1)))
    with writing(engine) as connection:
        connection.execute(delete(ledger_clock))
    with pytest.raises(LedgerUnavailable, match="ledger_clock is missing"):
        add_clocks(engine, SHARDS)


@pytest.mark.hypothesis
def test_followers_of_busy_shards_see_each_entry_once(
    engine: Engine, shards: list[LedgerStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards, corrections of all of them, one that levels clocks, and three kinds of readers, all at once."""
    monkeypatch.setattr(account_sums, "ENTRIES_MAX", 7)
    batches = repeats(40, gate=7)
    done = threading.Event()
    seen: list[SpendDelta] = []
    read: list[LedgerEntry] = []

    def settle(shard: int) -> None:
        for batch in range(batches):
            first = 1_000 * shard + 10 * batch
            entries = [
                an_entry(first + one, key_id=f"key-{shard}", charge_nusd=1) for one in range(random.randint(1, 9))
            ]
            shards[shard].settle(arriving(*entries))
            if batch % 10 == 5:
                a_store(engine).settle(arriving(an_entry(90_000 + first, key_id="key-all", charge_nusd=1)))

    def follow() -> None:
        cursor = 0
        reader = EntryReader(engine, EntryFilter())
        last = False
        while not last:
            last = done.is_set()
            level_clocks(engine)
            found, cursor, _ = changes(engine, cursor, 5)
            seen.extend(found)
            read.extend(reader.new_entries())
            add_up(engine)
            [one] = sums(engine, [("key-1", 0.0)])
            counted = sum(1 for delta in seen if "key-1" in delta.counter_ids and delta.settled_at_us <= one.as_of_us)
            more, until_us, _ = changes(engine, cursor, 100_000)
            assert until_us >= one.as_of_us
            counted += sum(1 for delta in more if "key-1" in delta.counter_ids and delta.settled_at_us <= one.as_of_us)
            assert one.amount == counted

    with ThreadPoolExecutor(SHARDS + 1) as threads:
        following = threads.submit(follow)
        for one in [threads.submit(settle, shard) for shard in range(SHARDS)]:
            one.result()
        done.set()
        following.result()
    level_clocks(engine)
    rest, _, _ = changes(engine, max((one.settled_at_us for one in seen), default=0), 100_000)
    seen.extend(rest)
    everything = Counter(one.exchange_id for one in stored(engine))
    assert Counter(one.exchange_id for one in seen) == everything
    assert Counter(one.exchange_id for one in read) == everything
    assert [one.settled_at_us for one in seen] == sorted(one.settled_at_us for one in seen)
    assert_sums(engine)
