"""Statements as JSON and as CSV.

Invariants:
- JSON has exact amounts. All amounts of a CSV file have the same number of decimals.
- Provider cost is never shown.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from proxy.billing.entries import COUNTS
from proxy.billing.money import NUSD_PER_USD, usd_text
from proxy.billing.receipt import FORMAT
from proxy.billing.units import BY_PRICE
from proxy.foundation.times import iso_utc
from proxy.ledger.grants.burning import GrantPeriod
from proxy.ledger.periods.activity import Booking, PricedLine, Usages
from proxy.reports.export import safe_cell
from proxy.reports.statement import ByValue, Issued, KeyActivity, Statement
from proxy.reports.statement_document import AS_BILLED, GRANT_COLUMNS

CSV_COLUMNS: Mapping[str, str] = {
    "line": "what the row is: `opening`, `usage`, `adjustment`, `credit`, `closing`, `net`, `rounding`, `tax`, "
    "`amount_due`",
    "first_day": "the first day of the exchanges of `usage`; the day of booking of `adjustment` and `credit`",
    "last_day": "the last day of the exchanges of `usage`; the day of the exchange of `adjustment`",
    "project": "the project's name",
    "key": "the key's name",
    "key_id": "the key's id",
    "model": "the model that the client requested",
    "used_model": "another model that the exchanges used",
    "unit": "the unit, by the name of its price in the settings; `exchange`: requests billed as a whole",
    "quantity": "billed units; audio in milliseconds",
    "unit_price_usd": "the price; empty: none",
    "price_per": "the quantity that the price is for: `million`, `thousand`, `hour`, `each`",
    "reference": "the exchange of an `adjustment`, the reference of a `credit`, the statement's number of `amount_due`",
    "reason": "the reason of an `adjustment` or a `credit`; the tax of `tax`",
    "charge_usd": "charges of `usage` and `adjustment`",
    "credit_usd": "amounts of `credit`",
    "balance_usd": "the balance of `opening` and `closing`: opening − charges + credits = closing",
    "due_usd": "`net` + `rounding` + `tax` = `amount_due`",
    "time_zone": "the time zone of the days",
    "status": "`final`; `provisional`: the month is not closed",
}
"""column → meaning"""


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
        **_issued_json(statement, statement.issued),
        "basis": "as_billed",
        "currency": "USD",
        "opening_balance_usd": usd_text(statement.opening_nusd),
        "usage_usd": usd_text(statement.total.charge_nusd),
        "adjustments_usd": usd_text(statement.adjusted_nusd),
        "credits_usd": usd_text(statement.credited_nusd),
        "closing_balance_usd": usd_text(statement.closing_nusd),
        "due": _due_json(statement),
        "seller": _seller_json(statement),
        "customer": {
            "name": statement.customer.legal_name,
            "address": statement.customer.address or None,
            "tax_id": statement.customer.tax_id or None,
        },
        "projects": [
            {"project_id": one.project_id, "name": one.name, **_usages_json(one.usages),
             "adjustments_usd": usd_text(one.adjusted_nusd)}
            for one in statement.projects
        ],
        "prices": [_price_json(line) for line in statement.prices],
        "usage": [
            {"day": str(line.day), "model": line.model, **_usages_json(line.usages)} for line in statement.lines
        ],
        "keys": [] if statement.owner.is_key else [_key_json(one) for one in statement.keys],
        "adjustments": [_booking_json(adjustment, "charge_usd") for adjustment in statement.adjustments],
        "credits": [_booking_json(credit, "credit_usd") for credit in statement.credits],
        "total": _usages_json(statement.total),
        **_grants_json(statement.grants),
        **_by_value_json(statement.by_value),
    }  # fmt: skip


def _issued_json(statement: Statement, issued: Issued | None) -> dict[str, Any]:
    if issued is None:
        return {"final": False}
    return {
        "final": True,
        "number": issued.number,
        "short_number": statement.short_number,
        "version": issued.version,
        "closed_at": iso_utc(issued.closed_at),
        "due_on": None if statement.due_on is None else str(statement.due_on),
        "entries": issued.entries,
        "digest": issued.digest,
        "digest_format": FORMAT,
    }


def _due_json(statement: Statement) -> dict[str, Any]:
    due, tax = statement.due, statement.letterhead.tax
    return {
        "net_usd": usd_text(due.net_nusd),
        "rounding_usd": usd_text(due.rounding_nusd),
        "tax": None if tax is None else {"label": tax.label, "percent": tax.percent},
        "tax_usd": usd_text(due.tax_nusd),
        "amount_due_usd": usd_text(due.total_nusd),
        "owed_of_earlier_months_usd": usd_text(due.earlier_nusd),
    }


def _seller_json(statement: Statement) -> dict[str, Any] | None:
    head = statement.letterhead
    if not head.seller:
        return None
    fields = {"address": head.address, "tax_id": head.tax_id, "contact": head.contact, "terms": head.terms}
    return {"name": head.seller, **{name: text or None for name, text in fields.items()}}


def _price_json(line: PricedLine) -> dict[str, Any]:
    return {
        "model": line.model,
        "used_model": line.used_model or None,
        "unit": line.price,
        "unit_price_usd": None if line.rate_nusd is None else usd_text(line.rate_nusd),
        "price_per": _per(line),
        "first_day": str(line.first_day),
        "last_day": str(line.last_day),
        "quantity": line.number,
        "charge_usd": usd_text(line.charge_nusd),
    }


def _per(line: PricedLine) -> str | None:
    """`million`, `each`; None: no price."""
    return None if line.rate_nusd is None else BY_PRICE[line.price].per.removeprefix(" per ").strip() or "each"


def _key_json(key: KeyActivity) -> dict[str, Any]:
    return {
        "key_id": key.key_id,
        "alias": key.name,
        "project": key.project,
        **_usages_json(key.usages),
        "adjustments_usd": usd_text(key.adjusted_nusd),
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


def _grants_json(found: Sequence[GrantPeriod]) -> dict[str, Any]:
    """Left out of statements without grants: those of closed months stay as they were."""
    rows = [
        {
            "grant_id": one.grant.grant_id,
            "name": one.grant.name,
            "expires_at": None if one.grant.expires_at is None else iso_utc(one.grant.expires_at),
            **{f"{name}_usd": usd_text(getattr(one, name)) for name in GRANT_COLUMNS.values()},
        }
        for one in found
    ]
    return {"grants": rows} if rows else {}


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


# -- CSV


def statement_csv(statement: Statement) -> str:
    """The statement as CSV, with the columns CSV_COLUMNS: a row for each key, model, unit and price."""
    text_file = io.StringIO()
    table = csv.DictWriter(text_file, CSV_COLUMNS, restval="", lineterminator="\r\n")
    table.writeheader()
    basis = {
        "time_zone": statement.month.time_zone or "UTC",
        "status": "provisional" if statement.issued is None else "final",
    }
    table.writerows({**row, **basis} for row in _csv_rows(statement))
    return text_file.getvalue()


def _csv_rows(statement: Statement) -> Iterator[dict[str, Any]]:
    opening = {"first_day": statement.month.first, "reason": AS_BILLED, "balance_usd": _usd(statement.opening_nusd)}
    yield {"line": "opening", **opening}
    for key in statement.keys:
        yield from (_csv_line(key, line) for line in key.prices)
    for kind, bookings, column in (
        ("adjustment", statement.adjustments, "charge_usd"),
        ("credit", statement.credits, "credit_usd"),
    ):
        for one in bookings:
            row = _csv_booking(kind, one, column)
            yield {**row, "first_day": statement.month.day_of(one.booked_at)}
    yield {"line": "closing", "last_day": statement.month.last, "balance_usd": _usd(statement.closing_nusd)}
    due, tax = statement.due, statement.letterhead.tax
    yield {"line": "net", "due_usd": _usd(due.net_nusd)}
    yield {"line": "rounding", "due_usd": _usd(due.rounding_nusd)}
    if tax is not None:
        yield {"line": "tax", "reason": safe_cell(f"{tax.label} {tax.percent} %"), "due_usd": _usd(due.tax_nusd)}
    last_day = "" if statement.due_on is None else statement.due_on
    number = statement.short_number if statement.issued else ""
    yield {"line": "amount_due", "last_day": last_day, "reference": number, "due_usd": _usd(due.total_nusd)}


def _csv_line(key: KeyActivity, line: PricedLine) -> dict[str, Any]:
    return {
        "line": "usage",
        "first_day": line.first_day,
        "last_day": line.last_day,
        "project": safe_cell(key.project),
        "key": safe_cell(key.name),
        "key_id": key.key_id,
        "model": safe_cell(line.model),
        "used_model": safe_cell(line.used_model),
        "unit": line.price,
        "quantity": line.number,
        "unit_price_usd": "" if line.rate_nusd is None else _usd(line.rate_nusd),
        "price_per": _per(line) or "",
        "charge_usd": _usd(line.charge_nusd),
    }


def _csv_booking(kind: str, booking: Booking, column: str) -> dict[str, Any]:
    return {
        "line": kind,
        "last_day": booking.day,
        "key": safe_cell(booking.key_alias),
        "model": safe_cell(booking.model),
        "reference": booking.exchange_id,
        "reason": safe_cell(booking.why),
        column: _usd(booking.nusd),
    }


def _usd(nusd: int) -> str:
    """Nine decimals."""
    sign, (whole, part) = "-" if nusd < 0 else "", divmod(abs(nusd), NUSD_PER_USD)
    return f"{sign}{whole}.{part:09}"
