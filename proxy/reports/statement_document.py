"""A statement as a document: the texts and tables that the HTML page and the PDF print, in their order.

Invariants:
- All amounts in tables have the same number of decimals, so the printed amounts add up to the printed totals.
- Provider cost is never shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import groupby

from proxy.billing.dimensions import TAG
from proxy.billing.money import Nusd, total_nusd, usd_text
from proxy.billing.receipt import FORMAT
from proxy.billing.units import BILLED_UNITS, BY_PRICE
from proxy.billing.used_units import WHOLE
from proxy.foundation.times import iso_utc
from proxy.ledger.grants.burning import GrantPeriod
from proxy.ledger.periods.activity import Booking, PricedLine, Usages
from proxy.reports.amount_due import NUSD_PER_CENT
from proxy.reports.dimensions import NONE
from proxy.reports.statement import ByValue, Statement, total_of

CENTS = 2
MINUS, UNKNOWN = "\u2212", "–"
LATE_USAGE = "Late usage from earlier months"

AS_BILLED = (
    "As billed: adjustments and credits are in the month of their booking. Sums by usage date (Spend in the console, "
    "budgets) have an adjustment on the day of its exchange."
)
_OTHERS = {unit.count: unit.label for unit in BILLED_UNITS if unit.label} | {
    "timed_audio_tokens": "of audio input, counted in ms",
}
_TOKENS = ("prompt_tokens", "completion_tokens")
_MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
           "December")  # fmt: skip


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table."""

    title: str
    is_number: bool = False
    is_long: bool = False
    """wraps, and takes the width that the other columns leave"""


class RowKind(Enum):
    """The weight of a row."""

    LINE = "line"
    GROUP = "group"
    """the sum of the lines below it"""
    TOTAL = "total"


@dataclass(frozen=True, slots=True)
class Row:
    """One row: a cell for each column."""

    cells: Sequence[str]
    kind: RowKind = RowKind.LINE


@dataclass(frozen=True, slots=True)
class Section:
    """A table with its title."""

    title: str
    columns: Sequence[TableColumn]
    rows: Sequence[Row]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Document:
    """The parts from top to bottom. Empty texts are left out."""

    title: str
    seller: Sequence[str]
    """name, address, tax number, contact"""
    facts: Sequence[tuple[str, str]]
    """name → number, dates, period"""
    customer: Sequence[str]
    """name, address, tax number"""
    due_title: str
    due: str
    """the amount with its currency"""
    due_notes: Sequence[str]
    sections: Sequence[Section]
    notes: Sequence[str]
    annex: Sequence[Section]
    proof: Sequence[str]


def document(statement: Statement) -> Document:
    """The document of a statement."""
    head, customer = statement.letterhead, statement.customer
    text = amounts(statement)
    return Document(
        title=title(statement),
        seller=_filled(head.seller, *head.address.splitlines(), head.tax_id, head.contact),
        facts=list(_facts(statement)),
        customer=_filled(customer.legal_name, *customer.address.splitlines(), customer.tax_id),
        due_title=_due_title(statement),
        due=dollars(statement.due.total_nusd),
        due_notes=_filled(*_due_notes(statement)),
        sections=list(_sections(statement, text)),
        notes=list(_notes(statement)),
        annex=list(_annex(statement, text)),
        proof=list(_proof(statement)),
    )


def title(statement: Statement) -> str:
    """The title: kind of document, customer, month."""
    zone = statement.month.time_zone
    month = f"{statement.month}" + ("" if zone is None else f" ({zone})")
    kind = "Statement" if statement.issued else "Provisional statement"
    return f"{kind} for {statement.owner.kind} {statement.owner.name}, {month}"


def amounts(statement: Statement) -> Callable[[int], str]:
    """A formatter nUSD → text with the decimals of this statement: 1.50, or 1.500000000 beside 0.000000001."""
    decimals = max(map(_decimals, _all_nusd(statement)), default=CENTS)

    def text(nusd: int) -> str:
        whole, _, part = usd_text(abs(nusd)).partition(".")
        return f"{MINUS if nusd < 0 else ''}{int(whole):,}.{part.ljust(decimals, '0')}"

    return text


