"""The whole pipeline between a relay and a ledger, in one process and on real servers: a journal that fills at some 300
exchanges a second, the shipper, the leases, the queue, a settler, a sweeper. Faults strike its servers meanwhile.

Law: what each exchange truly was is written down here, by nobody else; nothing here dies, so each is in the ledger
once, with its own numbers, and never as somebody else settled it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from sqlalchemy import Engine, select

from proxy.billing.record import BillableParts, Opened, Outcome, Price, Rates, UsageRecord
from proxy.billing.settlement import content_hash, entry
from proxy.delivery.leases import ANNOUNCE_S, RENEW_S, LeaseKeeper
from proxy.delivery.redis_leases import RedisLeases
from proxy.delivery.redis_queue import RedisQueue
from proxy.delivery.shipper import Shipper
from proxy.delivery.sweeper import Sweeper
from proxy.foundation.ids import exchange_id
from proxy.foundation.tasks import Tasks
from proxy.journal.journal import Journal
from proxy.journal.progress import ProgressTable, Slot
from proxy.ledger.schema.tables import ledger_entries
from proxy.ledger.settling.settler import Settler
from proxy.ledger.settling.store import Arrival, LedgerStore
from proxy.metering.estimator.estimate import Estimator
from proxy.metering.usage import Evidence, Reading, Usage, UsageSource
from proxy.storage.database import open_engine, reading
from proxy.storage.redis_client import QueueUnavailable, open_redis
from tests.distributed.books import wrong_books
from tests.support import waiting
from tests.support.examples import SEED

# How long anything may take that takes milliseconds.
PATIENCE_S = 20.0
# Exchanges a second: of `make faults`, and of the short forms in `make test`.
RATE, SHORT_RATE = 300, 60
TICK_S = 0.01
SLOTS = 4096
# Shorter than in real life, and longer than Redis stands still here for and the keeper then takes to come back.
LEASE_S = 10.0
# Whatever was lost is found, sent again and settled by then.
HEALING_S = 90.0
PRICE = Price("plant-1", (Rates(130_000_000, 70_000_000, 410_000_000),))
KEYS = 7
MODEL = "m"
until = partial(waiting.until, within_s=PATIENCE_S, poll_s=0.005)


class CountingObserver:
    def __init__(self) -> None:
        self.failures: Counter[str] = Counter()
        """by the name of the error"""
        self.said: Counter[str] = Counter()
        self.swept_nodes = 0
        self.away = 0
        """outages that the shipper has seen begin and not end"""
        self.bugs: list[str] = []

    def failed(self, error: Exception) -> None:
        """Somebody could not do his work, and will try again."""
        self.failures[str(error)[:60]] += 1
        if not isinstance(error, OSError):
            self.bugs.append(f"{type(error).__name__}: {error}")

    def swept(self, _node: str, _records: Sequence[UsageRecord]) -> None:
        """Nobody is dead here."""
        self.swept_nodes += 1

    def sent(self, records: int, *, again: int) -> None:
        self.said["sent"] += records
        self.said["sent again"] += again

    def __getattr__(self, name: str) -> Any:
        def seen(*_arguments: Any, **_more: Any) -> None:
            self.said[name] += 1

        return seen

    @asynccontextmanager
    async def met(self, *words: str) -> AsyncIterator[None]:
        """What is done within is met by somebody before this ends: a failure with one of the words, or any."""

        def met() -> int:
            return sum(count for said, count in self.failures.items() if not words or any(w in said for w in words))

        before = met()
        yield
        try:
            await until(lambda: met() > before)
        except TimeoutError:
            raise AssertionError(f"nobody has met {words}: {self.failures}") from None


class _Shipping(CountingObserver):
    """The same book, as the shipper writes it: it says a failure once per outage."""

    def __init__(self, seen: CountingObserver) -> None:
        self.__dict__ = seen.__dict__

    def failed(self, error: Exception) -> None:
        super().failed(error)
        self.away += 1

    def healed(self, _error: Exception) -> None:
        self.away -= 1


class Plant:
    """`async with plant(...)`: it runs within."""

    def __init__(self, folder: Path, rng: Random, seen: CountingObserver, rate: int = RATE) -> None:
        self.rng = rng
        self._rate = rate
        self.seen = seen
        self.truths: dict[str, int] = {}
        """exchange → its completion tokens"""
        self.journal = Journal.open(folder / "journal", bytes_max=1 << 30)
        self.table = ProgressTable.open(folder / "progress", slots=SLOTS, unix_time=time.time)
        self.poisoned = 0
        self.live = 0
        self.closed = False
        self._loading = True
        self._keeper: LeaseKeeper | None = None

    def announce(self, keeper: LeaseKeeper) -> None:
        self._keeper = keeper

    async def load(self) -> None:
        """Exchanges begin, and end by themselves, most of them soon."""
        owed = 0.0
        while self._loading:
            owed += self._rate * TICK_S
            while owed >= 1 and self.live < SLOTS // 2:
                owed -= 1
                self.begin()
            owed = min(owed, self._rate)
            await asyncio.sleep(TICK_S)

    async def unload(self) -> None:
        """No more; those that are live come to their end."""
        self._loading = False
        while self.live:
            await asyncio.sleep(TICK_S)

    def begin(self, model: str = MODEL) -> None:
        """One more. Those of another model are to be laid aside."""
        self.poisoned += model != MODEL
        name = exchange_id()
        slot = self.table.claim(name)
        opened = Opened(
            exchange_id=name, key_id=f"key-{self.rng.randrange(KEYS)}", key_alias="plant", provider="p", model=model,
            upstream_model=model, endpoint="/v1/chat/completions", streamed=True, started_at=time.time(), price=PRICE,
            cost=PRICE, prompt_tokens_estimate=10, completion_tokens_max=None, slot=slot.index,
        )  # fmt: skip
        self.journal.begin(opened)
        if self._keeper is not None:
            self._keeper.opened(opened)
        self.live += 1
        lasts_s = self.rng.choice((0.0, 0.02, 0.1, 0.1, 0.5, 3.0))
        asyncio.get_running_loop().call_later(lasts_s, self._end, opened, slot)

    def _end(self, opened: Opened, slot: Slot) -> None:
        if self.closed:
            return
        tokens = 1 + self.rng.randrange(1000)
        slot.deliver(tokens, 280 * tokens)
        slot.note(Evidence(text_events=tokens, chars_latin=4 * tokens), None, tokens)
        usage = Usage(11, 3, tokens, None, 11 + tokens)
        assert self.journal.finish(
            UsageRecord(
                opened=opened, outcome=Outcome.SERVED, reading=Reading(usage, UsageSource.REPORTED),
                bills=BillableParts.EVERYTHING, events=tokens, bytes=280 * tokens, duration_ms=1.0,
            )
        )  # fmt: skip
        slot.release()
        if opened.model == MODEL:
            self.truths[opened.exchange_id] = tokens
        self.live -= 1

    def sent(self, exchanges: Mapping[int, str | None]) -> None:
        """The records of these exchanges, by seq, are in the queue."""
        assert self._keeper is not None
        for one in exchanges.values():
            assert one is not None
            self._keeper.ended(one)

    def wrong_in(self, ledger_url: str) -> list[str]:
        engine = open_engine(ledger_url)
        try:
            return self.wrong(engine)
        finally:
            engine.dispose()

    def wrong(self, engine: Engine) -> list[str]:
        """What the ledger says otherwise than it was. Empty: nothing."""
        columns = ledger_entries.c
        with reading(engine) as connection:
            rows = connection.execute(
                select(columns.exchange_id, columns.kind, columns.completion_tokens, columns.outcome)
            )
            found = {(row.exchange_id, row.kind): (row.completion_tokens, row.outcome) for row in rows}
        expected = {(name, "usage"): (tokens, "served") for name, tokens in self.truths.items()}
        return [
            *[f"lost: {one}" for one in list(expected.keys() - found.keys())[:5]],
            *[f"from nowhere: {one} {found[one]}" for one in list(found.keys() - expected.keys())[:5]],
            *[
                f"{one}: {found[one]} is not {expected[one]}"
                for one in expected
                if found.get(one, expected[one]) != expected[one]
            ][:5],
            *wrong_books(engine, dead_letters=self.poisoned),
            *self.seen.bugs[:5],
            *([f"{self.seen.swept_nodes} living nodes were swept"] if self.seen.swept_nodes else []),
        ]


@asynccontextmanager
async def plant(
    folder: Path,
    rng: Random,
    *,
    redis_url: str,
    ledger_url: str,
    settling: bool = True,
    lease_s: float = LEASE_S,
    renew_s: float = RENEW_S,
    rate: int = RATE,
) -> AsyncIterator[Plant]:
    """One that runs. `settling`: with a settler and a sweeper, or the machine alone. Whoever wants to compare calls
    `heal` before the end."""
    seen: Any = CountingObserver()
    made = Plant(folder, rng, seen, rate)
    node = made.journal.node.node_id
    ours, theirs = open_redis(redis_url), open_redis(redis_url)
    engines = [open_engine(ledger_url) for _ in range(2)]
    judge, store = (LedgerStore(one, content_hash=content_hash, clock=time.time) for one in engines)
    threads = [ThreadPoolExecutor(1) for _ in range(2)]
    loop, tasks = asyncio.get_running_loop(), Tasks()

    def asking(work: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        return loop.run_in_executor(threads[0], work, *arguments)

    async def sweep(records: Sequence[UsageRecord]) -> None:
        await loop.run_in_executor(threads[1], store.settle, [Arrival(entry(record)) for record in records])

    keeper = LeaseKeeper(
        RedisLeases(ours),
        made.table,
        node=node,
        epoch=made.journal.node.epoch,
        caught_up=lambda: True,
        observer=seen,
        renew_s=renew_s,
        announce_s=min(renew_s, ANNOUNCE_S),
    )
    made.announce(keeper)
    shipping: Any = _Shipping(seen)
    shipper = Shipper(
        made.journal, RedisQueue(ours, consumer="none"), judge, node=node, observer=shipping,
        monotonic=time.monotonic, in_thread=asking, on_sent=made.sent,
    )  # fmt: skip
    work: list[Any] = [keeper.run(), shipper.run(), made.load()]
    if settling:
        queue = RedisQueue(theirs, consumer="settler")
        sweeper = Sweeper(
            RedisLeases(theirs), sweep, Estimator(), lease_s=lease_s, monotonic=time.monotonic, observer=seen
        )
        work += [Settler(queue, store, to_entry=entry, observer=seen).run(), sweeper.run()]
    for number, one in enumerate(work):
        tasks.start(one, name=f"plant-{number}")
    try:
        yield made
    finally:
        made.closed = True
        await tasks.stop()
        for client in (ours, theirs):
            await client.aclose()
        for thread in threads:
            thread.shutdown()
        for engine in engines:
            engine.dispose()
        made.journal.close()
        made.table.close()


async def heal(made: Plant, *, redis_url: str) -> list[str]:
    """Let everything come to its end, with no more faults. What is left over. Empty: nothing."""
    await made.unload()
    redis = open_redis(redis_url)
    queue = RedisQueue(redis, consumer="looker")
    board = RedisLeases(redis)
    node = made.journal.node.node_id

    async def left() -> list[str]:
        try:
            there = {
                "records in the journal": made.journal.depth,
                "messages in the stream": await queue.depth(),
                "leases on the board": len(await board.ids(node)),
            }
        except QueueUnavailable as error:
            return [str(error)]
        return [f"{count} {what} are left" for what, count in there.items() if count]

    until = time.monotonic() + HEALING_S
    while (found := await left()) and time.monotonic() < until:
        await asyncio.sleep(0.1)
    await redis.aclose()
    return found


Fault = Callable[[Plant], Awaitable[None]]


async def strike(
    what: str, kinds: Sequence[Fault], each: int, folder: Path, *, redis_url: str, ledger_url: str, looking_url: str
) -> list[str]:
    """Every kind of fault `each` times, in any order. What is wrong, as `looking_url` shows the ledger; the figures are
    printed where each is struck more than once."""
    began, rng = time.monotonic(), Random(SEED)
    faults = [*kinds] * each
    rng.shuffle(faults)
    rate = RATE if each > 1 else SHORT_RATE
    async with plant(folder, rng, redis_url=redis_url, ledger_url=ledger_url, rate=rate) as made:
        for fault in faults:
            await asyncio.sleep(rng.uniform(0.05, 0.4))
            await fault(made)
        wrong = await heal(made, redis_url=redis_url) + made.wrong_in(looking_url)
    if each > 1:
        names = ", ".join(fault.__name__ for fault in kinds)
        print(
            f"\nseed {SEED}\n{what}: {len(faults)} faults of {len(kinds)} kinds ({names}), {len(wrong)} violations"
            f" ({len(made.truths)} exchanges, {made.seen.failures.total()} failed tries,"
            f" {made.seen.said['sent again']} sent again; {time.monotonic() - began:.0f} s)"
        )
    return wrong
