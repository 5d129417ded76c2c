"""A statement as a customer checks it: every table adds up to the amount due, whatever the prices and usages are."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace as struct_replace

from proxy.billing.entries import LedgerEntry
from proxy.billing.money import NUSD_PER_USD, Nusd
from proxy.billing.period import month_from
from proxy.billing.pricing.prices import configured
from proxy.billing.record import Rates
from proxy.ledger.periods.activity import _DETAILS, _FIELDS, _folded
from proxy.metering.usage import Usage, UsageSource
from proxy.reports.amount_due import amount_due
from proxy.reports.statement import Issued, Statement, StatementOwner, _merged
from proxy.reports.statement_document import AS_BILLED, MINUS, Document, RowKind, Section, document
from proxy.reports.statement_html import statement_html
from proxy.reports.statement_logo import logo_of
from proxy.reports.statement_pdf import statement_pdf
from proxy.reports.statement_text import statement_csv, statement_json
from proxy.settings.statement import CustomerSettings, StatementSettings, TaxSettings
from tests.billing.pricing.strategies import USAGES, prices
from tests.ledger.priced_entries import a_real_entry
from tests.support.examples import examples

OCTOBER = month_from("2026-10")
BEGUN = datetime(2026, 10, 3, tzinfo=UTC).timestamp()
DAY_S = 86_400
ORGANIZATION = StatementOwner("org_a11780a42f48bb81b910", "organization", "Contoso")
KEYS = {"key-1": ("anna", "proj-1", "web"), "key-2": ("bert", "proj-2", "lab")}
OLD = configured(Rates(input=3 * NUSD_PER_USD, cached_input=300_000_000, output=15 * NUSD_PER_USD))
NEW = configured(Rates(input=3_600_000_000, cached_input=360_000_000, output=18 * NUSD_PER_USD))
SELLER = StatementSettings(
    seller="Weir & Sons <GmbH>",
    address="Kanalstraße 12\n20457 Hamburg",
    terms="IBAN DE02 1203",
    due_days=14,
    tax=TaxSettings(label="VAT", percent="19"),
    customers={"Contoso": CustomerSettings(name="Contoso", legal_name="Contoso Health Ltd", address="Cambridge")},
)


def row_of(entry: LedgerEntry, settled_at: float) -> Any:
    """A row of the query of a month."""
    fields = {name: getattr(entry, name) for name in _FIELDS if name != "settled_at"}
    return SimpleNamespace(**fields, settled_at=settled_at, **{name: entry.details.get(name) for name in _DETAILS})


def a_statement(
    *entries: LedgerEntry, opening_nusd: int = 0, letterhead: StatementSettings = SELLER, closed: bool = True
) -> Statement:
    """Of an organization with two keys in two projects."""
    rows = [row_of(one, BEGUN + 20 * DAY_S) for one in entries]
    found = [_folded(key, [row for row in rows if row.key_id == key], OCTOBER) for key in KEYS]
    named = [struct_replace(one, name=KEYS[one.scope_id][0]) for one in found]
    projects = {key: (project_id, name) for key, (_, project_id, name) in KEYS.items()}
    at = datetime(2026, 11, 2, 8, tzinfo=UTC).timestamp()
    issued = Issued(f"2026-10-{ORGANIZATION.scope_id}", 1, at, len(rows), "00" * 32) if closed else None
    statement = _merged(
        ORGANIZATION, OCTOBER, named, projects, opening_nusd=Nusd(opening_nusd), as_of=at, issued=issued
    )
    return replace(statement, letterhead=letterhead)


def usage(number: int, day: int = 0, **differences: Any) -> LedgerEntry:
    return a_real_entry(number, **{"started_at": BEGUN + day * DAY_S, "price": OLD, **differences})


def adjustment(number: int, nusd: int, why: str) -> LedgerEntry:
    entry = usage(number)
    return struct_replace(entry, kind="adjustment", seq=1, charge_nusd=Nusd(nusd), details={"why": why})


def number(cell: str) -> Decimal:
    return Decimal(cell.replace(",", "").replace(MINUS, "-"))


def section(found: Document, title: str) -> Section:
    return next(one for one in (*found.sections, *found.annex) if one.title == title)


def sum_of(one: Section, kind: RowKind, column: int = -1) -> Decimal:
    return sum((number(row.cells[column]) for row in one.rows if row.kind is kind), Decimal(0))


def check(statement: Statement) -> None:
    """What a customer adds up: each table, as printed."""
    found = document(statement)
    by_title = {one.title: one for one in (*found.sections, *found.annex)}
    for title, one in by_title.items():
        if title not in ("Balance", "By model and price") and one.rows[-1].kind is RowKind.TOTAL:
            assert sum_of(one, RowKind.LINE) == sum_of(one, RowKind.TOTAL), title
    usage_usd = Decimal(statement.total.charge_nusd).scaleb(-9)
    adjusted_usd = Decimal(statement.adjusted_nusd).scaleb(-9)
    if "By model and price" in by_title:
        of_models = by_title["By model and price"]
        for kind in RowKind:
            assert sum_of(of_models, kind) == usage_usd
    for title in ("By project", "By key"):
        if title in by_title:
            assert sum_of(by_title[title], RowKind.TOTAL) == usage_usd + adjusted_usd
    if "Days" in by_title:
        assert sum_of(by_title["Days"], RowKind.TOTAL) == usage_usd
    due = sum_of(by_title["Charges"], RowKind.TOTAL)
    assert due == number(found.due.replace("$", ""))
    assert due == round(due, 2)
    balance = [number(row.cells[-1]) for row in by_title["Balance"].rows]
    assert sum(balance[:4]) == balance[4]
    rows = list(csv.DictReader(io.StringIO(statement_csv(statement), newline="")))
    totals = {name: sum(Decimal(row[name] or 0) for row in rows if row["line"] != "amount_due")
              for name in ("charge_usd", "credit_usd", "due_usd")}  # fmt: skip
    edges = {row["line"]: Decimal(row["balance_usd"]) for row in rows if row["balance_usd"]}
    assert edges["opening"] - totals["charge_usd"] + totals["credit_usd"] == edges["closing"]
    assert totals["due_usd"] == Decimal(rows[-1]["due_usd"]) == due
    for row in rows:
        if row["unit_price_usd"] and row["price_per"] == "million":
            exact = Decimal(row["quantity"]) * Decimal(row["unit_price_usd"]) / 1_000_000
            assert abs(exact - Decimal(row["charge_usd"])) < Decimal(statement.total.requests).scaleb(-9)


@settings(max_examples=examples(400))
@given(
    st.lists(st.tuples(prices(), USAGES, st.sampled_from(sorted(KEYS)), st.sampled_from("ab")), max_size=5),
    st.lists(st.integers(-(10**12), 10**12), max_size=3),
    st.integers(-(10**13), 10**13),
    st.none() | st.decimals(0, 100, places=3).map(str),
)
def test_every_table_adds_up(
    used: list[tuple[Any, Usage, str, str]], adjusted: list[int], opening_nusd: int, percent: str | None
) -> None:
    entries = [
        usage(at, day=at, key=key, model=model, price=price, usage=counts)
        for at, (price, counts, key, model) in enumerate(used)
    ]
    entries += [adjustment(at, nusd, "rerated") for at, nusd in enumerate(adjusted)]
    letterhead = replace(SELLER, tax=None if percent is None else TaxSettings(percent=percent))
    check(a_statement(*entries, opening_nusd=opening_nusd, letterhead=letterhead))


CENT = NUSD_PER_USD // 100


@pytest.mark.parametrize(
    ("charges", "closing", "percent", "expected"),
    [
        (0, 0, None, (0, 0, 0, 0)),
        (5 * CENT, -5 * CENT, None, (5 * CENT, 0, 0, 0)),
        (5 * CENT, 7 * CENT, "19", (0, 0, 0, 0)),  # prepaid
        (5 * CENT, -2 * CENT, None, (2 * CENT, 0, 0, 0)),  # prepaid in part
        (5 * CENT, -9 * CENT, None, (5 * CENT, 0, 0, 4 * CENT)),  # earlier months are owed, on their own statements
        (-5 * CENT, -9 * CENT, "19", (0, 0, 0, 9 * CENT)),  # adjustments exceed the usage
        (CENT // 2, -CENT // 2, None, (CENT // 2, CENT // 2, 0, 0)),  # half a cent: up
        (CENT // 2 - 1, 1 - CENT // 2, None, (CENT // 2 - 1, 1 - CENT // 2, 0, 0)),
        (1_234_567_890, -1_234_567_890, "19", (1_234_567_890, -4_567_890, 230_000_000, 0)),  # tax of 1.23: 0.2337
        (1_000_000_000, -1_000_000_000, "8.875", (1_000_000_000, 0, 90_000_000, 0)),
    ],
)
def test_the_amount_due(charges: int, closing: int, percent: str | None, expected: tuple[int, ...]) -> None:
    due = amount_due(Nusd(charges), Nusd(closing), percent)
    assert (due.net_nusd, due.rounding_nusd, due.tax_nusd, due.earlier_nusd) == expected
    assert due.total_nusd == due.net_nusd + due.rounding_nusd + due.tax_nusd
    assert due.total_nusd % CENT == 0
    assert due.covered_nusd + due.net_nusd == charges


def test_a_change_of_price_is_two_lines() -> None:
    used = Usage(1_000_000, None, 100_000, None, 1_100_000)
    entries = [usage(1, 0, usage=used), usage(2, 4, usage=used, price=NEW), usage(3, 6, usage=used, price=NEW)]
    statement = a_statement(*entries)
    rows = [row.cells for row in section(document(statement), "By model and price").rows]
    assert rows == [
        ("tera-large: 3 requests", "", "", "15.30"),
        ["Input tokens, 2026-10-03", "3.00 per million", "1,000,000", "3.00"],
        ["Input tokens, 2026-10-07 to 2026-10-09", "3.60 per million", "2,000,000", "7.20"],
        ["Output tokens, 2026-10-03", "15.00 per million", "100,000", "1.50"],
        ["Output tokens, 2026-10-07 to 2026-10-09", "18.00 per million", "200,000", "3.60"],
        ("Usage", "", "", "15.30"),
    ]


def test_the_short_number_of_an_id_that_is_a_name_is_made_from_its_hash() -> None:
    statement = a_statement(usage(1))
    for scope_id in ("org_default", "org_contoso-health", "key-1", "org_a1178"):
        number = replace(statement, owner=StatementOwner(scope_id, "organization", "x")).short_number
        assert re.fullmatch("2026-10-O-[0-9A-F]{8}", number)


def texts(found: Document) -> Sequence[str]:
    lines = [*found.seller, *found.customer, found.due_title, found.due, *found.due_notes, *found.notes, *found.proof]
    return [*lines, *(text for fact in found.facts for text in fact)]


def test_who_pays_whom_and_when() -> None:
    found = document(a_statement(usage(1, usage=Usage(1_000_000, None, 0, None, None))))
    assert dict(found.facts) == {
        "Number": "2026-10-O-A11780A4",
        "Issued": "2026-11-02",
        "Due": "2026-11-16",
        "Period": "October 2026",
        "Days": "2026-10-01 to 2026-10-31 (UTC)",
        "Account (organization)": "Contoso",
    }
    assert found.seller == ["Weir & Sons <GmbH>", "Kanalstraße 12", "20457 Hamburg"]
    assert found.customer == ["Contoso Health Ltd", "Cambridge"]
    assert (found.due_title, found.due) == ("Amount due", "$3.57")
    assert found.due_notes == ["Please pay by 2026-11-16, with the number 2026-10-O-A11780A4.", "IBAN DE02 1203"]
    assert found.notes[0] == "Amounts are in US dollars (USD). Dates are year-month-day. Days are in UTC."
    assert AS_BILLED in found.notes
    assert "19\u00a0% of $3.00" in section(found, "Charges").rows[1].cells[0]


def test_a_provisional_statement_asks_for_no_payment() -> None:
    found = document(a_statement(usage(1), closed=False))
    assert found.title == "Provisional statement for organization Contoso, 2026-10"
    assert found.due_title == "Amount due so far"
    assert not re.search("IBAN|2026-10-O|Please", " ".join(texts(found)))


def test_estimates_have_their_share() -> None:
    used = Usage(10_000, None, 1_000, None, 11_000)
    estimated = struct_replace(usage(2, usage=used), usage_source=str(UsageSource.ESTIMATED))
    found = document(a_statement(usage(1, usage=Usage(1_000_000, None, None, None, None)), estimated))
    assert section(found, "Charges").rows[0].cells[0] == "Usage: 2 requests, of which estimated $0.05 (1.4\u00a0%)"
    assert any(note.startswith("Estimated:") for note in found.notes)


def test_without_settings_there_is_neither_seller_nor_tax() -> None:
    statement = a_statement(usage(1, usage=Usage(1_000_000, None, 0)), letterhead=StatementSettings())
    found = document(statement)
    assert (found.seller, found.customer, statement.due_on) == ([], ["Contoso"], None)
    assert found.due_notes == []
    assert not any("%" in row.cells[0] for row in section(found, "Charges").rows)
    assert statement_json(statement)["seller"] is None
    assert statement_json(statement)["due"]["tax"] is None


def test_adjustments_are_summed_and_each_is_in_the_annex() -> None:
    found = document(a_statement(usage(1), *(adjustment(at, -200, "rerated") for at in range(9)), adjustment(9, 7, "")))
    rows = [row.cells for row in section(found, "Adjustments").rows]
    assert [row[:2] for row in rows] == [("rerated", "9"), ("–", "1"), ("Total", "10")]
    assert len(section(found, "Each adjustment").rows) == 11


def test_a_month_that_was_closed_without_prices_is_shown_by_model() -> None:
    rows = [row_of(usage(at, model=model, usage=Usage(10**6, None, 0)), BEGUN) for at, model in ((1, "b"), (2, "a"))]
    one = _folded("key-1", rows, OCTOBER)
    one.activity.prices = UNSET
    statement = _merged(ORGANIZATION, OCTOBER, [one], {}, opening_nusd=Nusd(0), as_of=BEGUN, issued=None)
    check(statement)
    lines = [row.cells for row in section(document(statement), "By model and price").rows]
    assert lines[1] == ["Requests billed as a whole", "–", "1", "3.00"]


@pytest.fixture
def logo(tmp_path: Path) -> Path:
    file = tmp_path / "logo.png"
    image = pytest.importorskip("PIL.Image", reason="the extra tokenweir[pdf] is not installed")
    image.new("RGB", (400, 100)).save(file)
    return file


def test_the_pdf(logo: Path) -> None:
    pytest.importorskip("reportlab", reason="the extra tokenweir[pdf] is not installed")
    entries = [usage(at, at % 20, model=f"model-{at}", key=f"key-{at % 2 + 1}") for at in range(60)]
    statement = a_statement(*entries, letterhead=replace(SELLER, logo=logo))
    written = statement_pdf(statement)
    assert written == statement_pdf(statement)
    assert b"D:20261102080000+00'00'" in written
    assert b"/MediaBox [ 0 0 595.2756 841.8898 ]" in written
    assert written.count(b"/Type /Page\n") > 3
    assert b"/Lang (en)" in written


def test_the_logo_is_in_the_page(logo: Path) -> None:
    page = statement_html(a_statement(usage(1), letterhead=replace(SELLER, logo=logo)))
    assert '<img alt="" src="data:image/png;base64,' in page
    assert "Weir &amp; Sons &lt;GmbH&gt;" in page


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file"),
        (b"<svg>", "must be a PNG or a JPEG file"),
        (b"\x89" * 300_000, "must be at most 256 KiB"),
    ],
)
def test_a_logo_that_cannot_be_shown_is_named(tmp_path: Path, content: bytes | None, why: str) -> None:
    file = tmp_path / "logo"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ValueError, match=rf"^statement\.logo: .*logo: {why}"):
        logo_of(StatementSettings(logo=file))


def test_days_are_of_the_month() -> None:
    assert (OCTOBER.last, OCTOBER.after) == (date(2026, 10, 31), date(2026, 11, 1))
