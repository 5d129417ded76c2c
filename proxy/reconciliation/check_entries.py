"""The checks of entries, each alone and against the other entries of its exchange.

Invariants: a check only reads; an entry that cannot be read is a difference, not an error. A top-up equals, in every
field, the entry that was written; no other row of the ledger can confirm it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import Any

import msgspec
from sqlalchemy import Connection, Dialect, Select, Text, and_, case, cast, func, or_, select

from proxy.billing.adjustment import MONEY
from proxy.billing.attempts import attempt_entries
from proxy.billing.correction import unexplained
from proxy.billing.details import EntryDetails, detail_name
from proxy.billing.entries import (
    ENTRY_FIELDS,
    STORED_NAMES,
    TOKENS,
    UNITS,
    EntryKind,
    LedgerEntry,
    units_from,
    usage_of,
)
from proxy.billing.money import nusd_from_usd
from proxy.billing.pricing.prices import pinned
from proxy.billing.record import BillableParts, Price
from proxy.billing.settlement import amount, content_hash, incurred, other_models
from proxy.ledger.amounts import nusd, rows_of
from proxy.ledger.schema.tables import ledger_entries
from proxy.metering.counts import violations
from proxy.metering.usage import Usage
from proxy.reconciliation.integrity import CheckResult, CheckScope, settled

# Distinct combinations of price and billed parts: a few per model and period.
_TERMS_KEPT = 4_096

_COLUMNS = ledger_entries.c


def one_terminal(connection: Connection, scope: CheckScope) -> CheckResult:
    """Each exchange has exactly one terminal entry, and otherwise only adjustments and attempts. A top-up is the only
    entry of its exchange."""
    terminal = func.sum(case((_COLUMNS.kind == EntryKind.USAGE, 1), else_=0))
    credit = func.sum(case((_COLUMNS.kind == EntryKind.CREDIT, 1), else_=0))
    strange = func.sum(case((_COLUMNS.kind.in_(list(EntryKind)), 0), else_=1))
    query = select(_COLUMNS.exchange_id, terminal.label("terminal"), strange.label("of_no_known_kind"))
    wrong = or_(terminal + credit != 1, strange != 0, and_(credit != 0, func.count() != 1))
    result = CheckResult()
    for row in rows_of(connection, _of_touched(query, scope).group_by(_COLUMNS.exchange_id).having(wrong)):
        result.differs(**row._asdict())
    return result


def no_duplicate(connection: Connection, scope: CheckScope) -> CheckResult:
    """(exchange, kind, seq) is unique."""
    name = (_COLUMNS.exchange_id, _COLUMNS.kind, _COLUMNS.seq)
    query = select(*name, func.count().label("rows"))
    result = CheckResult()
    for row in rows_of(connection, _of_touched(query, scope).group_by(*name).having(func.count() > 1)):
        result.differs(**row._asdict())
    return result


def _of_touched(query: Select[Any], scope: CheckScope) -> Select[Any]:
    """All entries of the exchanges that have an entry settled within the scope."""
    if scope.since is None:
        return query
    again = ledger_entries.alias().c
    return query.where(_COLUMNS.exchange_id.in_(select(again.exchange_id).where(again.settled_at >= scope.since)))


def adjustments(connection: Connection, scope: CheckScope) -> CheckResult:
    """Each adjustment refers to the terminal entry of its exchange and yields the totals that it states."""
    again = ledger_entries.alias()
    adjusted = select(again.c.exchange_id).where(again.c.kind == EntryKind.ADJUSTMENT)
    if scope.since is not None:
        adjusted = adjusted.where(again.c.settled_at >= scope.since)
    order = (_COLUMNS.exchange_id, _COLUMNS.settled_at, _COLUMNS.kind.desc(), _COLUMNS.seq)
    query = _entries(connection.dialect).where(_COLUMNS.exchange_id.in_(adjusted))
    result = CheckResult()
    for _, rows in groupby(rows_of(connection, query.order_by(*order)), key=lambda row: row.exchange_id):
        for entry, wrong in _misplaced([_entry(row) for row in rows]):
            result.differs(entry_id=entry.entry_id, exchange_id=entry.exchange_id, wrong=wrong)
    return result


def _misplaced(entries: Sequence[LedgerEntry]) -> Iterator[tuple[LedgerEntry, str]]:
    """The wrong adjustments of an exchange, with the reasons. `entries`: in the order of settling."""
    terminal = next((entry for entry in entries if entry.kind == EntryKind.USAGE), None)
    for entry in entries:
        if entry.kind != EntryKind.ADJUSTMENT:
            continue
        if terminal is None:
            yield entry, "there is no terminal entry"
        elif EntryDetails.of(entry.details).adjusts != terminal.entry_id:
            yield entry, "refers to another entry than the terminal one"
        elif (entry.key_id, entry.model, entry.started_at) != (terminal.key_id, terminal.model, terminal.started_at):
            yield entry, "has another key, model or start time than its exchange"
    if terminal is not None:
        yield from ((one, "does not yield the totals that it states") for one in unexplained(entries))


def attempts(connection: Connection, scope: CheckScope) -> CheckResult:
    """Each failed attempt named by the entries of an exchange has its own entry; each such entry is named and is
    free."""
    names = _COLUMNS.details[detail_name(EntryDetails.attempts)].as_string().is_not(None)
    query = (
        _entries(connection.dialect)
        .where(or_(_COLUMNS.kind == EntryKind.ATTEMPT, names))
        .order_by(_COLUMNS.exchange_id)
    )
    result = CheckResult()
    for exchange_id, rows in groupby(rows_of(connection, _of_touched(query, scope)), key=lambda row: row.exchange_id):
        entries = [_entry(row) for row in rows]
        try:
            named = {
                _content(line)
                for entry in entries
                if entry.kind != EntryKind.ATTEMPT
                for line in attempt_entries(entry)
            }
        except (ValueError, TypeError):
            result.differs(exchange_id=exchange_id, wrong="names attempts that cannot be read")
            continue
        there = {_content(entry) for entry in entries if entry.kind == EntryKind.ATTEMPT}
        if named != there:
            result.differs(exchange_id=exchange_id, named=len(named), as_named=len(named & there), there=len(there))
    return result


_content = attrgetter("seq", "provider", "upstream_model", "outcome", "key_id", "model", *TOKENS, *MONEY)


def counts(connection: Connection, scope: CheckScope) -> CheckResult:
    """In terminal entries no number is negative, no part exceeds its whole, and totals are sums.

    Some providers always violate the last two; the entry's flags record it.
    """
    not_negative = (*TOKENS, "events", "bytes", *MONEY, "duration_ms")
    column = _COLUMNS
    query = _entries(connection.dialect).where(
        column.kind == EntryKind.USAGE,
        or_(
            *(column[name] < 0 for name in not_negative),
            column.cached_tokens > column.prompt_tokens,
            column.reasoning_tokens > column.completion_tokens,
            column.total_tokens != column.prompt_tokens + column.completion_tokens,
            column.details[detail_name(EntryDetails.units)].as_string().is_not(None),
        ),
    )
    result = CheckResult()
    for row in rows_of(connection, settled(query, scope)):
        try:
            wrong = _miscounted(_entry(row), not_negative)
        except TypeError:
            wrong = "a count is not a number"
        if wrong:
            result.differs(exchange_id=row.exchange_id, wrong=wrong)
    return result


def _miscounted(entry: LedgerEntry, not_negative: Iterable[str]) -> str:
    """The faults of the entry's counts that its flags do not record; empty: none."""
    try:
        usage = usage_of(entry)
    except (ValueError, AttributeError):
        return "its units are not counts"
    wrong = [f"{STORED_NAMES[name]} is negative" for name in not_negative if (getattr(entry, name) or 0) < 0]
    wrong += [f"{name} is negative" for name in UNITS if (getattr(usage, name) or 0) < 0]
    details = EntryDetails.of(entry.details)
    # Recovered entries have no flags of the meter; partly reported, partly estimated usage need not be consistent.
    if entry.outcome == "crashed" or (entry.usage_source == "estimated" and details.usage is not None):
        return "; ".join(wrong)
    flags = details.flags or ()
    return "; ".join([*wrong, *(violation for violation in violations(usage) if violation not in flags)])


