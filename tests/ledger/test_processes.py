"""More than one process on one ledger; and one that dies in the middle."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from random import Random

import pytest
from sqlalchemy import Engine

from proxy.ledger.schema.migrate import check, migrate
from proxy.ledger.schema.tables import dead_letters, ledger_entries
from proxy.reports.entry_reader import EntryFilter, EntryReader
from proxy.storage.database import open_engine
from tests.ledger.entries import a_store, assert_sums, batch_of, count, stored
from tests.support.ledgers import on_both_databases
from tests.support.processes import CLEAN

pytestmark = pytest.mark.process

JOIN_S_MAX = 40

BATCHES, BATCH = 8, 10


def _settle_all(url: str, seed: int, all_are_up: Barrier) -> None:
    """Every entry once, in batches that are cut otherwise in each process."""
    random = Random(seed)
    numbers = list(range(BATCHES * BATCH))
    random.shuffle(numbers)
    engine = open_engine(url)
    store = a_store(engine)
    all_are_up.wait(JOIN_S_MAX)
    while numbers:
        size = random.randint(1, 2 * BATCH)
        store.settle(batch_of(numbers[:size]))
        del numbers[:size]
    engine.dispose()


def _settle_for_ever(url: str, acknowledged: Connection) -> None:
    store = a_store(open_engine(url))
    for number in range(1_000_000):
        store.settle(batch_of(range(number * 3, number * 3 + 3)))
        acknowledged.send(number)


def _migrate_together(url: str, all_are_up: Barrier) -> None:
    all_are_up.wait(JOIN_S_MAX)
    migrate(url)


def _started(target: Callable[..., None], arguments: list[tuple[object, ...]]) -> list[BaseProcess]:
    children: list[BaseProcess] = [CLEAN.Process(target=target, args=one) for one in arguments]
    for child in children:
        child.start()
    return children


def _join(children: list[BaseProcess]) -> None:
    for child in children:
        child.join(JOIN_S_MAX)
    assert [child.exitcode for child in children] == [0] * len(children)


@on_both_databases
def test_two_settle_the_same_entries_at_once_and_a_follower_misses_none(ledger_url: str, engine: Engine) -> None:
    _settle_together(ledger_url, engine, settlers=2)


@pytest.mark.thorough
def test_four_machines_settle_the_same_entries_at_once(postgres_ledger_url: str) -> None:
    engine = open_engine(postgres_ledger_url)
    _settle_together(postgres_ledger_url, engine, settlers=4)
    engine.dispose()


def _settle_together(url: str, engine: Engine, *, settlers: int) -> None:
    """No deadlock, no duplicate, and whoever follows sees each entry once and in order, while they are at it."""
    all_are_up = CLEAN.Barrier(settlers)
    children = _started(_settle_all, [(url, seed, all_are_up) for seed in range(settlers)])
    reader = EntryReader(engine, EntryFilter())
    followed: list[str] = []
    while any(child.is_alive() for child in children):
        followed += [entry.entry_id for entry in reader.new_entries()]
        time.sleep(0.005)
    _join(children)
    followed += [entry.entry_id for entry in reader.new_entries()]
    assert followed == [entry.entry_id for entry in stored(engine)]
    assert len(set(followed)) == len(followed) == BATCHES * BATCH
    assert count(engine, dead_letters) == 0
    assert_sums(engine)


def test_two_migrate_at_once(database_url: str) -> None:
    all_are_up = CLEAN.Barrier(2)
    _join(_started(_migrate_together, [(database_url, all_are_up)] * 2))
    assert check(database_url) == []


def test_what_was_acknowledged_before_a_kill_is_there_and_settling_again_doubles_nothing(
    ledger_url: str, engine: Engine
) -> None:
    for delay_s in (0.0, 0.0137):
        acknowledged = _killed_while_settling(ledger_url, delay_s)
        a_store(engine).settle([])  # waits for the last commit of the client that has died
        entries = count(engine, ledger_entries)
        assert entries >= 3 * (acknowledged + 1)
        assert entries % 3 == 0  # a batch is there or not
        assert_sums(engine)
        store = a_store(engine)
        for number in range(acknowledged + 3):
            store.settle(batch_of(range(number * 3, number * 3 + 3)))
        assert count(engine, ledger_entries) == max(entries, 3 * (acknowledged + 3))
        assert_sums(engine)


def _killed_while_settling(url: str, delay_s: float) -> int:
    """The number of the last batch that a child, killed `delay_s` after its fifth, said was settled."""
    ours, theirs = CLEAN.Pipe(duplex=False)
    (child,) = _started(_settle_for_ever, [(url, theirs)])
    theirs.close()
    while (last := ours.recv()) < 5:
        pass
    time.sleep(delay_s)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join(10)
    assert child.exitcode == -signal.SIGKILL
    try:
        while True:
            last = ours.recv()
    except EOFError:
        return int(last)
