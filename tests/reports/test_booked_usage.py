"""Usage as booked, by provider and by organization; the charges of periods: each is another sum of the same entries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as changed

from proxy.billing.entries import LedgerEntry
from proxy.billing.keys import DEFAULT_ORGANIZATION
from proxy.reports.buckets import DAY_S
from proxy.reports.change_reading import read_charges
from proxy.reports.usage import UsageFilter, id_from, read_usage
from proxy.reports.usage_change import explain_change, total_change
from tests.console.entries import YESTERDAY, rerated
from tests.console.entries import entry as a_console_entry
from tests.ledger.entries import add_up, an_entry
from tests.ledger.owners import ORGANIZATION, at
from tests.ledger.periods.books import DECEMBER, NOVEMBER, OCTOBER, Book, book
from tests.ledger.priced_entries import DEARER, settle
from tests.support.ledgers import on_both_databases

assert book  # a fixture

pytestmark = pytest.mark.io

MONTHS = OCTOBER, NOVEMBER, DECEMBER
UNKNOWN = "unpriced", "unknown_cost", "unknown_cost_charge_nusd"
ASKED = UsageFilter(begin=int(at("2026-10-01")), end=int(at("2027-01-01")), bucket_s=DAY_S, is_total=True)


def began(number: int, day: str, nusd: int, **differences: Any) -> LedgerEntry:
    moment = at(day)
    exchange = f"{id_from(moment)}7{number:03x}-8000-{number:012x}"
    return an_entry(exchange=exchange, started_at=moment, charge_nusd=nusd, cost_nusd=nusd // 2, **differences)


def adjusting(entry: LedgerEntry, nusd: int) -> LedgerEntry:
    more = {"kind": "adjustment", "seq": 1, "details": {"why": "goodwill"}}
    tokens = dict.fromkeys(("prompt_tokens", "cached_tokens", "completion_tokens", "total_tokens"))
    return changed(entry, entry_id=f"{entry.entry_id}-1", charge_nusd=nusd, cost_nusd=None, **more, **tokens)


@pytest.fixture
def filled(book: Book) -> Book:
    """Three months, with corrections in later months and usage that was settled after its month was closed."""
    entries = [
        began(1, "2026-10-20", 1_000), began(2, "2026-10-31T23:59:59", 20_000, provider="borealis"),
        began(3, "2026-11-02", 300_000, key_id="key-2", model="small"), began(4, "2026-10-30", 4_000_000),
    ]  # fmt: skip
    book.settle(entries[0], "2026-10-20")
    book.settle(entries[1], "2026-11-01T00:00:02")
    book.settle(entries[2], "2026-11-02")
    book.close(OCTOBER, "2026-11-03")
    book.settle(entries[3], "2026-11-05")
    book.settle(adjusting(entries[0], -400), "2026-11-20")
    book.settle(adjusting(entries[2], 7_000), "2026-12-02")
    book.close(NOVEMBER, "2026-12-03")
    book.settle(began(5, "2026-12-04", 50_000_000), "2026-12-04")
    add_up(book.engine)
    return book


def charge(book: Book, **wanted: Any) -> int:
    totals, _ = read_usage(book.engine, replace(ASKED, **wanted), 9_999)
    return sum(one.charge_nusd for one in totals)


def span(month: Any) -> dict[str, Any]:
    return {"begin": int(month.since), "end": int(month.until)}


@on_both_databases
def test_a_month_as_booked_is_its_statement(filled: Book) -> None:
    """Before: a correction counted on the day of its exchange only, so no month of the console was that of the bill."""
    of_statements = [
        (one := filled.statement(ORGANIZATION, month)).total.charge_nusd + one.adjusted_nusd for month in MONTHS
    ]
    assert of_statements == [21_000, 4_299_600, 50_007_000]
    assert [charge(filled, is_booked=True, **span(month)) for month in MONTHS] == of_statements
    assert [charge(filled, **span(month)) for month in MONTHS] == [4_020_600, 307_000, 50_000_000]
    for divided in ({"is_total": False}, {"is_total": False, "bucket_s": 3_600}, {"time_zone": "Asia/Kathmandu"}):
        for group in ({}, {"by_key": True}, {"by_model": True}, {"by_organization": True}, {"by_provider": True}):
            assert charge(filled, is_booked=True, **divided, **group) == sum(of_statements), (divided, group)
    days, _ = read_usage(filled.engine, replace(ASKED, is_booked=True, is_total=False), 99)
    by_day = {one.begin: (one.charge_nusd, one.requests) for one in days if one.charge_nusd or one.requests}
    assert by_day == {
        at("2026-10-20"): (1_000, 1), at("2026-10-31"): (20_000, 1), at("2026-11-02"): (300_000, 1),
        at("2026-11-05"): (4_000_000, 1), at("2026-11-20"): (-400, 0), at("2026-12-02"): (7_000, 0),
        at("2026-12-04"): (50_000_000, 1),
    }  # fmt: skip


def test_unknown_amounts_are_booked_with_their_entries(book: Book) -> None:
    """Before: a re-rate in November changed the margin of October's statements: it was left out of the charges of
    October, which do not have it. Late usage was unpriced in the month in which it began."""
    free, fixed, early = (
        changed(began(number, "2026-10-20", nusd), cost_nusd=None)
        for number, nusd in ((1, 1_000), (2, 20_000), (5, 5))
    )  # fmt: skip
    late = changed(began(3, "2026-10-21", 0), charge_nusd=None, cost_nusd=None)
    for one in (free, fixed, early):
        book.settle(one, "2026-10-20")
    book.settle(changed(adjusting(early, 7), cost_nusd=None), "2026-10-22")
    book.close(OCTOBER, "2026-11-03")
    book.settle(late, "2026-11-05")
    book.settle(adjusting(free, 300), "2026-11-20")
    book.settle(changed(adjusting(fixed, 0), cost_nusd=9), "2026-11-20")
    book.settle(began(4, "2026-11-21", 4_000_000), "2026-11-21")
    add_up(book.engine)

    def unknown(**wanted: Any) -> list[tuple[int, int, int]]:
        totals = [read_usage(book.engine, replace(ASKED, **span(month), **wanted), 9_999)[0] for month in MONTHS]
        return [
            tuple(sum(getattr(one, name) for one in month) for name in UNKNOWN)  # type: ignore[misc]
            for month in totals
        ]

    for group in ({}, {"by_key": True}, {"by_provider": True}, {"is_total": False}, {"time_zone": "Asia/Kathmandu"}):
        assert unknown(**group) == [(1, 3, 1_312), (0, 0, 0), (0, 0, 0)], group
        assert unknown(is_booked=True, **group) == [(0, 2, 1_012), (1, 1, 300), (0, 0, 0)], group


def test_providers_and_organizations_are_groups_and_filters(filled: Book) -> None:
    def by(**wanted: Any) -> dict[Any, int]:
        found, _ = read_usage(filled.engine, replace(ASKED, **wanted), 99)
        return {one.provider or one.organization_id: one.charge_nusd for one in found}

    whole = charge(filled)
    assert by(by_provider=True) == {"tera": whole - 20_000, "borealis": 20_000}
    assert by(providers={"borealis"}, by_organization=True) == {"org-1": 20_000}
    assert by(by_organization=True) == {"org-1": whole}
    assert by(by_organization=True, organizations={DEFAULT_ORGANIZATION}) == {}
    assert charge(filled, organizations={"org-1"}, keys={"key-2"}) == 307_000
    assert charge(filled, begin=int(at("2026-10-20")) + 1, end=int(at("2026-11-02")) + 1) == 4_320_000 + 7_000


@pytest.mark.parametrize("is_booked", [False, True])
def test_the_charges_of_a_period_are_those_of_usage(filled: Book, is_booked: bool) -> None:
    for month in MONTHS:
        wanted = replace(ASKED, is_booked=is_booked, **span(month))
        for only in (
            {},
            {"keys": {"key-2"}},
            {"providers": {"tera"}},
            {"organizations": {"org-1"}, "models": {"small"}},
        ):
            found = read_charges(filled.engine, replace(wanted, **only)).values()  # type: ignore[arg-type]
            assert sum(one.charge_nusd + one.adjusted_nusd for one in found) == charge(
                filled, is_booked=is_booked, **span(month), **only
            )


def test_a_rerate_and_another_price_are_told_apart(engine: Any) -> None:
    """Real prices: the second period has the same requests at twice the price, and one of the first was rerated."""
    first, second = int(YESTERDAY), int(YESTERDAY) + 3_600
    early = [a_console_entry(number) for number in (1, 2)]
    late = [a_console_entry(number, price=DEARER) for number in (1, 2)]
    late = [
        changed(
            one, exchange_id=f"{id_from(second + n)}7{n:03x}-8000-{n:012x}", started_at=float(second + n),
            entry_id=f"late-{n}",
        )
        for n, one in enumerate(late)
    ]  # fmt: skip
    settle(engine, *early, *late, node=None)
    wanted = UsageFilter(begin=first, end=second, bucket_s=DAY_S, is_total=True)
    before, after = (read_charges(engine, replace(wanted, begin=b, end=b + 3_600)) for b in (first, second))
    change = total_change(explain_change(before, after))
    charged = sum(one.charge_nusd for one in early)
    assert (change.volume_nusd, change.mix_nusd, change.price_nusd) == (0, 0, charged)
    assert {*before["tera-large"].units} == {"input", "cached_input", "output"} | {*after["tera-large"].units}
    rerated(engine)
    before = read_charges(engine, wanted)
    change = total_change(explain_change(before, after))
    assert (change.price_nusd, change.adjustments_nusd, change.total_nusd) == (charged, -charged, 0)
