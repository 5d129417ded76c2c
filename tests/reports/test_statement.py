"""What a customer is billed for a month: it adds up in every format, and begins with what the last month left."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from dataclasses import replace as part_of
from datetime import date, datetime
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
from msgspec.structs import replace
from sqlalchemy import Engine, update

from proxy.billing.entries import LedgerEntry
from proxy.billing.money import nusd_from_usd, usd_text
from proxy.billing.period import month_from
from proxy.ledger.accounts.credit import credit_entry
from proxy.ledger.schema.tables import ledger_entries
from proxy.ledger.settling.store import LedgerStore
from proxy.reports.statement import Issued, Statement, StatementOwner, read_statement
from proxy.reports.statement_document import AS_BILLED
from proxy.reports.statement_html import statement_html
from proxy.reports.statement_pdf import statement_pdf
from proxy.reports.statement_text import CSV_COLUMNS, statement_csv, statement_json
from proxy.storage.database import writing
from tests.ledger.entries import an_entry, arriving
from tests.ledger.grants.book import DAY_S, Book
from tests.ledger.owners import KEY, ORGANIZATION, PROJECT, at, insert_owners
from tests.support.ledgers import on_both_databases

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.io

HOSTILE = '=HYPERLINK("http://x")<script>alert(1)</script>'


def top_up(number: int, scope_id: str, nusd: int) -> LedgerEntry:
    return credit_entry(an_entry(number).exchange_id, scope_id, "anna", nusd, "invoice 4711", at("2026-11-09"))


@pytest.fixture
def book(engine: Engine, store: LedgerStore) -> Any:
    """Settles entries at a time of the test's choice."""
    insert_owners(engine)

    def settle(entry: LedgerEntry, settled: str | None = None) -> None:
        store.settle(arriving(entry))
        moment = entry.started_at + 1 if settled is None else at(settled)
        with writing(engine) as connection:
            its = ledger_entries.c.entry_id == entry.entry_id
            connection.execute(update(ledger_entries).where(its).values(settled_at=moment))

    return settle


@pytest.fixture
def november(book: Any) -> None:
    """October, November and December of two keys: every kind of entry on both sides of every midnight."""
    for number, (begun, more) in enumerate([
        ("2026-10-31T23:59:59.999999", {"charge_nusd": 5}),
        ("2026-11-01T00:00:00", {"charge_nusd": 1_000_000_000}),
        ("2026-11-01T12:00:00", {"charge_nusd": 1, "usage_source": "estimated", "reasoning_tokens": 7}),
        ("2026-11-01T13:00:00", {"charge_nusd": None, "model": HOSTILE, "details": {"units": {"images": 3}}}),
        ("2026-11-30T23:59:59.999999", {"charge_nusd": 20, "key_id": "key-2", "key_alias": "bert"}),
        ("2026-12-01T00:00:00", {"charge_nusd": 7}),
    ]):  # fmt: skip
        book(an_entry(number, started_at=at(begun), **more))
    in_vain = {"kind": "attempt", "seq": 1, "charge_nusd": 0, "cost_nusd": None, "total_tokens": None}
    book(an_entry(1, started_at=at("2026-11-01T00:00:00"), **in_vain))
    lost = {"kind": "adjustment", "seq": 1, "charge_nusd": -2, "details": {"why": "@sum, a refund"}}
    book(an_entry(0, started_at=at("2026-10-31T23:59:59"), **lost), "2026-11-15")
    book(an_entry(1, started_at=at("2026-11-01"), **{**lost, "charge_nusd": -300}), "2026-12-02")
    book(top_up(90, "key-1", 50_000), "2026-10-20")
    book(top_up(91, "key-1", 2_000_000_000), "2026-11-09")
    book(top_up(92, "org-1", 9_000_000_000), "2026-11-10")
    book(top_up(93, "key-1", -4), "2026-12-09")


