"""Budgets through an asynchronous failover of Redis: the replica that is promoted lacks the last reservations."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, closing, nullcontext
from pathlib import Path

import pytest

from tests.budgets.deployed.limited import begin, served
from tests.budgets.deployed.machines import Machines, asleep, statuses_for
from tests.support.faulty import FaultyPath
from tests.support.provider import ScriptedProvider
from tests.support.sse import done
from tests.support.valkey import Valkey

pytestmark = pytest.mark.thorough

HOLDS = "{tokenweir:budgets}:holds"
# Longer than a proxy sleeps here: none is taken for dead.
LEASE_S = 15.0
# What each stream holds, and what it costs in the end; the budget is for four of them.
QUOTED, TOKENS, STREAMS = 1_000, 400, 4
BUDGET = ("--budget", "0.004", "--budget-window", "none")


class Replicated:
    """A primary and a replica. Clients reach what serves through `front`, and the replica follows through `link`."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self.primary, self.replica = Valkey(folder / "primary").start(), Valkey(folder / "replica").start()
        stack.callback(self.primary.close)
        stack.callback(self.replica.close)
        self.front = stack.enter_context(FaultyPath("127.0.0.1", self.primary.port))
        self.link = stack.enter_context(FaultyPath("127.0.0.1", self.primary.port))
        self.replica.ask("REPLICAOF", "127.0.0.1", str(self.link.port))
        self.replica.until("master_link_status:up", "INFO", "replication")

    def fail_over(self) -> None:
        """The primary dies; clients are led to the replica, which is promoted."""
        self.primary.kill()
        self.replica.ask("REPLICAOF", "NO", "ONE")
        self.replica.until("role:master", "INFO", "replication")
        self.front.lead_to("127.0.0.1", self.replica.port)


@pytest.fixture
async def replicated(tmp_path: Path) -> AsyncIterator[Replicated]:
    async with AsyncExitStack() as stack:
        yield Replicated(tmp_path, stack)


@pytest.fixture
def machines(tmp_path: Path, provider: ScriptedProvider, ledger_url: str, replicated: Replicated) -> Iterator[Machines]:
    queue_url = f"redis://127.0.0.1:{replicated.front.port}"
    with closing(Machines(tmp_path, provider, ledger_url, queue_url, 2, lease_s=LEASE_S)) as made:
        made.start()
        yield made


@pytest.mark.process
@pytest.mark.waits
@pytest.mark.parametrize(
    "asleep_now",
    [pytest.param("nobody", marks=pytest.mark.slow), pytest.param("one", marks=pytest.mark.slow), "each in turn"],
)
async def test_a_replica_that_is_behind_grants_nothing_twice(
    machines: Machines, replicated: Replicated, asleep_now: str
) -> None:
    """Each in turn: the one that asks afterwards has told the primary nothing that the replica lacks."""
    first, second = machines.proxies
    in_turn = asleep_now == "each in turn"
    key_id, key = first.key(*BUDGET)
    model = first.model(TOKENS, pace_ms=20)
    async with AsyncExitStack() as stack:
        streams = [await begin(one, key, stack, model, QUOTED) for one in machines.proxies]
        replicated.replica.until(":2", "HLEN", HOLDS)
        with ExitStack() as waking:
            with asleep(second) if in_turn else nullcontext():
                replicated.link.cut()
                streams += [
                    await begin(one, key, stack, model, QUOTED) for one in (first, first if in_turn else second)
                ]
                replicated.primary.until(f":{STREAMS}", "HLEN", HOLDS)
                assert b":2" in replicated.replica.ask("HLEN", HOLDS)
                if asleep_now != "nobody":
                    waking.enter_context(asleep(first))
                replicated.fail_over()
            # As much as the replica has not heard of: free only when all streams have ended.
            assert await statuses_for(second, key, 2 * QUOTED, 3.0) <= {402, 503}
        for stream in streams:
            assert done((await stream()).body)
    entries = first.entries(key_id, STREAMS)
    assert [one["completion_tokens"] for one in entries] == [TOKENS] * STREAMS
    assert (await second.at_rest(key_id)).spent == STREAMS * TOKENS * 1_000
    left = (STREAMS * QUOTED - STREAMS * TOKENS) // 100
    assert served(await machines.many(key, first.model(100), left + 10)) == left
    first.entries(key_id, STREAMS + left)
    assert (await second.at_rest(key_id)).spent == STREAMS * QUOTED * 1_000, "all of the budget, and no more"
