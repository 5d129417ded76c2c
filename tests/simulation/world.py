"""One world: machines that relay, workers that settle, a queue, a board and a ledger between them, and a seed.

Law: everything that happens is drawn from the seed. Machines and workers die at any await; machines fall asleep; the
queue and the board forget; calls fail on the way there or back. In the end all is healed, and the books are compared:
what each exchange truly was is written down here, by nobody else.
"""

from __future__ import annotations

import asyncio
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from proxy.billing.adjustment import LATE
from proxy.billing.record import BillableParts, Opened, Outcome, Price, Rates, UsageRecord
from proxy.billing.settlement import entry
from proxy.delivery.leases import LeaseKeeper
from proxy.delivery.shipper import Shipper
from proxy.delivery.sweeper import Sweeper
from proxy.journal.journal import Journal
from proxy.journal.progress import ProgressTable, Slot
from proxy.journal.recovery import recover
from proxy.ledger.settling.settler import Settler
from proxy.ledger.settling.store import Arrival
from proxy.metering.estimator.estimate import Estimator
from proxy.metering.usage import Evidence, Reading, Usage, UsageSource
from tests.simulation.ports import Faults, FaultyLeases, MemoryLedger, MemoryQueue, Stream, unavailable_ledger

LEASE_S = 30.0
SLOTS = 256
# Where nothing fails, an exchange is on the board by then; if the board forgets, that shows at the next renewal.
ANNOUNCED_S, NOTICED_S = 1.0, 4.0
# Of the last records, for a worker: long enough for all to be sent.
WAITING_S = 5.0
# By then every timer of the pipeline has fired several times.
HEALING_S = 400.0
PRICE = Price("sim-1", (Rates(130_000_000, 70_000_000, 410_000_000),))


@dataclass(slots=True)
class Truth:
    began_at: float
    delivered: int = 0
    """events that its client got"""
    recorded: int | None = None
    """completion tokens of the record that its machine wrote; None: it never got to that"""
    machine_lost: bool = False
    """with its disk, before the ledger had the exchange"""
    leased: bool = False
    """it was on the board when its machine was lost, and the board has not forgotten it since"""


@dataclass(slots=True)
class Tally:
    """What happened, for the report."""

    exchanges: int = 0
    faults: int = 0
    kills: int = 0
    lost_machines: int = 0
    sleeps: int = 0
    worker_deaths: int = 0
    forgettings: int = 0
    unknown: int = 0
    """lost with their machine and its disk, and not on the board: it could not be reached in time, or forgot"""
    adjustments: int = 0
    swept: int = 0
    wrong: list[str] = field(default_factory=list)


class _Quiet:
    """An observer of any kind that ignores every call."""

    def __getattr__(self, _name: str) -> Any:
        return lambda *_arguments, **_more: None


QUIET: Any = _Quiet()


