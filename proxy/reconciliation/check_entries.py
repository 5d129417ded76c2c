"""What entries must say of themselves and of each other. Each check reads, and counts what differs.

Law: an entry that cannot be read is a difference, not an error.
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

from proxy.billing.attempts import ATTEMPTS_DETAIL, attempt_entries
from proxy.billing.correction import MONEY, unexplained
from proxy.billing.entries import ENTRY_FIELDS, TOKENS, UNITS, EntryKind, LedgerEntry, units_from, usage_of
from proxy.billing.prices import pinned
from proxy.billing.record import BillableParts, Price
from proxy.billing.settlement import amount, incurred
from proxy.ledger.amounts import nusd, rows_of
from proxy.ledger.schema.tables import ledger_entries
from proxy.metering.counts import violations
from proxy.metering.usage import Usage
from proxy.reconciliation.integrity import CheckResult, CheckScope, settled

# Distinct prices of a ledger's entries, with what is billed: some per model, for as long as they hold.
_TERMS_KEPT = 4_096

_COLUMNS = ledger_entries.c


def one_terminal(connection: Connection, scope: CheckScope) -> CheckResult:
    """Completeness and no second charge: each exchange has one terminal entry, and else adjustments and attempts only.
    A top-up stands alone."""
    terminal = func.sum(case((_COLUMNS.kind == EntryKind.USAGE, 1), else_=0))
    credit = func.sum(case((_COLUMNS.kind == EntryKind.CREDIT, 1), else_=0))
    strange = func.sum(case((_COLUMNS.kind.in_(list(EntryKind)), 0), else_=1))
    query = select(_COLUMNS.exchange_id, terminal.label("terminal"), strange.label("of_no_known_kind"))
    wrong = or_(terminal + credit != 1, strange != 0, and_(credit != 0, func.count() != 1))
    found = CheckResult()
    for row in rows_of(connection, _of_touched(query, scope).group_by(_COLUMNS.exchange_id).having(wrong)):
        found.differs(**row._asdict())
    return found


def no_duplicate(connection: Connection, scope: CheckScope) -> CheckResult:
    """(exchange, kind, seq) names one entry."""
    name = (_COLUMNS.exchange_id, _COLUMNS.kind, _COLUMNS.seq)
    query = select(*name, func.count().label("rows"))
    found = CheckResult()
    for row in rows_of(connection, _of_touched(query, scope).group_by(*name).having(func.count() > 1)):
        found.differs(**row._asdict())
    return found


def _of_touched(query: Select[Any], scope: CheckScope) -> Select[Any]:
    """All entries of the exchanges of which any was settled within the scope."""
    if scope.since is None:
        return query
    again = ledger_entries.alias().c
    return query.where(_COLUMNS.exchange_id.in_(select(again.exchange_id).where(again.settled_at >= scope.since)))


def adjustments(connection: Connection, scope: CheckScope) -> CheckResult:
    """Each refers to the terminal entry of its own exchange and comes to what it says."""
    again = ledger_entries.alias()
    adjusted = select(again.c.exchange_id).where(again.c.kind == EntryKind.ADJUSTMENT)
    if scope.since is not None:
        adjusted = adjusted.where(again.c.settled_at >= scope.since)
    order = (_COLUMNS.exchange_id, _COLUMNS.settled_at, _COLUMNS.kind.desc(), _COLUMNS.seq)
    query = _entries(connection.dialect).where(_COLUMNS.exchange_id.in_(adjusted))
    found = CheckResult()
    for _, rows in groupby(rows_of(connection, query.order_by(*order)), key=lambda row: row.exchange_id):
        for entry, wrong in _misplaced([_entry(row) for row in rows]):
            found.differs(entry_id=entry.entry_id, exchange_id=entry.exchange_id, wrong=wrong)
    return found


def _misplaced(entries: Sequence[LedgerEntry]) -> Iterator[tuple[LedgerEntry, str]]:
    """Adjustments among an exchange's entries, in the order they were settled, and what is wrong with them."""
    terminal = next((one for one in entries if one.kind == EntryKind.USAGE), None)
    for one in entries:
        if one.kind != EntryKind.ADJUSTMENT:
            continue
        if terminal is None:
            yield one, "there is no terminal entry"
        elif not isinstance(one.details, dict) or one.details.get("adjusts") != terminal.entry_id:
            yield one, "refers to another entry"
        elif (one.key_id, one.model, one.started_at) != (terminal.key_id, terminal.model, terminal.started_at):
            yield one, "is of another key, model or time than its exchange"
    if terminal is not None:
        yield from ((one, "does not come to what it says") for one in unexplained(entries))


def attempts(connection: Connection, scope: CheckScope) -> CheckResult:
    """Each attempt that an exchange's entries name has its line, each line is named, and none is charged."""
    names = _COLUMNS.details[ATTEMPTS_DETAIL].as_string().is_not(None)
    query = (
        _entries(connection.dialect)
        .where(or_(_COLUMNS.kind == EntryKind.ATTEMPT, names))
        .order_by(_COLUMNS.exchange_id)
    )
    found = CheckResult()
    for exchange_id, rows in groupby(rows_of(connection, _of_touched(query, scope)), key=lambda row: row.exchange_id):
        entries = [_entry(row) for row in rows]
        try:
            wanted = {_said(line) for one in entries if one.kind != EntryKind.ATTEMPT for line in attempt_entries(one)}
        except (ValueError, TypeError):
            found.differs(exchange_id=exchange_id, wrong="names attempts that cannot be read")
            continue
        there = {_said(one) for one in entries if one.kind == EntryKind.ATTEMPT}
        if wanted != there:
            found.differs(exchange_id=exchange_id, named=len(wanted), as_named=len(wanted & there), there=len(there))
    return found


