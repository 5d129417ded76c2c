"""Statements as JSON, as CSV, and as the tables of the HTML page and the PDF.

Invariants:
- All amounts of a statement have the same number of decimals, so the printed amounts add up to the printed total.
- Provider cost is never shown.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from proxy.billing.dimensions import TAG
from proxy.billing.entries import COUNTS
from proxy.billing.money import Nusd, total_nusd, usd_text
from proxy.billing.receipt import FORMAT
from proxy.billing.units import BILLED_UNITS
from proxy.foundation.times import iso_utc
from proxy.ledger.grants.burning import GrantPeriod
from proxy.ledger.periods.activity import Booking, UsageLine, Usages
from proxy.reports.dimensions import NONE
from proxy.reports.export import safe_cell
from proxy.reports.statement import ByValue, Issued, Statement, total_of

CENTS = 2
LATE_USAGE = "Late usage from earlier months"
ESTIMATED = "≈"

_SHOWN = {
    "prompt_tokens": "Input",
    "cached_tokens": "incl. cached",
    "completion_tokens": "Output",
    "reasoning_tokens": "incl. reasoning",
}
"""counts that have a column each; the token total is redundant"""
_OTHERS = {unit.count: unit.label for unit in BILLED_UNITS if unit.label} | {
    "timed_audio_tokens": "of audio input, counted in ms",
}

AS_BILLED = (
    "As billed: adjustments and credits are in the month of their booking. Sums by usage date (Spend in the console, "
    "budgets) have an adjustment on the day of its exchange."
)

_NOTES = (
    f"{ESTIMATED}: the provider did not report the usage of some of these requests. Their usage is estimated.",
    "Unpriced: these requests have no price and are not charged.",
    "Usage that was settled after its month was closed is listed in the month in which it was settled.",
)


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table."""

    title: str
    is_number: bool = False
    is_long: bool = False
    """wraps, and takes the width that the other columns leave"""


@dataclass(frozen=True, slots=True)
class Section:
    """A table with its title. Every row has one cell for each column."""

    title: str
    columns: Sequence[TableColumn]
    rows: Sequence[Sequence[str]]
    foot: Sequence[str] | None = None


def amounts(statement: Statement) -> Callable[[int], str]:
    """A formatter nUSD → text with the decimals of this statement: 1.50, or 1.500000000 beside 0.000000001."""
    decimals = max(map(_decimals, _all_nusd(statement)), default=CENTS)

    def text(nusd: int) -> str:
        whole, _, part = usd_text(nusd).partition(".")
        return f"{whole}.{part.ljust(decimals, '0')}"

    return text


def title(statement: Statement) -> str:
    """The heading: owner and month."""
    zone = statement.month.time_zone
    name = f"{statement.month}" + ("" if zone is None else f" ({zone})")
    return f"Statement for {statement.owner.kind} {statement.owner.name}, {name}"


def notes(statement: Statement) -> tuple[str, ...]:
    """The notes below the tables."""
    zone = statement.month.time_zone or "UTC"
    amounts = "Amounts are in US dollars. A balance is credits minus charges; a negative balance is owed."
    return (f"Days are in {zone}. {amounts}", *_NOTES)


def status_lines(statement: Statement) -> Iterator[str]:
    """Lines on the basis of the sums and on the status: open, or final with the number and the digest."""
    yield AS_BILLED
    if (issued := statement.issued) is None:
        status = "the month is over, but not closed" if statement.is_over else "the month is not over"
        if statement.month.time_zone is not None:
            status = "months are closed in UTC only"
        yield f"Provisional: {status}. As of {_second(statement.as_of)} UTC."
    else:
        closed_at = _second(issued.closed_at)
        yield f"Number {issued.number}, version {issued.version}. Final since {closed_at} UTC."
        yield f"Digest of {issued.entries:,} entries (format {FORMAT}): {issued.digest}"


def _second(unix_s: float) -> str:
    return iso_utc(unix_s)[:19].replace("T", " ")


