"""Entries as files: every one of them once, exact in every format, and as FOCUS 1.2 wants it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace

from proxy.billing.entries import LedgerEntry
from proxy.billing.money import nusd_from_usd
from proxy.billing.period import Closings
from proxy.ledger.accounts.credit import credit_entry
from proxy.ledger.accounts.owners import Owner
from proxy.reports import export
from proxy.reports.export import ENTRIES, Column, ExportedEntry, with_owners, write_csv, write_parquet
from proxy.reports.focus import FOCUS
from tests.ledger.entries import an_entry
from tests.ledger.priced_entries import a_real_entry

NOVEMBER = datetime(2026, 11, 5, 12, 30, 0, 250_000, tzinfo=UTC).timestamp()
DECEMBER = datetime(2026, 12, 2, tzinfo=UTC).timestamp()
OWNER = Owner("key-1", "anna", "proj-1", "web", "org-1", "acme", ("team:a", "prod"))

# Name → whether it may be null, of FOCUS 1.2's mandatory columns.
MANDATORY = {
    "BilledCost": False, "BillingAccountId": False, "BillingAccountName": True, "BillingCurrency": False,
    "BillingPeriodEnd": False, "BillingPeriodStart": False, "ChargeCategory": False, "ChargeClass": True,
    "ChargeDescription": True, "ChargePeriodEnd": False, "ChargePeriodStart": False, "ContractedCost": False,
    "EffectiveCost": False, "InvoiceIssuerName": False, "ListCost": False, "PricingQuantity": True,
    "PricingUnit": True, "ProviderName": False, "PublisherName": False, "ServiceCategory": False,
    "ServiceName": False,
}  # fmt: skip


def some() -> list[ExportedEntry]:
    """One of each: served, estimated, unpriced and hostile, put right late, paid in."""
    usage = a_real_entry(0, started_at=NOVEMBER)
    odd = replace(usage, charge_nusd=None, model="=1+1", prompt_tokens=None, details={"text": '"quoted",\nand more'})
    late = replace(an_entry(0, kind="adjustment", seq=1, started_at=NOVEMBER, charge_nusd=-5), details={"why": "wrong"})
    paid = credit_entry(an_entry(9).exchange_id, "org-1", "acme", 50_000_000_001, "invoice", DECEMBER)
    above = Owner("org-1", "acme", None, None, "org-1", "acme")
    return [
        ExportedEntry(usage, NOVEMBER + 9, OWNER),
        ExportedEntry(replace(usage, usage_source="estimated", estimator="ridge-1"), NOVEMBER + 9, OWNER),
        ExportedEntry(odd, NOVEMBER + 10, None),
        ExportedEntry(late, DECEMBER, OWNER),
        ExportedEntry(replace(late, details={"why": "at once"}), NOVEMBER + 11, OWNER),
        ExportedEntry(paid, DECEMBER, above),
    ]


def in_csv(columns: tuple[Column, ...], sources: list[ExportedEntry]) -> list[dict[str, str]]:
    file = io.BytesIO()
    write_csv(file, columns, sources)
    return list(csv.DictReader(io.StringIO(file.getvalue().decode(), newline="")))


def in_parquet(columns: tuple[Column, ...], sources: list[ExportedEntry]) -> list[dict[str, Any]]:
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra tokenweir[parquet] is not installed")
    file = io.BytesIO()
    write_parquet(file, columns, sources)
    return list(parquet.read_table(io.BytesIO(file.getvalue())).to_pylist())


def test_every_field_of_every_entry() -> None:
    rows = in_csv(ENTRIES, some())
    assert len(rows) == 6
    first, _, odd, late, *_ = rows
    entry = some()[0].entry
    assert nusd_from_usd(first["charge_usd"]) == entry.charge_nusd
    assert (first["started_at"], first["streamed"]) == ("2026-11-05T12:30:00.250000Z", "true")
    assert (int(first["prompt_tokens"]), json.loads(first["details"])) == (entry.prompt_tokens, entry.details)
    assert (first["project_id"], first["organization_id"]) == ("proj-1", "org-1")
    assert (odd["charge_usd"], odd["prompt_tokens"], odd["project_id"]) == ("", "", "")
    assert odd["model"] == "'=1+1"
    assert json.loads(odd["details"]) == {"text": '"quoted",\nand more'}
    assert late["charge_usd"] == "-0.000000005"


def test_parquet_says_the_same() -> None:
    rows = in_parquet(ENTRIES, some())
    entry = some()[0].entry
    assert rows[0]["charge_usd"] == Decimal(entry.charge_nusd or 0).scaleb(-9)
    assert rows[0]["started_at"] == datetime(2026, 11, 5, 12, 30, 0, 250_000, tzinfo=UTC)
    assert (rows[2]["charge_usd"], rows[2]["prompt_tokens"], rows[2]["model"]) == (None, None, "=1+1")
    assert sum(row["BilledCost"] for row in in_parquet(FOCUS, some())) == Decimal(billed()).scaleb(-9)


def billed() -> int:
    """nUSD of all."""
    return sum(one.entry.charge_nusd or 0 for one in some())


def test_focus_has_what_it_must_have() -> None:
    rows = in_csv(FOCUS, some())
    assert set(MANDATORY) <= set(rows[0])
    for row in rows:
        assert [name for name, may_be_null in MANDATORY.items() if not may_be_null and row[name] == ""] == []
        assert row["ChargeCategory"] in {"Usage", "Adjustment", "Credit"}
        assert (row["PricingQuantity"] == "") == (row["PricingUnit"] == "") == (row["ChargeCategory"] != "Usage")
        assert row["ChargePeriodStart"] < row["ChargePeriodEnd"]
        assert row["BillingPeriodStart"] < row["BillingPeriodEnd"]
        assert Decimal(row["ListUnitPrice"] or 0) >= 0
        if row["ChargeCategory"] == "Usage":
            assert Decimal(row["PricingQuantity"]) * Decimal(row["ContractedUnitPrice"]) == Decimal(row["BilledCost"])
            assert "" not in (row["SkuId"], row["SkuPriceId"], row["SkuMeter"], row["ConsumedQuantity"])
        assert all(name.startswith("x_") or "_" not in name for name in row)
    assert sum(nusd_from_usd(row["BilledCost"]) for row in rows) == billed()


def test_focus_says_when_a_correction_is_one_of_an_earlier_month() -> None:
    usage, _, _, late, at_once, paid = in_csv(FOCUS, some())
    assert (usage["BillingPeriodStart"], usage["BillingPeriodEnd"]) == ("2026-11-01T00:00:00Z", "2026-12-01T00:00:00Z")
    assert (late["ChargeClass"], late["BillingPeriodStart"]) == ("Correction", "2026-12-01T00:00:00Z")
    assert (late["ChargePeriodStart"], late["ChargeDescription"]) == ("2026-11-05T12:30:00Z", "wrong")
    assert (at_once["ChargeClass"], at_once["BillingPeriodStart"]) == ("", "2026-11-01T00:00:00Z")
    assert (paid["BilledCost"], paid["SubAccountId"], paid["BillingAccountId"]) == ("-50.000000001", "", "org-1")
    assert json.loads(usage["Tags"]) == {"team": "a", "prod": True}
    assert usage["SubAccountName"] == "anna"


def test_owners_are_asked_for_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries are taken as they are written: nothing waits for the last one."""
    monkeypatch.setattr(export, "ROWS_AT_ONCE", 2)
    taken: list[int] = []

    def settled() -> Iterator[tuple[LedgerEntry, float]]:
        for number in range(5):
            taken.append(number)
            yield an_entry(number), NOVEMBER

    asked: list[set[str]] = []

    def owners_of(ids: set[str]) -> dict[str, Owner]:
        asked.append(ids)
        return {"key-1": OWNER}

    sources = with_owners(settled(), owners_of, Closings())
    assert next(sources).owner == OWNER
    assert taken == [0, 1]
    assert len(list(sources)) == 4
    assert asked == [{"key-1"}] * 3