_said = attrgetter("seq", "provider", "upstream_model", "outcome", "key_id", "model", *TOKENS, *MONEY)


def counts(connection: Connection, scope: CheckScope) -> CheckResult:
    """In terminal entries nothing is negative, parts are not more than the whole, and the total is their sum.

    Some providers break the last two always; then the entry's flags say so.
    """
    none_negative = (*TOKENS, "events", "bytes", "charge_usd", "cost_usd", "duration_ms")
    column = _COLUMNS
    query = _entries(connection.dialect).where(
        column.kind == EntryKind.USAGE,
        or_(
            *(column[name] < 0 for name in none_negative),
            column.cached_tokens > column.prompt_tokens,
            column.reasoning_tokens > column.completion_tokens,
            column.total_tokens != column.prompt_tokens + column.completion_tokens,
            column.details["units"].as_string().is_not(None),
        ),
    )
    found = CheckResult()
    for row in rows_of(connection, settled(query, scope)):
        try:
            wrong = _miscounted(_entry(row), none_negative)
        except TypeError:
            wrong = "is not all numbers"
        if wrong:
            found.differs(exchange_id=row.exchange_id, wrong=wrong)
    return found


def _miscounted(entry: LedgerEntry, none_negative: Iterable[str]) -> str:
    """What is wrong with its counts and not said by the meter; empty: nothing."""
    try:
        usage = usage_of(entry)
    except (ValueError, AttributeError):
        return "its units are no counts"
    wrong = [f"{name} is negative" for name in none_negative if (getattr(entry, name) or 0) < 0]
    wrong += [f"{name} is negative" for name in UNITS if (getattr(usage, name) or 0) < 0]
    details = entry.details if isinstance(entry.details, dict) else {}
    # The meter did not live to see what was recovered; what is partly reported and partly estimated need not agree.
    if entry.outcome == "crashed" or (entry.usage_source == "estimated" and "usage" in details):
        return "; ".join(wrong)
    flags = details.get("flags") or ()
    return "; ".join([*wrong, *(one for one in violations(usage) if one not in flags)])


def prices(connection: Connection, scope: CheckScope) -> CheckResult:
    """What each terminal entry charges and costs is what its tokens come to at the price pinned in it."""
    details = _COLUMNS.details
    query = select(
        _COLUMNS.exchange_id,
        *(nusd(name, connection.dialect) for name in MONEY),
        *(_COLUMNS[name] for name in TOKENS),
        details["units"].as_string(),
        cast(details["price"], Text),
        cast(details["cost"], Text),
        details["billed"].as_string(),
        _COLUMNS.usage_source,
    ).where(_COLUMNS.kind == EntryKind.USAGE)
    found = CheckResult()
    for exchange_id, charge_usd, cost_usd, *counts, units, price, cost, billed, source in rows_of(
        connection, settled(query, scope)
    ):
        try:
            terms = _terms(price, cost, billed, source)
            usage = Usage(*counts) if units is None else Usage(*counts, **units_from(msgspec.json.decode(units)))
            recomputed = amount(terms.price, usage, terms.bills), amount(terms.cost, usage, terms.incurs)
        except (ValueError, TypeError) as wrong:
            found.differs(exchange_id=exchange_id, wrong=f"cannot be recomputed: {type(wrong).__name__}")
            continue
        if recomputed != (charge_usd, cost_usd):
            again = {"recomputed_charge_usd": recomputed[0], "recomputed_cost_usd": recomputed[1]}
            found.differs(exchange_id=exchange_id, charge_usd=charge_usd, cost_usd=cost_usd, **again)
    return found


@dataclass(frozen=True, slots=True)
class _Terms:
    """What an entry says of how its money was made."""

    price: Price | None
    cost: Price | None
    bills: BillableParts
    incurs: BillableParts


@lru_cache(maxsize=_TERMS_KEPT)
def _terms(price: str | None, cost: str | None, billed: str, source: str) -> _Terms:
    """Two prices as JSON, and two words. Raises ValueError."""
    shown = [None if text is None else msgspec.json.decode(text) for text in (price, cost)]
    pinned_price, pinned_cost = (None if one is None else pinned(one) for one in shown)
    bills = BillableParts(billed)
    return _Terms(pinned_price, pinned_cost, bills, incurred(source, bills))


def _entries(dialect: Dialect) -> Select[Any]:
    """Whole entries, of which money may be anything."""
    return select(*(nusd(name, dialect).label(name) if name in MONEY else _COLUMNS[name] for name in ENTRY_FIELDS))


def _entry(row: Any) -> LedgerEntry:
    """One of them. Money that is none (it is found as such) is unknown here."""
    money = {name: getattr(row, name) for name in MONEY}
    sound = {name: None if value is None or value != value else int(value) for name, value in money.items()}
    return LedgerEntry(**{**row._asdict(), **sound})
