"""A million end users within an hour, without the bound on new values: each has a counter of its own, and the proxy's
memory does not grow with them."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from proxy.billing.dimensions import END_USER
from proxy.billing.limit_rules import LimitRule, scopes_of
from proxy.billing.limits import Limits, OnStoreOutage
from proxy.billing.money import Nusd
from proxy.billing.reservation import Denied, SpendDelta, SpendTotal
from proxy.budgets.admission import Admission, ClosedReservations, OpenReservation
from proxy.budgets.follower import Follower, SeedRequest
from proxy.budgets.sqlite import file as budget_file
from proxy.gateway.dimensions import ids as ids_module
from proxy.gateway.dimensions.ids import DimensionIds
from proxy.ledger.accounts.key_store import KeyStore
from proxy.ledger.dimensions.values import DimensionValue, DimensionValues
from proxy.settings.dimensions import NEW_VALUES_MAX
from proxy.storage.database import open_engine
from tests.budgets.deployed.limited import Limited, deployment
from tests.budgets.recorder import AdmissionRecorder, FollowerRecorder
from tests.budgets.stores import Stores
from tests.gateway.inprocess import KEY
from tests.support.long_runs import part_of
from tests.support.net import ask, chat_request, connect
from tests.support.provider import ScriptedProvider
from tests.support.sqlite import empty_ledger

pytestmark = [pytest.mark.io, pytest.mark.slow, pytest.mark.timeout(7_200)]

USERS = part_of(1_000_000)
GROWTH_MAX = 20 << 20
# Each cache has been full once: of the ids of users, two halves of 16,384.
WARM_USERS = 40_000
AT_ONCE, SAMPLES = 200, 1_000
BUDGET_NUSD = 1_000
USERS_OF_HTTP, WARM_USERS_OF_HTTP, CLIENTS = 60_000, 40_000, 32
LEARNED_S = 2.5
AMPLE = ("--budget", "1000", "--budget-window", "none")
PER_USER = LimitRule(
    rule_id="rule_each", name="each", split_by=(END_USER,),
    limits=Limits(budget_nusd=Nusd(BUDGET_NUSD), budget_window="none"), created_at=0.0, revision=1,
)  # fmt: skip


def charge(number: int) -> int:
    return 400 + number % 100


def name(number: int) -> str:
    return f"user-{number:07}@customers.example.com"


@dataclass
class Entries:
    """What followers ask of a ledger. It forgets the entries that are in all spend totals, so that only the parts that
    are measured can grow."""

    later: deque[SpendDelta] = field(default_factory=deque)
    now_us: int = 1
    forgotten_us: int = 0

    def settle(self, ended: OpenReservation, nusd: int) -> None:
        self.now_us += 1
        reserved = ended.reserved
        ids = tuple(one.counter_id for one in reserved.counters)
        self.later.append(SpendDelta(reserved.exchange_id, self.now_us, reserved.at, nusd, ids))

    async def time(self) -> int:
        return self.now_us

    async def timeline(self) -> str:
        return "1"

    async def sums(self, wanted: Sequence[SeedRequest]) -> list[SpendTotal]:
        """Of counters that no request has used: each end user begins once."""
        return [SpendTotal(counter_id, since, 0, self.now_us) for counter_id, since in wanted]

    async def changes(self, after_us: int, limit: int) -> tuple[list[SpendDelta], int, int]:
        while self.later and self.later[0].settled_at_us <= after_us:
            self.later.popleft()
        found = list(islice(self.later, limit))
        until_us = self.now_us if len(found) == len(self.later) else found[-1].settled_at_us
        return found, until_us, self.now_us

    async def watched(self, _counter_ids: Collection[str] | None, _now: float) -> list[SeedRequest]:
        return []

    async def followed(self, counter_ids: Sequence[str]) -> list[str]:
        return list(counter_ids)

    async def settled(self, exchange_ids: Collection[str], until_us: int | None = None) -> set[str]:
        later = {one.exchange_id for one in self.later if until_us is not None and one.settled_at_us > until_us}
        return set(exchange_ids) - later


async def test_a_million_end_users_take_no_memory_of_the_proxy(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parts, without HTTP: ids, admission, and what follows the ledger."""
    monkeypatch.setattr(budget_file, "WARM_S", 0.0)
    monkeypatch.setattr(ids_module, "WAIT_S", 60.0)  # a busy machine makes nobody another end user
    engine, ledger, closed = open_engine(empty_ledger(tmp_path / "ledger.db")), Entries(), ClosedReservations()
    ids = DimensionIds(DimensionValues(engine), lambda _: None, new_values_max=NEW_VALUES_MAX)
    store = stores.node("n")
    recorder = FollowerRecorder()

    async def on_spent(_counters: object) -> None: ...

    follower = Follower(
        store, cast("Any", ledger), on_spent=on_spent, observer=cast("Any", recorder), on_settled=closed.forget
    )
    admission = Admission(
        store, closed, seed=follower.seed, settled=follower.counted, tidy=follower.tidy,
        on_store_outage=OnStoreOutage.FAIL_CLOSED, allowance_nusd=0, observer=AdmissionRecorder(),
    )  # fmt: skip
    await admission.announce()
    key = replace(KEY, project_id="p")

    async def use(number: int, nusd: int) -> OpenReservation | Denied:
        found = await ids.of(key, {END_USER: name(number)})
        scopes = tuple(scopes_of([PER_USER], "m", found))
        return await admission.admit(key, scopes, f"x{number}-{nusd}", nusd=nusd, tokens=1)

    async def once(number: int) -> None:
        admitted = await use(number, BUDGET_NUSD)
        assert isinstance(admitted, OpenReservation), admitted
        admitted.close(charge(number), 1)
        ledger.settle(admitted, charge(number))

    async def all_of(numbers: range) -> None:
        waiting = iter(numbers)

        async def some() -> None:
            for number in waiting:
                await once(number)

        await asyncio.gather(*(some() for _ in range(AT_ONCE)))
        await asyncio.sleep(3)

    tasks = [asyncio.get_running_loop().create_task(one) for one in (admission.run(), follower.run())]
    try:
        await all_of(range(WARM_USERS))
        before = psutil.Process().memory_info().rss
        await all_of(range(WARM_USERS, USERS))
        grown = psutil.Process().memory_info().rss - before
        print(f"{stores.kind}, {USERS:,} end users: {grown / 2**20:+.1f} MiB")
        sampled = range(0, USERS, USERS // SAMPLES)
        counters = {}
        for number in sampled:
            found = await ids.of(key, {END_USER: name(number)})
            counters[next(scopes_of([PER_USER], "m", found)).scope_id] = charge(number)
        states = await store.counter_states(list(counters))
        assert {one.counter_id: one.spent for one in states} == counters
        assert {(one.reserved, one.open, one.closed) for one in states} == {(0, 0, 0)}
        for number in sampled[::50]:
            assert isinstance(await use(number, BUDGET_NUSD - charge(number) + 1), Denied)
            assert isinstance(await use(number, BUDGET_NUSD - charge(number)), OpenReservation)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(ids.close)
        engine.dispose()
    assert grown <= GROWTH_MAX


async def test_many_end_users_over_http_take_no_memory_of_the_process(
    tmp_path: Path, provider: ScriptedProvider
) -> None:
    """A proxy that settles into its own ledger."""
    limited = Limited(deployment(tmp_path, provider, dimensions={"new_values_per_key_hour": NEW_VALUES_MAX}), provider)
    tokens = 10, 20
    models = [limited.model(one) for one in tokens]
    try:
        limited.tokenweir.start()
        key_id, key = limited.key("--budget", "1000")
        each = limited.change("limits", "create", "each", "--key", key_id, "--split-by", "end_user", *AMPLE)["rule_id"]
        await asyncio.sleep(LEARNED_S)
        assert limited.tokenweir.child is not None
        process = psutil.Process(limited.tokenweir.child.pid)

        async def all_of(numbers: range) -> None:
            waiting = iter(numbers)

            async def some() -> None:
                async with await connect(limited.url) as client:
                    for number in waiting:
                        body = ask(models[number % 2], stream=False, max_tokens=tokens[number % 2])
                        await client.send(chat_request(body, key=key, headers={"x-tokenweir-end-user": name(number)}))
                        assert (await client.read(30)).status == 200

            await asyncio.gather(*(some() for _ in range(CLIENTS)))
            await limited.at_rest(key_id, within_s=120)

        await all_of(range(WARM_USERS_OF_HTTP))
        before = process.memory_info().rss
        await all_of(range(WARM_USERS_OF_HTTP, USERS_OF_HTTP))
        grown = process.memory_info().rss - before
        print(f"{USERS_OF_HTTP:,} end users over HTTP: {grown / 2**20:+.1f} MiB")
        own = {
            number: found
            for number in range(0, USERS_OF_HTTP, USERS_OF_HTTP // 100)
            if (found := await value_id(limited, key_id, number)) is not None
        }
        assert len(own) > 90, "of a busy machine, some are counted as (other)"
        for number, found in own.items():
            assert (await limited.at_rest(f"{each}/{found}")).spent == 1_000 * tokens[number % 2]
    finally:
        limited.tokenweir.close()
    assert grown <= GROWTH_MAX


async def value_id(limited: Limited, key_id: str, number: int) -> str | None:
    """The id of an end user, as reports look it up; None: it has none, because the ledger was too slow."""
    engine = open_engine(limited.tokenweir.ledger_url)
    try:
        wanted = DimensionValue(KeyStore(engine, clock=time.time).one(key_id).project_id, END_USER, name(number))
        return DimensionValues(engine).ids([wanted], lambda _: False).get(wanted)
    finally:
        engine.dispose()