class World:
    """Run it with `live`, on a VirtualLoop."""

    def __init__(self, seed: int, folder: Path, *, machines: int = 3, workers: int = 2, share: float = 0.05) -> None:
        self.rng = Random(seed)
        self.folder = folder
        self.tally = Tally()
        self.truths: dict[str, Truth] = {}
        self.faults = Faults(self.rng, share)
        self.stream = Stream()
        self.board = FaultyLeases(self.faults)
        self.ledger = MemoryLedger()
        self.healing = False
        self.board_forgot_at = 0.0
        self.machines = [Machine(self, number) for number in range(machines)]
        self.workers = [Hand(self) for _ in range(workers)]
        self._ids = 0

    async def live(self, *, exchanges: int, rate: float) -> Tally:
        """So many exchanges at so many a second, with faults throughout; then heal, and compare."""
        loop = asyncio.get_running_loop()
        for machine in self.machines:
            machine.boot()
        for worker in self.workers:
            worker.hire()
        mischief = loop.create_task(self._mischief())
        while self.tally.exchanges < exchanges:
            awake = [machine for machine in self.machines if machine.awake]
            if awake:
                self.rng.choice(awake).admit()
            await asyncio.sleep(self.rng.expovariate(rate))
        mischief.cancel()
        await self._heal()
        self.tally.faults = self.faults.struck
        self._compare()
        for machine in self.machines:
            machine.die()
        for worker in self.workers:
            worker.fire()
        return self.tally

    def name(self) -> str:
        self._ids += 1
        return str(UUID(int=(0x019AA5E0 << 96) | (7 << 76) | (1 << 63) | self._ids))

    async def _mischief(self) -> None:
        """Every second or so something dies, sleeps or forgets."""
        rng = self.rng
        while True:
            await asyncio.sleep(rng.expovariate(1.0))
            await self._mishap(rng.choices(list(_MISHAPS), list(_MISHAPS.values()))[0])

    async def _mishap(self, what: str) -> None:
        rng, tally = self.rng, self.tally
        if what == "kill":
            awake = [machine for machine in self.machines if machine.awake]
            if awake:  # one that sleeps is left to sleep until it is taken for dead
                tally.kills += 1
                rng.choice(awake).reboot(rng.random() * 4)
        elif what == "burn":
            tally.lost_machines += 1
            longest_up = min(self.machines, key=lambda machine: machine.up_at if machine.awake else math.inf)
            longest_up.burn(rng.random() * 60)
        elif what == "sleep":
            tally.sleeps += 1
            rng.choice(self.machines).sleep(rng.choice((1.0, 10.0, 60.0, 120.0)))
        elif what == "worker":
            tally.worker_deaths += 1
            rng.choice(self.workers).restart(rng.random() * 3)
        elif what == "stream":
            tally.forgettings += 1
            rng.choice((self.stream.flush, lambda: self.stream.lose_last(rng.random())))()
        else:
            tally.forgettings += 1
            self.board.flush()
            self.board_forgot_at = asyncio.get_running_loop().time()
            for truth in self.truths.values():
                truth.leased = False

    async def _heal(self) -> None:
        """No more faults; whatever runs comes to its end."""
        self.healing, self.faults.share = True, 0.0
        # The last word: what is in the queue, settled by nobody, is lost; it must come again from the journals.
        for worker in self.workers:
            worker.fire()
        await asyncio.sleep(WAITING_S)
        self.stream.flush()
        for machine in self.machines:
            machine.wake()
        for worker in self.workers:
            worker.hire()
        await asyncio.sleep(HEALING_S)

    # -- the books -----------------------------------------------------------------------------------------------

    def _compare(self) -> None:
        books: dict[str, list[Any]] = {}
        for (exchange_id, _, _), line in self.ledger.entries.items():
            books.setdefault(exchange_id, []).append(line)
        self.tally.wrong += [f"from nowhere: {name}" for name in books.keys() - self.truths.keys()]
        for name, truth in self.truths.items():
            self.tally.wrong += [f"{name}: {what}" for what in self._wrong(truth, books.get(name, []))]
        balance = sum(line.charge_nusd or 0 for lines in books.values() for line in lines)
        if balance != sum(self.ledger.balance_nusd.values()):
            self.tally.wrong.append("a balance is not the sum of its entries")
        self.tally.wrong += [f"laid aside: {letter.reason}" for letter in self.ledger.letters]
        self.tally.wrong += [
            f"{machine.name} still has {machine.left} records" for machine in self.machines if machine.left
        ]
        if self.stream.messages:
            self.tally.wrong.append(f"{len(self.stream.messages)} messages are left in the queue")

    def _wrong(self, truth: Truth, lines: list[Any]) -> Iterator[str]:
        terminal = [line for line in lines if line.kind == "usage"]
        late = [line for line in lines if line.kind == "adjustment"]
        self.tally.adjustments += len(late)
        self.tally.swept += any(line.details.get("swept") for line in terminal)
        if not terminal:
            if truth.machine_lost and not truth.leased:
                self.tally.unknown += 1
            else:
                yield "lost"
            return
        if len(terminal) > 1 or sum(line.details["why"] == LATE for line in late) > 1:
            yield f"doubled: {len(terminal)} terminal entries, {len(late)} adjustments"
        tokens = sum(line.completion_tokens or 0 for line in lines)
        if truth.recorded is not None and not truth.machine_lost and tokens != truth.recorded:
            yield f"{tokens} tokens billed, {truth.recorded} recorded"
        if not truth.machine_lost and sum(line.events for line in lines) < truth.delivered:
            yield f"{truth.delivered} events delivered, fewer are billed"


# What befalls the world, and how often. Sweepers must live for longer than a lease, now and then, to see anything.
_MISHAPS = {"kill": 60, "burn": 4, "sleep": 12, "worker": 4, "stream": 8, "board": 1}