def sections(statement: Statement) -> Iterator[Section]:
    """All tables of the statement; empty ones are left out."""
    text = amounts(statement)
    yield _summary(statement, text)
    units = statement.units
    shown = [name for name in _SHOWN if name in units]
    others = any(name in units for name in _OTHERS)
    counted = [
        *(TableColumn(_SHOWN[name], is_number=True) for name in shown),
        *([TableColumn("Other units", is_long=True)] if others else []),
    ]
    usage = [TableColumn("Requests", is_number=True), *counted, TableColumn("Charge", is_number=True)]

    def cells(one: Usages) -> list[str]:
        requests = f"{one.requests:,}" + (f" ({one.unpriced:,} unpriced)" if one.unpriced else "")
        mark = f"{ESTIMATED} " if one.estimated else ""
        return [requests, *_counts(one.counts, shown, others=others), mark + text(one.charge_nusd)]

    def booked_day(one: Booking) -> str:
        return str(statement.month.day_of(one.booked_at))

    late = [line for line in statement.lines if line.day < statement.month.first]
    for name, lines in (("Usage", statement.lines[len(late) :]), (LATE_USAGE, late)):
        if lines:
            rows = [(str(line.day), line.model, *cells(line.usages)) for line in lines]
            foot = ("Total", "", *cells(total_of(lines)))
            yield Section(name, [TableColumn("Day"), TableColumn("Model", is_long=True), *usage], rows, foot)
    if statement.keys:
        rows = [(name, key_id, *cells(one)) for key_id, name, one in statement.keys]
        yield Section("By key", [TableColumn("Key", is_long=True), TableColumn("Id", is_long=True), *usage], rows)
    if statement.by_value is not None:
        yield _by_value(statement.by_value, shown, text)
    if statement.adjustments:
        columns = [
            TableColumn("Booked"),
            TableColumn("Usage day"),
            TableColumn("Exchange", is_long=True),
            TableColumn("Model", is_long=True),
            TableColumn("Reason", is_long=True),
        ]
        rows = [
            (booked_day(one), str(one.day), one.exchange_id, one.model, one.why,
             *_counts(one.counts, shown, others=others), text(one.nusd))
            for one in statement.adjustments
        ]  # fmt: skip
        foot = ("Total", *[""] * (len(columns) + len(counted) - 1), text(statement.adjusted_nusd))
        yield Section("Adjustments", [*columns, *counted, TableColumn("Charge", is_number=True)], rows, foot)
    if statement.credits:
        columns = [
            TableColumn("Booked"),
            TableColumn("Reference"),
            TableColumn("Reason", is_long=True),
            TableColumn("Credit", is_number=True),
        ]
        rows = [(booked_day(one), one.exchange_id, one.why, text(one.nusd)) for one in statement.credits]
        yield Section("Credits", columns, rows, ("Total", "", "", text(statement.credited_nusd)))
    if statement.grants:
        yield _grants(statement.grants, text)


_GRANT_COLUMNS = {"Opening": "opening", "Granted": "granted", "Used": "burned", "Expired": "expired", "Left": "closing"}
"""title → amount of a grant in the month"""


def _grants(found: Sequence[GrantPeriod], text: Callable[[int], str]) -> Section:
    def cells(sign: Callable[[str], int]) -> list[str]:
        return [text(sign(name)) for name in _GRANT_COLUMNS.values()]

    rows = [
        (one.grant.name, "never" if one.grant.expires_at is None else _second(one.grant.expires_at),
         *cells(partial(getattr, one)))
        for one in found
    ]  # fmt: skip
    foot = ("Total", "", *cells(lambda name: sum(getattr(one, name) for one in found)))
    columns = [TableColumn("Grant", is_long=True), TableColumn("Expires")]
    return Section("Grants", [*columns, *(TableColumn(one, is_number=True) for one in _GRANT_COLUMNS)], rows, foot)


def _grants_json(found: Sequence[GrantPeriod]) -> dict[str, Any]:
    """Left out of statements without grants: those of closed months stay as they were."""
    rows = [
        {
            "grant_id": one.grant.grant_id,
            "name": one.grant.name,
            "expires_at": None if one.grant.expires_at is None else iso_utc(one.grant.expires_at),
            **{f"{name}_usd": usd_text(getattr(one, name)) for name in _GRANT_COLUMNS.values()},
        }
        for one in found
    ]
    return {"grants": rows} if rows else {}


