"""The sweeper: the dead are settled once, the living never, and nothing it cannot read is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from proxy.billing.record import BillableParts, Outcome, UsageRecord
from proxy.billing.settlement import content_hash, entry
from proxy.delivery.leases import LeaseKeeper, LeaseParts, LeaseRegistry
from proxy.delivery.redis_leases import RedisLeases
from proxy.delivery.sweeper import RECORDS_MAX, Sweeper
from proxy.journal.frames import opened_payload, record_payload
from proxy.journal.progress import LAYOUT, SLOT_BYTES, ProgressTable, Slot, name_of
from proxy.journal.recovery import recover
from proxy.metering.estimator.estimate import VERSION, Estimator
from proxy.metering.usage import Evidence, Usage, UsageSource
from proxy.storage.redis_client import QueueUnavailable, RedisClient, open_redis
from tests.journal.records import exchange_id, opened
from tests.support.clock import Clock
from tests.support.leases import LocalLeases
from tests.support.recorder import Recorder
from tests.support.valkey import Valkey
from tests.support.waiting import beside, until

LEASE_S = 30.0


class Ledger:
    """What the real one promises: an entry goes in once; the same again is nothing; another under its name is told."""

    def __init__(self) -> None:
        self.entries: dict[str, str] = {}
        self.inserted: list[UsageRecord] = []
        self.conflicts = 0
        self.transactions: list[int] = []
        self.away = False

    async def settle(self, records: Sequence[UsageRecord]) -> None:
        await asyncio.sleep(0)  # as a thread would: others run meanwhile
        if self.away:
            raise OSError("the ledger is away")
        self.transactions.append(len(records))
        for record in records:
            line = entry(record)
            known = self.entries.setdefault(line.entry_id, content_hash(line))
            if known != content_hash(line):
                self.conflicts += 1
            elif record.opened.exchange_id not in {one.opened.exchange_id for one in self.inserted}:
                self.inserted.append(record)


@dataclass
class SweeperRecorder(Recorder):
    nodes: list[int] = field(default_factory=list)
    swept_nodes: list[str] = field(default_factory=list)
    records: list[UsageRecord] = field(default_factory=list)
    unreadable: list[tuple[str, str]] = field(default_factory=list)

    def checked(self, nodes: int) -> None:
        self.nodes.append(nodes)

    def swept(self, node: str, records: Sequence[UsageRecord]) -> None:
        self.swept_nodes.append(node)
        self.records += records

    def damaged(self, node: str, exchange_id: str, why: str) -> None:
        self.unreadable.append((exchange_id, why))


class Worker:
    def __init__(self, board: LeaseRegistry, ledger: Ledger, clock: Clock) -> None:
        self.seen = SweeperRecorder()
        self.board, self.ledger, self.clock = board, ledger, clock
        self.sweeper = Sweeper(board, ledger.settle, Estimator(), lease_s=LEASE_S, monotonic=clock, observer=self.seen)

    async def look_for(self, seconds: float) -> None:
        """Look as `run` would, for so long."""
        until = self.clock.now + seconds
        await self.sweeper.check()
        while self.clock.now < until:
            self.clock.now = min(self.clock.now + 3.0, until)
            await self.sweeper.check()


class Proxy:
    """A node with exchanges; `tick` as often as it lives."""

    def __init__(self, board: LeaseRegistry, folder: Path, *, node: str = "a", epoch: int = 1) -> None:
        self.table = ProgressTable.open(folder / f"{node}.{epoch}", 1_024, unix_time=lambda: 1_790_000_002.5)
        self.keeper = LeaseKeeper(
            board, self.table, node=node, epoch=epoch, caught_up=lambda: True, observer=Recorder(), renew_s=1e-9
        )
        self.slots: dict[int, Slot] = {}

    def begin(self, number: int, *, delivered: int = 0) -> None:
        slot = self.slots[number] = self.table.claim(exchange_id(number))
        self.keeper.opened(opened(number, slot=slot.index))
        if delivered:
            slot.note(Evidence(text_events=delivered, chars_latin=42 * delivered), None, delivered)
            slot.deliver(delivered, 300 * delivered)

    async def lease(self, *numbers: int, delivered: int | None = 0) -> None:
        """Begin these exchanges, which have delivered so much (None: as much as their numbers), and beat."""
        for number in numbers:
            self.begin(number, delivered=number if delivered is None else delivered)
        await self.keeper.tick()


@pytest.fixture
def clock() -> Clock:
    return Clock(1_000.0)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture(params=["local", "redis"])
async def board(request: pytest.FixtureRequest, prefix: str, redis_to: Callable[[str], RedisClient]) -> LeaseRegistry:
    if request.param == "local":
        return LocalLeases()
    return RedisLeases(redis_to(request.getfixturevalue("redis_url")), prefix=prefix)


@pytest.fixture
def proxy(board: LeaseRegistry, tmp_path: Path) -> Proxy:
    return Proxy(board, tmp_path)


@pytest.fixture
def worker(board: LeaseRegistry, ledger: Ledger, clock: Clock) -> Worker:
    return Worker(board, ledger, clock)


def ids(records: Sequence[UsageRecord]) -> list[str]:
    return sorted(record.opened.exchange_id for record in records)


async def test_a_node_that_is_silent_for_a_lease_is_settled_from_its_last_progress(
    proxy: Proxy, worker: Worker
) -> None:
    proxy.begin(1)
    proxy.begin(2, delivered=10)
    proxy.begin(3, delivered=10)
    proxy.slots[3].note(Evidence(text_events=9, chars_latin=420), Usage(9, None, 40, None, 49), 10)
    await proxy.keeper.tick()
    await worker.look_for(LEASE_S - 0.001)
    assert (worker.seen.swept_nodes, worker.ledger.inserted) == ([], [])
    await worker.look_for(0.001)
    assert worker.seen.swept_nodes == ["a"]
    nothing, estimated, reported = sorted(worker.ledger.inserted, key=lambda record: record.opened.exchange_id)
    assert {record.outcome for record in worker.ledger.inserted} == {Outcome.CRASHED}
    assert (nothing.bills, nothing.details) == (BillableParts.NOTHING, {"swept": True, "situation": "crashed_empty"})
    assert (estimated.bills, estimated.events, estimated.bytes) == (BillableParts.EVERYTHING, 10, 3_000)
    assert estimated.reading.usage == Usage(17, None, 120, None, 137)
    assert (estimated.reading.source, estimated.reading.estimator) == (UsageSource.ESTIMATED, VERSION)
    assert (reported.reading.source, reported.reading.usage) == (UsageSource.REPORTED, Usage(9, None, 40, None, 49))
    assert (await worker.board.nodes(), await worker.board.ids("a")) == ({}, set())


async def test_what_is_swept_is_what_recovery_would_have_said(tmp_path: Path, clock: Clock, ledger: Ledger) -> None:
    board = LocalLeases()
    proxy, worker = Proxy(board, tmp_path), Worker(board, ledger, clock)
    await proxy.lease(*range(5), delivered=None)
    opens = [opened(number, slot=slot.index) for number, slot in proxy.slots.items()]
    recovered = recover(opens, proxy.table, Estimator())
    await worker.look_for(LEASE_S)
    for here, there in zip(ledger.inserted, recovered, strict=True):
        assert here.details == {"swept": True} | {k: v for k, v in there.details.items() if k != "recovered"}
        assert (here.reading, here.bills, here.events, here.duration_ms) == (
            there.reading, there.bills, there.events, there.duration_ms,
        )  # fmt: skip


async def test_a_node_that_beats_is_never_dead_however_long_its_streams_are(proxy: Proxy, worker: Worker) -> None:
    proxy.begin(1, delivered=1)
    for _ in range(20):
        await proxy.keeper.tick()
        await worker.look_for(LEASE_S - 3)
    assert (worker.seen.swept_nodes, worker.ledger.inserted) == ([], [])


async def test_a_node_that_starts_again_with_another_epoch_is_alive(
    board: LeaseRegistry, ledger: Ledger, clock: Clock, tmp_path: Path
) -> None:
    before, worker = Proxy(board, tmp_path), Worker(board, ledger, clock)
    await before.lease(1, delivered=1)
    await worker.look_for(LEASE_S - 1)
    after = Proxy(board, tmp_path, epoch=2)
    await after.keeper.tick()  # its first beat has the same number
    await worker.look_for(LEASE_S - 1)
    assert ledger.inserted == []


async def test_two_sweepers_settle_once(proxy: Proxy, board: LeaseRegistry, ledger: Ledger, clock: Clock) -> None:
    workers = [Worker(board, ledger, clock) for _ in range(2)]
    await proxy.lease(*range(20), delivered=None)
    for _ in range(11):
        await asyncio.gather(*(worker.sweeper.check() for worker in workers))
        clock.now += 3.0
    assert [worker.seen.swept_nodes for worker in workers] == [["a"], ["a"]], "both were at it"
    assert ids(ledger.inserted) == [exchange_id(number) for number in range(20)]
    assert ledger.conflicts == 0
    assert (await board.nodes(), await board.ids("a")) == ({}, set())


async def test_the_same_board_gives_the_same_bytes(clock: Clock, tmp_path: Path) -> None:
    """In whatever order the leases stand there."""
    one, other = LocalLeases(), LocalLeases()
    proxy = Proxy(one, tmp_path)
    await proxy.lease(*range(20), delivered=None)
    leases = await one.of("a")
    await other.renew("a", "5.5", dict(reversed(list(leases.items()))), [])
    said: list[list[bytes]] = []
    for board in (one, other):
        worker = Worker(board, Ledger(), clock)
        await worker.look_for(LEASE_S)
        said.append([record_payload(record) for record in worker.seen.records])
    assert said[0] == said[1]
    assert len(said[0]) == 20


async def test_a_sweeper_that_dies_after_the_ledger_has_it_is_followed_by_another(
    board: LeaseRegistry, ledger: Ledger, clock: Clock, tmp_path: Path
) -> None:
    proxy, first, second = Proxy(board, tmp_path), Worker(board, ledger, clock), Worker(board, ledger, clock)
    await proxy.lease(*range(5), delivered=None)
    settle = ledger.settle

    async def settle_and_die(records: Sequence[UsageRecord]) -> None:
        await settle(records)
        raise asyncio.CancelledError

    first.sweeper._settle = settle_and_die
    with pytest.raises(asyncio.CancelledError):
        await first.look_for(LEASE_S)
    assert len(await board.ids("a")) == len(ledger.inserted) == 5
    await second.look_for(LEASE_S)
    assert (len(ledger.inserted), ledger.conflicts) == (5, 0)
    assert (await board.nodes(), await board.ids("a")) == ({}, set())


async def test_while_the_ledger_is_away_leases_stay_and_it_is_said_once(proxy: Proxy, worker: Worker) -> None:
    await proxy.lease(1, delivered=1)
    worker.ledger.away = True
    await worker.look_for(2 * LEASE_S)
    assert [str(error) for error in worker.seen.failures] == ["the ledger is away"]
    assert len(await worker.board.ids("a")) == 1
    worker.ledger.away = False
    await worker.look_for(0)
    assert (len(worker.ledger.inserted), await worker.board.nodes()) == (1, {})
    assert worker.seen.healings == worker.seen.failures


async def test_one_node_that_cannot_be_settled_does_not_keep_another_from_it(
    ledger: Ledger, clock: Clock, tmp_path: Path
) -> None:
    class Half(LocalLeases):
        async def of(self, node: str) -> Any:
            if node == "a":
                raise RuntimeError("a bug, say")
            return await super().of(node)

    board = Half()
    worker = Worker(board, ledger, clock)
    for number, node in enumerate("ab"):
        proxy = Proxy(board, tmp_path, node=node)
        proxy.begin(number)
        await proxy.keeper.tick()
    await worker.look_for(LEASE_S + 10)
    assert (worker.seen.swept_nodes, len(worker.seen.failures)) == (["b"], 1)
    assert list(await board.nodes()) == ["a"]


@pytest.mark.process
async def test_an_outage_of_the_board_declares_nobody_dead(ledger: Ledger, clock: Clock, tmp_path: Path) -> None:
    """The server keeps its file: what it says after its restart is as old as the outage was long."""
    options = "--appendonly", "yes", "--appendfsync", "always"
    with closing(Valkey(tmp_path / "valkey", *options).start()) as server:
        redis = open_redis(server.url)
        board = RedisLeases(redis)
        proxy, worker = Proxy(board, tmp_path), Worker(board, ledger, clock)
        await proxy.lease(1, delivered=1)
        await worker.look_for(LEASE_S - 3)
        server.kill()
        await worker.look_for(3 * LEASE_S)
        assert [type(error) for error in worker.seen.failures] == [QueueUnavailable], "said once"
        server.start()
        await worker.look_for(LEASE_S - 3)
        assert (worker.seen.nodes[-1], ledger.inserted) == (1, []), "the old beat is there again"
        await proxy.keeper.tick()
        await worker.look_for(LEASE_S - 3)
        assert ledger.inserted == []
        await worker.look_for(LEASE_S)
        assert len(ledger.inserted) == 1, "and now it is really silent"
        await redis.aclose()


async def test_one_look_in_vain_starts_all_watches_anew(ledger: Ledger, clock: Clock, tmp_path: Path) -> None:
    class Blinking(LocalLeases):
        away = False

        async def nodes(self) -> Any:
            if self.away:
                raise QueueUnavailable("away")
            return await super().nodes()

    board = Blinking()
    proxy, worker = Proxy(board, tmp_path), Worker(board, ledger, clock)
    await proxy.lease(1, delivered=1)
    await worker.look_for(LEASE_S - 3)
    board.away = True
    await worker.look_for(0)
    board.away = False
    await worker.look_for(LEASE_S - 3)
    assert ledger.inserted == []
    await worker.look_for(3)
    assert len(ledger.inserted) == 1


async def test_a_sweeper_that_was_stopped_itself_declares_nobody_dead(proxy: Proxy, worker: Worker) -> None:
    """All was stopped, say, with the machine: on waking up, the sweeper looks before the others have beaten."""
    await proxy.lease(1, delivered=1)
    await worker.look_for(6)
    worker.clock.now += 10_000
    await worker.look_for(LEASE_S - 3)
    assert worker.ledger.inserted == []
    await worker.look_for(3)
    assert len(worker.ledger.inserted) == 1


async def test_a_machine_that_was_only_asleep_comes_back(proxy: Proxy, worker: Worker) -> None:
    await proxy.lease(*range(3), delivered=1)
    await worker.look_for(LEASE_S)
    assert len(worker.ledger.inserted) == 3
    proxy.keeper.ended(exchange_id(0))
    await proxy.lease(3)
    await proxy.keeper.tick()
    assert await worker.board.ids("a") == {exchange_id(number) for number in (1, 2, 3)}
    await worker.look_for(LEASE_S - 3)
    assert len(worker.ledger.inserted) == 3, "it lives"


async def test_a_lease_whose_record_was_sent_is_not_swept(proxy: Proxy, worker: Worker) -> None:
    await proxy.lease(*range(3))
    proxy.keeper.ended(exchange_id(1))
    await proxy.keeper.tick()
    await worker.look_for(LEASE_S)
    assert ids(worker.ledger.inserted) == [exchange_id(0), exchange_id(2)]


async def test_a_clean_stop_is_no_death(proxy: Proxy, worker: Worker) -> None:
    await proxy.keeper.tick()
    await worker.look_for(0)
    await proxy.keeper.leave()
    await worker.look_for(2 * LEASE_S)
    assert (worker.seen.nodes[0], worker.seen.nodes[-1], worker.seen.swept_nodes) == (1, 0, [])


async def test_a_dead_node_with_nothing_to_settle_is_dismissed(worker: Worker, tmp_path: Path) -> None:
    await Proxy(worker.board, tmp_path).keeper.tick()
    await worker.look_for(LEASE_S)
    assert (await worker.board.nodes(), worker.seen.swept_nodes, worker.ledger.transactions) == ({}, [], [])


async def test_many_leases_are_settled_in_transactions_of_the_usual_size(proxy: Proxy, worker: Worker) -> None:
    await proxy.lease(*range(600))
    await worker.look_for(LEASE_S)
    assert worker.ledger.transactions == [RECORDS_MAX, RECORDS_MAX, 600 - 2 * RECORDS_MAX]
    assert await worker.board.ids("a") == set()


def slot_bytes(of: int, *, layout: int = LAYOUT) -> bytes:
    return name_of(exchange_id(of)) + bytes(SLOT_BYTES - 24) + layout.to_bytes(8, "little")


GOOD = LeaseParts(opened_payload(opened(1)), slot_bytes(1))
BAD = {
    2: LeaseParts(b"\xff\x00 not JSON", slot_bytes(2)),
    3: LeaseParts(b"", slot_bytes(3)),
    4: LeaseParts(b'{"exchange_id":"' + exchange_id(4).encode() + b'"}', slot_bytes(4)),
    5: LeaseParts(opened_payload(opened(5)), b"\xff" * SLOT_BYTES),
    6: LeaseParts(opened_payload(opened(6)), slot_bytes(6, layout=1)),
    7: LeaseParts(opened_payload(opened(7)), slot_bytes(7)[:100]),
    8: LeaseParts(opened_payload(opened(9)), b""),
    9: LeaseParts(opened_payload(opened(9)), slot_bytes(8)),
    10: LeaseParts(opened_payload(opened(10, bill={"crashed_empty": "whatever"})), slot_bytes(10)),
}


async def test_nonsense_on_the_board_is_said_kept_and_costs_no_other_lease(worker: Worker) -> None:
    bad = {exchange_id(number): parts for number, parts in BAD.items()}
    await worker.board.renew("a", "1.1", {**bad, exchange_id(1): GOOD}, [])
    await worker.board.renew("b", "1.1", {exchange_id(20): LeaseParts(opened_payload(opened(20)), b"")}, [])
    await worker.look_for(2 * LEASE_S)
    assert ids(worker.ledger.inserted) == [exchange_id(1), exchange_id(20)]
    assert [name for name, _ in worker.seen.unreadable] == sorted(bad), "each is said, once"
    assert all(why for _, why in worker.seen.unreadable)
    assert worker.seen.failures == []
    assert await worker.board.of("a") == bad
    assert await worker.board.nodes() == {"a": "1.1"}
    assert len(worker.ledger.transactions) == 2, "it is not tried again and again"


async def test_a_record_that_trips_a_bug_in_settling_costs_no_other(proxy: Proxy, worker: Worker) -> None:
    await proxy.lease(*range(300))
    settle = worker.ledger.settle

    async def trip(records: Sequence[UsageRecord]) -> None:
        if any(record.opened.exchange_id == exchange_id(7) for record in records):
            raise OverflowError("a bug, say")
        await settle(records)

    worker.sweeper._settle = trip
    await worker.look_for(LEASE_S)
    assert worker.seen.unreadable == [(exchange_id(7), "OverflowError: a bug, say")]
    assert len(worker.ledger.inserted) == len(worker.seen.records) == 299
    assert await worker.board.ids("a") == {exchange_id(7)}


async def test_a_node_that_comes_back_to_what_could_not_be_read_lives(worker: Worker, tmp_path: Path) -> None:
    await worker.board.renew("a", "1.1", {exchange_id(2): BAD[2]}, [])
    await worker.look_for(LEASE_S)
    proxy = Proxy(worker.board, tmp_path, epoch=2)
    await proxy.lease(30, delivered=1)
    await worker.look_for(0)
    assert await worker.board.ids("a") == {exchange_id(30)}, "its own journal has closed the other"
    await worker.look_for(LEASE_S)
    assert [record.opened.exchange_id for record in worker.ledger.inserted] == [exchange_id(30)]
    assert await worker.board.nodes() == {}


async def test_running_it_looks_by_itself_and_ends_only_when_cancelled(ledger: Ledger, tmp_path: Path) -> None:
    board = LocalLeases()
    proxy = Proxy(board, tmp_path)
    await proxy.lease(1, delivered=1)
    seen = SweeperRecorder()
    sweeper = Sweeper(
        board, ledger.settle, Estimator(), lease_s=0.2, monotonic=asyncio.get_running_loop().time, observer=seen
    )  # fmt: skip
    async with asyncio.timeout(20), beside(sweeper.run()):
        await until(lambda: seen.swept_nodes)
    assert len(ledger.inserted) == 1
