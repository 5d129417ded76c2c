"""Estimates that are settled afterwards: each once, whoever asks, in any order, whatever dies."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from sqlalchemy import Engine, update

from proxy.billing.adjustment import BY_PROVIDER
from proxy.billing.correction import CorrectionRequest, ExchangeTotals, amounts_of, exchange_totals
from proxy.billing.details import EntryDetails
from proxy.billing.entries import LedgerEntry
from proxy.billing.later import answered, unanswered
from proxy.billing.pricing.prices import pinned_or_none
from proxy.billing.record import Outcome
from proxy.billing.settlement import content_hash
from proxy.ledger.schema.tables import ledger_clock
from proxy.ledger.settling import later
from proxy.ledger.settling.corrections import Corrections
from proxy.ledger.settling.history import ledger_state, went_back
from proxy.ledger.settling.later import Question, questions, settle_later
from proxy.ledger.settling.settling import Settling
from proxy.ledger.settling.store import LedgerStore
from proxy.metering.usage import Usage
from proxy.reconciliation.estimates import estimates
from proxy.storage.database import writing
from tests.billing.estimates import ESTIMATE, estimated, metered
from tests.ledger.entries import an_entry, arriving, emptied, stored
from tests.ledger.priced_entries import COST, DEARER, FIRST, PRICE, a_real_entry, a_real_store, assert_right, settle
from tests.support.ledgers import on_both_databases

pytestmark = pytest.mark.io

LISTS = (PRICE, COST)
EVER: dict[str, Any] = {"since": 0.0, "until": 2e9}


def an_estimate(number: int, *, started_at: float = 1_793_000_000.25, **more: Any) -> LedgerEntry:
    like = an_entry(number)
    return replace(
        estimated(Outcome.CLIENT_LEFT, LISTS), exchange_id=like.exchange_id, entry_id=like.entry_id,
        started_at=started_at, **more,
    )  # fmt: skip


def told(number: int) -> Usage:
    return Usage(1000 + number, 400, 250 + number, 50, 1250 + 2 * number)


def by_provider(number: int) -> Callable[[ExchangeTotals], LedgerEntry]:
    return lambda now: answered(now, metered(told(number)), lambda *_: LISTS, {})


def everything(engine: Engine) -> tuple[list[Question], list[str]]:
    """What is asked, and what is settled, since ever."""
    asked, done, cursor, more = [], [], (time.time() - 60.0, ""), True
    while more:
        found = questions(engine, cursor)
        asked += found.asked
        done += found.settled
        cursor, more = found.cursor, found.more
    return asked, done


def of(engine: Engine, number: int) -> list[LedgerEntry]:
    return [one for one in stored(engine) if one.exchange_id == an_entry(number).exchange_id]


@on_both_databases
def test_it_is_read_page_by_page_and_settled_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(later, "ROWS_MAX", 2)
    settle(engine, *(an_estimate(number) for number in range(5)), a_real_entry(5))
    asked, done = everything(engine)
    assert sorted(one.exchange_id for one in asked) == [an_entry(number).exchange_id for number in range(5)]
    assert {(one.provider, one.how, one.response_id, one.node) for one in asked} == {
        ("electron", "generation", "gen-1", "node-a")
    }
    assert done == []
    store = a_real_store(engine)
    for _ in range(2):
        for number in (3, 1):
            settle_later(store, an_entry(number).exchange_id, by_provider(number))
    settle_later(store, an_entry(0).exchange_id, unanswered)
    assert settle_later(store, an_entry(0).exchange_id, by_provider(0)) is None
    assert settle_later(store, an_entry(99).exchange_id, by_provider(0)) is None, "archived"
    assert everything(engine)[1] == [an_entry(number).exchange_id for number in (3, 1, 0)]
    assert [len(of(engine, number)) for number in range(6)] == [2, 2, 1, 2, 1, 1]
    assert exchange_totals(of(engine, 3)).usage == told(3)
    assert_right(engine)
    (model,) = estimates(engine)
    assert (model.provider, model.reported, model.unanswered) == ("electron", 2, 1)
    assert (model.completion.estimated, model.completion.reported) == (100, 504)
    assert model.completion.mean == pytest.approx(((251 - 50) / 251 + (253 - 50) / 253) / 2)
    assert model.charge_nusd == sum(one.charge_nusd or 0 for one in stored(engine) if one.kind == "adjustment")
    assert estimates(engine, time.time() + 60) == []


def swept(entry: LedgerEntry) -> LedgerEntry:
    """Its entry by another proxy, from announced progress."""
    details = {name: value for name, value in entry.details.items() if name != "asked_later"} | {"swept": True}
    return replace(entry, outcome="crashed", events=3, details=details, provider_response_id=None)


@on_both_databases
def test_a_record_that_came_late_is_asked_about_too(engine: Engine) -> None:
    """Its adjustment has the question; what the exchange costs is that of the record, by its own end."""
    failed = replace(an_estimate(0), outcome=str(Outcome.UPSTREAM_FAILED))
    settle(engine, swept(failed), node=None)
    assert everything(engine)[0] == []
    a_real_store(engine).settle(arriving(failed, node="node-a", seq=FIRST))
    (question,) = everything(engine)[0]
    assert (question.how, question.response_id, question.node) == ("generation", "gen-1", "node-a")
    settle_later(a_real_store(engine), question.exchange_id, by_provider(0))
    asked, done = everything(engine)
    assert (len(asked), done) == (1, [question.exchange_id])
    now = exchange_totals(of(engine, 0))
    assert (now.usage, now.statement.outcome, now.terminal.outcome) == (told(0), "upstream_failed", "crashed")
    assert EntryDetails.of(of(engine, 0)[-1].details).situation == "failed_reported"
    assert_right(engine)
    assert estimates(engine) == [], "its estimate is in two entries"


def test_an_answer_that_may_change_settles_nothing(engine: Engine) -> None:
    settle(engine, an_estimate(0))
    store, exchange_id = a_real_store(engine), an_entry(0).exchange_id
    found = settle_later(store, exchange_id, lambda _: None)
    assert found == (exchange_totals(of(engine, 0)), None)
    assert len(of(engine, 0)) == 1
    assert settle_later(store, exchange_id, by_provider(0)) is not None


def test_counts_that_an_operator_had_set_are_not_compared_with_the_report(engine: Engine) -> None:
    settle(engine, an_estimate(0))
    store = a_real_store(engine)
    Corrections(engine, store).adjust(an_entry(0).exchange_id, CorrectionRequest(completion_tokens=0), "goodwill")
    settle_later(store, an_entry(0).exchange_id, by_provider(0))
    assert estimates(engine) == []
    assert_right(engine)


def test_the_questions_say_which_ledger_they_are_of(engine: Engine) -> None:
    """A process notices by it that commits are lost, maybe the adjustments to exchanges that it does not ask about."""
    settle(engine, an_estimate(0))
    before = questions(engine, (0.0, "")).state
    assert before == ledger_state(engine)
    with writing(engine) as connection:
        connection.execute(update(ledger_clock).values(settled_at=time.time() - 3_600))
    assert went_back(before, questions(engine, (0.0, "")).state)


def test_an_empty_or_a_restored_ledger_has_no_questions(engine: Engine) -> None:
    now = time.time()
    assert questions(engine, (now, "")).more is False
    assert questions(engine, (now, "")).cursor[0] == now, "its clock is behind"


class Died(BaseException):
    """kill -9."""


class Mortal(LedgerStore):
    """Its process dies before or after the next commit."""

    dies = ""

    @contextmanager
    def settling(self) -> Iterator[Settling]:
        dies, self.dies = self.dies, ""
        with super().settling() as transaction:
            yield transaction
            if dies == "before":
                raise Died
        if dies == "after":
            raise Died


class Asking:
    """One proxy that asks: what it knows is lost when it dies."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.store = Mortal(engine, content_hash=content_hash, clock=time.time)
        self.start()

    def start(self) -> None:
        self.cursor, self.pending = (time.time() - 60.0, ""), set[str]()

    def read(self) -> None:
        found = questions(self.engine, self.cursor)
        self.pending |= {one.exchange_id for one in found.asked}
        self.pending -= set(found.settled)
        self.cursor = found.cursor

    def settle(self, number: int, *, answer: bool, dies: str = "") -> None:
        """What was asked before is settled, even if another process has done so meanwhile."""
        exchange_id = an_entry(number).exchange_id
        if exchange_id in self.pending:
            self.store.dies = dies
            try:
                settle_later(self.store, exchange_id, by_provider(number) if answer else unanswered)
            except Died:
                self.start()
            self.pending.discard(exchange_id)


