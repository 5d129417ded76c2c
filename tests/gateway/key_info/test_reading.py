"""What a key has left, from the states of its counters and from the ledger, where the counters do not say it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import Engine

from proxy.billing.keys import ApiKey
from proxy.billing.limits import Limits, Scope, credit_counter_id
from proxy.billing.money import Nusd
from proxy.billing.pricing.rules import Payer
from proxy.billing.reservation import CounterState
from proxy.foundation.ids import exchange_id
from proxy.gateway.key_info import openrouter, own_format
from proxy.gateway.key_info.reading import KeyBudgets, KeyReads
from proxy.keys.access import KeyAccess
from proxy.ledger.accounts.credit import add_credit
from proxy.ledger.settling.store import LedgerStore
from proxy.reports.exchanges import read_own_exchange
from tests.ledger.entries import a_ledger
from tests.ledger.grants.book import Book
from tests.ledger.priced_entries import a_real_entry, a_real_store, settle

pytestmark = pytest.mark.io

NOW = 1_793_000_000.0
HOUR_S = 3_600.0
KEY = ApiKey("key-1", "anna", b"", "", None, NOW - 2.5 * HOUR_S, None, None, 1)
PAYER = Payer("key-1", "anna", "proj_1", "kites", "org_1", "acme")
SPENT = [a_real_entry(number, started_at=NOW - number * HOUR_S) for number in range(3)]
CHARGES = [entry.charge_nusd or 0 for entry in SPENT]


@dataclass(slots=True)
class Counters:
    """A budget store, as a test says it."""

    states: list[CounterState] = field(default_factory=list)

    def time(self) -> float:
        return NOW

    async def counter_states(self, counter_ids: Collection[str]) -> list[CounterState]:
        return [one for one in self.states if one.counter_id in counter_ids]


@dataclass(slots=True)
class Reading:
    """Reads of one ledger."""

    reads: KeyReads
    counters: Counters
    ledger: LedgerStore

    async def of(self, limits: Limits) -> KeyBudgets:
        access = KeyAccess(False, (Scope("key-1", limits, KEY.created_at),), PAYER, False)
        return await self.reads.budgets(KEY, access, access.scopes, openrouter.since(NOW))


@pytest.fixture
async def reading(engine: Engine) -> AsyncIterator[Reading]:
    counters = Counters()
    reads = KeyReads(engine, counters)  # type: ignore[arg-type]
    yield Reading(reads, counters, a_real_store(engine))
    await reads.close()


async def test_a_counter_of_an_earlier_window_does_not_count(reading: Reading) -> None:
    settle(reading.reads.engine, *SPENT)
    hourly = Limits(budget_nusd=Nusd(10**9), budget_window="1h")
    began = KEY.created_at + 2 * HOUR_S
    reading.counters.states = [CounterState("key-1", began - HOUR_S, 777, 40, 1, 0)]
    (now,) = (await reading.of(hourly)).budgets
    assert (now.since, now.until, now.spent_nusd, now.reserved_nusd) == (began, began + HOUR_S, CHARGES[0], 40)
    assert now.left_nusd == 10**9 - CHARGES[0] - 40

    reading.counters.states = [CounterState("key-1", began, 5_000, 40, 1, 0)]
    (now,) = (await reading.of(hourly)).budgets
    assert now.spent_nusd == 5_000, "as admission counts"


async def test_credit_before_the_first_request(reading: Reading) -> None:
    settle(reading.reads.engine, *SPENT)
    add_credit(reading.ledger, exchange_id=exchange_id(), scope_id="key-1", name="anna", nusd=Nusd(10**9), why="paid")
    found = await reading.of(Limits(prepaid=True))
    (balance,) = found.budgets
    assert (balance.window, balance.limit_nusd, balance.spent_nusd) == ("credit", 10**9, sum(CHARGES))
    assert found.spent_nusd[0] == sum(CHARGES), "a payment is no spend"
    reading.counters.states = [CounterState(credit_counter_id("key-1"), 0.0, sum(CHARGES) - 10**9, 9, 1, 0)]
    (same,) = (await reading.of(Limits(prepaid=True))).budgets
    assert same.left_nusd == balance.left_nusd - 9


async def test_grants_that_can_be_used(tmp_path: Path) -> None:
    engine = a_ledger(tmp_path)
    book = Book(engine)
    book.grant(30, "trial", "org_1", lasts_s=60)
    book.grant(20, "next", "org_1", begins_at=book.now + 5)
    book.wait(1)
    book.charge(30, key_id="key-2")
    book.grant(10)
    book.wait(1)
    book.charge(4, at=book.now)
    reads = KeyReads(engine, Counters())  # type: ignore[arg-type]
    found = await Reading(reads, Counters(), book.ledger).of(Limits())
    await reads.close()
    engine.dispose()
    shown = own_format.me(KEY, KeyAccess(False, (), PAYER, False), found)["grants"]
    assert [(one["name"], one["usd"], one["left_usd"]) for one in shown] == [
        ("trial", "0.00000003", "0.00000003"), ("trial", "0.00000001", "0.000000006"),
    ]  # fmt: skip


def test_weeks_begin_on_monday() -> None:
    def at(month: int, day: int, hour: int = 0) -> float:
        return datetime(2026, month, day, hour, tzinfo=UTC).timestamp()

    assert openrouter.since(at(11, 1, 23)) == (0.0, at(11, 1), at(10, 26), at(11, 1))
    assert openrouter.since(at(11, 3)) == (0.0, at(11, 3), at(11, 2), at(11, 1))


def test_an_exchange_is_found_by_either_id_by_its_key_only(engine: Engine) -> None:
    mine = [a_real_entry(number, started_at=NOW + number, provider_response_id=f"r-{number}") for number in range(4)]
    other = a_real_entry(9, key="key-2", provider_response_id="r-9")
    settle(engine, *mine, other)
    for named in (mine[1].exchange_id, mine[1].provider_response_id):
        assert named is not None
        found = read_own_exchange(engine, "key-1", named)
        assert found is not None
        assert found.terminal.exchange_id == mine[1].exchange_id
    assert other.provider_response_id is not None
    for named in (other.exchange_id, other.provider_response_id, "r-none"):
        assert read_own_exchange(engine, "key-1", named) is None
