"""The keeper: whatever happens to the board, in the end it says what this node runs, and nobody waited for it."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.billing.record import Opened
from proxy.delivery.leases import SLICE, LeaseCount, LeaseKeeper, LeaseParts, LeaseRegistry
from proxy.delivery.redis_leases import RedisLeases
from proxy.journal.frames import decode_opened
from proxy.journal.progress import ProgressTable, Slot, decoded, name_of
from proxy.storage.redis_client import QueueUnavailable, RedisClient
from tests.journal.records import exchange_id, opened
from tests.support.examples import examples
from tests.support.leases import LocalLeases
from tests.support.recorder import Recorder
from tests.support.valkey import Valkey
from tests.support.waiting import beside, until

Clients = Callable[[str], RedisClient]
# A round and a beat at every tick.
AT_ONCE_S = 1e-9


class Node:
    """One proxy's side: a real progress table, and the keeper under test."""

    def __init__(self, board: LeaseRegistry, folder: Path, *, epoch: int = 1, slots: int = 64, **options: Any) -> None:
        self.table = ProgressTable.open(folder / "progress", slots, unix_time=lambda: 1_790_000_001.5)
        self.heard = Recorder()
        self.caught_up = True
        options = {"renew_s": AT_ONCE_S, **options}
        self.keeper = LeaseKeeper(
            board, self.table, node="a", epoch=epoch, caught_up=lambda: self.caught_up, observer=self.heard,
            **options,
        )  # fmt: skip
        self.slots: dict[str, Slot] = {}
        self.opens: dict[str, Opened] = {}

    def begin(self, number: int) -> str:
        name = exchange_id(number)
        self.slots[name] = self.table.claim(name)
        self.opens[name] = opened(number, slot=self.slots[name].index)
        self.keeper.opened(self.opens[name])
        return name

    def end(self, number: int) -> None:
        name = exchange_id(number)
        self.slots.pop(name).release()
        self.keeper.ended(self.opens.pop(name).exchange_id)


async def seen(board: LeaseRegistry) -> dict[str, Opened]:
    return {name: decode_opened(parts.opened or b"") for name, parts in (await board.of("a")).items()}


async def events(board: LeaseRegistry, name: str) -> int:
    return decoded((await board.of("a"))[name].progress).events


class Board(LocalLeases):
    """A board that remembers what it was asked for, loses questions and answers, and forgets."""

    def __init__(self) -> None:
        super().__init__()
        self.beats: list[str] = []
        self.asked: list[tuple[Mapping[str, LeaseParts], Collection[str]]] = []
        self.trouble = "none"
        self.keep()

    async def renew(
        self, node: str, beat: str, changed: Mapping[str, LeaseParts], ended: Collection[str]
    ) -> LeaseCount:
        if self.trouble == "question lost":
            raise QueueUnavailable("away")
        self.beats.append(beat)
        self.asked.append((dict(changed), list(ended)))
        standing = await super().renew(node, beat, changed, ended)
        if self.trouble == "answer lost":
            raise QueueUnavailable("away")
        return standing

    def keep(self) -> None:
        """What a replica has."""
        self._kept = copy.deepcopy((self._beats, self._leases))

    def fail_over(self) -> None:
        """The replica takes over: what came after is undone."""
        self._beats, self._leases = copy.deepcopy(self._kept)

    def flush(self) -> None:
        self._beats, self._leases = {}, {}

    @property
    def announced(self) -> int:
        return sum(parts.opened is not None for changed, _ in self.asked for parts in changed.values())


@pytest.fixture
def board() -> Board:
    return Board()


@pytest.fixture
def proxy(board: Board, tmp_path: Path) -> Node:
    return Node(board, tmp_path)


async def test_a_lease_lives_from_a_tick_after_the_beginning_to_a_tick_after_the_end(board: Board, proxy: Node) -> None:
    name = proxy.begin(1)
    assert await seen(board) == {}, "nothing is done in the hot path"
    await proxy.keeper.tick()
    assert await seen(board) == proxy.opens
    proxy.slots[name].deliver(7, 700)
    await proxy.keeper.tick()
    assert await events(board, name) == 7
    proxy.end(1)
    assert await board.ids("a") == {name}
    await proxy.keeper.tick()
    assert (await board.ids("a"), proxy.keeper.count) == (set(), 0)


