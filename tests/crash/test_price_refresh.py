"""A running proxy refreshes its prices from a server of the operator's, and rates what had no price."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from proxy.demo.script import Shape
from proxy.ledger.price_list import PriceListState, read_state
from proxy.ledger.schema.tables import price_lists
from proxy.runtime.machine.price_file import path_in, version_of
from proxy.storage.database import open_engine, writing
from tests.crash.stage import WORKERS, Stage, charge, probed, quick_key, until
from tests.support import sse
from tests.support.http_server import answering
from tests.support.price_lists import listed, price_list
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import PRICE, Tokenweir

SHORT = Shape("openai", tokens=6)
SLOW = Shape("openai", tokens=40, pace_ms=20)
CHEAP, DEAR = {"input": 1, "output": 4}, {"input": 2, "output": 8}
ABSURD = {"input": 1000, "output": 4000}


class Published:
    """A list at a server, which can be replaced, or fail."""

    def __init__(self) -> None:
        self.url = ""
        self.content = b""
        self.fetched = 0
        self.fails = False

    def answer(self, *_: object) -> tuple[int, bytes]:
        self.fetched += 1
        return (500, b"") if self.fails else (200, self.content)

    def was_fetched_after(self, fetched: int) -> bool:
        return self.fetched > fetched

    def put(self, **prices: Mapping[str, float]) -> str:
        """Publish a list with these prices. Returns its version."""
        models = (
            listed(name, {f"{kind}_mtok": usd for kind, usd in price.items()}, {"starts_with": name})
            for name, price in prices.items()
        )
        self.content = price_list(*models, provider="scripted", at=r"http://127\.0\.0\.1")
        return version_of(self.content)


@pytest.fixture
def published() -> Iterator[Published]:
    one = Published()
    with answering(one.answer) as url:
        one.url = f"{url}/data.json"
        yield one


@pytest.fixture
def deployed(tokenweir: Callable[..., Tokenweir], published: Published) -> Callable[..., Tokenweir]:
    """Makes deployments that begin with the published list as their own file."""

    def make(*, options: tuple[str, ...] = (), **refresh: Any) -> Tokenweir:
        models = {"own": {"provider": "scripted", "price": PRICE}, "*": {"provider": "scripted"}}
        prices = {"refresh": {"from": published.url, **refresh}}
        one = tokenweir(models=models, prices=prices, start=False, options=options)
        one._with_ledger()
        path_in(one.folder / "data").write_bytes(published.content)
        return one.start()

    return make


def state(running: Tokenweir) -> PriceListState:
    engine = open_engine(running.ledger_url)
    try:
        return read_state(engine)
    finally:
        engine.dispose()


async def checked(running: Tokenweir) -> None:
    """Wait until the first check of a start has ended."""
    await until(lambda: state(running).checked_at is not None)


async def refresh(running: Tokenweir, *options: str, code: int = 0) -> str:
    found, said = await asyncio.to_thread(running.found, "prices", "refresh", *options)
    assert found == code, said
    return said


async def applies(running: Tokenweir, version: str) -> None:
    await until(lambda: f"price list {version} applies" in running.log.read_text())


@pytest.mark.thorough
async def test_new_prices_are_for_new_requests_and_what_had_none_is_rated_once(
    deployed: Callable[..., Tokenweir], published: Published, provider: ScriptedProvider
) -> None:
    published.put(known=CHEAP, odd=CHEAP)
    running = deployed(rate_unpriced=True)
    await checked(running)
    key = quick_key(running)
    known, slow, odd, new = (
        provider.script(name, shape)
        for name, shape in (("known", SHORT), ("known-slow", SLOW), ("odd", SHORT), ("new", SHORT))
    )
    async with Stage(running, key) as stage:
        for model in (known, odd, new):
            assert (await stage.whole(model)).status == 200
        client, response = await stage.begin(slow)
        published.put(known=DEAR, odd=ABSURD, new=DEAR)
        said = await refresh(running, "--dry-run")
        assert re.search(r"scripted +known +input +1 +2 +\S+ \S+ +applies\n", said), said
        assert "2 models changed, 1 refused" in said
        assert state(running).accepted_at is not None
        before = state(running).version
        await refresh(running)
        version = state(running).version or ""
        assert version != before
        await applies(running, version)
        assert sse.done((await client.read_body(response)).body), "what runs is not touched"
        for model in (known, odd):
            assert (await stage.whole(model)).status == 200
    entries = running.until(lambda all_: any(one["kind"] == "adjustment" for one in all_) and len(all_) == 7)
    of = {name: [one for one in entries if one["model"] == name] for name in (known, slow, odd, new)}
    assert [Decimal(one["charge_usd"]) for one in of[known]] == [
        charge(of[known][0], CHEAP),
        charge(of[known][1], DEAR),
    ]
    assert [Decimal(one["charge_usd"]) for one in of[odd]] == [charge(one, CHEAP) for one in of[odd]]
    assert Decimal(of[slow][0]["charge_usd"]) == charge(of[slow][0], CHEAP)
    unpriced, adjustment = of[new]
    assert (unpriced["charge_usd"], unpriced["kind"]) == (None, "usage")
    assert Decimal(adjustment["charge_usd"]) == Decimal(adjustment["cost_usd"]) == charge(unpriced, DEAR)
    assert (adjustment["details"]["by"], adjustment["details"]["actor"]) == ("rerate", "prices.refresh")
    assert running.unreconciled() == []
    metrics = probed(running, "/metrics")
    assert "tokenweir_price_list_refused_models 1.0" in metrics
    assert "tokenweir_rated_exchanges_total 1.0" in metrics

    published.fails = True
    running.kill()
    running.start()
    async with Stage(running, key) as stage:
        await stage.whole(known)
        await stage.whole(provider.script("own", SHORT))
    last, own = running.entries_of(known, 3)[-1], running.entries_of("own")[0]
    assert Decimal(last["charge_usd"]) == charge(last, DEAR), "without the server"
    assert Decimal(own["charge_usd"]) == charge(own, PRICE), "the operator's own"
    assert "refused: input moves too far, 1 → 1000" in running.said("prices", "show")


@pytest.mark.thorough
async def test_a_list_that_cannot_be_used_changes_nothing_and_is_said_once(
    deployed: Callable[..., Tokenweir], published: Published
) -> None:
    version = published.put(known=CHEAP)
    running = deployed()
    await checked(running)
    assert state(running).version == version
    published.content = b"<html>Please sign in</html>"
    assert "is no price book" in await refresh(running, code=1)
    assert state(running).version == version
    for _ in range(2):
        fetched = published.fetched
        make_due(running)
        await until(partial(published.was_fetched_after, fetched))
    await until(lambda: state(running).error is not None)
    await until(lambda: "tokenweir_price_list_check_failed 1.0" in probed(running, "/metrics"))
    assert running.log.read_text().count("prices were not refreshed, the previous list applies: ") == 1
    version = published.put(known=DEAR)
    make_due(running)
    await applies(running, version)
    assert state(running).error is None


def make_due(running: Tokenweir) -> None:
    """Make a check due."""
    engine = open_engine(running.ledger_url)
    with writing(engine) as connection:
        connection.execute(update(price_lists).values(next_at=0.0))
    engine.dispose()


@pytest.mark.thorough
async def test_all_processes_of_a_machine_have_one_list_and_one_of_them_fetches_it(
    deployed: Callable[..., Tokenweir], published: Published, tmp_path: Path
) -> None:
    published.put(known=CHEAP)
    fleet = deployed(options=("--workers", str(WORKERS)))
    await checked(fleet)
    assert published.fetched == 1
    version = published.put(known=DEAR)
    await refresh(fleet)
    await until(lambda: fleet.log.read_text().count(f"price list {version} applies") == WORKERS)
    await until(lambda: path_in(fleet.folder / "data").read_bytes() == published.content)
    assert fleet.found("prices", "update", str(path_in(fleet.folder / "data")))[0] == 0
    assert published.fetched == 2