NUMBERS = st.integers(0, 2)
STEPS = st.one_of(
    st.tuples(st.just("settle"), st.integers(0, 1), NUMBERS, st.booleans(), st.sampled_from(["", "before", "after"])),
    st.tuples(st.just("read"), st.integers(0, 1)),
    st.tuples(st.just("adjust"), NUMBERS),
    st.tuples(st.just("rerate"), st.sampled_from([PRICE, DEARER])),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=8)
@given(st.lists(STEPS, max_size=14))
def test_no_count_is_lost_and_none_is_added_twice(engine: Engine, steps: list[Any]) -> None:
    """Two proxies on one ledger, answers in any order, deaths between the steps, an operator at work."""
    emptied(engine)
    settle(engine, *(an_estimate(number) for number in range(3)))
    corrections, both = Corrections(engine, a_real_store(engine)), (Asking(engine), Asking(engine))
    by_hand = set()
    for what, *how in steps:
        if what == "read":
            both[how[0]].read()
        elif what == "settle":
            both[how[0]].settle(how[1], answer=how[2], dies=how[3])
        elif what == "adjust":
            by_hand.add(how[0])
            corrections.adjust(an_entry(how[0]).exchange_id, CorrectionRequest(charge_nusd=7), "goodwill")
        else:
            corrections.rerate("electron", lambda *_, price=how[0]: (price, COST), **EVER)
    for one in both:
        one.start()
        one.read()
    for one in both:  # the second asks for what the first has just settled
        for number in range(3):
            one.settle(number, answer=True)
        assert one.pending == set()
    for number in range(3):
        entries = of(engine, number)
        (line,) = [entry for entry in entries if EntryDetails.of(entry.details).by == BY_PROVIDER]
        now = exchange_totals(entries)
        expected = told(number) if line.usage_source == "provider_later" else ESTIMATE.usage
        assert now.usage == expected
        if number in by_hand:
            assert now.charge_nusd == 7
        else:
            assert amounts_of(now, pinned_or_none(now.price), pinned_or_none(now.cost)) == (
                now.charge_nusd,
                now.cost_nusd,
            )
    assert_right(engine)
