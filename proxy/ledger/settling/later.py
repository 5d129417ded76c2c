"""Reads the ledger for estimates whose provider is asked afterwards for the usage, and settles the answers.

Invariants: an exchange is settled at most once, by any number of processes: the entries are read, and the adjustment is
written, in one settling transaction, which excludes all others. A query reads a span of the ledger's time, by the index
on `settled_at`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sqlalchemy import Engine, and_, or_, select, tuple_

from proxy.billing.adjustment import BY_PROVIDER
from proxy.billing.correction import ExchangeTotals, exchange_totals
from proxy.billing.details import EntryDetails, detail_name
from proxy.billing.entries import EntryKind, LedgerEntry
from proxy.billing.later import was_asked
from proxy.ledger.schema.tables import ledger_entries
from proxy.ledger.settling.clock import settled_until
from proxy.ledger.settling.corrections import entries_of
from proxy.ledger.settling.history import LedgerState, ledger_state
from proxy.ledger.settling.store import Arrival, LedgerStore
from proxy.metering.usage import UsageSource
from proxy.storage.database import reading

# Of the ledger's time, in seconds: a million entries of a busy ledger, which are searched in a second or two.
SPAN_S = 10_800.0
ROWS_MAX = 1_000
# Sorts after every id.
_LAST = "~"

_COLUMNS = ledger_entries.c
_ASKED, _BY = (_COLUMNS.details[detail_name(name)].as_string() for name in (EntryDetails.asked_later, EntryDetails.by))


class Question(NamedTuple):
    """An exchange with an estimate, and how to ask for its usage."""

    exchange_id: str
    provider: str
    endpoint: str
    response_id: str
    how: str
    """the detail `asked_later`"""
    credential: str | None
    node: str | None
    """the process that recorded it"""
    settled_at: float
    """Unix seconds"""


class Questions(NamedTuple):
    """The entries of the ledger after a cursor that matter for later usage."""

    asked: list[Question]
    settled: list[str]
    """exchanges that are settled, by any process"""
    cursor: tuple[float, str]
    """where to go on: a time and an id"""
    more: bool
    """there may be more entries now"""
    state: LedgerState
    """the ledger's state before the entries were read"""


def questions(engine: Engine, after: tuple[float, str]) -> Questions:
    """The questions and answers that were settled after the cursor. Raises LedgerUnavailable."""
    names = ("exchange_id", "entry_id", "provider", "endpoint", "provider_response_id", "details", "node", "settled_at")
    place = (_COLUMNS.settled_at, _COLUMNS.entry_id)
    # Statements only have the detail: the terminal entry, or the adjustment by a late record.
    estimated = and_(
        _COLUMNS.kind.in_((EntryKind.USAGE, EntryKind.ADJUSTMENT)),
        _COLUMNS.usage_source == UsageSource.ESTIMATED.value,
        _ASKED.is_not(None),
    )
    settled = and_(_COLUMNS.kind == EntryKind.ADJUSTMENT, _BY == BY_PROVIDER)
    state = ledger_state(engine)
    with reading(engine) as connection:
        clock = settled_until(connection)
        until = max(after[0], min(clock, after[0] + SPAN_S))  # the clock of a restored ledger may be behind
        query = (
            select(*(_COLUMNS[name] for name in names))
            .where(_COLUMNS.settled_at <= until, _COLUMNS.settled_at >= after[0], tuple_(*place) > after)
            .where(or_(estimated, settled))
            .order_by(*place)
            .limit(ROWS_MAX)
        )
        rows = connection.execute(query).all()
    full = len(rows) == ROWS_MAX
    asked, done = [], []
    for row in rows:
        details = EntryDetails.of(row.details)
        if details.by == BY_PROVIDER:
            done.append(row.exchange_id)
        elif row.provider_response_id is not None and details.asked_later is not None:
            asked.append(
                Question(
                    row.exchange_id, row.provider, row.endpoint, row.provider_response_id, details.asked_later,
                    details.credential, row.node, row.settled_at,
                )
            )  # fmt: skip
    return Questions(
        asked,
        done,
        (rows[-1].settled_at, rows[-1].entry_id) if full else max(after, (until, _LAST if until <= clock else "")),
        full or until < clock,
        state,
    )


def settle_later(
    store: LedgerStore, exchange_id: str, adjustment_of: Callable[[ExchangeTotals], LedgerEntry | None]
) -> tuple[ExchangeTotals, LedgerEntry | None] | None:
    """Add the adjustment by the provider's answer, if it gives one. Returns the totals before it, and the adjustment.
    None: the exchange has one already, or is in an archive.

    Raises LedgerUnavailable; ValueError if entries of the exchange are malformed.
    """
    with store.settling() as settling:
        entries = entries_of(settling.connection, [exchange_id])[exchange_id]
        if not entries or was_asked(entries):
            return None
        now = exchange_totals(entries)
        line = adjustment_of(now)
        if line is not None:
            settling.insert([Arrival(line)])
    return now, line
