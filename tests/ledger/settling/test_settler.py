"""Nothing is lost, nothing stops, nobody is held up."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace
from sqlalchemy import Engine, select

from proxy.billing.entries import LedgerEntry
from proxy.billing.record import COUNT_MAX, Price, Rates, UsageRecord, validate_record
from proxy.journal.frames import decode_record, record_payload
from proxy.ledger.schema.tables import dead_letters, ledger_entries
from proxy.ledger.settling import spend
from proxy.ledger.settling.dead_letters import DeadLetters
from proxy.ledger.settling.settler import DELIVERIES_MAX, Settler
from proxy.ledger.settling.store import Arrival, DeadLetter, LedgerStore, Settled
from proxy.metering.usage import TOKENS_MAX
from proxy.reports.entry_reader import EntryFilter, EntryReader
from proxy.storage.database import LedgerUnavailable, reading
from tests.ledger.entries import a_record, an_entry, content_hash, count, number_of
from tests.ledger.settling.sources import Kept, SettlerRecorder, Source, settle_all, to_entry
from tests.support.ledgers import on_both_databases
from tests.support.waiting import beside, until

pytestmark = pytest.mark.io


class Hooked(LedgerStore):
    """Calls `hook` before each settlement."""

    def __init__(self, engine: Engine, hook: Callable[[Sequence[Arrival]], None]) -> None:
        super().__init__(engine, content_hash=content_hash, clock=time.time)
        self._hook = hook

    def settle(self, arrivals: Sequence[Arrival], letters: Sequence[DeadLetter] = ()) -> Settled:
        self._hook(arrivals)
        return super().settle(arrivals, letters)


def flaky(engine: Engine, trouble: list[Exception]) -> LedgerStore:
    """Raises what `trouble` holds, one each time, before it has done its work."""

    def fail(_: Sequence[Arrival]) -> None:
        if trouble:
            raise trouble.pop(0)

    return Hooked(engine, fail)


async def test_what_is_pending_gets_into_the_ledger_in_shared_transactions(engine: Engine, store: LedgerStore) -> None:
    source = Source.of(range(600))
    recorder = await settle_all(source, store)
    assert count(engine, ledger_entries) == recorder.inserted == 600
    assert (len(recorder.settled), source.largest) == (3, 250)
    assert source.acknowledged == list(range(600))
    assert {seq for seq, _ in store.receipts("node", 0, 1000)} == set(range(600))


async def test_a_queue_that_is_away_is_waited_for(engine: Engine, store: LedgerStore) -> None:
    source = Source.of([1])
    source.trouble = [OSError("away"), OSError("still away")]
    recorder = await settle_all(source, store)
    assert [str(error) for error in recorder.failures] == ["still away", "away"]


async def test_a_batch_that_takes_long_is_held(engine: Engine) -> None:
    source = Source.of([1, 2])
    await settle_all(source, flaky(engine, [LedgerUnavailable("gone")] * 2), extend_claim_s=0.01)
    assert source.held[:2] == [1, 2]


async def test_a_record_that_trips_a_bug_in_writing_is_isolated(engine: Engine) -> None:
    def trip(arrivals: Sequence[Arrival]) -> None:
        if any(arrival.journal_seq == 2 for arrival in arrivals):
            raise RuntimeError("a bug of ours")

    store = Hooked(engine, trip)
    await settle_all(Source.of(range(5)), store)
    assert count(engine, ledger_entries) == 4
    assert letters(engine) == ["failed: RuntimeError"]
    assert {seq for seq, _ in store.receipts("node", 0, 9)} == {0, 1, 2, 3, 4}


async def test_a_record_that_was_delivered_too_often_is_not_tried(engine: Engine, store: LedgerStore) -> None:
    source = Source.of([1], deliveries=DELIVERIES_MAX)
    source.add([2], deliveries=DELIVERIES_MAX + 1)
    recorder = await settle_all(source, store)
    assert (recorder.inserted, recorder.unreadable) == (1, 1)
    assert letters(engine) == ["delivered 5 times and never settled"]
    await settle_all(Source.of([1], deliveries=DELIVERIES_MAX + 1), store)  # settled; no worker lived to say so
    assert letters(engine) == ["delivered 5 times and never settled"]


def letters(engine: Engine) -> list[str]:
    """Their reasons."""
    with reading(engine) as connection:
        return list(connection.execute(select(dead_letters.c.reason)).scalars())


async def test_an_unreadable_record_becomes_a_dead_letter_and_its_neighbours_settle(
    engine: Engine, store: LedgerStore
) -> None:
    def trips_on_two(record: UsageRecord) -> LedgerEntry:
        return to_entry(record) if number_of(record) != 2 else an_entry(1 // (number_of(record) - 2))

    source = Source.of(range(5), unreadable=[3])
    recorder = await settle_all(source, store, trips_on_two)
    assert (recorder.inserted, recorder.unreadable) == (3, 2)
    assert count(engine, dead_letters) == 2
    assert source.acknowledged == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("harm", ["newer", "invalid", "odd"])
async def test_the_letter_of_a_record_names_its_exchange(engine: Engine, store: LedgerStore, harm: str) -> None:
    """Else the hold of the exchange would wait for ever: neither drop nor retry could let it go."""
    record = json.loads(record_payload(a_record(7)))
    exchange_id = record["opened"]["exchange_id"]
    record |= {"newer": {"version": 99}, "invalid": {"events": -1}, "odd": {"outcome": ["x"]}}[harm]
    payload = json.dumps(record).encode()

    class Harmed(Kept):
        @property
        def payload(self) -> bytes:
            return payload

        @property
        def record(self) -> UsageRecord:
            return decode_record(payload)

    await settle_all(Source({7: Harmed(7, None)}), store)
    with reading(engine) as connection:
        assert connection.execute(select(dead_letters.c.exchange_id)).scalars().all() == [exchange_id]
    assert spend.settled(engine, [exchange_id]) == set(), "an operator has to decide"
    letters_of = DeadLetters(engine, store, to_entry=lambda _: pytest.fail("it is dropped"))
    letters_of.drop(letters_of.open()[0], "lost", time.time())
    assert spend.settled(engine, [exchange_id]) == {exchange_id}, "its hold is let go of"


async def test_an_absent_database_is_waited_for(engine: Engine) -> None:
    trouble: list[Exception] = [LedgerUnavailable("gone"), LedgerUnavailable("gone"), RuntimeError("a bug of ours")]
    source, recorder = Source.of(range(3)), SettlerRecorder()
    async with beside(Settler(source, flaky(engine, [*trouble]), to_entry=to_entry, observer=recorder).run()):
        await until(lambda: len(recorder.failures) == 2)
        assert source.acknowledged == []
        await until(lambda: not source.waiting)
    assert recorder.failures == trouble
    assert recorder.inserted == count(engine, ledger_entries) == 3


@on_both_databases
async def test_a_commit_whose_answer_was_lost_is_not_doubled(engine: Engine, store: LedgerStore) -> None:
    trouble = [LedgerUnavailable("connection lost at COMMIT")]

    def commit_and_fail(arrivals: Sequence[Arrival]) -> None:
        if trouble:
            store.settle(arrivals)
            raise trouble.pop()

    await settle_all(Source.of(range(3)), Hooked(engine, commit_and_fail))
    assert len(list(EntryReader(engine, EntryFilter()).new_entries())) == 3


async def test_close_settles_the_rest(engine: Engine, store: LedgerStore) -> None:
    source = Source()
    settler = Settler(source, store, to_entry=to_entry, observer=SettlerRecorder())
    async with beside(settler.run()):
        await asyncio.sleep(0.05)
        source.add(range(700))
        assert await settler.close(5.0)
    assert source.waiting == {}
    assert count(engine, ledger_entries) == 700


async def test_close_gives_up_in_time_and_loses_nothing(engine: Engine) -> None:
    source, store = Source.of([1]), flaky(engine, [LedgerUnavailable("gone")] * 1_000)
    settler = Settler(source, store, to_entry=to_entry, observer=SettlerRecorder())
    async with beside(settler.run()):
        began = time.perf_counter()
        assert not await settler.close(0.2)
        assert time.perf_counter() - began < 1
    assert list(source.waiting) == [1]


async def test_the_event_loop_turns_while_the_database_is_slow(engine: Engine) -> None:
    source, store = Source.of([1]), Hooked(engine, lambda _: time.sleep(0.3))
    turns = 0
    async with beside(Settler(source, store, to_entry=to_entry, observer=SettlerRecorder()).run()):
        while source.waiting:
            await asyncio.sleep(0.005)
            turns += 1
    assert turns > 20


def with_usage(**counts: int) -> UsageRecord:
    record = a_record(1)
    return replace(record, reading=replace(record.reading, usage=replace(record.reading.usage, **counts)))


def opened_with(**fields: object) -> UsageRecord:
    record = a_record(1)
    return replace(record, opened=replace(record.opened, **fields))


CREDITING = Price("v1", (Rates(input=-(10**9), cached_input=0, output=0),))
PRICED = Price("v1", (Rates(input=10**9, cached_input=0, output=0),))


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (with_usage(prompt_tokens=-1), "invalid: one of its counts is -1, not 0 to 1e+09"),
        (with_usage(completion_tokens=COUNT_MAX + 1), "invalid: one of its counts is 1000000001, not 0 to 1e+09"),
        (with_usage(searches=-5), "invalid: one of its counts is -5, not 0 to 1e+09"),
        (replace(a_record(1), events=-1), "invalid: one of its counts is -1, not 0 to 1e+09"),
        (replace(a_record(1), duration_ms=-0.5), "invalid: one of its counts is -0.5, not 0 to 1e+09"),
        (replace(a_record(1), kind="credit"), "invalid: kind is not usage"),
        (opened_with(started_at=1e18), "invalid: one of its times is 1e+18, not 0 to 7.25812e+09"),
        (opened_with(price=CREDITING), "invalid: one of its prices is -1000000000, not 0 to 1e+15"),
        (
            opened_with(cost=replace(PRICED, service_tiers={"flex": CREDITING.tiers})),
            "invalid: one of its prices is -1000000000, not 0 to 1e+15",
        ),
    ],
    ids=["negative", "absurd", "searches", "events", "duration", "kind", "time", "price", "service tier"],
)
async def test_a_record_with_numbers_that_no_proxy_writes_is_a_dead_letter(
    engine: Engine, store: LedgerStore, record: UsageRecord, reason: str
) -> None:
    recorder = await settle_all(Source({1: Kept(1, record), 2: Kept(2, a_record(2))}), store)
    assert (recorder.inserted, recorder.unreadable) == (1, 1)
    assert letters(engine) == [reason]


@pytest.mark.parametrize("record", [with_usage(prompt_tokens=COUNT_MAX), with_usage(cached_tokens=500), a_record(1)])
def test_what_a_proxy_can_write_is_valid(record: UsageRecord) -> None:
    validate_record(record)
    most = 128 * TOKENS_MAX  # n × the limit, both by the client
    validate_record(replace(record, opened=replace(record.opened, price=PRICED, cost=None, completion_tokens_max=most)))
