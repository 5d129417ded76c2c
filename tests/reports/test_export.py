"""Entries as files: every one of them once, and exact in every format."""

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
from tests.ledger.entries import an_entry
from tests.ledger.priced_entries import a_real_entry

NOVEMBER = datetime(2026, 11, 5, 12, 30, 0, 250_000, tzinfo=UTC).timestamp()
DECEMBER = datetime(2026, 12, 2, tzinfo=UTC).timestamp()
OWNER = Owner("key-1", "anna", "proj-1", "web", "org-1", "acme", ("team:a", "prod"))


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
