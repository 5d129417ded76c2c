"""Sums in buckets of time, and exchanges page by page: what dashboards and the console ask of the ledger."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace as replace_filter
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import Engine, event

from proxy.billing.correction import CorrectionRequest as Correction
from proxy.billing.correction import corrected, exchange_totals
from proxy.billing.entries import LedgerEntry
from proxy.ledger.accounts.credit import credit_entry
from proxy.ledger.settling.store import Arrival
from proxy.reports import exchange_search
from proxy.reports.buckets import DAY_S
from proxy.reports.exchange_search import ExchangeOrder, read_exchanges
from proxy.reports.exchanges import read_exchange
from proxy.reports.totals import read_paid
from proxy.reports.usage import UsageFilter, id_from, read_usage
from proxy.storage.database import reading
from tests.ledger.entries import a_ledger, an_entry
from tests.ledger.priced_entries import a_real_entry, a_real_store, settle
from tests.support.ledgers import on_both_databases

pytestmark = pytest.mark.io

MIDNIGHT = 1_793_059_200


def began(at: float, number: int = 0, **differences: Any) -> LedgerEntry:
    """An exchange of that time, with an id of that time."""
    exchange_id = f"{id_from(at)}7{number:03x}-8000-{number:012x}"
    entry = an_entry(exchange=exchange_id, started_at=at, **differences)
    return replace(entry, entry_id=f"{exchange_id}/{entry.kind}/{entry.seq}")


ENTRIES = [
    began(MIDNIGHT - 1, 0, charge_nusd=1, cost_nusd=None),
    began(MIDNIGHT, 1, charge_nusd=10, cost_nusd=3, prompt_tokens=None),
    began(MIDNIGHT + 59.999, 2, charge_nusd=100, cost_nusd=30, model="small"),
    began(MIDNIGHT + 60, 3, charge_nusd=None, cost_nusd=300, key_id="key-2"),
    began(MIDNIGHT + DAY_S - 0.001, 4, charge_nusd=10_000, cost_nusd=3_000),
]


def charges(
    engine: Engine, bucket_s: int, rows_max: int = 100, **wanted: Any
) -> dict[tuple[Any, ...], tuple[int, int]]:
    """Bucket (from midnight) and groups → charge and requests."""
    asked = UsageFilter(begin=MIDNIGHT - DAY_S, end=MIDNIGHT + DAY_S, bucket_s=bucket_s, **wanted)
    sums, end = read_usage(engine, asked, rows_max)
    assert end == asked.end
    return {
        (one.begin - MIDNIGHT, *(name for name in (one.key_id, one.project_id, one.model) if name)): (
            one.charge_nusd,
            one.requests,
        )
        for one in sums
    }


@on_both_databases
def test_every_width_adds_up_the_same_entries(engine: Engine) -> None:
    settle(engine, *ENTRIES)
    assert charges(engine, DAY_S) == {(-DAY_S,): (1, 1), (0,): (10_110, 4)}
    assert charges(engine, 3_600) == {(-3_600,): (1, 1), (0,): (110, 3), (82_800,): (10_000, 1)}
    assert charges(engine, 60) == {(-60,): (1, 1), (0,): (110, 2), (60,): (0, 1), (DAY_S - 60,): (10_000, 1)}
    for width in (60, 3_600, DAY_S):
        by_model = charges(engine, width, by_model=True)
        assert sum((Counter({key[1]: both[0]}) for key, both in by_model.items()), Counter()) == {
            "tera-large": 10_011,
            "small": 100,
        }
        assert set(charges(engine, width, keys={"key-2"}, by_key=True).values()) == {(0, 1)}
        assert charges(engine, width, models={"small"}, by_key=True) == {(0, "key-1"): (100, 1)}
        assert charges(engine, width, projects={"nobody's"}) == {}


def test_corrections_and_attempts_are_no_requests_and_top_ups_are_no_usage(engine: Engine) -> None:
    first = replace(
        a_real_entry(0), **{name: getattr(ENTRIES[1], name) for name in ("exchange_id", "entry_id", "started_at")}
    )
    less = corrected(exchange_totals([first]), Correction(charge_nusd=0), "goodwill")
    assert less is not None
    credit = credit_entry(ENTRIES[2].exchange_id, "key-1", "anna", 5 * 10**9, "paid", MIDNIGHT + 5.0)
    vain = replace(
        first, kind="attempt", seq=1, entry_id="vain", charge_nusd=0, cost_nusd=None, prompt_tokens=None,
        cached_tokens=None, completion_tokens=None, reasoning_tokens=None, total_tokens=None,
    )  # fmt: skip
    a_real_store(engine).settle([Arrival(one) for one in (first, less, vain, credit)])
    found = read_exchange(engine, first.exchange_id)
    assert found is not None
    assert [one.kind for one in found.entries] == ["usage", "adjustment"]
    for width in (60, DAY_S):
        assert charges(engine, width) == {(0,): (0, 1)}
        assert charges(engine, width, by_key=True, by_model=True) == {(0, "key-1", "tera-large"): (0, 1)}


@on_both_databases
def test_an_unknown_amount_is_counted_and_is_not_0(engine: Engine) -> None:
    """Before: unknown costs were 0 in the sum, and so were the charges of exchanges without a price."""
    unknown = {"cost_nusd": None, "model": "small"}
    known, *lacking = (
        began(MIDNIGHT + number, number, **differences)
        for number, differences in enumerate([
            {"charge_nusd": 10, "cost_nusd": 3},
            {"charge_nusd": 100, **unknown},
            {"charge_nusd": 1_000, **unknown},
            {"charge_nusd": 10_000, **unknown},
            {"charge_nusd": None, **unknown},
            {"charge_nusd": None, "cost_nusd": 7},
        ])
    )  # fmt: skip
    set_ = {"kind": "adjustment", "seq": 1, "entry_id": "set"}
    learnt = replace(lacking[0], charge_nusd=None, cost_nusd=40, **set_)
    dearer = replace(lacking[1], charge_nusd=500, **set_ | {"entry_id": "dearer"})
    priced = replace(lacking[4], charge_nusd=9, cost_nusd=None, **set_ | {"entry_id": "priced"})
    in_vain = replace(known, kind="attempt", seq=1, entry_id="vain", charge_nusd=0, cost_nusd=None)
    a_real_store(engine).settle([Arrival(one) for one in (known, *lacking, learnt, dearer, priced, in_vain)])
    for width in (60, 3_600, DAY_S):
        asked = UsageFilter(begin=MIDNIGHT, end=MIDNIGHT + DAY_S, bucket_s=width)
        (all_of_them,), _ = read_usage(engine, asked, 9)
        by_model, _ = read_usage(engine, replace_filter(asked, by_model=True, by_key=True), 9)
        sums = {
            one.model: (one.cost_nusd, one.unpriced, one.unknown_cost, one.unknown_cost_charge_nusd)
            for one in (all_of_them, *by_model)
        }
        assert sums == {None: (50, 1, 3, 11_500), "small": (40, 1, 3, 11_500), "tera-large": (10, 0, 0, 0)}
        (own,), _ = read_usage(engine, replace_filter(asked, models={"tera-large"}, by_project=True), 9)
        assert (own.unpriced, own.unknown_cost) == (0, 0)


def test_of_too_many_groups_the_last_buckets_are_for_the_next_page(engine: Engine) -> None:
    settle(engine, *ENTRIES)
    for width, rows_max, upto in ((DAY_S, 2, MIDNIGHT), (60, 3, MIDNIGHT + 60), (60, 2, MIDNIGHT)):
        asked = UsageFilter(begin=MIDNIGHT - DAY_S, end=MIDNIGHT + DAY_S, bucket_s=width, by_model=True)
        sums, end = read_usage(engine, asked, rows_max)
        assert end == upto
        assert all(one.begin < upto for one in sums)


# -- exchanges ---------------------------------------------------------------------------------------------------


def pages(engine: Engine, limit: int = 2, **wanted: Any) -> list[int]:
    """The numbers of all exchanges of a list, read page by page."""
    numbers = {entry.exchange_id: number for number, entry in enumerate(ENTRIES)}
    after, listed = None, list[int]()
    while True:
        found, after = read_exchanges(engine, exchange_search.ExchangeFilter(after=after, **wanted), limit)
        listed += [numbers[one.terminal.exchange_id] for one in found]
        assert len(found) <= limit
        if after is None:
            return listed


@pytest.mark.parametrize("scanned_max", [2, 5_000])
def test_a_list_has_every_exchange_once_newest_first(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, scanned_max: int
) -> None:
    """Also where a page may look at no more than two entries."""
    monkeypatch.setattr(exchange_search, "SCANNED_MAX", scanned_max)
    settle(engine, *ENTRIES[:4], replace(ENTRIES[4], outcome="crashed", usage_source="estimated"))
    assert pages(engine) == [4, 3, 2, 1, 0]
    assert pages(engine, limit=1, key_id="key-1") == [4, 2, 1, 0]
    assert pages(engine, model="small") == [2]
    assert pages(engine, outcome="served") == [3, 2, 1, 0]
    assert pages(engine, usage_source="estimated", key_id="key-1") == [4]
    assert pages(engine, since=float(MIDNIGHT), until=MIDNIGHT + 60.0) == [2, 1]


def test_one_exchange_comes_with_its_corrections(engine: Engine) -> None:
    first = a_real_entry(0)
    more = corrected(exchange_totals([first]), Correction(completion_tokens=40), "counted again")
    assert more is not None
    settle(engine, first, more, a_real_entry(1), node=None)
    found = read_exchange(engine, first.exchange_id)
    assert found is not None
    assert found.entries == (first, more)
    assert found.settled_at[0] == found.settled_at[1]
    assert read_exchange(engine, "nobody's") is None


# -- what it costs -----------------------------------------------------------------------------------------------


def test_nothing_is_asked_of_the_whole_ledger(tmp_path: Path) -> None:
    """Every question goes by an index of what it asks for, and none reads all entries or all days."""
    engine = a_ledger(tmp_path)
    asked: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        asked.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", note)
    for width in (60, 3_600, DAY_S):
        for only in (
            {}, {"by_project": True}, {"keys": {"k"}}, {"models": {"m"}, "by_model": True}, {"by_dimension": "run"},
            {"dimensions": {"run": {"v_r"}}}, {"dimensions": {"run": {"v_r"}, "end_user": {"v_a"}}},
        ):  # fmt: skip
            read_usage(engine, UsageFilter(begin=MIDNIGHT, end=MIDNIGHT + DAY_S, bucket_s=width, **only), 9)  # type: ignore[arg-type]
    read_paid(engine, ["key-1", "proj-1"])
    read_exchange(engine, "x")
    for only in (
        {}, {"key_id": "k"}, {"model": "m"}, {"since": 5.0, "outcome": "served", "after": (9.0, "x")},
        {"dimensions": {"run": {"v_r"}}, "after": (9.0, "x")}, {"text": "chatcmpl-1"}, {"text": "01aa5a92-5f2f"},
        {"batch_id": "batch_1"}, {"project_id": "p", "provider": "x"}, {"order": ExchangeOrder.CHARGE},
    ):  # fmt: skip
        read_exchanges(engine, exchange_search.ExchangeFilter(**only), 9)  # type: ignore[arg-type]
    event.remove(engine, "before_cursor_execute", note)
    with reading(engine) as connection:
        plans = {
            step.detail
            for statement, parameters in asked
            if statement.startswith(("SELECT", "WITH"))
            for step in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
        }
    engine.dispose()
    of_responses = "ix_ledger_entries_provider_response_id"
    for index in ("ix_ledger_entries_others", "ix_ledger_entries_unknown_amount", of_responses):
        assert any(index in plan for plan in plans)
    # Without a filter the newest come from the end of the primary key, as many as a page looks at.
    newest = "SCAN ledger_entries USING INDEX sqlite_autoindex_ledger_entries_1"
    tables = ("ledger_clock", "account_clock", "dimension_clock", "archives", "periods", "CONSTANT ROW", "examined")
    few_rows = (*tables, "exchange", "by_value", "anon")
    few = (newest, *(f"SCAN {name}" for name in few_rows))
    assert [plan for plan in plans if plan.startswith("SCAN") and not plan.startswith(few)] == []
    # Not all exchanges of a dimension.
    assert [plan for plan in plans if "exchange_dimensions" in plan and plan.endswith("(dimension=?)")] == []
