"""More than one process on one ledger; and one that dies in the middle."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path

from sqlalchemy import Engine

from proxy.ledger.database import open_engine, sqlite_url
from proxy.ledger.migrate import check, migrate
from proxy.ledger.reports import EntryFilter, EntryReader, read_balances
from proxy.ledger.store import LedgerStore
from proxy.ledger.tables import ledger_entries
from tests.ledger.making import a_ledger, a_store, an_entry, count

# Children start clean: no thread, no connection and no event loop of the tests.
SPAWN = multiprocessing.get_context("spawn")

BATCHES, BATCH = 20, 10


def _settle_all(folder: Path, reverse: bool) -> None:
    engine = a_ledger(folder)
    store = a_store(engine)
    for number in range(BATCHES)[:: -1 if reverse else 1]:
        store.settle([an_entry(number * BATCH + i) for i in range(BATCH)])
    engine.dispose()


def _settle_for_ever(folder: Path, acknowledged: Connection) -> None:
    store = a_store(open_engine(sqlite_url(folder / "ledger.db")))
    for number in range(1_000_000):
        store.settle([an_entry(number * 3 + i) for i in range(3)])
        acknowledged.send(number)


def _migrate_together(folder: Path, both_are_up: Barrier) -> None:
    both_are_up.wait(20)
    migrate(sqlite_url(folder / "ledger.db"))


def test_two_processes_settle_the_same_entries_at_once(tmp_path: Path) -> None:
    children = [SPAWN.Process(target=_settle_all, args=(tmp_path, reverse)) for reverse in (False, True)]
    for child in children:
        child.start()
    for child in children:
        child.join(20)
    assert [child.exitcode for child in children] == [0, 0]
    engine = a_ledger(tmp_path)
    _assert_consistent(engine, BATCHES * BATCH)
    engine.dispose()


def test_two_processes_migrate_at_once(tmp_path: Path) -> None:
    both_are_up = SPAWN.Barrier(2)
    children = [SPAWN.Process(target=_migrate_together, args=(tmp_path, both_are_up)) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(20)
    assert [child.exitcode for child in children] == [0, 0]
    assert check(sqlite_url(tmp_path / "ledger.db")) == []


def test_what_was_acknowledged_before_a_kill_is_there_and_settling_again_doubles_nothing(tmp_path: Path) -> None:
    engine = a_ledger(tmp_path)
    for delay_s in (0.0, 0.0137):
        acknowledged = _killed_while_settling(tmp_path, delay_s)
        entries = count(engine, ledger_entries)
        assert entries >= 3 * (acknowledged + 1)
        assert entries % 3 == 0  # a batch is there or not
        _assert_consistent(engine, entries)
        store: LedgerStore = a_store(engine)
        for number in range(acknowledged + 3):
            store.settle([an_entry(number * 3 + i) for i in range(3)])
        _assert_consistent(engine, max(entries, 3 * (acknowledged + 3)))
    engine.dispose()


def _killed_while_settling(folder: Path, delay_s: float) -> int:
    """The number of the last batch that a child, killed `delay_s` after its fifth, said was settled."""
    ours, theirs = SPAWN.Pipe(duplex=False)
    child = SPAWN.Process(target=_settle_for_ever, args=(folder, theirs))
    child.start()
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


def _assert_consistent(engine: Engine, entries: int) -> None:
    stored = list(EntryReader(engine, EntryFilter()).new_entries())
    assert len(stored) == len({e.entry_id for e in stored}) == entries
    (balance,) = read_balances(engine)
    assert balance.entries == entries
    assert balance.charged_usd == sum(e.charge_usd or 0 for e in stored)
