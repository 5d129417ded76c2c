"""Value ids of requests: remembered, asked for together, bounded in time, number and memory."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import Engine

from proxy.billing.dimensions import OVERFLOW
from proxy.billing.keys import ApiKey, KeyCap
from proxy.billing.money import Nusd
from proxy.gateway.dimensions import ids as ids_module
from proxy.gateway.dimensions.ids import KEPT_S, PAUSE_S, DimensionIds, ValueStore
from proxy.ledger.dimensions.values import DimensionValue, DimensionValues
from proxy.ledger.run_caps import lower_cap, read_caps
from proxy.storage.database import open_engine
from tests.gateway.dimensions.clients import Values
from tests.gateway.inprocess import KEY
from tests.support.sqlite import empty_ledger

pytestmark = pytest.mark.io


class Site:
    def __init__(self, store: ValueStore, new_values_max: int = 1_000) -> None:
        self.now_s = 1000.0
        self.overflows: Counter[str] = Counter()
        self.ids = DimensionIds(store, self._overflowed, new_values_max=new_values_max, clock=lambda: self.now_s)

    def _overflowed(self, reason: str) -> None:
        self.overflows[reason] += 1

    async def of(self, *users: str, key_id: str = "k", project: str = "p") -> list[str]:
        key = replace(KEY, key_id=key_id, project_id=project)
        found = await asyncio.gather(*(self.ids.of(key, {"end_user": user}) for user in users))
        return [one["end_user"] for one in found]


@asynccontextmanager
async def site(store: ValueStore, **options: int) -> AsyncIterator[Site]:
    one = Site(store, **options)
    yield one
    await asyncio.to_thread(one.ids.close)


async def test_a_value_is_asked_for_once_within_its_time() -> None:
    values = Values()
    async with site(values) as at:
        assert await at.of("a") == await at.of("a") == ["v_0"]
        assert await at.ids.of(replace(KEY, project_id="p"), {"end_user": "a", "run": "7"}) == {
            "end_user": "v_0", "run": "v_1",
        }  # fmt: skip
        assert len(values.calls) == 2
        assert await at.of("a", project="q") == ["v_2"], "of another project"
        at.now_s += KEPT_S / 2
        assert await at.of("a") == ["v_0"]
        assert len(values.calls) == 3


async def test_caps_of_narrowed_keys_are_bounded_and_stored_once(tmp_path: Path) -> None:
    engine = open_engine(empty_ledger(tmp_path / "ledger.db"))
    async with site(DimensionValues(engine), new_values_max=2) as at:
        for cap in ("c_1", "c_2", "c_1"):
            await at.ids.keep_cap(KEY, KeyCap(cap, Nusd(5)))
        with pytest.raises(OSError, match="too many"):
            await at.ids.keep_cap(KEY, KeyCap("c_3", Nusd(5)))
        await at.ids.keep_cap(replace(KEY, key_id="other"), KeyCap("c_3", Nusd(5)))
    async with site(DimensionValues(engine), new_values_max=0) as at:
        await at.ids.keep_cap(KEY, KeyCap("c_1", Nusd(5)))
        assert at.overflows == {}
    assert read_caps(engine, ["c_1", "c_2", "c_3"]) == {("k", "c_1"): 5, ("k", "c_2"): 5, ("other", "c_3"): 5}
    engine.dispose()


async def test_keys_of_one_branch_leave_new_values_and_caps_to_their_siblings() -> None:
    values = Values()
    mine, other, parent = (replace(KEY, project_id="p", branch_ids=one) for one in (("n_mine",), ("n_other",), ()))
    async with site(values, new_values_max=8) as at:
        for number in range(20):  # whatever caps it adds, and though all of these requests may be refused
            with suppress(OSError):
                await at.ids.keep_cap(replace(mine, holder=f"n_{number}"), KeyCap(f"c_{number}", Nusd(0)))
        assert len(values.run_caps) == 4, "half of them"
        assert await at.ids.of(mine, {"end_user": "a"}) == {"end_user": OVERFLOW}
        await at.ids.keep_cap(other, KeyCap("c_other", Nusd(5)))
        assert await at.ids.of(other, {"end_user": "a"}) == {"end_user": "v_0"}, "refused to the sibling only"
        found = [(await at.ids.of(parent, {"end_user": user}))["end_user"] for user in "bcd"]
        assert found == ["v_1", "v_2", OVERFLOW], "the parent may use what is left"
        at.now_s += 3600
        assert await at.ids.of(mine, {"end_user": "e"}) == {"end_user": "v_3"}


async def test_a_branch_in_a_branch_leaves_new_values_to_its_siblings_and_to_all_others() -> None:
    values = Values()
    service, job, sibling, other = (
        replace(KEY, project_id="p", branch_ids=one)
        for one in (("n_service",), ("n_service", "n_job"), ("n_service", "n_sibling"), ("n_other",))
    )
    async with site(values, new_values_max=90) as at:

        async def created(key: ApiKey) -> int:
            users = [f"{'-'.join(key.branch_ids)}-{number}" for number in range(50)]
            found = [(await at.ids.of(key, {"end_user": user}))["end_user"] for user in users]
            return 50 - found.count(OVERFLOW)

        deeper = replace(job, branch_ids=(*job.branch_ids, "n_deeper"))
        assert (await created(deeper), await created(job)) == (23, 7), "a third together: more names are no more values"
        assert [await created(one) for one in (sibling, service, other)] == [10, 5, 23]


async def test_one_look_up_for_two_senders_is_as_free_as_the_freer_one() -> None:
    values = Values()
    mine, other = (replace(KEY, project_id="p", branch_ids=(one,)) for one in ("n_mine", "n_other"))
    async with site(values, new_values_max=4) as at:
        for user in "xyz":
            await at.ids.of(mine, {"end_user": user})
        values.go.clear()
        values.entered.clear()
        async with asyncio.TaskGroup() as group:
            group.create_task(at.ids.of(KEY, {"end_user": "first"}))
            await asyncio.to_thread(values.entered.wait, 10)
            found = [group.create_task(at.ids.of(one, {"end_user": "new"})) for one in (mine, other)]
            await asyncio.sleep(0)
            values.go.set()
        assert [one.result()["end_user"] for one in found] == ["v_3", "v_3"]


async def test_an_erased_value_is_not_used_after_its_time() -> None:
    values = Values()
    async with site(values) as at:
        assert await at.of("a", "b") == ["v_0", "v_1"]
        del values.known[DimensionValue("p", "end_user", "a")]
        values.known[DimensionValue("p", "end_user", "a")] = "new"
        at.now_s += KEPT_S
        assert await at.of("a") == ["new"]
        at.now_s += 10 * KEPT_S
        assert await at.of("b") == ["v_1"]


async def test_values_that_wait_are_asked_for_together() -> None:
    values = Values()
    values.go.clear()
    async with site(values) as at:
        async with asyncio.TaskGroup() as group:
            first = group.create_task(at.of("a"))
            await asyncio.to_thread(values.entered.wait, 10)
            others = group.create_task(at.of(*"bcdefgab"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            values.go.set()
        assert (first.result(), others.result()) == (["v_0"], [f"v_{n}" for n in (1, 2, 3, 4, 5, 6, 0, 1)])
        assert len(values.calls) == 2


async def test_new_values_of_a_key_are_bounded_and_known_ones_are_not() -> None:
    values = Values()
    async with site(values, new_values_max=2) as at:
        assert await at.of("a", "b", "c") == ["v_0", "v_1", "overflow"]
        assert await at.of("c") == ["overflow"]
        assert at.overflows == {"new_values": 2}
        assert await at.of("d", key_id="other") == ["v_2"]
        at.now_s += 3600
        assert await at.of("c", "a") == ["v_3", "v_0"]


async def test_a_ledger_that_does_not_answer_costs_a_second_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids_module, "WAIT_S", 0.05)
    values = Values()
    async with site(values) as at:
        assert await at.of("known") == ["v_0"]
        values.go.clear()
        values.entered.clear()
        assert await at.of("a", "b") == ["overflow", "overflow"]
        monkeypatch.setattr(ids_module, "WAIT_S", 600)
        at.now_s += 10 * PAUSE_S
        assert await at.of("a", "c", "known") == ["overflow", "overflow", "v_0"], "at once"
        assert at.overflows == {"unavailable": 4}
        running = at.ids._running
        assert running is not None
        values.go.set()
        await running.answered
        assert await at.of("a", "b") == ["v_1", "v_2"]


async def test_a_process_that_was_stopped_takes_no_known_user_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline is past when it wakes up, and the answer is on its way."""
    monkeypatch.setattr(ids_module, "WAIT_S", 0.4)
    values = Values()
    async with site(values) as at, asyncio.TaskGroup() as tasks:
        values.go.clear()
        asked = tasks.create_task(at.of("a"))
        await asyncio.to_thread(values.entered.wait, 30)
        time.sleep(0.5)
        asyncio.get_running_loop().call_later(0.01, values.go.set)
        assert await asked == ["v_0"]