_AMOUNT_DETAILS = (
    EntryDetails.units, EntryDetails.price, EntryDetails.cost, EntryDetails.other_models, EntryDetails.stated_usd,
    EntryDetails.billed,
)  # fmt: skip


def prices(connection: Connection, scope: CheckScope) -> CheckResult:
    """The charge and the cost of each terminal entry follow from its usage and its pinned price."""
    units, price, cost, other, stated_usd, billed = (_COLUMNS.details[detail_name(field)] for field in _AMOUNT_DETAILS)
    query = select(
        _COLUMNS.exchange_id,
        *(nusd(STORED_NAMES[name], connection.dialect) for name in MONEY),
        *(_COLUMNS[name] for name in TOKENS),
        units.as_string(),
        cast(price, Text),
        cast(cost, Text),
        cast(other, Text),
        stated_usd.as_string(),
        billed.as_string(),
        _COLUMNS.usage_source,
    ).where(_COLUMNS.kind == EntryKind.USAGE)
    result = CheckResult()
    for row in rows_of(connection, settled(query, scope)):
        exchange_id, charge_nusd, cost_nusd, *counts, in_units, by_price, by_cost, others, cost_usd, parts, source = row
        try:
            terms = _terms(by_price, by_cost, parts, source)
            usage = Usage(*counts, **({} if in_units is None else units_from(msgspec.json.decode(in_units))))
            stated = None if cost_usd is None else nusd_from_usd(cost_usd)
            more = () if others is None else other_models(msgspec.json.decode(others))
            recomputed = (
                amount(
                    terms.price, usage, terms.bills, stated_nusd=stated, others=[(one.price, one.usage) for one in more]
                ),
                amount(
                    terms.cost, usage, terms.incurs, stated_nusd=stated, others=[(one.cost, one.usage) for one in more]
                ),
            )
        except (ValueError, TypeError) as wrong:
            result.differs(exchange_id=exchange_id, wrong=f"cannot be recomputed: {type(wrong).__name__}")
            continue
        if recomputed != (charge_nusd, cost_nusd):
            again = {"recomputed_charge_usd": recomputed[0], "recomputed_cost_usd": recomputed[1]}
            result.differs(exchange_id=exchange_id, charge_usd=charge_nusd, cost_usd=cost_nusd, **again)
    return result