def _by_value(found: ByValue, shown: Sequence[str], text: Callable[[int], str]) -> Section:
    name = found.dimension.removeprefix(TAG).replace("_", " ")
    numbers = ("Requests", *(_SHOWN[count] for count in shown), "Charge", "Adjustments")

    def cells(usages: Usages, adjusted_nusd: Nusd) -> list[str]:
        counts = _counts(usages.counts, shown, others=False)
        return [f"{usages.requests:,}", *counts, text(usages.charge_nusd), text(adjusted_nusd)]

    total = Usages()
    for _, one in found.rows:
        total.add_all(one.usages)
    rows = [(NONE if value is None else value.text, *cells(one.usages, one.adjusted_nusd)) for value, one in found.rows]
    foot = ("Total", *cells(total, total_nusd(one.adjusted_nusd for _, one in found.rows)))
    columns = [TableColumn(name.capitalize(), is_long=True), *(TableColumn(one, is_number=True) for one in numbers)]
    return Section(f"By {name}", columns, rows, foot)


def _by_value_json(found: ByValue | None) -> dict[str, Any]:
    if found is None:
        return {}
    rows = [
        {
            "value": value and value.value,
            "value_id": value and value.value_id,
            **_usages_json(one.usages),
            "adjustments_usd": usd_text(one.adjusted_nusd),
        }
        for value, one in found.rows
    ]
    return {"by_value": {"dimension": found.dimension, "rows": rows}}


def statement_json(statement: Statement) -> dict[str, Any]:
    """The statement as JSON; amounts are exact decimal strings of USD."""
    month = statement.month
    return {
        "object": "statement",
        "scope_id": statement.owner.scope_id,
        "scope_kind": statement.owner.kind,
        "name": statement.owner.name,
        "month": str(month),
        **({} if month.time_zone is None else {"time_zone": month.time_zone}),
        "since": iso_utc(month.since),
        "until": iso_utc(month.until),
        "as_of": iso_utc(statement.as_of),
        **_issued_json(statement.issued),
        "basis": "as_billed",
        "currency": "USD",
        "opening_balance_usd": usd_text(statement.opening_nusd),
        "usage_usd": usd_text(statement.total.charge_nusd),
        "adjustments_usd": usd_text(statement.adjusted_nusd),
        "credits_usd": usd_text(statement.credited_nusd),
        "closing_balance_usd": usd_text(statement.closing_nusd),
        "usage": [
            {"day": str(line.day), "model": line.model, **_usages_json(line.usages)} for line in statement.lines
        ],
        "keys": [{"key_id": key_id, "alias": name, **_usages_json(one)} for key_id, name, one in statement.keys],
        "adjustments": [_booking_json(adjustment, "charge_usd") for adjustment in statement.adjustments],
        "credits": [_booking_json(credit, "credit_usd") for credit in statement.credits],
        "total": _usages_json(statement.total),
        **_grants_json(statement.grants),
        **_by_value_json(statement.by_value),
    }  # fmt: skip


def _issued_json(issued: Issued | None) -> dict[str, Any]:
    if issued is None:
        return {"final": False}
    return {
        "final": True,
        "number": issued.number,
        "version": issued.version,
        "closed_at": iso_utc(issued.closed_at),
        "entries": issued.entries,
        "digest": issued.digest,
        "digest_format": FORMAT,
    }


def statement_csv(statement: Statement) -> str:
    """The statement as CSV, without totals: closing balance = opening − charges + credits, summed by column. Each line
    has the time zone of its day, and says whether the statement is final."""
    text = amounts(statement)
    names = [
        "line", "day", "model", "key", "exchange_id", "reason", "requests", *COUNTS, "charge_usd", "credit_usd",
        "estimated_requests", "estimated_usd", "unpriced_requests", "balance_usd",
        "time_zone", "status",
    ]  # fmt: skip
    basis = {
        "time_zone": statement.month.time_zone or "UTC",
        "status": "provisional" if statement.issued is None else "final",
    }
    text_file = io.StringIO()
    table = csv.DictWriter(text_file, names, restval="", lineterminator="\r\n")
    table.writeheader()
    opening = {"day": statement.month.first, "reason": AS_BILLED, "balance_usd": text(statement.opening_nusd)}
    table.writerow({"line": "opening", **opening, **basis})
    table.writerows({**_csv_line(line, text), **basis} for line in statement.lines)
    bookings = [("adjustment", one, "charge_usd") for one in statement.adjustments]
    bookings += [("credit", one, "credit_usd") for one in statement.credits]
    table.writerows(
        {**_csv_booking(kind, one, column, text), "day": statement.month.day_of(one.booked_at), **basis}
        for kind, one, column in bookings
    )
    closing = {"day": statement.month.after, "balance_usd": text(statement.closing_nusd)}
    table.writerow({"line": "closing", **closing, **basis})
    return text_file.getvalue()


