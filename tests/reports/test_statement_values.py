"""A statement by end user: its section adds up to the statement, which is the same without it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace as replace_statement
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.billing.dimensions import END_USER, OVERFLOW
from proxy.billing.entries import EntryKind
from proxy.reports.statement import read_statement
from proxy.reports.statement_html import statement_html
from proxy.reports.statement_pdf import statement_pdf
from proxy.reports.statement_text import statement_json
from tests.ledger.dimensions.filled import ids_of, with_dimensions
from tests.ledger.entries import an_entry, emptied
from tests.ledger.owners import OWNERS, PROJECT, at, insert_owners
from tests.ledger.periods.books import DECEMBER, NOVEMBER, OCTOBER, Book, adjusted, book
from tests.support.examples import examples

pytestmark = pytest.mark.io

__all__ = ["book"]

MONTHS = (OCTOBER, NOVEMBER, DECEMBER)


def fill(book: Book, random: Random) -> Counter[tuple[str | None, str]]:
    """Exchanges of three months and two keys, corrected in any of them; late usage of a closed month. Returns, for all
    months together, (value id, kind) → charges."""
    total = Counter[tuple[str | None, str]]()
    used: list[tuple[int, float, str | None]] = []

    def settle(entry: Any, value: str | None, moment: float) -> None:
        book.settle(entry, moment)
        total[value, entry.kind] += entry.charge_nusd or 0

    for month in MONTHS:
        for number in range(len(used), len(used) + random.randint(0, 4)):
            late = random.choice([0.0, 20 * 86_400.0]) if month != OCTOBER else 0.0
            begun, value = month.since + random.randrange(5 * 86_400), random.choice(["v_a", "v_b", OVERFLOW, None])
            fields: dict[str, Any] = {
                "key_id": f"key-{number % 2 + 1}",
                "usage_source": random.choice(["reported", "estimated"]),
            }
            fields["charge_nusd"] = random.choice([None, 1, 999_999_999, 4 * 10**9])
            entry = an_entry(number, started_at=begun - late, **fields)
            settle(with_dimensions(entry, {END_USER: value}) if value else entry, value, begun + 1)
            used.append((number, begun - late, value))
        for number, begun, value in random.sample(used, min(len(used), 2)):
            fields = {
                "key_id": f"key-{number % 2 + 1}",
                "charge_nusd": random.choice([-5, 70]),
                "details": {"why": "so"},
            }
            fix = an_entry(number, kind=EntryKind.ADJUSTMENT, seq=month.first.month, started_at=begun, **fields)
            settle(fix, value, month.since + 10 * 86_400)
        if month != DECEMBER and random.random() < 0.7:
            book.close(month, month.until + 86_400)
    return total


@settings(max_examples=examples(3), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_the_section_adds_up_to_the_statement(book: Book, seed: int) -> None:
    emptied(book.engine)
    insert_owners(book.engine)
    book.now = at("2026-10-01")
    official = fill(book, Random(seed))
    found = Counter[tuple[str | None, str]]()
    for month in MONTHS:
        for owner in OWNERS:
            statement = read_statement(book.engine, owner, month, END_USER)
            assert replace_statement(statement, by_value=None) == read_statement(book.engine, owner, month)
            assert statement.by_value is not None
            rows = statement.by_value.rows
            assert sum(one.adjusted_nusd for _, one in rows) == statement.adjusted_nusd
            for name in ("charge_nusd", "requests", "estimated", "estimated_nusd", "unpriced"):
                assert sum(getattr(one.usages, name) for _, one in rows) == getattr(statement.total, name), name
            tokens = sum(one.usages.counts.get("prompt_tokens", 0) for _, one in rows)
            assert tokens == statement.total.counts.get("prompt_tokens", 0)
            for value, one in rows if owner == PROJECT else ():
                value_id = None if value is None else value.value_id
                found[value_id, EntryKind.USAGE] += one.usages.charge_nusd
                found[value_id, EntryKind.ADJUSTMENT] += one.adjusted_nusd
    assert {key: nusd for key, nusd in found.items() if nusd} == {key: nusd for key, nusd in official.items() if nusd}


def test_every_format_has_the_section(book: Book) -> None:
    alice = ids_of(book.engine, "proj-1", end_user="<alice>")
    entry = an_entry(1, started_at=at("2026-10-20"), charge_nusd=4_830_000)
    book.settle(with_dimensions(entry, alice), "2026-10-20")
    book.settle(an_entry(2, started_at=at("2026-10-21"), charge_nusd=5), "2026-10-21")
    book.settle(adjusted(1, -1_000), "2026-10-22")
    statement = read_statement(book.engine, PROJECT, OCTOBER, END_USER)
    shown = statement_json(statement)["by_value"]
    assert shown["dimension"] == "end_user"
    assert [(row["value"], row["charge_usd"], row["adjustments_usd"]) for row in shown["rows"]] == [
        ("<alice>", "0.00483", "-0.000001"), (None, "0.000000005", "0"),
    ]  # fmt: skip
    page = statement_html(statement)
    assert "<h2>By end user</h2>" in page
    assert "&lt;alice&gt;" in page
    assert statement_pdf(statement).startswith(b"%PDF")
    assert "by_value" not in statement_json(read_statement(book.engine, PROJECT, OCTOBER))