def read(engine: Engine, whose: StatementOwner, month: str) -> Statement:
    """As the command does."""
    return read_statement(engine, whose, month_from(month))


@on_both_databases
@pytest.mark.usefixtures("november")
def test_a_month_of_a_key(engine: Engine) -> None:
    found = read(engine, KEY, "2026-11")
    assert [(one.day.day, one.model, one.usages.requests, one.usages.charge_nusd) for one in found.lines] == [
        (1, HOSTILE, 1, 0),
        (1, "tera-large", 2, 1_000_000_001),
    ]
    total = found.total
    assert (total.requests, total.estimated, total.estimated_nusd, total.unpriced) == (3, 1, 1, 1)
    assert total.counts == {
        "prompt_tokens": 300, "cached_tokens": 60, "completion_tokens": 150, "reasoning_tokens": 7,
        "total_tokens": 450, "images": 3,
    }  # fmt: skip
    assert [(one.day, one.nusd, one.why) for one in found.adjustments] == [(date(2026, 10, 31), -2, "@sum, a refund")]
    assert [one.nusd for one in found.credits] == [2_000_000_000]
    assert (found.opening_nusd, found.closing_nusd) == (49_995, 49_995 - 1_000_000_001 + 2 + 2_000_000_000)
    assert [(one.key_id, one.project, one.adjusted_nusd) for one in found.keys] == [("key-1", "web", -2)]
    assert found.projects == []


@pytest.mark.usefixtures("november")
@pytest.mark.parametrize("whose", [KEY, PROJECT, ORGANIZATION], ids=lambda one: one.kind)
def test_a_month_begins_with_what_the_last_one_left(engine: Engine, whose: StatementOwner) -> None:
    months = [read(engine, whose, f"2026-{month:02}") for month in range(8, 13)]
    assert months[0].opening_nusd == 0
    for before, after in pairwise(months):
        assert after.opening_nusd == before.closing_nusd
    used = -(5 + 1_000_000_000 + 1 + 7 - 2 - 300)
    everything = {KEY: used + 2_000_049_996, PROJECT: used - 20, ORGANIZATION: used - 20 + 9_000_000_000}
    assert months[-1].closing_nusd == everything[whose]


USED = [
    ("2026-10-31T23:59:59.999999", 5), ("2026-11-01T00:00:00", 1_000_000_000), ("2026-11-01T12:00:00", 1),
    ("2026-11-30T23:59:59.999999", 20), ("2026-12-01T00:00:00", 7),
]  # fmt: skip
"""the charges of `november`"""


@pytest.mark.usefixtures("november")
@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Asia/Kathmandu"])
def test_months_of_a_time_zone_have_each_entry_once(engine: Engine, zone: str) -> None:
    """Each month begins with what the last one left, and has what began, or was booked, in its local days."""
    months = [
        read_statement(engine, ORGANIZATION, part_of(month_from(f"2026-{number:02}"), time_zone=zone))
        for number in range(9, 13)
    ]
    assert months[0].opening_nusd == 0
    for before, after in pairwise(months):
        assert after.opening_nusd == before.closing_nusd

    def local(unix_s: float) -> date:
        return datetime.fromtimestamp(unix_s, ZoneInfo(zone)).date()

    for found in months:
        assert found.month.until - found.month.since == (found.month.after - found.month.first).days * 86_400 + (
            {"Europe/Berlin-10": 3_600, "America/New_York-11": 3_600}.get(f"{zone}-{found.month.first.month}", 0)
        )
        number = found.month.first.month
        days = Counter[date]()
        for began, nusd in USED:
            if (day := local(at(began))).month == number:
                days[day] += nusd
        of_days = Counter[date]()
        for line in found.lines:
            of_days[line.day] += line.usages.charge_nusd
        assert of_days == days
        assert found.adjusted_nusd == {11: -2, 12: -300}.get(number, 0)
    assert f"2026-11 ({zone})" in statement_html(months[2])
    assert f"Days are in {zone}." in statement_html(months[2])
    assert statement_json(months[2])["time_zone"] == zone
    assert "closed in UTC only" in statement_html(months[2])