# Of an exchange: one event each.
STEP_S = 0.4


class Machine:
    """A proxy's node: its journal and progress table are files, and survive `die` as the page cache would."""

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._number = number
        self._lives = 0
        self.name = ""
        self.awake = False
        self._sleeping = False
        self.up_at = 0.0
        self._journal: Journal | None = None
        self._tasks: list[asyncio.Task[Any]] = []
        self._timers: set[asyncio.TimerHandle] = set()
        self._live: dict[str, Truth] = {}

    @property
    def left(self) -> int:
        """Records in the journal that the ledger has not confirmed."""
        return 0 if self._journal is None else self._journal.depth

    def boot(self) -> None:
        """Start, and close what the last run left open."""
        if self._journal is not None:
            return
        world, loop = self._world, asyncio.get_running_loop()
        self.name = f"machine-{self._number}-{self._lives}"
        folder = world.folder / self.name
        self._journal = journal = Journal.open(folder / "journal", bytes_max=1 << 30)
        self._table = ProgressTable.open(folder / "progress", slots=SLOTS, unix_time=loop.time)
        recovered = recover(journal.unfinished(), self._table, Estimator())
        for record in recovered:
            journal.finish(record)
        self._table.clear()
        node, epoch = journal.node.node_id, journal.node.epoch
        backlog_to = (epoch << 40) + len(recovered)
        gate = self._gate = asyncio.Event()
        gate.set()
        in_thread = Behind(SimpleNamespace(call=unavailable_ledger(world.faults)), gate).call
        self._keeper = LeaseKeeper(
            Behind(world.board, gate), self._table, node=node, epoch=epoch,
            caught_up=lambda: not [one for one in journal.pending(1) if one.seq <= backlog_to], observer=QUIET,
        )  # fmt: skip
        shipper = Shipper(
            journal, Behind(MemoryQueue(world.stream, world.faults, consumer=node), gate), world.ledger, node=node,
            observer=QUIET, monotonic=loop.time, in_thread=in_thread, on_sent=self._sent,
        )  # fmt: skip
        self._tasks = [loop.create_task(self._keeper.run()), loop.create_task(shipper.run())]
        self.up_at = loop.time()
        self.awake = True

    def admit(self) -> None:
        """One exchange begins, and goes on by itself."""
        world, loop = self._world, asyncio.get_running_loop()
        assert self._journal is not None
        if len(self._live) >= SLOTS:
            return
        name = world.name()
        slot = self._table.claim(name)
        opened = Opened(
            exchange_id=name, key_id="key-1", key_alias="sim", provider="sim", model="m", upstream_model="m",
            endpoint="/v1/chat/completions", streamed=True, started_at=loop.time(), price=PRICE, cost=None,
            prompt_tokens_estimate=10, completion_tokens_max=None, slot=slot.index,
        )  # fmt: skip
        self._journal.begin(opened)
        self._keeper.opened(opened)
        truth = world.truths[name] = self._live[name] = Truth(loop.time())
        world.tally.exchanges += 1
        self._later(world.rng.random() * STEP_S, opened, slot, truth, world.rng.choice((0, 1, 2, 5, 12, 60)))

    def _later(self, after_s: float, opened: Opened, slot: Slot, truth: Truth, left: int) -> None:
        handle: asyncio.TimerHandle

        def step() -> None:
            self._timers.discard(handle)
            self._step(opened, slot, truth, left)

        handle = asyncio.get_running_loop().call_later(after_s, step)
        self._timers.add(handle)

    def _step(self, opened: Opened, slot: Slot, truth: Truth, left: int) -> None:
        if self._sleeping:  # SIGSTOP: its clients get nothing either
            self._later(1.0, opened, slot, truth, left)
        elif left and not self._world.healing:
            slot.deliver(truth.delivered + 1, 280 * (truth.delivered + 1))
            truth.delivered += 1
            slot.note(Evidence(text_events=truth.delivered, chars_latin=5 * truth.delivered), None, truth.delivered)
            self._later(STEP_S, opened, slot, truth, left - 1)
        else:
            self._finish(opened, slot, truth)

    def _finish(self, opened: Opened, slot: Slot, truth: Truth) -> None:
        assert self._journal is not None
        tokens = 1 + truth.delivered + self._world.rng.randrange(5)
        usage = Usage(10, 0, tokens, None, 10 + tokens)
        record = UsageRecord(
            opened=opened, outcome=Outcome.SERVED, reading=Reading(usage, UsageSource.REPORTED),
            bills=BillableParts.EVERYTHING, events=truth.delivered, bytes=280 * truth.delivered, duration_ms=1.0,
        )  # fmt: skip
        self._journal.finish(record)
        slot.release()
        truth.recorded = tokens
        del self._live[opened.exchange_id]

    def _sent(self, exchanges: Mapping[int, str | None]) -> None:
        for exchange_id in filter(None, exchanges.values()):
            self._keeper.ended(exchange_id)

    # -- what befalls it -----------------------------------------------------------------------------------------

    def die(self) -> None:
        """kill -9: memory is gone, files stay."""
        self.awake = self._sleeping = False
        for task in self._tasks:
            task.cancel()
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._live.clear()
        if self._journal is not None:
            self._journal.close()
            self._journal = None
            self._table.close()

    def reboot(self, after_s: float) -> None:
        """Die, and start again on the same files."""
        self.die()
        asyncio.get_running_loop().call_later(after_s, self.boot)

    def burn(self, after_s: float) -> None:
        """Gone for good, its disk too; another machine takes its place."""
        world = self._world
        if self._journal is None:
            self._journal = Journal.open(world.folder / self.name / "journal", bytes_max=1 << 30)
        now = asyncio.get_running_loop().time()
        announced = world.board.announced(self._journal.node.node_id)
        pending = [one.exchange_id or "" for one in self._journal.pending(1_000_000)]
        for name in [*pending, *(opened.exchange_id for opened in self._journal.unfinished())]:
            truth = world.truths[name]
            truth.machine_lost, truth.leased = True, name in announced
            known_s = now - max(truth.began_at, self.up_at, world.board_forgot_at + NOTICED_S)
            if (
                name in self._live
                and not (truth.leased or world.faults.share or self._sleeping)
                and known_s > ANNOUNCED_S
            ):
                world.tally.wrong.append(f"{name}: not on the board after {known_s:.1f} s")
        self.die()
        shutil.rmtree(world.folder / self.name)
        self._lives += 1
        asyncio.get_running_loop().call_later(after_s, self.boot)

    def sleep(self, for_s: float) -> None:
        """SIGSTOP, and SIGCONT later."""
        if self.awake:
            self._sleeping, self.awake = True, False
            self._gate.clear()
            asyncio.get_running_loop().call_later(for_s, self.wake)

    def wake(self) -> None:
        """It goes on as if nothing had been; one that is dead is started."""
        if self._journal is None:
            self.boot()
        elif self._sleeping:
            self._sleeping, self.awake = False, True
            self.up_at = asyncio.get_running_loop().time()
            self._gate.set()


