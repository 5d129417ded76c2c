"""FOCUS 1.2: a row for each billed unit, whose sum is the charge to the nano-dollar, as the specification wants it.

The rules are those of the requirements model 1.2.0.1, the newest that the package focus_validator 2.2.1 contains (it
downloads later ones when it runs). They are tables here: the package needs Python 3.12, numpy 1 and 600 MB.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from proxy.billing.entries import LedgerEntry
from proxy.billing.money import Nusd, nusd_from_usd
from proxy.billing.period import Closing, Closings, month_of
from proxy.billing.pricing.prices import configured
from proxy.billing.record import BillableParts, PricedUsage, Rates, UsageRecord
from proxy.billing.settlement import entry
from proxy.ledger.accounts.credit import credit_entry
from proxy.ledger.accounts.owners import Owner
from proxy.metering.usage import NOT_SAID, Reading, Usage, UsageSource
from proxy.reports.export import ExportedEntry, write_csv, write_parquet
from proxy.reports.focus import FOCUS, focus_rows
from tests.billing.pricing.strategies import SERVICES, USAGES, prices
from tests.ledger.entries import an_entry
from tests.ledger.priced_entries import a_real_entry, a_real_record

NOVEMBER = datetime(2026, 11, 5, 12, 30, 0, 250_000, tzinfo=UTC).timestamp()
DECEMBER = datetime(2026, 12, 2, tzinfo=UTC).timestamp()
OWNER = Owner("key-1", "anna", "proj-1", "web", "org-1", "acme", ("team:a", "prod"))
USD = 10**9

NEVER_NULL = {
    "BilledCost", "BillingAccountId", "BillingAccountType", "BillingCurrency", "BillingPeriodEnd", "BillingPeriodStart",
    "ChargeCategory", "ChargeFrequency", "ChargePeriodEnd", "ChargePeriodStart", "ContractedCost", "EffectiveCost",
    "InvoiceIssuerName", "ListCost", "ProviderName", "PublisherName", "ServiceCategory", "ServiceName",
    "ServiceSubcategory",
}  # fmt: skip
MAY_BE_NULL = {
    "BillingAccountName", "ChargeClass", "ChargeDescription", "InvoiceId", "SubAccountId", "SubAccountName",
    "SubAccountType", "Tags",
}  # fmt: skip
OF_USAGE = {
    "ConsumedQuantity", "ConsumedUnit", "ContractedUnitPrice", "ListUnitPrice", "PricingCategory", "PricingQuantity",
    "PricingUnit", "SkuId", "SkuMeter", "SkuPriceId",
}  # fmt: skip
"""not null for usage; null for others in our files, where some of them could be given"""
ALLOWED = {
    "BillingCurrency": {"USD"},
    "ChargeCategory": {"Usage", "Purchase", "Tax", "Credit", "Adjustment"},
    "ChargeClass": {"", "Correction"},
    "ChargeFrequency": {"One-Time", "Recurring", "Usage-Based"},
    "PricingCategory": {"", "Standard", "Dynamic", "Committed", "Other"},
    "ServiceCategory": {"AI and Machine Learning"},
    "ServiceSubcategory": {"AI Platforms", "Bots", "Generative AI", "Machine Learning", "Natural Language Processing",
                           "Other (AI and Machine Learning)"},
}  # fmt: skip
PRODUCTS = {"ListCost": "ListUnitPrice", "ContractedCost": "ContractedUnitPrice"}
"""cost → the price whose product with PricingQuantity it is"""
OBJECTS = ("SkuPriceDetails", "Tags")


def in_csv(*sources: ExportedEntry) -> list[dict[str, str]]:
    file = io.BytesIO()
    write_csv(file, FOCUS, focus_rows(sources))
    return list(csv.DictReader(io.StringIO(file.getvalue().decode(), newline="")))


def rows_of(line: LedgerEntry) -> list[dict[str, str]]:
    """Its rows, which keep the rules and add up to its charge."""
    rows = in_csv(ExportedEntry(line, NOVEMBER + 9, OWNER))
    check(rows)
    assert sum(nusd_from_usd(row["BilledCost"]) for row in rows) == (line.charge_nusd or 0)
    return rows


def check(rows: list[dict[str, str]]) -> None:
    """The rules of FOCUS that data alone can break."""
    skus: dict[str, tuple[str, ...]] = {}
    for row in rows:
        is_usage = row["ChargeCategory"] == "Usage"
        assert row.keys() - NEVER_NULL - MAY_BE_NULL - OF_USAGE - {"SkuPriceDetails"} == set(filter(_is_custom, row))
        assert [name for name in NEVER_NULL if row[name] == ""] == []
        assert {name for name in OF_USAGE if row[name] != ""} == (OF_USAGE if is_usage else set())
        assert {name for name, allowed in ALLOWED.items() if row[name] not in allowed} == set()
        assert row["ChargePeriodStart"] < row["ChargePeriodEnd"]
        assert row["BillingPeriodStart"] < row["BillingPeriodEnd"]
        assert row["EffectiveCost"] == row["BilledCost"]
        for name in filter(row.get, OBJECTS):
            assert not any(isinstance(value, dict | list) for value in json.loads(row[name]).values())
        assert all(name.startswith("x_") for name in json.loads(row["SkuPriceDetails"] or "{}"))
        if is_usage:
            check_prices(row)
            assert skus.setdefault(row["SkuPriceId"], parent := (row["SkuId"], row["SkuMeter"])) == parent


def _is_custom(name: str) -> bool:
    return name.startswith("x_")


def check_prices(row: Mapping[str, str]) -> None:
    """Prices and quantities are not negative, and cost what they multiply to."""
    quantity = Decimal(row["PricingQuantity"])
    assert quantity >= 0
    for cost, price in PRODUCTS.items():
        assert Decimal(row[price]) >= 0
        within = Decimal("1e-12") if row["PricingUnit"] == "Hours" else 0
        assert abs(quantity * Decimal(row[price]) - Decimal(row[cost])) <= within
    assert abs(Decimal(row["BilledCost"]) - Decimal(row["ContractedCost"])) < Decimal("1e-9")


def shown(row: Mapping[str, str], *names: str) -> tuple[str, ...]:
    return tuple(row[name] for name in names)


EACH_UNIT = Rates(
    3 * USD, 3 * USD // 10, 15 * USD, cache_write=4 * USD, cache_write_1h=6 * USD, audio_input=40 * USD,
    audio_output=80 * USD, reasoning=16 * USD, image=USD // 25, audio_hour=36 * USD // 100, characters=15 * USD,
    searches=10 * USD, request=USD // 200, image_input=5 * USD, image_output=30 * USD, file_searches=5 * USD // 2,
    pages=2 * USD, annotated_pages=3 * USD, cached_audio_input=USD // 2, cached_image_input=USD,
)  # fmt: skip
OF_EACH_UNIT = Usage(
    prompt_tokens=1_000, cached_tokens=300, completion_tokens=500, reasoning_tokens=100, total_tokens=1_500,
    cache_write_tokens=100, cache_write_1h_tokens=40, audio_prompt_tokens=70, audio_completion_tokens=60, images=2,
    audio_ms=61_500, characters=1_234, searches=3, image_prompt_tokens=90, image_completion_tokens=50, file_searches=4,
    pages=7, annotated_pages=2, cached_audio_tokens=20, cached_image_tokens=30,
)  # fmt: skip


def test_each_unit_is_a_row_with_its_list_price() -> None:
    rows = rows_of(a_real_entry(price=configured(EACH_UNIT), usage=OF_EACH_UNIT))
    names = (
        "x_Unit",
        "SkuMeter",
        "ConsumedQuantity",
        "ConsumedUnit",
        "PricingQuantity",
        "PricingUnit",
        "ListUnitPrice",
    )
    assert [shown(row, *names) for row in rows] == [
        ("input", "Input Tokens", "490", "Tokens", "0.00049", "1000000 Tokens", "3.000000000"),
        ("output", "Output Tokens", "290", "Tokens", "0.00029", "1000000 Tokens", "15.000000000"),
        ("cached_input", "Cached Input Tokens", "250", "Tokens", "0.00025", "1000000 Tokens", "0.300000000"),
        ("cache_write", "Cache Write Tokens", "60", "Tokens", "0.00006", "1000000 Tokens", "4.000000000"),
        ("cache_write_1h", "Cache Write 1h Tokens", "40", "Tokens", "0.00004", "1000000 Tokens", "6.000000000"),
        ("audio_input", "Audio Input Tokens", "50", "Tokens", "0.00005", "1000000 Tokens", "40.000000000"),
        ("cached_audio_input", "Cached Audio Input Tokens", "20", "Tokens", "0.00002", "1000000 Tokens", "0.500000000"),
        ("reasoning", "Reasoning Tokens", "100", "Tokens", "0.0001", "1000000 Tokens", "16.000000000"),
        ("audio_output", "Audio Output Tokens", "60", "Tokens", "0.00006", "1000000 Tokens", "80.000000000"),
        ("image_input", "Image Input Tokens", "60", "Tokens", "0.00006", "1000000 Tokens", "5.000000000"),
        ("cached_image_input", "Cached Image Input Tokens", "30", "Tokens", "0.00003", "1000000 Tokens", "1.000000000"),
        ("image_output", "Image Output Tokens", "50", "Tokens", "0.00005", "1000000 Tokens", "30.000000000"),
        ("image", "Images", "2", "Images", "2", "Images", "0.040000000"),
        ("audio_hour", "Audio", "61.5", "Seconds", "0.017083333333333", "Hours", "0.360000000"),
        ("characters", "Characters", "1234", "Characters", "0.001234", "1000000 Characters", "15.000000000"),
        ("searches", "Searches", "3", "Searches", "0.003", "1000 Searches", "10.000000000"),
        ("file_searches", "File Searches", "4", "File Searches", "0.004", "1000 File Searches", "2.500000000"),
        ("pages", "Pages", "5", "Pages", "0.005", "1000 Pages", "2.000000000"),
        ("annotated_pages", "Annotated Pages", "2", "Annotated Pages", "0.002", "1000 Annotated Pages", "3.000000000"),
        ("request", "Requests", "1", "Requests", "1", "Requests", "0.005000000"),
    ]
    assert shown(rows[0], "SkuId", "ListCost", "BilledCost") == ("tera-large/input", "0.00147", "0.001470000")
    assert all(row["SkuPriceId"] == f"{row['SkuId']}@{configured(EACH_UNIT).version}" for row in rows)


RECORDS = st.builds(
    lambda price, usage, bills, served_as, others, stated: replace(
        a_real_record(price=price, usage=usage),
        bills=bills,
        reading=Reading(usage, UsageSource.REPORTED, **({} if served_as is NOT_SAID else asdict(served_as))),
        other_models=tuple(PricedUsage(f"other-{number}", *one, None) for number, one in enumerate(others)),
        stated_nusd_or_unset=stated,
    ),
    st.none() | prices() | prices().map(lambda price: replace(price, stated=("1.1",))),
    USAGES,
    st.sampled_from(BillableParts),
    SERVICES,
    st.lists(st.tuples(USAGES, st.none() | prices()), max_size=2),
    st.integers(0, 10**12),
)


@given(RECORDS)
def test_the_rows_add_up_to_the_charge(record: UsageRecord) -> None:
    rows_of(entry(record))


@given(st.integers(0, 10**15), st.integers(0, 10**12))
def test_what_no_price_explains_is_one_row_with_all_of_it(charge: int, off: int) -> None:
    usage = a_real_entry()
    changed = replace(usage, charge_nusd=Nusd((usage.charge_nusd or 0) + 1 + off))
    *units, whole = rows_of(changed)
    assert [row["PricingQuantity"] for row in units] == ["0"] * 4
    assert shown(whole, "SkuId", "ConsumedUnit", "PricingUnit") == ("tera-large/exchange", "Requests", "Requests")
    for details in ({}, {"price": "dear"}, {"billed": "prompt", "price": {"version": "v", "multipliers": 7}}):
        (whole,) = rows_of(replace(usage, charge_nusd=Nusd(charge), details=details))
        assert nusd_from_usd(whole["ListUnitPrice"]) == charge


def test_a_price_rule_is_the_difference_between_list_and_contract() -> None:
    rules = {"speed:fast": "2", "rule:acme": "0.9", "speed:fast#acme": "0.5"}
    price = configured(Rates(3 * USD, USD, 15 * USD, searches=10 * USD), multipliers=rules)
    record = a_real_record(price=price, usage=Usage(1_000, 0, 50, 0, 1_050, searches=2))
    fast = replace(record, reading=replace(record.reading, speed="fast"))
    prompt, output, searches = rows_of(entry(fast))
    assert shown(prompt, "ListUnitPrice", "ContractedUnitPrice") == ("6.000000000", "2.700000000")
    assert shown(prompt, "ListCost", "ContractedCost", "BilledCost") == ("0.006", "0.0027", "0.002700000")
    assert shown(output, "ListUnitPrice", "ContractedUnitPrice") == ("30.000000000", "13.500000000")
    assert shown(searches, "ListUnitPrice", "ContractedUnitPrice") == ("10.000000000", "9.000000000")
    assert prompt["SkuPriceId"] == f"tera-large/input@{price.version}/speed:fast=2"
    assert json.loads(prompt["SkuPriceDetails"]) == {"x_version": price.version, "x_speed:fast": "2"}


def test_a_longer_prompt_and_another_tier_are_other_prices() -> None:
    tiers = (Rates(USD, USD, USD), Rates(2 * USD, USD, USD, above_prompt_tokens=100))
    record = a_real_record(price=configured(*tiers, service_tiers={"flex": tiers}), usage=Usage(200, 0, 0, 0, 200))
    (long,) = rows_of(entry(record))
    (flex,) = rows_of(entry(replace(record, reading=replace(record.reading, service_tier="flex"))))
    assert long["SkuPriceId"].endswith("/above_prompt_tokens=100")
    assert flex["SkuPriceId"].endswith("/above_prompt_tokens=100/service_tier=flex")


def test_what_is_used_and_not_billed_or_not_priced_is_there() -> None:
    failed = entry(replace(a_real_record(), bills=BillableParts.PROMPT))
    assert [shown(row, "x_Unit", "ConsumedQuantity", "PricingQuantity") for row in rows_of(failed)] == [
        ("input", "67", "0.000067"), ("output", "45", "0"), ("cached_input", "33", "0.000033"), ("reasoning", "5", "0"),
    ]  # fmt: skip
    unpriced = entry(a_real_record(price=None))
    names = ("x_Unit", "x_Unpriced", "PricingQuantity", "ListUnitPrice", "SkuPriceId")
    assert [shown(row, *names) for row in rows_of(unpriced)][:2] == [
        ("input", "true", "0.000067", "0.000000000", "tera-large/input@unpriced"),
        ("output", "true", "0.000045", "0.000000000", "tera-large/output@unpriced"),
    ]
    searched = entry(a_real_record(usage=Usage(10, 0, 5, 0, 15, searches=3)))
    assert [shown(row, "x_Unit", "x_Unpriced", "ConsumedQuantity", "BilledCost") for row in rows_of(searched)][2:] == [
        ("searches", "true", "3", "0.000000000")
    ]
    (nothing,) = rows_of(entry(a_real_record(usage=Usage())))
    assert shown(nothing, "x_Unit", "BilledCost") == ("exchange", "0.000000000")


def test_other_models_have_rows_of_their_own() -> None:
    other = PricedUsage("tera-image", Usage(images=2), configured(EACH_UNIT), None)
    rows = rows_of(entry(replace(a_real_record(), other_models=(other,))))
    assert shown(rows[-2], "SkuId", "ListUnitPrice", "ServiceName") == ("tera-image/image", "0.040000000", "tera-large")


def some() -> list[ExportedEntry]:
    """One of each: served, a failed attempt, estimated, unpriced and hostile, corrected late and at once, paid in."""
    usage = a_real_entry(0, started_at=NOVEMBER)
    odd = replace(usage, charge_nusd=None, model="=1+1", prompt_tokens=None, details={"text": '"quoted",\nand more'})
    late = replace(
        an_entry(
            0, kind="adjustment", seq=1, started_at=NOVEMBER, charge_nusd=-5, cached_tokens=0, reasoning_tokens=-2
        ),
        details={"why": "wrong", "units": {"searches": 1}},
    )
    paid = credit_entry(an_entry(9).exchange_id, "org-1", "acme", 50_000_000_001, "invoice", DECEMBER)
    above = Owner("org-1", "acme", None, None, "org-1", "acme")
    return [
        ExportedEntry(usage, NOVEMBER + 9, OWNER),
        ExportedEntry(replace(usage, kind="attempt", charge_nusd=0), NOVEMBER + 9, OWNER),
        ExportedEntry(replace(usage, usage_source="estimated", estimator="ridge-1"), NOVEMBER + 9, OWNER),
        ExportedEntry(odd, NOVEMBER + 10, None),
        ExportedEntry(late, DECEMBER, OWNER),
        ExportedEntry(replace(late, details={"why": "at once"}), NOVEMBER + 11, OWNER),
        ExportedEntry(paid, DECEMBER, above),
    ]


def billed_nusd() -> int:
    return sum(one.entry.charge_nusd or 0 for one in some())


def test_a_file_adds_up_to_the_ledger() -> None:
    rows = in_csv(*some())
    check(rows)
    assert sum(nusd_from_usd(row["BilledCost"]) for row in rows) == billed_nusd()
    assert all(name.startswith("x_") or "_" not in name for name in rows[0])
    categories = [row["ChargeCategory"] for row in rows]
    assert categories == [*["Usage"] * 9, "Adjustment", "Adjustment", "Credit"]


def test_parquet_says_the_same() -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra tokenweir[parquet] is not installed")
    file = io.BytesIO()
    write_parquet(file, FOCUS, focus_rows(some()))
    rows, same = parquet.read_table(io.BytesIO(file.getvalue())).to_pylist(), in_csv(*some())
    assert sum(row["BilledCost"] for row in rows) == Decimal(billed_nusd()).scaleb(-9)
    for name in ("PricingQuantity", "ListUnitPrice", "ListCost", "ContractedCost", "ConsumedQuantity"):
        assert [row[name] for row in rows] == [Decimal(row[name]) if row[name] else None for row in same]
    assert [row["SkuId"] for row in rows][8] == "=1+1/exchange"


def test_a_correction_of_an_earlier_month_is_a_row_of_its_own() -> None:
    *usage, late, at_once, paid = in_csv(*some())
    november = ("2026-11-01T00:00:00Z", "2026-12-01T00:00:00Z")
    assert shown(usage[0], "BillingPeriodStart", "BillingPeriodEnd") == november
    assert shown(late, "ChargeClass", "BillingPeriodStart") == ("Correction", "2026-12-01T00:00:00Z")
    assert shown(late, "ChargePeriodStart", "ChargeDescription") == ("2026-11-05T12:30:00Z", "wrong")
    assert json.loads(late["x_CorrectedCounts"])["searches"] == 1
    assert shown(at_once, "ChargeClass", "BillingPeriodStart") == ("", "2026-11-01T00:00:00Z")
    assert shown(paid, "BilledCost", "SubAccountId", "BillingAccountId") == ("-50.000000001", "", "org-1")
    assert json.loads(usage[0]["Tags"]) == {"team": "a", "prod": True}
    assert usage[0]["SubAccountName"] == "anna"


def test_late_usage_is_in_the_month_of_its_statement() -> None:
    closings = Closings([Closing(month_of(NOVEMBER), DECEMBER - 9)])
    rows = in_csv(ExportedEntry(some()[0].entry, DECEMBER, OWNER, closings))
    check(rows)
    assert {shown(row, "ChargeClass", "BillingPeriodStart") for row in rows} == {("Correction", "2026-12-01T00:00:00Z")}


def test_rows_are_made_one_entry_at_a_time() -> None:
    usage, taken = ExportedEntry(a_real_entry(), NOVEMBER, OWNER), list[int]()

    def sources(count: int) -> Iterator[ExportedEntry]:
        for number in range(count):
            taken.append(number)
            yield usage

    rows = focus_rows(sources(3))
    next(rows)
    assert taken == [0]