@pytest.mark.usefixtures("november")
def test_an_account_sees_what_each_of_its_keys_has_part_in(engine: Engine) -> None:
    found = read(engine, ORGANIZATION, "2026-11")
    assert [(one.name, one.project, one.usages.requests, one.usages.charge_nusd) for one in found.keys] == [
        ("anna", "web", 3, 1_000_000_001),
        ("bert", "web", 1, 20),
    ]
    assert sum(one.usages.charge_nusd for one in found.keys) == found.total.charge_nusd == 1_000_000_021
    assert [(one.name, one.usages.requests, one.adjusted_nusd) for one in found.projects] == [("web", 4, -2)]
    assert [one.nusd for one in found.credits] == [9_000_000_000]


@pytest.mark.usefixtures("november")
def test_what_is_printed_adds_up(engine: Engine) -> None:
    found = read(engine, KEY, "2026-11")
    rows = list(csv.DictReader(io.StringIO(statement_csv(found), newline="")))
    assert list(rows[0]) == list(CSV_COLUMNS)
    lines = ["opening", *["usage"] * 2, "adjustment", "credit", "closing", "net", "rounding", "amount_due"]
    assert [row["line"] for row in rows] == lines
    total = {name: sum(Decimal(row[name] or 0) for row in rows) for name in ("charge_usd", "credit_usd")}
    opening, closing = Decimal(rows[0]["balance_usd"]), Decimal(rows[-4]["balance_usd"])
    assert opening - total["charge_usd"] + total["credit_usd"] == closing
    assert nusd_from_usd(closing) == found.closing_nusd
    *parts, due = (Decimal(row["due_usd"]) for row in rows[-3:])
    assert sum(parts) == due == 0, "the balance covers it"
    amounts = [row[name] for row in rows for name in CSV_COLUMNS if name.endswith("_usd") and row[name]]
    assert {len(amount.partition(".")[2]) for amount in amounts} == {9}
    assert rows[1]["model"] == f"'{HOSTILE}"
    assert rows[3]["reason"] == "'@sum, a refund"
    assert rows[0]["reason"] == AS_BILLED
    assert {(row["time_zone"], row["status"]) for row in rows} == {("UTC", "provisional")}
    assert found.issued is None
    local = part_of(found, month=part_of(found.month, time_zone="Europe/Berlin"))
    rows = list(csv.DictReader(io.StringIO(statement_csv(local), newline="")))
    assert {(row["time_zone"], row["status"]) for row in rows} == {("Europe/Berlin", "provisional")}
    issued = part_of(found, issued=Issued("1", 1, 0.0, 1, "d"))
    assert {line.rsplit(",", 1)[1] for line in statement_csv(issued).splitlines()[1:]} == {"final"}

    shown = json.loads(json.dumps(statement_json(found)))
    sums = [nusd_from_usd(shown[f"{name}_usd"]) for name in ("opening_balance", "usage", "adjustments", "credits")]
    assert sums[0] - sums[1] - sums[2] + sums[3] == nusd_from_usd(shown["closing_balance_usd"])
    assert sum(nusd_from_usd(one["charge_usd"]) for one in shown["usage"]) == sums[1]
    assert "cost" not in json.dumps(shown)
    assert shown["basis"] == "as_billed"


@pytest.mark.usefixtures("november")
def test_the_page_is_safe_whole_and_light(engine: Engine) -> None:
    page = statement_html(read(engine, ORGANIZATION, "2026-11"))
    assert "<script" not in page.lower()
    assert "&lt;script&gt;" in page
    assert not re.search(r"(src|href)=|url\(|@import", page)
    assert "4 requests, of which estimated less than $0.01 (0.0\u00a0%)" in page
    assert "Provisional" in page
    assert AS_BILLED in page
    assert len(page) < 30_000