class Behind:
    """A port as a machine sees it that may be asleep: then no call of it goes anywhere."""

    def __init__(self, port: Any, gate: asyncio.Event) -> None:
        self._port = port
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        work = getattr(self._port, name)

        async def through(*arguments: Any) -> Any:
            await self._gate.wait()
            return await work(*arguments)

        return through


class Hand:
    """A worker."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._names = 0
        self._tasks: list[asyncio.Task[Any]] = []
        self.working = False

    def hire(self) -> None:
        """Start, under a new name."""
        if self.working:
            return
        world, loop = self._world, asyncio.get_running_loop()
        self._names += 1
        queue = MemoryQueue(world.stream, world.faults, consumer=f"{id(self)}-{self._names}")
        in_thread = unavailable_ledger(world.faults)
        settler = Settler(queue, world.ledger, to_entry=entry, observer=QUIET)  # type: ignore[arg-type]

        async def settle(records: Sequence[UsageRecord]) -> None:
            await in_thread(world.ledger.settle, [Arrival(entry(record)) for record in records])

        sweeper = Sweeper(world.board, settle, Estimator(), lease_s=LEASE_S, monotonic=loop.time, observer=QUIET)
        self._tasks = [loop.create_task(settler.settle_with(in_thread)), loop.create_task(sweeper.run())]
        self.working = True

    def fire(self) -> None:
        """kill -9."""
        for task in self._tasks:
            task.cancel()
        self._tasks, self.working = [], False

    def restart(self, after_s: float) -> None:
        """Die; another takes the place."""
        self.fire()
        asyncio.get_running_loop().call_later(after_s, self.hire)
