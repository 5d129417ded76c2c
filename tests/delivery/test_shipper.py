"""Nothing is lost and nothing is settled twice, whatever becomes of the queue, the ledger and this process.

The journal and the server are real; the ledger is a set of receipts that can be away.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from proxy.delivery.delivery import DeliveredRecord
from proxy.delivery.redis_queue import RedisQueue
from proxy.delivery.shipper import ASK_MAX, OVERDUE_S, Shipper
from proxy.journal.journal import Journal
from proxy.ledger.settling.settler import DELIVERIES_MAX
from proxy.storage.redis_client import QueueUnavailable, RedisClient
from tests.journal.records import ROOMY, opened, record
from tests.support.clock import Clock
from tests.support.faulty import FaultyPath
from tests.support.net import closed_port
from tests.support.recorder import ShipperRecorder
from tests.support.valkey import Valkey
from tests.support.waiting import beside, until


def exchange_of(delivered: DeliveredRecord) -> str | None:
    """As the ledger names it."""
    try:
        return delivered.record.opened.exchange_id
    except ValueError:
        return None


@dataclass
class Ledger:
    """Receipts, and how often each was brought."""

    brought: Counter[tuple[str, int]] = field(default_factory=Counter)
    exchanges: set[tuple[str, int, str | None]] = field(default_factory=set)
    deliveries: Counter[int] = field(default_factory=Counter)
    away: bool = False
    asked: list[tuple[int, int]] = field(default_factory=list)

    def settle(self, taken: Sequence[DeliveredRecord]) -> None:
        if self.away:
            raise OSError("the ledger is away")
        self.deliveries.update(one.deliveries for one in taken)
        self.brought.update((one.node, one.seq) for one in taken)
        self.exchanges.update((one.node, one.seq, exchange_of(one)) for one in taken)

    def receipts(self, node: str, low: int, high: int) -> set[tuple[int, str | None]]:
        assert 0 <= high - low < ASK_MAX
        if self.away:
            raise OSError("the ledger is away")
        self.asked.append((low, high))
        return {(seq, exchange) for name, seq, exchange in self.exchanges if name == node and low <= seq <= high}

    @property
    def seqs(self) -> list[int]:
        return sorted(seq for _, seq in self.brought)


async def at_once(work: Callable[..., Any], *arguments: object) -> Any:
    return work(*arguments)


class Machine:
    """A journal with its shipper, and what is needed to see what they do. Workers take from `other_end`."""

    def __init__(self, folder: Path, queue: RedisQueue, other_end: RedisQueue, ledger: Ledger) -> None:
        self.folder, self.queue, self.other_end, self.ledger = folder, queue, other_end, ledger
        self.seen, self.clock = ShipperRecorder(), Clock(100.0)
        self.on_sent: list[int] = []
        self.written = 0
        self.open()

    def open(self) -> None:
        self.journal = Journal.open(self.folder, bytes_max=ROOMY)
        self.node = self.journal.node.node_id
        self.shipper = Shipper(
            self.journal, self.queue, self.ledger, node=self.node, observer=self.seen, monotonic=self.clock,
            in_thread=at_once, on_sent=self.on_sent.extend,
        )  # fmt: skip

    def write(self, count: int) -> list[int]:
        """More records; all that are pending now."""
        for number in range(self.written, self.written + count):
            one = opened(number)
            self.journal.begin(one)
            self.journal.finish(record(one))
        self.written += count
        return self.pending

    async def send(self, count: int) -> list[int]:
        """More records, which are then in the queue; all that are pending now."""
        written = self.write(count)
        await until(lambda: len(self.on_sent) == count)
        return written

    async def drained(self) -> None:
        async with self.working():
            await until(lambda: not self.pending)

    @property
    def pending(self) -> list[int]:
        return [one.seq for one in self.journal.pending(100_000)]

    def shipping(self) -> AbstractAsyncContextManager[None]:
        return beside(self.shipper.run())

    def working(self) -> AbstractAsyncContextManager[None]:
        return beside(work(self.other_end, self.ledger))


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ASK_S_MIN", "ASK_S_MAX", "RETRY_S_MAX"):
        monkeypatch.setattr(f"proxy.delivery.shipper.{name}", 0.02)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


Queues = Callable[..., RedisQueue]


@pytest.fixture
def queues(redis_to: Callable[[str], RedisClient], redis_url: str, prefix: str) -> Queues:
    """Makes queues on one stream; their clients are closed after the test."""

    def make(url: str = redis_url, consumer: str = "worker") -> RedisQueue:
        return RedisQueue(redis_to(url), prefix=prefix, consumer=consumer, block_ms=20, linger_s=0.0)

    return make


async def work(queue: RedisQueue, ledger: Ledger) -> None:
    while True:
        with suppress(QueueUnavailable):
            taken = await queue.take(100)
            while taken:
                with suppress(OSError):
                    ledger.settle(taken)
                    break
                await asyncio.sleep(0.01)
            await queue.settled(taken)
        await asyncio.sleep(0)


At = Callable[..., Machine]


@pytest.fixture
def at(folder: Path, queues: Queues, ledger: Ledger) -> Iterator[At]:
    """Makes a machine whose queue is at a URL, for workers perhaps at another. Its journal is closed after the test."""
    made: list[Machine] = []

    def machine(url: str, workers_url: str = "") -> Machine:
        made.append(Machine(folder, queues(url), queues(workers_url or url), ledger))
        return made[-1]

    yield machine
    for one in made:
        one.journal.close()


@pytest.fixture
def machine(at: At, redis_url: str) -> Machine:
    return at(redis_url)


# -- all is well ---------------------------------------------------------------------------------------------------


async def test_records_go_to_the_ledger_once_and_the_journal_forgets_them(machine: Machine) -> None:
    async with machine.shipping(), machine.working():
        first = machine.write(500)
        await until(lambda: not machine.pending)
        second = machine.write(3)
        await until(lambda: not machine.pending)
    assert machine.ledger.seqs == machine.on_sent == first + second
    assert set(machine.ledger.brought.values()) == {1}
    assert (machine.seen.in_queue, machine.seen.again, machine.seen.confirmations) == (503, 0, 503)
    assert machine.seen.failures == []
    assert machine.shipper.unconfirmed == 0


async def test_a_record_is_kept_until_the_ledger_has_it_though_the_queue_does(machine: Machine) -> None:
    async with machine.shipping():
        written = await machine.send(5)
        taken = await machine.other_end.take(100)
        await machine.other_end.settled(taken)  # a worker that forgets to settle: the messages are gone
        await until(lambda: len(machine.ledger.asked) > 3)
        assert machine.pending == written
        machine.clock.now += OVERDUE_S
        await machine.drained()
    assert machine.ledger.seqs == written
    assert machine.seen.again == 5


async def test_one_record_that_is_stuck_holds_up_no_other(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.delivery.shipper.ASK_MAX", 250)
    async with machine.shipping():
        written = await machine.send(600)
        while len(machine.ledger.brought) < 599:
            machine.ledger.settle([one for one in await machine.other_end.take(500) if one.seq != written[3]])
        await until(lambda: machine.pending == [written[3]])
        assert await machine.queue.depth() == 600
        machine.ledger.asked.clear()
        await until(lambda: len(machine.ledger.asked) > 1)
        assert set(machine.ledger.asked) == {(written[3], written[3])}


async def test_no_more_are_sent_than_may_be_unconfirmed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.delivery.shipper.UNCONFIRMED_MAX", 50)
    async with machine.shipping():
        written = machine.write(130)
        await until(lambda: machine.shipper.unconfirmed == 50)
        await until(lambda: len(machine.ledger.asked) > 3)
        assert await machine.other_end.depth() == 50
        await machine.drained()
    assert machine.ledger.brought == Counter((machine.node, seq) for seq in written)


# -- the queue loses, or is away -----------------------------------------------------------------------------------


async def test_kill_9_of_a_server_that_kept_nothing(at: At, valkey: Valkey) -> None:
    machine = at(valkey.url)
    async with machine.shipping(), machine.working():
        machine.write(100)
        await until(lambda: not machine.pending)
        valkey.kill()
        written = machine.write(100)
        await until(lambda: bool(machine.seen.failures))
        await asyncio.sleep(0.1)
        assert machine.pending == written
        await asyncio.to_thread(valkey.start)
        machine.clock.now += OVERDUE_S
        await until(lambda: not machine.pending)
    assert len(machine.ledger.seqs) == 200
    assert set(machine.ledger.brought.values()) == {1}
    assert len(machine.seen.failures) == len(machine.seen.healings) == 1, "an outage is said once"


async def test_a_reply_that_is_lost_costs_a_copy_and_no_entry(
    at: At, path: FaultyPath, hurt_url: str, redis_url: str
) -> None:
    machine = at(hurt_url, redis_url)
    await machine.other_end.take(1)
    async with machine.shipping():
        path.lose_reply(to=b"XADD")
        written = await machine.send(10)
        assert await machine.other_end.depth() == 20
        await machine.drained()
    assert machine.ledger.seqs == written
    assert machine.on_sent == written


async def test_requests_that_arrive_and_are_never_answered_are_not_copied_for_ever(
    at: At, path: FaultyPath, hurt_url: str, redis_url: str
) -> None:
    """Each try after the first is of one record; what the ledger has meanwhile is not tried any more."""
    machine = at(hurt_url, redis_url)
    await machine.other_end.take(1)
    async with machine.shipping():
        written = machine.write(40)
        for copies in range(40, 45):
            path.lose_reply(to=b"XADD")
            await until(lambda: path.lost)
            assert await machine.other_end.depth() <= copies + 1
        path.cut()
        async with machine.working():
            await until(lambda: not machine.pending)
            await until(lambda: machine.on_sent == written)
        assert set(machine.on_sent) == set(machine.ledger.seqs) == set(written)


async def test_a_proxy_may_start_before_its_queue(at: At, tmp_path: Path) -> None:
    with closing(Valkey(tmp_path / "late")) as server:
        machine = at(server.url)
        async with machine.shipping():
            written = machine.write(20)
            await until(lambda: bool(machine.seen.failures))
            assert isinstance(machine.seen.failures[0], QueueUnavailable)
            await asyncio.to_thread(server.start)
            await machine.drained()
        assert machine.ledger.seqs == written


# -- the ledger is away, or slow -----------------------------------------------------------------------------------


async def test_a_long_outage_of_the_ledger_sends_nothing_twice(machine: Machine) -> None:
    machine.ledger.away = True
    async with machine.shipping(), machine.working():
        written = await machine.send(300)
        for _ in range(5):
            machine.clock.now += OVERDUE_S
            await asyncio.sleep(0.05)
        assert len(machine.seen.failures) == 1
        assert await machine.other_end.depth() == 300
        machine.ledger.away = False
        await until(lambda: not machine.pending)
    assert machine.ledger.seqs == written
    assert machine.seen.again == 0
    assert machine.seen.healings == machine.seen.failures


async def test_what_waits_in_the_queue_is_not_sent_again_unless_it_gets_lost_there(
    at: At, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger answers, and no worker runs."""
    machine, missing, looked_for = at(valkey.url), RedisQueue.missing, 0

    async def counted(queue: RedisQueue, tickets: Sequence[bytes]) -> list[bytes]:
        nonlocal looked_for
        found = await missing(queue, tickets)
        looked_for += len(tickets)
        return found

    monkeypatch.setattr(RedisQueue, "missing", counted)
    async with machine.shipping():
        written = await machine.send(450)
        for times in range(1, 6):
            machine.clock.now += OVERDUE_S
            await until(lambda times=times: looked_for == 450 * times)  # type: ignore[misc]
        assert await machine.other_end.depth() == 450
        valkey.ask("FLUSHALL")
        await asyncio.sleep(0.1)
        assert machine.seen.again == 0, "it is not overdue yet"
        machine.clock.now += OVERDUE_S
        await until(lambda: machine.seen.again == 450)
        await machine.drained()
    assert machine.ledger.brought == Counter((machine.node, seq) for seq in written)


