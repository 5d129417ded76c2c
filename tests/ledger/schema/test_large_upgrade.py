"""A ledger of many rows is upgraded while others settle: no settlement waits for more than two seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine

from proxy.ledger.schema.migrate import migrate
from proxy.migrations import steps
from proxy.storage.database import open_engine, reading
from tests.bench.history import fill
from tests.bench.stores import POSTGRES, Ledger
from tests.ledger.entries import a_store, an_entry, arriving
from tests.ledger.schema.revisions import run_revision
from tests.support.long_runs import part_of
from tests.support.postgres import own_server

ROWS = part_of(300_000)
WAIT_S_MAX = 2.0
BATCH, SETTLERS, PAUSE_S = 20, 2, 0.02
# A key in ten of the history's thousand.
SOME = "mood IS NULL AND key_id BETWEEN 'key_' AND 'key_00000000000000000064'"


class Load:
    """Settlers that settle new entries of this month, and a reader of the whole ledger."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._stop = threading.Event()
        self.waits: list[tuple[float, float]] = []
        """of each settlement, when it began and how long it took, in seconds"""
        self.read_s: list[float] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Within the context; raises what one of them has met."""
        with ThreadPoolExecutor(SETTLERS + 1) as threads:
            started = [threads.submit(self._read), *(threads.submit(self._settle, n) for n in range(SETTLERS))]
            try:
                yield
            finally:
                self._stop.set()
        for one in started:
            one.result()

    def _settle(self, number: int) -> None:
        store, count = a_store(self._engine), 0
        while not self._stop.wait(PAUSE_S):
            count += 1
            ids = [_new_id(number, BATCH * count + place) for place in range(BATCH)]
            began = time.monotonic()
            store.settle(arriving(*(an_entry(exchange=one) for one in ids)))
            self.waits.append((began, time.monotonic() - began))

    def _read(self) -> None:
        took = 1.0
        while not self._stop.wait(4 * took):  # an index that is made concurrently waits for each of them
            began = time.monotonic()
            with reading(self._engine) as connection:
                connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
                connection.exec_driver_sql("SELECT sum(charge_usd) FROM ledger_entries")
            took = time.monotonic() - began
            self.read_s.append(took)


def _new_id(settler: int, number: int) -> str:
    milliseconds = int(time.time() * 1000)
    return str(UUID(int=milliseconds << 80 | 7 << 76 | 2 << 62 | settler << 48 | number))


def revision() -> None:
    """What a later version might do: a column, its value for a tenth of the rows, an index of those and one of all."""
    steps.add_column("ledger_entries", sa.Column("mood", sa.String()))
    steps.in_batches("ledger_entries", "exchange_id", "mood = 'was ' || key_alias", SOME)
    steps.create_index("ix_ledger_entries_mood", "ledger_entries", ["mood", "started_at"], where="mood IS NOT NULL")
    steps.create_index("ix_ledger_entries_response", "ledger_entries", ["provider_response_id"])


@pytest.mark.slow
def test_no_settlement_waits_for_an_upgrade(postgres_cluster: Path) -> None:
    with own_server(postgres_cluster, **POSTGRES) as server:
        name = server.new_database()
        migrate(server.url(name))
        engine = open_engine(server.url(name))
        began = time.monotonic()
        fill(Ledger(server.url(name), name, engine, server), ROWS)
        filled_s = time.monotonic() - began
        load, said = Load(engine), list[str]()
        with load.running():
            time.sleep(5)
            began = time.monotonic()
            run_revision(engine, revision, said)
            ended = time.monotonic()
            time.sleep(2)
        before, during = (
            sorted(took for at, took in load.waits if (at < began) == first and at < ended) for first in (True, False)
        )
        print(
            f"\n{ROWS:,} rows, made in {filled_s:.0f} s; upgraded in {ended - began:.0f} s; longest read "
            f"{max(load.read_s):.1f} s\n"
            f"settlements before: {len(before)}, median {before[len(before) // 2] * 1e3:.0f} ms, longest "
            f"{before[-1] * 1e3:.0f} ms\n"
            f"settlements meanwhile: {len(during)}, median {during[len(during) // 2] * 1e3:.0f} ms, 99.9 % within "
            f"{during[int(len(during) * 0.999)] * 1e3:.0f} ms, longest {during[-1] * 1e3:.0f} ms"
        )
        print("\n".join(said))
        assert during[-1] < WAIT_S_MAX
        counts = "SELECT count(mood), count(*) FILTER (WHERE " + SOME + ") FROM ledger_entries"
        [(changed, left)] = server.execute(counts, database=name)
        assert (left, changed > ROWS / 20) == (0, True)
        engine.dispose()
