"""A deployment that was killed is moved from SQLite to Postgres, by the steps of the docs, and goes on there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from decimal import Decimal

import pytest

from proxy.billing.limits import Limits
from proxy.billing.money import nusd_from_usd
from proxy.cli import main
from proxy.demo.script import Shape
from tests.crash.stage import Stage, entries_of, quick_key, until
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import Tokenweir, provider_section

LONG, PLAIN = Shape("openai", tokens=3_000, pace_ms=10), Shape("openai", tokens=3)


@pytest.mark.thorough
async def test_a_deployment_is_moved(
    tokenweir: Callable[..., Tokenweir],
    provider: ScriptedProvider,
    postgres_url: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Not while it serves. What was running when it was killed is settled after the move."""
    for name, shape in (("before", PLAIN), ("cut", LONG), ("after", PLAIN)):
        provider.script(name, shape)
    served = tokenweir(start=False)
    key = quick_key(served, Limits(budget_nusd=nusd_from_usd(100)))
    command = ["migrate", "--from", f"sqlite:{served.folder}/data/ledger.db", "--to", postgres_url]
    async with Stage(served.start(), key) as stage:
        assert (await stage.whole("before")).status == 200
        (entry,) = entries_of(served, "before")
        await stage.begin("cut")
        assert await asyncio.to_thread(main, command) == 1
        assert f"a proxy runs with the data folder {served.folder}/data: stop it first" in capsys.readouterr().err
        served.kill()
    served.close()
    assert await asyncio.to_thread(main, command) == 0
    told = capsys.readouterr().err
    assert "the journals have 1 exchanges that are not settled" in told
    assert "tokenweir keys pepper" in told

    pepper = (served.folder / "data" / "pepper").read_bytes().hex()
    providers = {"scripted": provider_section(provider.base_url)}
    moved = Tokenweir(served.folder, providers=providers, ledger_url=postgres_url)
    moved.environment["TEST_PEPPER"] = pepper
    try:
        async with Stage(moved.start(), key) as stage:
            assert (await stage.whole("after")).status == 200
        earlier, cut, _ = entries_of(moved, "before", "cut", "after")
        assert (earlier, cut["outcome"]) == (entry, "crashed")
        assert moved.unreconciled() == []
        charged = sum(Decimal(one["charge_usd"]) for one in moved.read_ledger())
        await until(lambda: _spent(moved) == charged)
    finally:
        moved.close()


def _spent(deployment: Tokenweir) -> Decimal:
    """What the budget of its only key counts."""
    code, printed = deployment.found("budgets", "show", "--json")
    assert code == 0
    return sum((Decimal(json.loads(line)["spent_usd"]) for line in printed.splitlines()), Decimal())