async def test_what_goes_on_with_another_provider_is_announced_again_as_that(board: Board, proxy: Node) -> None:
    early, late = proxy.begin(1), proxy.begin(2)
    proxy.opens[early] = opened(1, slot=proxy.slots[early].index, provider="other")
    proxy.keeper.opened(proxy.opens[early])
    await proxy.keeper.tick()
    assert (await seen(board), board.announced) == (proxy.opens, 2), "before it was announced, it is so at once"
    proxy.slots[late].deliver(3, 30)
    proxy.opens[late] = opened(2, slot=proxy.slots[late].index, provider="other")
    proxy.keeper.opened(proxy.opens[late])
    await proxy.keeper.tick()
    assert (await seen(board), board.announced, await events(board, late)) == (proxy.opens, 3, 3)
    await proxy.keeper.tick()
    assert board.announced == 3
    proxy.end(1)
    proxy.end(2)
    await proxy.keeper.tick()
    assert (await board.ids("a"), proxy.keeper.count) == (set(), 0)


async def test_what_is_over_before_it_is_announced_is_never_on_the_board(board: Board, proxy: Node) -> None:
    proxy.begin(1)
    proxy.end(1)
    await proxy.keeper.tick()
    assert board.asked == [({}, [])]


async def test_between_its_end_and_the_queue_a_lease_keeps_what_was_last_known(tmp_path: Path, board: Board) -> None:
    """The slot is let go, and then is another exchange's, before the record has been sent."""
    node = Node(board, tmp_path, slots=1)
    first = node.begin(1)
    node.slots[first].deliver(5, 50)
    await node.keeper.tick()
    node.slots[first].release()
    await node.keeper.tick()
    second = node.begin(2)
    node.slots[second].deliver(9, 90)
    await node.keeper.tick()
    assert (await events(board, first), await events(board, second)) == (5, 9)
    node.keeper._lost = True  # and so it stays when all is announced again
    await node.keeper.tick()
    assert (await events(board, first), await events(board, second)) == (5, 9)


async def test_an_exchange_that_ended_before_its_announcement_but_was_not_sent_is_known(
    board: Board, proxy: Node
) -> None:
    name = proxy.begin(1)
    proxy.slots[name].release()
    await proxy.keeper.tick()
    assert (await board.of("a"))[name].progress == b""


async def test_every_renewal_has_another_beat_and_an_idle_node_has_beats(tmp_path: Path, board: Board) -> None:
    node = Node(board, tmp_path, epoch=3)
    for _ in range(4):
        await node.keeper.tick()
    assert board.beats == ["3.1", "3.2", "3.3", "3.4"]


async def test_nothing_is_written_while_nothing_changes_and_no_beat_is_due(tmp_path: Path, board: Board) -> None:
    node = Node(board, tmp_path, renew_s=60.0)
    for _ in range(4):
        await node.keeper.tick()
    assert len(board.beats) == 1
    node.begin(1)
    await node.keeper.tick()
    assert len(board.beats) == 2


async def test_many_leases_are_written_in_slices(tmp_path: Path, board: Board) -> None:
    node = Node(board, tmp_path, slots=1_024)
    count = 3 * SLICE + 10
    for number in range(count):
        node.begin(number)
    await node.keeper.tick()
    assert len(await board.ids("a")) == count
    for slot in node.slots.values():
        slot.deliver(1, 1)
    await node.keeper.tick()
    assert {decoded(parts.progress).events for parts in (await board.of("a")).values()} == {1}
    for number in range(count):
        node.end(number)
    await node.keeper.tick()
    assert await board.ids("a") == set()
    assert max(len(changed) for changed, _ in board.asked) <= SLICE
    assert max(len(ended) for _, ended in board.asked) <= SLICE


async def test_a_round_over_many_leases_is_spread_over_its_time(tmp_path: Path, board: Board) -> None:
    node = Node(board, tmp_path, slots=1_024, renew_s=1.0, announce_s=0.25)
    for number in range(4 * SLICE):
        node.begin(number)
    node.keeper._round_at = float("inf")
    await node.keeper.tick()
    for slot in node.slots.values():
        slot.deliver(1, 1)
    node.keeper._round_at = 0.0
    board.asked.clear()
    moved: list[int] = []
    for number in range(1_000_000, 1_000_004):
        node.keeper.opened(opened(number, slot=1_000))  # announcements put off no look
        await node.keeper.tick()
        leases = (await board.of("a")).values()
        moved.append(sum(decoded(parts.progress).events for parts in leases if parts.progress))
    assert moved == [SLICE, 2 * SLICE, 3 * SLICE, 4 * SLICE]