def dollars(nusd: int) -> str:
    """An amount of whole cents: `$1,234.50`."""
    cents = abs(nusd) // NUSD_PER_CENT
    return f"{MINUS if nusd < 0 else ''}${cents // 100:,}.{cents % 100:02}"


def _filled(*texts: str) -> list[str]:
    return [text for text in texts if text]


def _second(unix_s: float) -> str:
    return iso_utc(unix_s)[:19].replace("T", " ")


# -- head


def _facts(statement: Statement) -> Iterator[tuple[str, str]]:
    month, issued = statement.month, statement.issued
    if issued is not None:
        yield "Number", statement.short_number
        yield "Issued", str(issued.day)
    if statement.due_on is not None:
        yield "Due", str(statement.due_on)
    yield "Period", f"{_MONTHS[month.first.month - 1]} {month.first.year}"
    yield "Days", f"{month.first} to {month.last} ({month.time_zone or 'UTC'})"
    yield f"Account ({statement.owner.kind})", statement.owner.name


def _due_title(statement: Statement) -> str:
    return "Amount due" if statement.issued else "Amount due so far"


def _due_notes(statement: Statement) -> Iterator[str]:
    if statement.issued is None:
        status = "the month is over, but not closed" if statement.is_over else "the month is not over"
        if statement.month.time_zone is not None:
            status = "months are closed in UTC only"
        yield f"Provisional: {status}. As of {_second(statement.as_of)} UTC. Do not pay."
        return
    if statement.due.total_nusd == 0:
        yield "Nothing has to be paid for this month."
    elif statement.letterhead.seller or statement.letterhead.terms:
        by = "" if statement.due_on is None else f" by {statement.due_on}"
        yield f"Please pay{by}, with the number {statement.short_number}."
        yield from statement.letterhead.terms.splitlines()
    if statement.due.earlier_nusd:
        yield "What is still owed of earlier months is on their statements, and is not part of this amount."


# -- tables of amounts


def _sections(statement: Statement, text: Callable[[int], str]) -> Iterator[Section]:
    yield _due_section(statement, text)
    yield _balance_section(statement, text)
    if projects := statement.projects:
        yield _parts_section(
            "By project", "Project", [(one.name, one.usages, one.adjusted_nusd) for one in projects], text
        )
    if prices := statement.prices:
        yield _prices_section(statement, prices, text)
    if not statement.owner.is_key and statement.keys:
        yield _parts_section("By key", "Key", list(_named_keys(statement)), text)
    if statement.by_value is not None:
        yield _by_value(statement.by_value, text)
    if statement.adjustments:
        yield _reasons_section(statement, text)
    if statement.grants:
        yield _grants_section(statement.grants, text)


_AMOUNT = TableColumn("Amount (USD)", is_number=True)


def _due_section(statement: Statement, text: Callable[[int], str]) -> Section:
    due, total, tax = statement.due, statement.total, statement.letterhead.tax
    usage = f"Usage: {total.requests:,} requests"
    rows = [(usage + _estimated(total), text(total.charge_nusd))]
    if statement.adjustments:
        rows.append((f"Adjustments: {len(statement.adjustments):,}", text(statement.adjusted_nusd)))
    if due.covered_nusd:
        words = "Paid from the balance" if due.covered_nusd > 0 else "Added to the balance"
        rows.append((words, text(-due.covered_nusd)))
    if due.rounding_nusd:
        rows.append(("Rounding to cents", text(due.rounding_nusd)))
    if tax is not None:
        net = dollars(due.net_nusd + due.rounding_nusd)
        rows.append((f"{tax.label} {tax.percent}\u00a0% of {net}", text(due.tax_nusd)))
    total_row = Row((_due_title(statement), text(due.total_nusd)), RowKind.TOTAL)
    columns = [TableColumn("This month", is_long=True), _AMOUNT]
    return Section("Charges", columns, [*map(Row, rows), total_row])