async def test_a_record_that_is_settled_while_it_is_looked_for_is_not_sent_again(
    folder: Path, queues: Queues, ledger: Ledger, prefix: str
) -> None:
    """Between the question to the ledger and the look into the queue, a worker settles and deletes."""

    class Sly(RedisQueue):
        async def missing(self, tickets: Sequence[bytes]) -> list[bytes]:
            taken = await self.take(100)
            machine.ledger.settle(taken)
            await self.settled(taken)
            return await super().missing(tickets)

    plain = queues()
    machine = Machine(folder, Sly(plain._redis, prefix=prefix, consumer="sly", block_ms=20), plain, ledger)
    async with machine.shipping():
        written = await machine.send(7)
        machine.clock.now += OVERDUE_S
        await until(lambda: not machine.pending)
    assert (machine.ledger.seqs, machine.seen.again) == (written, 0)
    assert await plain.depth() == 0


# -- this process ends ---------------------------------------------------------------------------------------------


async def test_after_a_restart_the_ledger_is_asked_before_anything_is_sent(machine: Machine, ledger: Ledger) -> None:
    async with machine.shipping():
        before = await machine.send(600)
    machine.journal.close()  # as kill -9 leaves it: nothing is known of what was sent
    machine.ledger.settle(settled := [*await machine.other_end.take(400)])
    await machine.other_end.settled(settled)
    machine.open()
    machine.ledger.away = True
    machine.on_sent.clear()
    async with machine.shipping():
        machine.write(5)
        await until(lambda: len(machine.on_sent) == 5)
        new = machine.pending[-5:]
        assert machine.on_sent == new, "what is new does not wait for the ledger"
        assert await machine.other_end.depth() == 200 + 5
        machine.ledger.away = False
        await until(lambda: len(machine.on_sent) == 205)
        assert set(machine.on_sent) == set(before[400:] + new)
        await machine.drained()
    assert machine.ledger.seqs == before + new
    assert machine.seen.again == 200


