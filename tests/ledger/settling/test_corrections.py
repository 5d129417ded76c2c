"""Corrections on a live ledger: one more entry, sums that follow, and nobody's work undone by another's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import Engine, update

from proxy.billing.byok import byok_lists
from proxy.billing.correction import CorrectionError, CorrectionRequest, exchange_totals, rerated
from proxy.billing.entries import LedgerEntry
from proxy.billing.pricing.prices import charge
from proxy.billing.record import BillableParts, Price
from proxy.billing.settlement import entry
from proxy.ledger.schema.tables import ledger_entries
from proxy.ledger.settling import corrections
from proxy.ledger.settling.corrections import CorrectionResult, Corrections, Prices, RerateResult
from proxy.metering.usage import Usage
from proxy.storage.database import open_engine, writing
from tests.ledger.entries import stored
from tests.ledger.priced_entries import (
    COST,
    DEARER,
    FIRST,
    PRICE,
    a_real_entry,
    a_real_record,
    a_real_store,
    assert_right,
    settle,
)
from tests.support.ledgers import on_both_databases

pytestmark = pytest.mark.io

EVER: dict[str, Any] = {"since": 0.0, "until": 2e9}


@pytest.fixture
def at_work(engine: Engine) -> Corrections:
    return Corrections(engine, a_real_store(engine))


def at(price: Price | None, cost: Price | None = None) -> Prices:
    """The same for every exchange."""
    return lambda *_: (price, cost)


def of(engine: Engine, number: int) -> list[LedgerEntry]:
    """The entries of an exchange, in the order in which they were settled."""
    return [one for one in stored(engine) if one.exchange_id == a_real_entry(number).exchange_id]


def test_an_adjustment_is_added_and_the_sums_follow(engine: Engine, at_work: Corrections) -> None:
    settle(engine, a_real_entry(0), a_real_entry(1))
    line = at_work.adjust(a_real_entry(0).exchange_id, CorrectionRequest(completion_tokens=20), "miscounted")
    assert of(engine, 0) == [a_real_entry(0), line]
    assert of(engine, 1) == [a_real_entry(1)]
    assert exchange_totals(of(engine, 0)).charge_nusd == charge(PRICE, Usage(100, 33, 20), BillableParts.EVERYTHING)
    assert_right(engine)


def test_a_second_one_sees_the_first_and_one_that_changes_nothing_writes_nothing(
    engine: Engine, at_work: Corrections
) -> None:
    settle(engine, a_real_entry(0))
    name = a_real_entry(0).exchange_id
    first = at_work.adjust(name, CorrectionRequest(charge_nusd=1_000), "goodwill")
    assert at_work.adjust(name, CorrectionRequest(charge_nusd=1_000), "goodwill again") is None
    second = at_work.adjust(name, CorrectionRequest(charge_nusd=1_500), "half of it")
    assert first is not None
    assert second is not None
    assert (first.seq, second.seq, second.charge_nusd) == (1, 2, 500)
    assert of(engine, 0) == [a_real_entry(0), first, second]
    assert_right(engine)


def test_a_dry_run_says_what_it_would_write_and_does_not(engine: Engine, at_work: Corrections) -> None:
    settle(engine, a_real_entry(0))
    name = a_real_entry(0).exchange_id
    tried = at_work.adjust(name, CorrectionRequest(charge_nusd=0), "goodwill", dry_run=True)
    assert of(engine, 0) == [a_real_entry(0)]
    assert at_work.adjust(name, CorrectionRequest(charge_nusd=0), "goodwill") == tried


def test_an_exchange_that_is_not_there_is_refused(engine: Engine, at_work: Corrections) -> None:
    for dry_run in (True, False):
        with pytest.raises(CorrectionError, match="no such exchange"):
            at_work.adjust("nobody's", CorrectionRequest(charge_nusd=0), "goodwill", dry_run=dry_run)
    assert stored(engine) == []


@on_both_databases
def test_four_people_at_once_end_with_what_the_last_one_said(engine: Engine, ledger_url: str) -> None:
    """Each has a connection of its own; the differences of all add up."""
    settle(engine, a_real_entry(0))
    begin = Barrier(4)
    written: list[LedgerEntry] = []

    def adjust(number: int) -> None:
        own = open_engine(ledger_url)
        begin.wait()
        for step in range(5):
            wanted = CorrectionRequest(charge_nusd=1_000 * number + step, completion_tokens=number)
            line = Corrections(own, a_real_store(own)).adjust(a_real_entry(0).exchange_id, wanted, f"said {number}")
            assert line is not None
            written.append(line)
        own.dispose()

    with ThreadPoolExecutor(4) as people:
        list(people.map(adjust, range(10, 14)))
    entries = of(engine, 0)
    assert len(written) == 20
    assert sorted(written, key=lambda one: one.seq) == entries[1:]
    assert [one.seq for one in entries[1:]] == list(range(1, 21))
    last = entries[-1].details["sets"]
    now = exchange_totals(entries)
    assert now.usage.completion_tokens == last["completion_tokens"]
    assert now.charge_nusd == int(float(last["charge_usd"]) * 1e9 + 0.5)
    assert_right(engine)


def test_rerating_gives_every_exchange_of_the_model_the_money_of_the_price_once(
    engine: Engine, at_work: Corrections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corrections, "BATCH_EXCHANGES", 3)
    settle(engine, *(a_real_entry(n, key=f"key-{n % 2}") for n in range(7)), a_real_entry(7, model="other"))
    seen: list[int] = []
    planned = at_work.rerate("tera-large", at(DEARER), **EVER, dry_run=True)
    assert len(stored(engine)) == 8
    done = at_work.rerate("tera-large", at(DEARER), **EVER, progress=lambda so_far: seen.append(so_far.exchanges))
    assert done == planned
    assert seen == [3, 6, 7]
    once = sum(a_real_entry(n).charge_nusd or 0 for n in range(7))
    assert (done.exchanges, done.total) == (7, CorrectionResult(7, once, 0))  # twice the price
    assert {key: change.adjusted for (key, _), change in done.by_key.items()} == {"key-0": 4, "key-1": 3}
    assert sum(change.charge_nusd for change in done.by_key.values()) == once
    for number in range(7):
        assert exchange_totals(of(engine, number)).charge_nusd == 2 * (a_real_entry(number).charge_nusd or 0)
    assert of(engine, 7) == [a_real_entry(7, model="other")]
    assert_right(engine)
    assert at_work.rerate("tera-large", at(DEARER), **EVER) == RerateResult(exchanges=7)
    assert len(stored(engine)) == 8 + 7


def test_rerating_there_and_back_is_as_before(engine: Engine, at_work: Corrections) -> None:
    settle(engine, *(a_real_entry(n) for n in range(3)))
    at_work.rerate("tera-large", at(DEARER, DEARER), **EVER)
    back = at_work.rerate("tera-large", at(PRICE, COST), **EVER)
    assert back.total.adjusted == 3
    for number in range(3):
        now, first = exchange_totals(of(engine, number)), a_real_entry(number)
        assert (now.charge_nusd, now.cost_nusd) == (first.charge_nusd, first.cost_nusd)
    assert_right(engine)


def test_only_what_began_in_the_time_is_rerated(engine: Engine, at_work: Corrections) -> None:
    settle(engine, *(a_real_entry(n, started_at=1_793_000_000.0 + n) for n in range(4)))
    done = at_work.rerate("tera-large", at(DEARER), since=1_793_000_001.0, until=1_793_000_003.0)
    assert done.exchanges == 2
    assert [len(of(engine, n)) for n in range(4)] == [1, 2, 2, 1]


def test_what_was_never_priced_gets_its_price(engine: Engine, at_work: Corrections) -> None:
    settle(engine, a_real_entry(0, price=None, cost=None))
    at_work.rerate("tera-large", at(PRICE, COST), **EVER)
    now = exchange_totals(of(engine, 0))
    assert (now.charge_nusd, now.cost_nusd) == (a_real_entry(0).charge_nusd, a_real_entry(0).cost_nusd)
    assert_right(engine)


def test_the_policy_of_each_exchange_is_kept(engine: Engine, at_work: Corrections) -> None:
    settle(engine, *(a_real_entry(n, bills=bills) for n, bills in enumerate(BillableParts)))
    at_work.rerate("tera-large", at(DEARER), **EVER)
    for number, bills in enumerate(BillableParts):
        entries = of(engine, number)
        assert exchange_totals(entries).charge_nusd == charge(DEARER, exchange_totals(entries).usage, bills)
    assert len(of(engine, list(BillableParts).index(BillableParts.NOTHING))) == 1
    assert_right(engine)


def test_money_that_a_person_set_stands(engine: Engine, at_work: Corrections) -> None:
    settle(engine, a_real_entry(0), a_real_entry(1))
    at_work.adjust(a_real_entry(0).exchange_id, CorrectionRequest(charge_nusd=0), "goodwill")
    done = at_work.rerate("tera-large", at(DEARER), **EVER)
    assert (done.by_hand, done.total.adjusted) == (1, 1)
    assert exchange_totals(of(engine, 0)).charge_nusd == 0


def test_rerating_keeps_the_terms_of_clients_own_credentials(engine: Engine, at_work: Corrections) -> None:
    for number, terms in enumerate(("nothing", "0.002", "50%")):
        price, cost = byok_lists(terms, PRICE, COST)
        record = a_real_record(number, price=price, cost=cost)
        settle(engine, entry(replace(record, opened=replace(record.opened, byok=terms))), seq=FIRST + number)
    before = [exchange_totals(of(engine, number)) for number in range(3)]
    assert (before[0].charge_nusd, before[1].charge_nusd) == (0, 2_000_000)
    at_work.rerate("tera-large", at(DEARER, DEARER), **EVER)
    after = [exchange_totals(of(engine, number)) for number in range(3)]
    assert (after[:2], after[2].charge_nusd) == (before[:2], 2 * (before[2].charge_nusd or 0))
    assert [one.cost_nusd for one in after] == [0, 0, 0]
    assert_right(engine)


def test_a_late_record_is_rerated_by_what_it_says(engine: Engine, at_work: Corrections) -> None:
    """A swept exchange whose node came back: tokens and policy are those of the late record."""
    swept = a_real_entry(0, usage=Usage(100, None, 3, None, 103), bills=BillableParts.OUTPUT, details={"swept": True})
    late = a_real_entry(0)
    settle(engine, swept, node=None)
    assert len(a_real_store(engine).settle([corrections.Arrival(late)]).adjusted) == 1
    at_work.rerate("tera-large", at(DEARER), **EVER)
    entries = of(engine, 0)
    assert [one.seq for one in entries] == [0, 1, 2]
    usage = a_real_record(0).reading.usage
    assert exchange_totals(entries).charge_nusd == charge(DEARER, usage, BillableParts.EVERYTHING)
    assert_right(engine)


def test_one_that_cannot_be_read_leaves_the_others_alone(engine: Engine, at_work: Corrections) -> None:
    settle(engine, a_real_entry(0), a_real_entry(1))
    with writing(engine) as connection:
        odd = update(ledger_entries).where(ledger_entries.c.exchange_id == a_real_entry(0).exchange_id)
        connection.execute(odd.values(details={"billed": "by the hour"}))
    done = at_work.rerate("tera-large", at(DEARER), **EVER)
    assert (done.exchanges, done.unreadable, done.total.adjusted) == (2, 1, 1)


@on_both_databases
def test_what_changes_between_the_look_and_the_lock_is_seen(
    engine: Engine, at_work: Corrections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A colleague rerates the same exchange after our look and before our lock."""
    settle(engine, a_real_entry(0), a_real_entry(1))
    colleague = Corrections(engine, a_real_store(engine))
    store = a_real_store(engine)
    settling = store.settling

    def after_the_colleague() -> Any:
        colleague.rerate("tera-large", at(DEARER), **EVER)
        return settling()

    monkeypatch.setattr(store, "settling", after_the_colleague)
    assert Corrections(engine, store).rerate("tera-large", at(DEARER), **EVER).total.adjusted == 0
    assert [len(of(engine, n)) for n in range(2)] == [2, 2]
    line = of(engine, 0)[1]
    assert line == rerated(exchange_totals([a_real_entry(0)]), DEARER, None)
    assert_right(engine)


