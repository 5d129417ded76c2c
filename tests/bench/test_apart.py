"""What the benchmark of many machines is made of: its records, its past, its table."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import func, select

from proxy.billing.entries import ENTRY_FIELDS
from proxy.billing.settlement import entry
from proxy.ledger.schema.tables import balances, ledger_entries, usage_daily
from proxy.storage.database import reading
from tests.bench import dashboards
from tests.bench.history import fill
from tests.bench.lines import Line, at_least, at_most, table
from tests.bench.load import Rig, Target, build, compiler
from tests.bench.records import opened, record
from tests.bench.sharing import Shared, postgres_s, simulated
from tests.bench.stores import Ledger, cpu_s, new_ledger
from tests.support.postgres import own_server
from tests.support.waiting import wait_until


@pytest.fixture
def ledger(postgres_cluster: Path) -> Iterator[Ledger]:
    with own_server(postgres_cluster) as server, new_ledger(server) as made:
        yield made


@pytest.mark.external
@pytest.mark.skipif(compiler() is None, reason="no C compiler: the bench rig cannot be built")
def test_requests_can_be_streams_of_any_length_at_a_rate(tmp_path: Path) -> None:
    rig: Rig = build(tmp_path, max(os.sched_getaffinity(0)))
    with rig.provided() as port:
        target = Target(port, ("Authorization: Bearer sk-nobody",))
        load = rig.requests(target, requests=20, connections=20, stream=True, per_s=100, length=20, gap_ms=2)
        assert load.units == 20
        assert load.seconds > 0.19 + 0.03  # the last is asked for after 190 ms, and lasts for 38 ms
        assert rig.streams(target, streams=5, events=20, pace_ms=10).gap_p99_us > 5_000


def test_records_have_every_field() -> None:
    made = entry(record(opened(1)))
    assert [name for name in ENTRY_FIELDS if getattr(made, name) is None] == []


@pytest.mark.slow
def test_a_past_is_what_settling_would_have_left(ledger: Ledger) -> None:
    fill(ledger, 5_000)
    assert ledger.settled == 5_000
    with reading(ledger.engine) as connection:
        in_default = connection.exec_driver_sql("SELECT count(*) FROM ledger_entries_default").scalar_one()
        charged = {
            connection.execute(select(func.sum(column))).scalar_one()
            for column in (ledger_entries.c.charge_nusd, balances.c.charged_nusd, usage_daily.c.charged_nusd)
        }
    assert in_default == 0
    assert len(charged) == 1
    assert dashboards.spend(ledger).rows > 300
    assert dashboards.last_entries(ledger).rows == 5


@pytest.mark.slow
def test_the_processor_time_of_postgres_has_that_of_sessions_that_ended(ledger: Ledger) -> None:
    work = "SELECT sum(n) FROM generate_series(1, 1500000) AS n"
    before = postgres_s(ledger.postgres.pid)
    ledger.ask(work)
    wait_until(lambda: 0.03 < postgres_s(ledger.postgres.pid) - before < 10)  # the session is still to be buried


def test_a_simulation_is_bound_by_what_is_scarce() -> None:
    """100 µs of a worker and 50 µs of Postgres for each entry."""
    one = Shared(per_s=0, postgres_us=50, worker_us=100, waiting=0)
    found = {
        (workers, shards, cores): simulated(one, workers=workers, shards=shards, cores=cores, batch=1_000)
        for workers, shards, cores in ((1, 1, 8), (1, 8, 8), (2, 8, 8), (4, 8, 2))
    }
    assert found == pytest.approx(
        {
            (1, 1, 8): 1 / 151e-6,  # one after the other, with a commit of a millisecond in a thousand
            (1, 8, 8): 1 / 100e-6,  # one worker
            (2, 8, 8): 2 / 100e-6,
            (4, 8, 2): 2 / 150e-6,  # two cores for all of it
        },
        rel=0.1,
    )


def test_the_clock_of_a_process_is_its_processor_time() -> None:
    began_s, began = cpu_s((os.getpid(),)), time.process_time()
    while time.process_time() - began < 0.05:
        pass
    assert cpu_s((os.getpid(),)) - began_s >= 0.05


def test_a_line_says_whether_it_is_met() -> None:
    assert at_least("", 2.0, 2.0, "2", " ×").met is True
    assert at_least("", 1.9, 2.0, "1.9", " ×").met is False
    assert at_most("", 300.1, 300, "", " ms").met is False
    shown = table([Line("a", "1"), at_most("b", 1, 2, "1 ms", " ms")])
    assert shown.splitlines()[2:] == ["| a | 1 | – | – |", "| b | 1 ms | ≤ 2 ms | yes |"]
