"""Usage by dimension is the sum of the entries of the exchanges that have it, however far it is added up."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, delete, event, func, select, update

from proxy.billing.dimensions import OVERFLOW
from proxy.billing.entries import EntryKind, LedgerEntry
from proxy.ledger.amounts import SUMS
from proxy.ledger.dimensions import sums
from proxy.ledger.dimensions.sums import add_up, later_usage
from proxy.ledger.schema.tables import (
    dimension_clock,
    dimension_daily,
    exchange_dimensions,
    ledger_clock,
    ledger_entries,
)
from proxy.reconciliation.check_dimensions import dimensions_add_up
from proxy.reconciliation.integrity import CheckScope
from proxy.storage.database import LedgerUnavailable, reading, writing
from tests.ledger.entries import a_store, an_entry, arriving, emptied
from tests.support.examples import examples
from tests.support.ledgers import on_both_databases

pytestmark = pytest.mark.io

DAY_S = 86_400
MIDNIGHT = datetime(2026, 11, 1, tzinfo=UTC).timestamp()
MONEY = {"charged_nusd": "charge_nusd", "cost_nusd": "cost_nusd"}

Usage = dict[tuple[Any, ...], tuple[int, ...]]


def used(number: int, kind: str = EntryKind.USAGE, seq: int = 0, /, **dimensions: str) -> LedgerEntry:
    """An entry of one of three days and two keys."""
    return an_entry(
        number, kind=kind, seq=seq, key_id=f"key-{number % 2}", started_at=MIDNIGHT + number % 3 * DAY_S,
        details={"dimensions": dimensions} if dimensions else {},
    )  # fmt: skip


def expected(entries: Iterable[LedgerEntry]) -> Usage:
    """A plain sum: each entry counts under the dimensions of its exchange's terminal entry."""
    every = list(entries)
    named = {
        one.exchange_id: one.details.get("dimensions", {}) for one in every if one.kind == EntryKind.USAGE
    }  # fmt: skip
    usage: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0] * len(SUMS))
    for one in every:
        if one.kind == EntryKind.CREDIT:
            continue
        for dimension, value_id in named.get(one.exchange_id, {}).items():
            day = datetime.fromtimestamp(one.started_at, UTC).date()
            sums_ = usage[dimension, day, value_id, one.key_id, one.model]
            for place, name in enumerate(SUMS):
                sums_[place] += 1 if name == "entries" else getattr(one, MONEY.get(name, name)) or 0
    return {key: tuple(sums_) for key, sums_ in usage.items()}


def stored(engine: Engine, *, with_later: bool = True) -> Usage:
    """What a reader sees."""
    usage: dict[tuple[Any, ...], list[int]] = {}
    with reading(engine) as connection:
        rows = [tuple(row) for row in connection.execute(select(dimension_daily))]
        if with_later:
            rows += [tuple(row) for query in later_usage(connection) for row in connection.execute(query)]
    for dimension, day, *rest in rows:
        key = (dimension, day if isinstance(day, date) else date.fromisoformat(day), *rest[:3])
        sums_ = usage.setdefault(key, [0] * len(SUMS))
        for place, value in enumerate(rest[3:]):
            sums_[place] += int(value)
    return {key: tuple(sums_) for key, sums_ in usage.items()}


def add_all(engine: Engine) -> None:
    while add_up(engine):
        pass


def differences(engine: Engine, since: float | None = None) -> list[dict[str, Any]]:
    """What reconcile finds."""
    with reading(engine) as connection:
        return dimensions_add_up(connection, CheckScope(time.time(), since, 0.0)).examples


LINE = st.tuples(
    st.integers(0, 5),
    st.sampled_from([EntryKind.ADJUSTMENT, EntryKind.ATTEMPT, EntryKind.CREDIT]),
    st.dictionaries(
        st.sampled_from(["end_user", "session", "tag:team"]), st.sampled_from(["v_1", "v_2", OVERFLOW]), max_size=3
    ),
    st.one_of(st.none(), st.integers(-(10**6), 10**15)),
    st.integers(0, 2),
)
STEPS = st.lists(st.lists(LINE, min_size=1, max_size=4), max_size=6)


def lines_of(step: list[Any], before: list[LedgerEntry]) -> Iterator[LedgerEntry]:
    """The entries of a step: the first one of an exchange is its terminal one, a top-up has its own exchange."""
    seen = {entry.exchange_id for entry in before}
    for place, (number, kind, dimensions, charge, day) in enumerate(step, len(before)):
        is_credit = kind == EntryKind.CREDIT
        exchange = an_entry(100 + place if is_credit else number).exchange_id
        kind_now = kind if is_credit or exchange in seen else EntryKind.USAGE
        yield an_entry(
            exchange=exchange, kind=kind_now, seq=place, charge_nusd=charge,
            cost_nusd=charge and -charge // 7, started_at=MIDNIGHT + day * DAY_S - 1e-6,
            details={"dimensions": dimensions},
        )  # fmt: skip
        seen.add(exchange)