@pytest.mark.usefixtures("november")
@pytest.mark.parametrize("width", [390, 768, 1_440])
def test_amounts_are_seen_at_every_width(engine: Engine, book: Any, browser: Browser, width: int) -> None:
    """Before: a table of adjustments was wider than the page at any width, and its amounts and total were outside."""
    units = {"images": 3, "searches": 1_000_000}
    line = an_entry(1, started_at=at("2026-11-02"), kind="adjustment", seq=9, charge_nusd=-12_345_678_901)
    book(replace(line, details={"why": "an outage of our own " * 5, "units": units}), "2026-11-16")
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.set_content(statement_html(read(engine, ORGANIZATION, "2026-11")))
    for media in ("screen", "print"):
        page.emulate_media(media=media)  # type: ignore[arg-type]
        if media == "print":
            page.set_viewport_size({"width": 688, "height": 1_000})  # A4, without its margins
        right = "[...document.querySelectorAll('tr > :last-child')].map(one => one.getBoundingClientRect().right)"
        edges = page.evaluate(right)
        assert len(edges) > 15
        assert max(edges) <= page.viewport_size["width"]  # type: ignore[index]
    page.close()


def test_round_amounts_have_cents(engine: Engine, book: Any) -> None:
    book(an_entry(0, started_at=at("2026-11-03"), charge_nusd=1_500_000_000))
    page = statement_html(read(engine, KEY, "2026-11"))
    assert ">1.50<" in page
    assert ">\u22121.50<" in page


@pytest.mark.usefixtures("november")
def test_the_document(engine: Engine) -> None:
    pytest.importorskip("reportlab", reason="the extra tokenweir[pdf] is not installed")
    found = read(engine, ORGANIZATION, "2026-11")
    written = statement_pdf(found)
    assert written.startswith(b"%PDF-")
    assert written == statement_pdf(found)


def test_a_month_without_anything(engine: Engine) -> None:
    found = read(engine, KEY, "2026-11")
    assert (found.opening_nusd, found.closing_nusd, found.lines) == (0, 0, [])
    assert usd_text(found.total.charge_nusd) == "0"
    assert "Closing balance" in statement_html(found)


@pytest.mark.parametrize("text", ["2026", "2026-13", "2026-1", "november", "2026-11-01", "٢٠٢٦-١١", "9999-12"])
def test_what_is_no_month_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected YYYY-MM"):
        month_from(text)


@pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)
def test_the_grants_of_a_month_add_up(engine: Engine) -> None:
    insert_owners(engine)
    book = Book(engine)  # in October
    book.grant(10**9, "trial", lasts_s=int(14 * DAY_S))
    book.wait(1)
    long = book.charge(300_000_000)
    book.wait(10 * DAY_S)
    book.charge(50_000_000)
    book.wait(5 * DAY_S)
    book.post()
    book.charge(1, of=long)
    october, november = (statement_json(read(engine, KEY, month)) for month in ("2026-10", "2026-11"))
    amounts = [
        [one["grants"][0][f"{name}_usd"] for name in ("opening", "granted", "burned", "expired", "closing")]
        for one in (october, november)
    ]
    assert amounts == [["0", "1", "0.3", "0", "0.7"], ["0.7", "0", "0.050000001", "0.65", "-0.000000001"]]
    book.wait(1)
    book.post()
    found = read(engine, KEY, "2026-11")
    last = statement_json(found)
    assert (last["grants"][0]["expired_usd"], last["grants"][0]["closing_usd"]) == ("0.649999999", "0")
    assert (last["opening_balance_usd"], last["credits_usd"]) == ("0.7", "-0.649999999")
    assert last["closing_balance_usd"] == "0", "a trial leaves credit or a debt"
    assert re.search(r"trial</td>.*0.700000000.*0.050000001.*0.649999999.*0.000000000", statement_html(found))
