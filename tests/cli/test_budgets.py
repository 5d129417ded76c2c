"""`tokenweir budgets`: what people and programs see of counters, and that a rebuild costs nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from proxy.billing.limits import LimitCounter, Limits
from proxy.billing.money import NUSD_PER_USD, Nusd
from proxy.billing.reservation import Granted, Reservation, SpendTotal
from proxy.budgets.open_budgets import open_budgets
from proxy.budgets.store import BudgetStore, OwnReservations
from proxy.ledger.dimensions.values import DimensionValues
from proxy.ledger.settling.spend import ledger_time, sums
from proxy.runtime.machine.ledger_stores import LedgerStores
from proxy.settings import load
from tests.cli.commands import CONFIG, Commands, on_a_terminal
from tests.ledger.entries import an_entry, arriving
from tests.support.postgres import Server
from tests.support.valkey import Valkey

pytestmark = pytest.mark.io

WINDOW = 1_790_000_000.0


@pytest.fixture(params=["local", "redis"])
def run(request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Commands]:
    """A key with a budget, which has spent 1.5 USD and holds 2 USD; on both deployments."""
    settings: dict[str, Any] = dict(CONFIG)
    if request.param == "redis":
        server: Valkey = request.getfixturevalue("valkey")
        postgres: Server = request.getfixturevalue("postgres")
        database = postgres.new_database(request.getfixturevalue("migrated"))
        settings |= {"queue": server.url, "ledger": postgres.url(database), "key_pepper": "0f" * 32}
        settings["allow_literal_secrets"] = True
    run = Commands(tmp_path, capsys, settings)
    store = LedgerStores.open(load(run.config, {}))
    store.keys.create(
        key_id="key-1", alias="anna", digest=b"1", hint="", models=None, expires_at=None,
        limits=Limits(budget_nusd=10 * NUSD_PER_USD, prepaid=True),
    )  # fmt: skip
    store.ledger.settle(arriving(an_entry(0, charge_nusd=1_500_000_000, started_at=WINDOW + 5)))
    asyncio.run(a_running_exchange(open_budgets(load(run.config, {}), "node-1"), store.engine))
    store.close()
    yield run
    if request.param == "redis":
        postgres.drop_database(database)


async def a_running_exchange(budgets: BudgetStore, engine: Engine) -> None:
    counters = (
        LimitCounter("key-1", WINDOW, 10 * NUSD_PER_USD),
        LimitCounter("key-1/credit", nusd_max=10 * NUSD_PER_USD),
    )
    await budgets.announce(lambda: OwnReservations((), (), ()))
    await budgets.seed(sums(engine, [(counter.counter_id, counter.since) for counter in counters]))
    assert isinstance(await budgets.reserve(Reservation("x", counters, 2 * NUSD_PER_USD, 5, time.time())), Granted)
    await budgets.aclose()


def changed(config: Path, change: Callable[[BudgetStore], Awaitable[object]]) -> None:
    async def doing() -> None:
        budgets = open_budgets(load(config, {}), "node-1")
        await change(budgets)
        await budgets.aclose()

    asyncio.run(doing())


def test_show_says_how_every_counter_stands(run: Commands) -> None:
    assert run("budgets", "show", "--json") == [
        {
            "counter_id": "key-1", "scope_id": "key-1", "scope_kind": "key", "name": "anna",
            "window_start": "2026-09-21T14:13:20.000000Z", "budget_usd": "10", "spent_usd": "1.5", "held_usd": "2",
            "quota": None, "running": 1, "unsettled": 0,
        },
        {
            "counter_id": "key-1/credit", "scope_id": "key-1", "scope_kind": "key", "name": "anna",
            "window_start": None, "budget_usd": None, "spent_usd": "1.5", "held_usd": "2",
            "quota": None, "running": 1, "unsettled": 0,
        },
    ]  # fmt: skip
    run("budgets", "show")
    lines = run.out.splitlines()
    assert lines[0].split() == ["SCOPE", "USAGE", "SINCE", "BUDGET", "SPENT", "HELD", "RUNNING", "UNSETTLED"]
    assert lines[1].split() == ["key", "anna", "2026-09-21", "14:13", "10", "1.5", "2", "1", "0"]
    assert lines[2].split() == ["key", "anna", "(less", "credit)", "–", "–", "1.5", "2", "1", "0"]


@pytest.mark.parametrize("run", ["local"], indirect=True)
def test_show_names_whom_a_counter_of_a_rule_is_for(run: Commands) -> None:
    (rule,) = run("limits", "create", "per-user", "--split-by", "end_user", "--budget", "5", "--budget-window", "none")
    store = LedgerStores.open(load(run.config, {}))
    values = DimensionValues(store.engine)
    ids = values.ids_of("proj_default", {"end_user": "alice", "run": "job-1"})
    values.lower_cap(("key-1", ids["run"]), Nusd(2 * NUSD_PER_USD))
    of_run = LimitCounter(f"run/key-1,{ids['run']}", 0.0, 1)
    counters = (LimitCounter(f"{rule['rule_id']}/{ids['end_user']}", 0.0, 1), of_run)
    totals = [SpendTotal(one.counter_id, 0.0, 0, ledger_time(store.engine)) for one in counters]
    store.close()
    changed(run.config, lambda budgets: budgets.seed(totals))

    def shown() -> list[dict[str, Any]]:
        return [one for one in run("budgets", "show", "--json") if one["scope_kind"] == "rule"]

    end_user, of_run = shown()
    assert (end_user["name"], end_user["budget_usd"], end_user["deleted"]) == ("per-user", "5", False)
    assert end_user["dimensions"] == {"end_user": {"value_id": ids["end_user"], "value": "alice"}}
    assert (of_run["name"], of_run["budget_usd"], of_run["dimensions"]["run"]["value"]) == ("run", "2", "job-1")
    run("limits", "delete", "per-user", "--yes")
    assert (shown()[0]["name"], shown()[0]["deleted"], shown()[0]["budget_usd"]) == ("per-user", True, None)
    run("erase", "--run", "job-1", "--yes")
    run("budgets", "show", "--wide")
    assert "per-user: alice (deleted)" in run.out
    assert f"run=(erased {ids['run']})" in run.out


@pytest.mark.parametrize("run", ["local", pytest.param("redis", marks=pytest.mark.thorough)], indirect=True)
def test_rebuild_says_what_was_wrong_and_reads_it_again(run: Commands) -> None:
    assert run("budgets", "rebuild") == [
        {"counter_id": "key-1", "drift_usd": "0"}, {"counter_id": "key-1/credit", "drift_usd": "0"},
    ]  # fmt: skip
    (shown, _) = run("budgets", "show", "--json")
    assert (shown["spent_usd"], shown["held_usd"], shown["window_start"]) == ("1.5", "2", "2026-09-21T14:13:20.000000Z")
    store = LedgerStores.open(load(run.config, {}))
    wrong = SpendTotal("key-1", WINDOW, 1_500_000_001, ledger_time(store.engine))
    changed(run.config, lambda budgets: budgets.seed([wrong]))
    credit = {"counter_id": "key-1/credit", "drift_usd": "0"}
    assert run("budgets", "rebuild") == [{"counter_id": "key-1", "drift_usd": "0.000000001"}, credit]
    assert run("budgets", "rebuild") == [{"counter_id": "key-1", "drift_usd": "0"}, credit]
    store.close()
    with pytest.MonkeyPatch.context() as patched:
        on_a_terminal(patched)
        run("budgets", "rebuild")
    assert [line.split() for line in run.out.splitlines()] == [
        ["COUNTER", "DIFFERENCE", "USD"], ["key-1", "0"], ["key-1/credit", "0"],
    ]  # fmt: skip


def test_a_store_that_is_away_is_said(run: Commands, request: pytest.FixtureRequest) -> None:
    settings = load(run.config, {})
    if settings.queue is None:
        (settings.data_dir / "budgets.db").unlink()
        (settings.data_dir / "budgets.db").mkdir()
    else:
        request.getfixturevalue("valkey").kill()
    run("budgets", "show", code=1)
    assert run.err.startswith("tokenweir: ")