async def test_after_a_failure_no_request_waits_for_a_while() -> None:
    values = Values()
    values.is_down = True
    async with site(values) as at:
        assert await at.of("a") == ["overflow"]
        values.is_down = False
        assert await at.of("a") == ["overflow"]
        assert len(values.calls) == 1
        at.now_s += PAUSE_S
        assert await at.of("a") == ["v_0"]
        assert at.overflows == {"unavailable": 2}


async def test_a_client_that_leaves_takes_nothing_from_others() -> None:
    values = Values()
    values.go.clear()
    async with site(values) as at:
        async with asyncio.TaskGroup() as group:
            leaving, staying = group.create_task(at.of("a")), group.create_task(at.of("a"))
            await asyncio.to_thread(values.entered.wait, 10)
            leaving.cancel()
            values.go.set()
        assert staying.result() == ["v_0"]


async def test_memory_does_not_grow_with_the_number_of_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids_module, "HALF_MAX", 100)
    monkeypatch.setattr(ids_module, "BATCH_MAX", 50)
    values = Values()
    async with site(values, new_values_max=10**6) as at:
        for start in range(0, 1000, 40):
            users = [f"u{number}" for number in range(start, start + 40)]
            assert await at.of(*users) == [f"v_{number}" for number in range(start, start + 40)]
            assert len(at.ids._young) + len(at.ids._old) <= 2 * 140
        many = await at.of("first", *(f"w{number}" for number in range(60)))
        assert many.count("overflow") == 60 - 50, "so many wait while the first one is asked for"