@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, added=st.sets(st.integers(0, 5)), entries_max=st.integers(1, 5))
def test_usage_is_the_sum_of_the_entries(
    engine: Engine, steps: list[list[Any]], added: set[int], entries_max: int
) -> None:
    """Whenever it is added up. Other entries of an exchange come with its terminal one, or later."""
    emptied(engine)
    store, entries = a_store(engine), list[LedgerEntry]()
    for place, step in enumerate(steps):
        batch = list(lines_of(step, entries))
        store.settle(arriving(*batch))
        entries += batch
        if place in added:
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(sums, "ENTRIES_MAX", entries_max)
                add_up(engine)
        assert stored(engine) == expected(entries)
        assert differences(engine) == []
    add_all(engine)
    assert stored(engine, with_later=False) == expected(entries)
    assert differences(engine) == differences(engine, MIDNIGHT) == []


@on_both_databases
def test_an_adjustment_counts_under_the_dimensions_of_its_exchange(engine: Engine) -> None:
    """Whether it is settled with the terminal entry or later, and added up with it or later."""
    store = a_store(engine)
    first = [used(0, end_user="v_1", session="v_2"), used(1), used(0, EntryKind.ATTEMPT, 1)]
    later = [used(0, EntryKind.ADJUSTMENT, 2), used(1, EntryKind.ADJUSTMENT, 1)]
    store.settle(arriving(*first))
    add_all(engine)
    assert stored(engine, with_later=False) == expected(first)
    store.settle(arriving(*later))
    assert stored(engine) == expected([*first, *later])
    add_all(engine)
    assert stored(engine, with_later=False) == expected([*first, *later])
    (at_once,) = (key for key in stored(engine) if key[0] == "end_user")
    assert stored(engine)[at_once][SUMS.index("entries")] == 3
    assert not add_up(engine)


@on_both_databases
def test_any_number_may_add_up_at_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "ENTRIES_MAX", 2)
    store, entries = a_store(engine), [used(number, end_user=f"v_{number % 2}") for number in range(20)]
    for entry in entries:
        store.settle(arriving(entry))
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: add_up(engine), range(60)))
    add_all(engine)
    assert stored(engine, with_later=False) == expected(entries)


def test_a_step_that_is_cut_off_is_done_again_as_a_whole(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each of its statements, the process dies."""
    entries = [used(number, session=f"v_{number}") for number in range(5)]
    a_store(engine).settle(arriving(*entries))
    for table in (exchange_dimensions, dimension_daily, dimension_clock):

        def die(_c: Any, _k: Any, statement: str, *_: Any, last: str = table.name) -> None:
            if statement.startswith((f"INSERT INTO {last} ", f"UPDATE {last} ")):
                raise KeyboardInterrupt

        event.listen(engine, "after_cursor_execute", die)
        with pytest.raises(KeyboardInterrupt):
            add_up(engine)
        event.remove(engine, "after_cursor_execute", die)
        assert stored(engine, with_later=False) == {}
        assert stored(engine) == expected(entries)
    add_all(engine)
    assert stored(engine, with_later=False) == expected(entries)


def test_entries_of_another_origin_stop_nothing(engine: Engine) -> None:
    odd = (
        "text", 7, None, [], ["v_1"], {}, {"end_user": None}, {"end_user": ["x"]}, {"end_user": "v" * 65},
        {"x" * 65: "v"},
    )  # fmt: skip
    entries = [
        an_entry(number, details={"dimensions": one, "usage": {"dimensions": {"end_user": "v_9"}}})
        for number, one in enumerate(odd)
    ]
    a_store(engine).settle(arriving(*entries, used(20, run="v_1")))
    assert not add_up(engine)
    usage = stored(engine, with_later=False)
    assert {key[2] for key in usage if key[0] == "run"} == {"v_1"}
    assert "v_9" not in {key[2] for key in usage}
    assert differences(engine) == []


def test_without_its_clock_it_says_so(engine: Engine) -> None:
    with writing(engine) as connection:
        connection.execute(delete(dimension_clock))
    with reading(engine) as connection, pytest.raises(LedgerUnavailable, match="dimension_clock"):
        list(later_usage(connection))


def test_what_was_changed_by_hand_is_found(engine: Engine) -> None:
    a_store(engine).settle(arriving(*(used(number, end_user=f"v_{number}") for number in range(4))))
    add_all(engine)
    with reading(engine) as connection:
        settled_at = connection.execute(select(func.min(ledger_clock.c.settled_at))).scalar_one()
    daily, pair = dimension_daily.c, exchange_dimensions.c
    changes = (
        update(dimension_daily).where(daily.value_id == "v_1").values(charged_nusd=daily.charged_nusd + 1),
        update(dimension_daily).where(daily.value_id == "v_1").values(prompt_tokens=7),
        delete(dimension_daily).where(daily.value_id == "v_1"),
        delete(exchange_dimensions).where(pair.value_id == "v_1"),
        update(exchange_dimensions).where(pair.value_id == "v_1").values(value_id="v_other"),
    )
    for change in changes:
        assert differences(engine) == differences(engine, MIDNIGHT) == []
        with engine.connect() as connection, connection.begin() as transaction:
            connection.execute(change)
            for since in (None, MIDNIGHT):
                found = str(dimensions_add_up(connection, CheckScope(time.time(), since, 0.0)).examples)
                assert "v_1" in found
                assert "v_2" not in found
            transaction.rollback()
    assert differences(engine, settled_at + 2 * DAY_S) == []


def test_entries_stay_as_they_are(engine: Engine) -> None:
    a_store(engine).settle(arriving(used(1, end_user="v_1")))
    with reading(engine) as connection:
        before = connection.execute(select(ledger_entries)).all()
    add_all(engine)
    with reading(engine) as connection:
        assert connection.execute(select(ledger_entries)).all() == before