async def test_a_board_that_is_never_as_it_should_be_is_not_told_everything_all_the_time(tmp_path: Path) -> None:
    class Miscounting(Board):
        async def renew(self, *asked: Any) -> LeaseCount:
            standing = await super().renew(*asked)
            return LeaseCount(standing.leases + 1, standing.beat)

    board = Miscounting()
    node = Node(board, tmp_path, renew_s=60.0)
    node.begin(1)
    for _ in range(10):
        node.keeper._due_at = 0.0
        await node.keeper.tick()
    assert board.announced == 1


async def test_leases_of_an_earlier_run_stay_until_the_ledger_has_its_records(tmp_path: Path, board: Board) -> None:
    before = Node(board, tmp_path)
    for number in range(3):
        before.begin(number)
    await before.keeper.tick()
    board.asked.clear()
    node = Node(board, tmp_path, epoch=2)
    node.caught_up = False
    node.table.clear()
    name = node.begin(9)
    for _ in range(3):
        await node.keeper.tick()
    assert await board.ids("a") == {*before.opens, name}
    node.keeper.ended(exchange_id(1))  # recovered, and sent
    await node.keeper.tick()
    assert await board.ids("a") == {exchange_id(0), exchange_id(2), name}
    node.caught_up = True
    await node.keeper.tick()
    assert await board.ids("a") == {name}
    await node.keeper.tick()
    assert board.announced == 1, "nothing was said twice for it"
    assert await board.nodes() == {"a": f"2.{node.keeper._beats}"}


async def test_a_clean_stop_leaves_nothing(tmp_path: Path, board: Board) -> None:
    node = Node(board, tmp_path, renew_s=60.0)
    node.begin(1)
    await node.keeper.tick()
    node.end(1)
    await node.keeper.leave()
    assert (await board.nodes(), await board.ids("a")) == ({}, set())


@pytest.mark.parametrize("left", ["unsent", "unannounced", "of an earlier run"])
async def test_a_stop_with_something_left_leaves_it_to_the_sweepers(left: str, board: Board, proxy: Node) -> None:
    name = exchange_id(1)
    if left == "of an earlier run":
        await board.renew("a", "0.1", {name: LeaseParts(b"{}", b"")}, [])
        proxy.caught_up = False
    else:
        proxy.begin(1)
    if left != "unannounced":
        await proxy.keeper.tick()
    await proxy.keeper.leave()
    assert await board.nodes() == {"a": proxy.keeper._beat}
    assert await board.ids("a") == {name}


async def test_a_failover_that_undoes_as_many_ends_as_beginnings_is_found_out(board: Board, proxy: Node) -> None:
    proxy.begin(1)
    await proxy.keeper.tick()
    board.keep()
    proxy.end(1)
    proxy.begin(2)
    await proxy.keeper.tick()
    board.fail_over()
    assert await board.ids("a") == {exchange_id(1)}
    await proxy.keeper.tick()
    await proxy.keeper.tick()
    assert await seen(board) == proxy.opens


async def test_flushall_is_found_out_and_everything_is_announced_again_within_two_ticks(
    redis_to: Clients, valkey: Valkey, tmp_path: Path
) -> None:
    redis = redis_to(valkey.url)
    board = RedisLeases(redis)
    node = Node(board, tmp_path)
    for number in range(20):
        node.begin(number)
    await node.keeper.tick()
    assert await seen(board) == node.opens
    await redis.flushall()
    await node.keeper.tick()
    await node.keeper.tick()
    assert await seen(board) == node.opens
    assert list(await board.nodes()) == ["a"]