@on_both_databases
def test_what_had_no_price_is_rated_once_by_any_number_of_processes(engine: Engine, ledger_url: str) -> None:
    """What has a charge is not looked at, and a cost that is known stays."""
    unpriced = [a_real_entry(n, price=None) for n in range(4)]
    settle(engine, *unpriced, a_real_entry(4), a_real_entry(5, price=None, cost=None))
    barrier = Barrier(3)

    def rate(_: int) -> int:
        total, after = CorrectionResult(), (0.0, "")
        barrier.wait()
        own = open_engine(ledger_url)
        try:
            corrections = Corrections(own, a_real_store(own), "prices.refresh")
            while after is not None:
                after = corrections.rate_unpriced(at(PRICE, DEARER), after, 2e9, total)
            return total.adjusted
        finally:
            own.dispose()

    with ThreadPoolExecutor(3) as threads:
        assert sum(threads.map(rate, range(3))) == 5
    for number in range(4):
        first, adjustment = of(engine, number)
        assert (first.charge_nusd, adjustment.charge_nusd) == (None, a_real_entry(number).charge_nusd)
        assert adjustment.cost_nusd in (0, None)
    assert [one.cost_nusd for one in of(engine, 5)] == [None, a_real_entry(5, price=DEARER).charge_nusd]
    assert len(of(engine, 4)) == 1
    assert_right(engine)
