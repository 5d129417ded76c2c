"""Postgres fails over to an asynchronous standby that was behind: what the ledger has lost is settled again, once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from proxy.billing.limits import Limits
from proxy.billing.money import NUSD_PER_USD, nusd_from_usd
from proxy.budgets.open_budgets import open_budgets
from proxy.budgets.store import BudgetStore
from proxy.demo.script import Shape
from proxy.doctor.machine import read
from proxy.ledger.schema.migrate import migrate
from proxy.settings import load
from proxy.storage.database import LedgerUnavailable, open_engine, reading
from tests.crash.stage import Stage, quick_key, until
from tests.distributed.books import wrong_books
from tests.support.postgres import PostgresServer, own_server, standby_of
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import Tokenweir

pytestmark = [pytest.mark.process, pytest.mark.thorough]
HEALED_S = 20.0


@contextmanager
def engine_of(url: str) -> Iterator[Engine]:
    engine = open_engine(url)
    try:
        yield engine
    finally:
        engine.dispose()


def settled(engine: Engine) -> list[str]:
    """The models of all terminal entries; nothing while the ledger is away."""
    try:
        with reading(engine) as connection:
            rows = connection.execute(text("SELECT model FROM ledger_entries WHERE kind = 'usage' ORDER BY model"))
            return list(rows.scalars())
    except LedgerUnavailable:
        return []


async def caught_up(primary: PostgresServer, standby: PostgresServer) -> None:
    """All that is committed has arrived."""
    ((lsn,),) = primary.execute("SELECT pg_current_wal_lsn()")
    arrived = f"SELECT pg_last_wal_replay_lsn() >= '{lsn}'"
    await until(lambda: standby.execute(arrived) == [(True,)])


@asynccontextmanager
async def budgets_of(served: Tokenweir) -> AsyncIterator[BudgetStore]:
    async with aclosing(open_budgets(load(served.config, served.environment), "test")) as budgets:
        yield budgets


@asynccontextmanager
async def noticed(served: Tokenweir) -> AsyncIterator[None]:
    """Within, the ledger's server begins another history; afterwards the follower of the spend has seen it."""
    async with budgets_of(served) as budgets:
        before = await budgets.timeline()
        assert before is not None
        yield
        async with asyncio.timeout(HEALED_S):
            while await budgets.timeline() == before:
                await asyncio.sleep(0.05)


async def spent_is_charged(served: Tokenweir, engine: Engine) -> None:
    """The budget's spend comes to what the ledger's entries come to, and nothing is reserved, soon."""
    with reading(engine) as connection:
        charged = connection.execute(text("SELECT sum(charge_usd) FROM ledger_entries")).scalar_one()
    expected = int(charged * NUSD_PER_USD), 0
    deadline = time.monotonic() + HEALED_S
    found = -1, -1
    async with budgets_of(served) as budgets:
        while found != expected and time.monotonic() < deadline:
            states = await budgets.counter_states()
            found = sum(one.spent or 0 for one in states), sum(one.reserved for one in states)
            await asyncio.sleep(0.1)
    assert found == expected


@pytest.mark.parametrize("queue", [pytest.param("local", marks=pytest.mark.slow), "redis"])
async def test_a_standby_that_was_behind_is_promoted(
    queue: str,
    tokenweir: Callable[..., Tokenweir],
    provider: ScriptedProvider,
    postgres_cluster: Path,
    request: pytest.FixtureRequest,
) -> None:
    names = ["kept", "lost-1", "lost-2", "lost-3", "later", "last"]
    for name in names:
        provider.script(name, Shape("openai", tokens=3))
    with own_server(postgres_cluster) as primary:
        url = primary.url(primary.new_database())
        migrate(url)
        more = {"queue_url": request.getfixturevalue("valkey").url} if queue == "redis" else {}
        served = tokenweir(start=False, ledger_url=url, **more)
        key = quick_key(served, Limits(budget_nusd=nusd_from_usd(100)))
        journal = served.folder / "data" / "journal"
        with standby_of(primary) as standby, engine_of(url) as engine:
            worker = served.worker().start() if queue == "redis" else None
            async with Stage(served.start(), key) as stage:
                assert (await stage.whole("kept")).status == 200
                await until(lambda: settled(engine) == ["kept"])
                await caught_up(primary, standby)
                standby.stop()
                for name in names[1:4]:
                    assert (await stage.whole(name)).status == 200
                await until(lambda: len(settled(engine)) == 4 and read(journal)[0] == 0)
                await spent_is_charged(served, engine)
                async with noticed(served):
                    primary.kill()
                    standby.promote(primary.port)
                    assert (await stage.whole("later")).status == 200
                    await until(lambda: settled(engine) == sorted(names[:5]))
                assert (await stage.whole("last")).status == 200, "it reads the sums anew"
                await until(lambda: settled(engine) == sorted(names) and read(journal)[0] == 0)
                await spent_is_charged(served, engine)
            assert wrong_books(engine) == []
            assert (journal / "settled" / "ledger.json").exists()
            if worker is not None:
                worker.close()
            served.close()