async def test_while_the_server_is_away_nothing_waits_and_then_all_is_there(
    redis_to: Clients, valkey: Valkey, tmp_path: Path
) -> None:
    board = RedisLeases(redis_to(valkey.url))
    node = Node(board, tmp_path, renew_s=0.05, announce_s=0.01)

    async def as_it_is() -> bool:
        with suppress(QueueUnavailable):
            return await seen(board) == node.opens
        return False

    async with beside(node.keeper.run()):
        for number in range(10):
            node.begin(number)
        await until(as_it_is)
        valkey.kill()
        node.end(0)
        node.begin(10)
        began = time.monotonic()
        while not node.heard.failures or time.monotonic() < began + 0.3:
            await asyncio.sleep(0.01)
        node.end(1)
        node.begin(11)
        valkey.start()
        await until(as_it_is)
        await until(lambda: node.heard.healings)
        assert [type(error) for error in node.heard.failures] == [QueueUnavailable], "said once"
        assert node.heard.healings == node.heard.failures


async def test_leaving_right_after_run_was_cancelled_in_mid_write_is_clean(tmp_path: Path) -> None:
    class Slow(LocalLeases):
        slow = False

        async def renew(self, *asked: Any) -> LeaseCount:
            if self.slow:
                await asyncio.sleep(0.05)
            return await super().renew(*asked)

    board = Slow()
    node = Node(board, tmp_path, announce_s=0.001)
    async with asyncio.TaskGroup() as tasks:
        run = tasks.create_task(node.keeper.run())
        node.begin(1)
        while not await board.ids("a"):
            await asyncio.sleep(0.001)
        board.slow = True
        node.begin(2)
        await asyncio.sleep(0.01)
        node.end(1)
        node.end(2)
        run.cancel()
        await node.keeper.leave()
    assert (await board.nodes(), await board.ids("a")) == ({}, set())


async def test_leaving_while_the_server_is_away_raises_nothing(
    redis_to: Clients, valkey: Valkey, tmp_path: Path
) -> None:
    node = Node(RedisLeases(redis_to(valkey.url)), tmp_path)
    node.begin(1)
    await node.keeper.tick()
    valkey.kill()
    node.end(1)
    await node.keeper.leave()


class Slots(dict[int, bytes]):
    """A progress table in memory: a file for each example would be slow."""

    def raw(self, index: int) -> bytes:
        return self.get(index, b"")


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["begin", "end", "move", "finish"]), st.integers(0, 2)),
        st.tuples(st.sampled_from(["tick", "question lost", "answer lost"]), st.just(0)),
        st.tuples(st.sampled_from(["keep", "fail over", "flush", "dismiss"]), st.just(0)),
    ),
    max_size=30,
)


@given(STEPS)
@settings(deadline=None, max_examples=examples(600))
def test_whatever_happened_two_ticks_later_the_board_says_what_runs(steps: list[tuple[str, int]]) -> None:
    asyncio.run(model(steps))


async def model(steps: list[tuple[str, int]]) -> None:
    board, slots = Board(), Slots()
    keeper = LeaseKeeper(
        board, slots, node="a", epoch=1, caught_up=lambda: True, observer=Recorder(), renew_s=AT_ONCE_S
    )
    live: dict[int, Opened] = {}
    born = 0
    for word, number in steps:
        if word == "begin" and number not in live:
            born += 1
            live[number] = opened(born, slot=number)
            slots[number] = named(live[number], 0)
            keeper.opened(live[number])
        elif word == "move" and number in live and slots[number]:
            slots[number] = named(live[number], slots[number][16] + 1)
        elif word == "finish" and number in live:
            slots[number] = b""
        elif word == "end" and number in live:
            keeper.ended(live.pop(number).exchange_id)
            slots[number] = b""
        elif word in {"tick", "question lost", "answer lost"}:
            board.trouble = word
            with suppress(QueueUnavailable):
                await keeper.tick()
        elif word == "dismiss":  # a sweeper took us for dead
            for beat in list((await board.nodes()).values()):
                await board.dismiss("a", beat)
        elif word in {"keep", "fail over", "flush"}:
            getattr(board, word.replace(" ", "_"))()
    board.trouble = "none"
    for _ in range(2):
        await keeper.tick()
    assert await seen(board) == {one.exchange_id: one for one in live.values()}
    assert await board.ids("a") == {one.exchange_id for one in live.values()}
    leases = await board.of("a")
    for number, one in live.items():
        assert slots[number] in {b"", leases[one.exchange_id].progress}
    board.asked.clear()
    await keeper.tick()
    assert not any(changed for changed, _ in board.asked), "and there is peace"


def named(of: Opened, count: int) -> bytes:
    """The bytes of a slot, as far as the keeper looks at them."""
    return name_of(of.exchange_id) + bytes([count])