@dataclass(frozen=True, slots=True)
class _PriceTerms:
    """The prices and factors that an entry's charge and cost were computed from."""

    price: Price | None
    cost: Price | None
    bills: BillableParts
    incurs: BillableParts


@lru_cache(maxsize=_TERMS_KEPT)
def _terms(price: str | None, cost: str | None, billed: str, source: str) -> _PriceTerms:
    """`price`, `cost`: JSON. Raises ValueError."""
    decoded = [None if text is None else msgspec.json.decode(text) for text in (price, cost)]
    pinned_price, pinned_cost = (None if one is None else pinned(one) for one in decoded)
    bills = BillableParts(billed)
    return _PriceTerms(pinned_price, pinned_cost, bills, incurred(source, bills))


def _entries(dialect: Dialect) -> Select[Any]:
    """All columns of the entries; money columns may contain any value."""
    return select(
        *(nusd(STORED_NAMES[name], dialect).label(name) if name in MONEY else _COLUMNS[name] for name in ENTRY_FIELDS)
    )


def _entry(row: Any) -> LedgerEntry:
    """The entry of a row. NaN, which another check reports, becomes None."""
    money = {name: getattr(row, name) for name in MONEY}
    valid = {name: None if value is None or value != value else int(value) for name, value in money.items()}
    return LedgerEntry(**{**row._asdict(), **valid})


# -- top-ups ---------------------------------------------------------------------------------------------------

# The empty model lets the index by model find the few top-ups.
IS_CREDIT = (_COLUMNS.kind == EntryKind.CREDIT, _COLUMNS.model == "")


def credits_are_whole(connection: Connection, scope: CheckScope) -> CheckResult:
    """The content of each top-up has the hash that was stored with it."""
    dialect = connection.dialect
    fields = (
        nusd(STORED_NAMES[name], dialect).label(name) if name in MONEY else _COLUMNS[name] for name in ENTRY_FIELDS
    )
    query = select(*fields, _COLUMNS.content_hash).where(*IS_CREDIT)
    result = CheckResult()
    for row in rows_of(connection, settled(query, scope)):
        if not _is_as_written(row):
            result.differs(exchange_id=row.exchange_id, key_id=row.key_id, wrong="differs from the entry as written")
    return result


def _is_as_written(row: Any) -> bool:
    """True if the row has its stored hash. False also if a money column contains no amount."""
    try:
        money = {name: None if getattr(row, name) is None else int(getattr(row, name)) for name in MONEY}
        fields = {name: getattr(row, name) for name in ENTRY_FIELDS}
        return content_hash(LedgerEntry(**{**fields, **money})) == str(row.content_hash)
    except (TypeError, ValueError):
        return False