@pytest.mark.slow
async def test_two_hundred_thousand_end_users_take_less_than_twenty_mebibytes() -> None:
    class Forgetful(Values):
        def ids(self, wanted: Iterable[DimensionValue], may_create: Any) -> dict[DimensionValue, str]:
            return {one: f"v_{hash(one):+020d}" for one in wanted}

    async with site(Forgetful()) as at:
        await at.of("warm")
        before = psutil.Process().memory_info().rss
        for start in range(0, 200_000, 500):
            await at.of(*(f"user-{number:08}@customers.example.com" for number in range(start, start + 500)))
        assert psutil.Process().memory_info().rss - before < 20 << 20


async def test_in_a_real_ledger_two_processes_find_one_id(tmp_path: Path) -> None:
    url = empty_ledger(tmp_path / "ledger.db")
    engines = [open_engine(url), open_engine(url)]
    async with site(DimensionValues(engines[0])) as one, site(DimensionValues(engines[1])) as other:
        found = await asyncio.gather(*(at.of("a", "b", "a") for at in (one, other)))
        assert found[0] == found[1]
        assert len(set(found[0])) == 2
        assert all(value_id.startswith("v_") for value_id in found[0])
    for engine in engines:
        engine.dispose()


# -- caps of runs


async def test_a_cap_is_set_once_and_only_lowered() -> None:
    values = Values()
    async with site(values) as at:
        key = replace(KEY, project_id="p")
        run = ("k", (await at.ids.of(key, {"run": "42"}))["run"])
        assert at.ids.cap(run) is None
        await at.ids.lower_cap(run, Nusd(5))
        await at.ids.lower_cap(run, Nusd(9))
        assert (at.ids.cap(run), values.run_caps) == (5, {run: 5})
        await at.ids.lower_cap(run, Nusd(3))
        assert (at.ids.cap(run), values.run_caps) == (3, {run: 3})
        assert at.ids.cap(("other", run[1])) is None, "of another key"
        assert values.caps_read == 0, "a new run has none"


async def test_many_other_caps_do_not_lift_the_one_of_a_request_that_is_being_admitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ids_module, "HALF_MAX", 4)
    async with site(Values()) as at:
        for number in range(9):
            await at.ids.lower_cap(("k", f"v_{number}"), Nusd(number))
        assert [at.ids.cap(("k", f"v_{number}")) for number in range(9)] == [*range(9)]
        await at.ids.lower_cap(("k", "v_5"), Nusd(7))
        assert at.ids.cap(("k", "v_5")) == 5, "it is not raised"


async def test_a_cap_that_another_process_has_set_comes_with_the_id() -> None:
    values = Values()
    values.known[DimensionValue("p", "run", "42")] = "v_42"
    values.run_caps["k", "v_42"] = Nusd(7)
    async with site(values) as at:
        assert await at.ids.of(replace(KEY, project_id="p"), {"run": "42", "end_user": "a"})
        assert at.ids.cap(("k", "v_42")) == 7
        assert values.caps_read == 1, "only of runs"
        values.run_caps["k", "v_42"] = Nusd(2)
        await at.ids.lower_cap(("k", "v_42"), Nusd(4))
        assert at.ids.cap(("k", "v_42")) == 2, "the lower one of another process"


async def test_a_cap_that_cannot_be_kept_is_an_error() -> None:
    values = Values()
    async with site(values, new_values_max=1) as at:
        key = replace(KEY, project_id="p")
        first, second = [(await at.ids.of(key, {"run": run}))["run"] for run in ("1", "2")]
        assert second == "overflow"
        with pytest.raises(OSError, match="cannot be kept"):
            await at.ids.lower_cap(("k", second), Nusd(4))
        values.is_down = True
        with pytest.raises(OSError, match="down"):
            await at.ids.lower_cap(("k", first), Nusd(4))
        assert at.ids.cap(("k", first)) is None


def test_processes_that_lower_a_cap_at_once_keep_the_lowest(engine: Engine) -> None:
    caps = list(map(Nusd, range(50, 90)))
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda cap: lower_cap(engine, ("k", "v_1"), cap, 1.0), caps))
    assert lower_cap(engine, ("k", "v_1"), Nusd(99), 1.0) == 50
    assert lower_cap(engine, ("other", "v_1"), Nusd(99), 1.0) == 99
    assert read_caps(engine, ["v_1", "v_2"]) == {("k", "v_1"): 50, ("other", "v_1"): 99}