def _estimated(usages: Usages) -> str:
    """`, of which estimated $0.04 (2.8 %)`; empty if nothing is."""
    if not usages.estimated:
        return ""
    part = f"{usages.estimated:,} estimated"
    if not usages.estimated_nusd:
        return f", of which {part}"
    share = 1000 * usages.estimated_nusd // max(1, usages.charge_nusd)
    cents = usages.estimated_nusd >= NUSD_PER_CENT
    amount = dollars(usages.estimated_nusd + NUSD_PER_CENT // 2) if cents else "less than $0.01"
    return f", of which estimated {amount} ({share // 10}.{share % 10}\u00a0%)"


def _balance_section(statement: Statement, text: Callable[[int], str]) -> Section:
    rows = [
        ("Opening balance", text(statement.opening_nusd)),
        ("Usage", text(-statement.total.charge_nusd)),
        ("Adjustments", text(-statement.adjusted_nusd)),
        ("Credits and payments", text(statement.credited_nusd)),
    ]
    closing = Row(("Closing balance", text(statement.closing_nusd)), RowKind.TOTAL)
    earlier = statement.due.earlier_nusd
    owed = [Row(("Owed of earlier months, in the closing balance", text(-earlier)))] if earlier else []
    note = "A negative balance is owed. Balances are without tax."
    return Section("Balance", [TableColumn("Account", is_long=True), _AMOUNT], [*map(Row, rows), closing, *owed], note)


def _named_keys(statement: Statement) -> Iterator[tuple[str, Usages, Nusd]]:
    """Keys with the same name get the end of their id, and the project of an organization's keys is named."""
    shown = [
        f"{key.project} / {key.name}" if statement.owner.kind == "organization" else key.name for key in statement.keys
    ]
    for key, name in zip(statement.keys, shown, strict=True):
        text = f"{name} (…{key.key_id[-6:]})" if shown.count(name) > 1 else name
        yield text, key.usages, key.adjusted_nusd


def _parts_section(
    name: str, of: str, parts: Sequence[tuple[str, Usages, Nusd]], text: Callable[[int], str]
) -> Section:
    """Requests, tokens and amounts of each part, which add up to the charges of the month."""

    def cells(usages: Usages, adjusted_nusd: int) -> list[str]:
        return [
            f"{usages.requests:,}", *_token_cells(usages.counts), text(usages.charge_nusd), text(adjusted_nusd),
            text(usages.charge_nusd + adjusted_nusd),
        ]  # fmt: skip

    total = Usages()
    for _, usages, _ in parts:
        total.add_all(usages)
    adjusted = total_nusd(nusd for *_, nusd in parts)
    has_adjustments = any(nusd for *_, nusd in parts)
    numbers = ["Requests", "Input tokens", "Output tokens", "Usage", "Adjustments", _AMOUNT.title]
    left_out = set() if has_adjustments else {"Usage", "Adjustments"}
    columns = [TableColumn(of, is_long=True), *(TableColumn(one, is_number=True) for one in numbers)]
    rows = [Row((label, *cells(usages, nusd))) for label, usages, nusd in parts]
    return _without(Section(name, columns, [*rows, Row(("Total", *cells(total, adjusted)), RowKind.TOTAL)]), left_out)


def _without(section: Section, titles: set[str]) -> Section:
    kept = [at for at, column in enumerate(section.columns) if column.title not in titles]
    rows = [Row([row.cells[at] for at in kept], row.kind) for row in section.rows]
    return Section(section.title, [section.columns[at] for at in kept], rows, section.note)


def _prices_section(statement: Statement, prices: Sequence[PricedLine], text: Callable[[int], str]) -> Section:
    columns = [
        TableColumn("Model and unit", is_long=True),
        TableColumn("Price (USD)"),
        TableColumn("Quantity", is_number=True),
        _AMOUNT,
    ]
    of_models = _by_model(statement)
    several = _changed(prices)
    rows: list[Row] = []
    for model, of_model in groupby(prices, key=lambda one: one.model):
        usages = of_models[model]
        label = f"{model}: {usages.requests:,} requests{_estimated(usages)}"
        rows.append(Row((label, "", "", text(usages.charge_nusd)), RowKind.GROUP))
        rows += [Row(_price_cells(one, several, text)) for one in of_model]
    rows.append(Row(("Usage", "", "", text(statement.total.charge_nusd)), RowKind.TOTAL))
    note = (
        "Quantity × price is the amount. The charge of each request is rounded to a billionth of a dollar, so a line "
        "can differ by as much for each request."
    )
    return Section("By model and price", columns, rows, note)


def _by_model(statement: Statement) -> Mapping[str, Usages]:
    found: dict[str, Usages] = {}
    for line in statement.lines:
        found.setdefault(line.model, Usages()).add_all(line.usages)
    return found


def _changed(prices: Iterable[PricedLine]) -> set[object]:
    """The units that have several prices in the month."""
    names = [line.identity[:3] for line in prices]
    return {name for name in names if names.count(name) > 1}


def _price_cells(line: PricedLine, several: set[object], text: Callable[[int], str]) -> list[str]:
    name = unit_name(line.price)
    if line.used_model:
        name += f" of {line.used_model}"
    if line.identity[:3] in several:
        days = str(line.first_day) if line.first_day == line.last_day else f"{line.first_day} to {line.last_day}"
        name += f", {days}"
    return [name, price_text(line), quantity_text(line), text(line.charge_nusd)]


def unit_name(price: str) -> str:
    """`cached_input` → `Cached input tokens`."""
    if price == WHOLE:
        return "Requests billed as a whole"
    unit = BY_PRICE[price]
    words = "audio" if price == "audio_hour" else f"{price} tokens" if unit.is_token else unit.count or "requests"
    return words.replace("_", " ").capitalize()


def price_text(line: PricedLine) -> str:
    """`3.00 per million`, with two decimals at least."""
    if line.rate_nusd is None:
        return UNKNOWN if line.price == WHOLE and line.charge_nusd else "no price"
    whole, _, part = usd_text(line.rate_nusd).partition(".")
    return f"{int(whole):,}.{part.ljust(CENTS, '0')}{BY_PRICE[line.price].per or ' each'}"


def quantity_text(line: PricedLine) -> str:
    """`1,234,567`; audio in seconds."""
    if line.price == "audio_hour":
        return f"{line.number // 1000:,}.{line.number % 1000:03} s"
    return f"{line.number:,}"


def _by_value(found: ByValue, text: Callable[[int], str]) -> Section:
    name = found.dimension.removeprefix(TAG).replace("_", " ")
    parts = [
        (NONE if value is None else value.text, one.usages, one.adjusted_nusd) for value, one in found.rows
    ]  # fmt: skip
    return _parts_section(f"By {name}", name.capitalize(), parts, text)


def _reasons_section(statement: Statement, text: Callable[[int], str]) -> Section:
    reasons: dict[str, list[Nusd]] = {}
    for one in statement.adjustments:
        reasons.setdefault(one.why or UNKNOWN, []).append(one.nusd)
    columns = [TableColumn("Reason", is_long=True), TableColumn("Number", is_number=True), _AMOUNT]
    rows = [Row((why, f"{len(found):,}", text(sum(found)))) for why, found in sorted(reasons.items())]
    foot = Row(("Total", f"{len(statement.adjustments):,}", text(statement.adjusted_nusd)), RowKind.TOTAL)
    return Section("Adjustments", columns, [*rows, foot], "Each of them is in the annex.")


GRANT_COLUMNS = {"Opening": "opening", "Granted": "granted", "Used": "burned", "Expired": "expired", "Left": "closing"}
"""title → amount of a grant in the month"""


def _grants_section(found: Sequence[GrantPeriod], text: Callable[[int], str]) -> Section:
    def cells(sign: Callable[[str], int]) -> list[str]:
        return [text(sign(name)) for name in GRANT_COLUMNS.values()]

    rows = [
        Row((one.grant.name, "never" if one.grant.expires_at is None else _second(one.grant.expires_at),
             *cells(partial(getattr, one))))
        for one in found
    ]  # fmt: skip
    foot = Row(("Total", "", *cells(lambda name: sum(getattr(one, name) for one in found))), RowKind.TOTAL)
    columns = [TableColumn("Grant", is_long=True), TableColumn("Expires (UTC)", is_long=True)]
    return Section("Grants", [*columns, *(TableColumn(one, is_number=True) for one in GRANT_COLUMNS)], [*rows, foot])


# -- annex


def _annex(statement: Statement, text: Callable[[int], str]) -> Iterator[Section]:
    late = [line for line in statement.lines if line.day < statement.month.first]
    has_others = any(name in statement.units for name in _OTHERS)
    for name, lines in (("Days", statement.lines[len(late) :]), (LATE_USAGE, late)):
        if lines:
            rows = [Row((str(line.day), line.model, *_usage_cells(line.usages, text))) for line in lines]
            foot = Row(("Total", "", *_usage_cells(total_of(lines), text)), RowKind.TOTAL)
            numbers = [TableColumn(one, is_number=True) for one in ("Requests", "Input tokens", "Output tokens")]
            columns = [TableColumn("Day"), TableColumn("Model", is_long=True), *numbers]
            columns += [TableColumn("Other units", is_long=True), _AMOUNT]
            yield _without(Section(name, columns, [*rows, foot]), set() if has_others else {"Other units"})
    if statement.adjustments:
        yield _bookings_section("Each adjustment", statement, statement.adjustments, text)
    if statement.credits:
        yield _bookings_section("Credits and payments", statement, statement.credits, text)


def _bookings_section(
    name: str, statement: Statement, bookings: Sequence[Booking], text: Callable[[int], str]
) -> Section:
    titles = ("Reference", "Model", "Reason")
    columns = [TableColumn("Booked"), TableColumn("Usage day"), *(TableColumn(one, is_long=True) for one in titles)]
    rows = [
        Row((str(statement.month.day_of(one.booked_at)), str(one.day), one.exchange_id, one.model, one.why,
             text(one.nusd)))
        for one in bookings
    ]  # fmt: skip
    foot = Row(("Total", "", "", "", "", text(total_nusd(one.nusd for one in bookings))), RowKind.TOTAL)
    is_credit = bookings is statement.credits
    return _without(Section(name, [*columns, _AMOUNT], [*rows, foot]), {"Usage day", "Model"} if is_credit else set())


def _usage_cells(usages: Usages, text: Callable[[int], str]) -> list[str]:
    requests = f"{usages.requests:,}" + (f" ({usages.unpriced:,} unpriced)" if usages.unpriced else "")
    others = ", ".join(f"{usages.counts[name]:,} {unit}" for name, unit in _OTHERS.items() if usages.counts.get(name))
    return [requests, *_token_cells(usages.counts), others, text(usages.charge_nusd)]


def _token_cells(counts: Mapping[str, int]) -> list[str]:
    return [f"{counts[name]:,}" if name in counts else UNKNOWN for name in _TOKENS]


# -- foot


def _notes(statement: Statement) -> Iterator[str]:
    zone = statement.month.time_zone or "UTC"
    yield f"Amounts are in US dollars (USD). Dates are year-month-day. Days are in {zone}."
    if statement.total.estimated:
        yield "Estimated: the provider did not report the usage of these requests. Their usage is estimated."
    if statement.total.unpriced:
        yield "Unpriced, no price: these requests have no price and are not charged."
    yield AS_BILLED
    yield "Usage that was settled after its month was closed is listed in the month in which it was settled."


def _proof(statement: Statement) -> Iterator[str]:
    if (issued := statement.issued) is not None:
        yield f"Full number: {issued.number}, version {issued.version}. Final since {_second(issued.closed_at)} UTC."
        yield f"Digest of its {issued.entries:,} entries (format {FORMAT}): {issued.digest}"
        yield "Check it with `tokenweir verify` and the statement as JSON."


def _decimals(nusd: int) -> int:
    return max(CENTS, len(usd_text(nusd).partition(".")[2]))


def _all_nusd(statement: Statement) -> Iterator[int]:
    due = statement.due
    yield from (statement.opening_nusd, statement.closing_nusd, due.covered_nusd, due.rounding_nusd, due.earlier_nusd)
    yield from (line.usages.charge_nusd for line in statement.lines)
    yield from (line.charge_nusd for line in statement.prices)
    for key in statement.keys:
        yield from (key.usages.charge_nusd, key.adjusted_nusd)
    yield from (one.nusd for one in (*statement.adjustments, *statement.credits))
    for grant in statement.grants:
        yield from (getattr(grant, name) for name in GRANT_COLUMNS.values())
    for _, found in () if statement.by_value is None else statement.by_value.rows:
        yield from (found.usages.charge_nusd, found.adjusted_nusd)