async def test_close_sends_the_rest_and_lets_it_be_confirmed(machine: Machine) -> None:
    async with machine.shipping(), machine.working():
        written = machine.write(700)
        assert await machine.shipper.close(10.0)
    assert machine.pending == []
    assert machine.ledger.seqs == written


async def test_close_is_content_when_all_is_in_the_queue(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.delivery.shipper.LAST_ASK_S", 0.05)
    machine.ledger.away = True
    async with machine.shipping():
        written = machine.write(20)
        assert await machine.shipper.close(10.0)
        assert await machine.queue.depth() == 20
    assert machine.pending == written


async def test_a_copy_of_the_data_folder_does_not_forget_what_its_twin_settled(
    machine: Machine, folder: Path, queues: Queues, ledger: Ledger, tmp_path: Path
) -> None:
    """A machine's image is started twice: both give the same numbers to exchanges of their own."""
    machine.journal.close()
    shutil.copytree(folder, tmp_path / "twin")
    machine.open()
    twin = Machine(tmp_path / "twin", queues(), queues(), ledger)
    assert (twin.node, twin.journal.node.epoch) == (machine.node, machine.journal.node.epoch)
    twin.written = 1_000
    written, of_twin = machine.write(3), twin.write(5)
    assert set(written) < set(of_twin)
    async with twin.shipping(), machine.working():
        await until(lambda: twin.pending == [])
    asked = len(machine.ledger.asked)
    async with machine.shipping():
        await until(lambda: len(machine.ledger.asked) > asked + 3)
        assert machine.pending == written, "nothing of it was in the ledger"
        async with machine.working():
            await until(lambda: machine.pending == [])
    assert len(machine.ledger.exchanges) == 8
    twin.journal.close()


async def test_close_gives_up_in_time_and_loses_nothing(at: At) -> None:
    machine = at(f"redis://127.0.0.1:{closed_port()}")
    async with machine.shipping():
        written = machine.write(20)
        assert not await machine.shipper.close(0.1)
    assert machine.pending == written


async def test_close_does_not_take_what_the_last_run_left_for_sent(machine: Machine) -> None:
    written = machine.write(3)
    machine.journal.close()
    machine.open()
    machine.ledger.away = True
    async with machine.shipping():
        assert not await machine.shipper.close(0.1)
    assert machine.pending == written


async def test_nothing_to_send_is_closed_at_once(at: At) -> None:
    machine = at(f"redis://127.0.0.1:{closed_port()}")
    async with machine.shipping():
        assert await machine.shipper.close(10.0)


# -- all of it together --------------------------------------------------------------------------------------------


async def storm(machine: Machine, server: Valkey, path: FaultyPath, chance: random.Random) -> None:
    """One fault or another, for a moment."""
    ledger = machine.ledger
    match chance.randrange(8):
        case 0:
            server.ask("FLUSHALL")
        case 1:
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
        case 2:
            path.lose_reply(to=chance.choice([b"XADD", b"XREADGROUP", b"XACK", b"XRANGE"]))
        case 3:
            path.reset()
        case 4:
            path.cut()
            await asyncio.sleep(0.02)
            path.heal()
        case 5:
            ledger.away = not ledger.away
        case 6:
            machine.clock.now += OVERDUE_S
        case 7:
            path.stall()
            await asyncio.sleep(0.02)
            path.flow()


async def weather(folder: Path, server: Valkey, queues: Queues, ledger: Ledger, *, seed: int, faults: int) -> None:
    chance = random.Random(seed)
    with FaultyPath("127.0.0.1", server.port) as path:
        hurt_url = f"redis://127.0.0.1:{path.port}"
        machine = Machine(folder, queues(hurt_url), queues(), ledger)
        async with machine.shipping(), beside(work(queues(hurt_url, "one"), ledger)):
            for _ in range(faults):
                machine.write(chance.randrange(30))
                await storm(machine, server, path, chance)
                await asyncio.sleep(chance.random() * 0.02)
            path.heal()
            ledger.away = False
            async with asyncio.timeout(30):
                while machine.pending:
                    machine.clock.now += OVERDUE_S
                    await asyncio.sleep(0.05)
        assert len(ledger.brought) == machine.written, f"seed {seed}"
        assert max(ledger.deliveries) <= DELIVERIES_MAX, "no record is laid aside for its network"
        machine.journal.close()


async def test_whatever_comes_every_record_arrives(
    folder: Path, queues: Queues, ledger: Ledger, valkey: Valkey
) -> None:
    await weather(folder, valkey, queues, ledger, seed=random.randrange(1 << 32), faults=20)


@pytest.mark.slow
async def test_whatever_comes_for_long_every_record_arrives(
    folder: Path, queues: Queues, ledger: Ledger, valkey: Valkey
) -> None:
    await weather(folder, valkey, queues, ledger, seed=random.randrange(1 << 32), faults=1_500)
