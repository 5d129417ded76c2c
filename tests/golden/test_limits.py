"""A ledger before dimensions and limits by rule (revision 0012): the upgrade changes no balance and no limit, and
requests are refused at the same amount."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine

from proxy.billing.limits import LimitCounter, OnStoreOutage, Scope, measured, resolve_limits
from proxy.billing.reservation import Denied, SpendTotal
from proxy.budgets.admission import Admission, ClosedReservations, OpenReservation
from proxy.budgets.sqlite import file as budget_file
from proxy.ledger.accounts.account_store import AccountStore
from proxy.ledger.accounts.key_store import KeyStore
from proxy.ledger.schema.migrate import migrate
from proxy.ledger.settling.spend import sums
from proxy.ledger.stored_objects.batches import BatchStore
from proxy.reconciliation.reconcile import reconcile
from proxy.reports.totals import read_paid
from proxy.storage.database import open_engine, sqlite_url
from tests.budgets.recorder import AdmissionRecorder
from tests.budgets.stores import LocalStores
from tests.gateway.inprocess import KEY
from tests.golden.reading import HERE, golden_json, load_sqlite
from tests.support.postgres import Server

pytestmark = pytest.mark.io

NOW = 1_793_900_000.5
"""2026-11-05, when the golden amounts were read"""


@pytest.fixture
def on_sqlite(tmp_path: Path) -> str:
    load_sqlite("limits-sqlite.sql", tmp_path / "ledger.db")
    return sqlite_url(tmp_path / "ledger.db")


@pytest.fixture
def on_postgres(postgres: Server) -> Iterator[str]:
    name = postgres.new_database()
    with psycopg.connect(postgres.url(name), autocommit=True) as connection:
        connection.execute((HERE / "limits-postgres.sql").read_bytes())
    yield postgres.url(name)
    postgres.drop_database(name)


@pytest.fixture(params=["on_sqlite", pytest.param("on_postgres", marks=[pytest.mark.thorough, pytest.mark.process])])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """The ledger, upgraded."""
    url: str = request.getfixturevalue(request.param)
    migrate(url)
    engine = open_engine(url)
    yield engine
    engine.dispose()


def clock() -> float:
    return NOW


def levels(engine: Engine) -> dict[str, list[Scope]]:
    """Key id → its level, and those of its project and its organization."""
    accounts = {one.account_id: one for one in AccountStore(engine, clock=clock).every()}
    found = {}
    for key in KeyStore(engine, clock=clock).every():
        project = accounts[key.project_id]
        assert project.parent_id is not None
        found[key.key_id] = [key.scope, project.scope, accounts[project.parent_id].scope]
    return found


def totals(engine: Engine, counters: Sequence[LimitCounter]) -> list[SpendTotal]:
    return sums(engine, [(one.counter_id, one.since) for one in counters if one.nusd_max is not None])


def amounts(engine: Engine, scopes: Sequence[Scope]) -> list[dict[str, Any]]:
    """The counters of a request, in the form of the golden file."""
    counters = resolve_limits(scopes, NOW).counters
    spent = {one.counter_id: one.amount for one in totals(engine, counters)}
    return [
        {
            "counter": one.counter_id, "since": one.since, "max": one.nusd_max, "spent": spent.get(one.counter_id),
            "rpm": one.rpm, "tpm": one.tpm, "parallel": one.parallel,
        }
        for one in counters
    ]  # fmt: skip


def test_each_balance_and_each_limit_is_what_it_was(engine: Engine) -> None:
    golden = golden_json("limits.json")
    assert {key_id: amounts(engine, scopes) for key_id, scopes in levels(engine).items()} == golden["keys"]
    paid = read_paid(engine, list(golden["paid"]))
    assert {name: [one.used_nusd, one.credit_nusd] for name, one in paid.items()} == golden["paid"]
    batches = BatchStore(engine).of_node("golden-node")
    held = {one.exchange_id: [one.key_id, one.project_id, one.reserved_nusd] for one in batches}
    assert held == golden["batches"]
    # The entries were made up: nothing computed their amounts.
    wrong = {one.name for one in reconcile(engine, clock=lambda: NOW + 2, grace_s=0) if not one.ok}
    assert wrong == {"adjustments", "prices"}


async def test_requests_are_refused_at_the_same_amount(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget_file, "WARM_S", 0.0)
    scopes, tried = levels(engine), 0
    for key_id, counters in golden_json("limits.json")["keys"].items():
        lefts = [one["max"] - one["spent"] for one in counters if one["max"] is not None]
        for over in (0, 1) if lefts else ():
            (folder := tmp_path / f"{key_id}-{over}").mkdir()
            tried += 1
            verdict = await admitted(engine, folder, scopes[key_id], min(lefts) + over)
            assert isinstance(verdict, Denied if over or min(lefts) < 0 else OpenReservation), (key_id, verdict)
    assert tried == 22


async def admitted(engine: Engine, folder: Path, scopes: Sequence[Scope], nusd: int) -> OpenReservation | Denied | None:
    """The verdict on the first request after a restart."""
    stores = LocalStores(folder)
    stores.clock.now = NOW
    store = stores.node("n")

    async def seed(counters: Sequence[LimitCounter]) -> None:
        await store.seed(totals(engine, counters))

    async def nothing_settled(_ids: Sequence[str]) -> set[str]:
        return set()

    async def nothing() -> None: ...

    admission = Admission(
        store, ClosedReservations(), seed=seed, settled=nothing_settled, tidy=nothing,
        on_store_outage=OnStoreOutage.FAIL_CLOSED, allowance_nusd=0, observer=AdmissionRecorder(),
    )  # fmt: skip
    await admission.announce()
    at_quotas = measured(1, 1, 1)
    found = await admission.admit(KEY, tuple(scopes), "x1", nusd=max(0, nusd), tokens=2, at_quotas=lambda: at_quotas)
    await store.aclose()
    return found