def _csv_line(line: UsageLine, text: Callable[[int], str]) -> dict[str, Any]:
    one = line.usages
    return {
        "line": "usage",
        "day": line.day,
        "model": safe_cell(line.model),
        "requests": one.requests,
        **one.counts,
        "charge_usd": text(one.charge_nusd),
        "estimated_requests": one.estimated,
        "estimated_usd": text(one.estimated_nusd),
        "unpriced_requests": one.unpriced,
    }


def _csv_booking(kind: str, booking: Booking, column: str, text: Callable[[int], str]) -> dict[str, Any]:
    return {
        "line": kind,
        "model": safe_cell(booking.model),
        "key": safe_cell(booking.key_alias),
        "exchange_id": booking.exchange_id,
        "reason": safe_cell(booking.why),
        **booking.counts,
        column: text(booking.nusd),
    }


def _usages_json(usages: Usages) -> dict[str, Any]:
    return {
        "requests": usages.requests,
        "counts": _in_order(usages.counts),
        "charge_usd": usd_text(usages.charge_nusd),
        "estimated_requests": usages.estimated,
        "estimated_usd": usd_text(usages.estimated_nusd),
        "unpriced_requests": usages.unpriced,
    }


def _booking_json(booking: Booking, column: str) -> dict[str, Any]:
    return {
        "made_at": iso_utc(booking.booked_at),
        "entry_id": booking.entry_id,
        "exchange_id": booking.exchange_id,
        "day": str(booking.day),
        "key": booking.key_alias,
        "model": booking.model,
        "reason": booking.why,
        "counts": _in_order(booking.counts),
        column: usd_text(booking.nusd),
    }


def _in_order(counts: Mapping[str, int]) -> dict[str, int]:
    """In the order of COUNTS: databases keep another, and a statement never changes."""
    return {name: counts[name] for name in COUNTS if name in counts}


def _summary(statement: Statement, text: Callable[[int], str]) -> Section:
    total = statement.total
    rows = [
        ("Opening balance", text(statement.opening_nusd)),
        ("Usage", text(-total.charge_nusd)),
        *([(f"{ESTIMATED} incl. estimated", f"({text(-total.estimated_nusd)})")] if total.estimated else []),
        ("Adjustments", text(-statement.adjusted_nusd)),
        ("Credits", text(statement.credited_nusd)),
    ]
    columns = [TableColumn("Balance", is_long=True), TableColumn("USD", is_number=True)]
    return Section("Summary", columns, rows, ("Closing balance", text(statement.closing_nusd)))


def _counts(counts: Mapping[str, int], shown: Sequence[str], *, others: bool) -> list[str]:
    """One cell for each shown count, and one for all other units."""
    cells = [f"{counts[name]:,}" if name in counts else "–" for name in shown]
    rest = ", ".join(f"{counts[name]:,} {unit}" for name, unit in _OTHERS.items() if counts.get(name))
    return [*cells, rest] if others else cells


def _decimals(nusd: int) -> int:
    return max(CENTS, len(usd_text(nusd).partition(".")[2]))


def _all_nusd(statement: Statement) -> Iterable[int]:
    yield from (statement.opening_nusd, statement.closing_nusd)
    for one in (statement.total, *(line.usages for line in statement.lines), *(one for *_, one in statement.keys)):
        yield from (one.charge_nusd, one.estimated_nusd)
    yield from (one.nusd for one in (*statement.adjustments, *statement.credits))
    for grant in statement.grants:
        yield from (getattr(grant, name) for name in _GRANT_COLUMNS.values())
    for _, found in () if statement.by_value is None else statement.by_value.rows:
        yield from (found.usages.charge_nusd, found.adjusted_nusd)
