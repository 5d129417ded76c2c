"""The ledger's totals of one provider by model and day, for the comparison with its bill.

Invariants: an exchange counts on its own days with the sum of all its entries, corrections included, whether or not the
client is billed; its usage source is the best among its entries. Top-ups and exchanges with a client's own credential
are excluded. The database computes the sums, so the result grows with days and models only.

Cost: one scan of the entries settled since then, by the index on `settled_at`: on two cores 5 s per million exchanges
on Postgres, 10 s on SQLite; one day out of a month takes a twentieth of the month.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Dialect,
    Double,
    Engine,
    Select,
    case,
    cast,
    func,
    literal_column,
    or_,
    select,
)

from proxy.billing.correction import CORRECTED
from proxy.billing.details import EntryDetails, detail_name
from proxy.billing.entries import EntryKind
from proxy.billing.record import Outcome
from proxy.billing.units import BILLED_UNITS, Side
from proxy.ledger.amounts import nusd_sum
from proxy.ledger.schema.tables import ledger_entries
from proxy.metering.usage import FROM_PROVIDER, UsageSource
from proxy.reconciliation.provider_bill.bill import DAY_S, PARTS, BillKind
from proxy.reconciliation.provider_bill.check import LedgerTotals
from proxy.reconciliation.reconcile import snapshot

_COLUMNS = ledger_entries.c
_TOKENS = (BillKind.PROMPT, BillKind.CACHED, BillKind.COMPLETION)
_COUNTED = (*_TOKENS, *PARTS, BillKind.COST)

# The longest duration of an exchange (`timeouts.total_s`), and the largest difference between machines' clocks.
_EXCHANGE_S_MAX = 86_400
_CLOCKS_DIFFER_S_MAX = 86_400

# Ranks of usage sources: the highest among an exchange's entries applies.
_NONE, _ESTIMATED, _KNOWN = 0, 1, 2
_RANKS = {UsageSource.ESTIMATED: _ESTIMATED, **dict.fromkeys((*FROM_PROVIDER, CORRECTED), _KNOWN)}

# Unix seconds of `started_at`. SQLite stores "2026-11-01 12:00:00.250000"; its own functions round to milliseconds.
_BEGAN_S = {
    "sqlite": "(CAST(strftime('%s', substr(started_at, 1, 19)) AS INTEGER) + CAST(substr(started_at, 20) AS REAL))",
    "postgresql": "CAST(extract(epoch FROM started_at) AS DOUBLE PRECISION)",
}
_DAY = {"sqlite": "CAST({0} / 86400 AS INTEGER)", "postgresql": "CAST(floor({0} / 86400) AS BIGINT)"}


def read_ledger_totals(engine: Engine, provider: str, spans: list[tuple[int, int]]) -> list[LedgerTotals]:
    """The totals of the exchanges that ran during these periods: Unix seconds, end exclusive, not overlapping.

    Raises LedgerUnavailable.
    """
    with snapshot(engine) as connection:
        return [ours for begin, end in spans for ours in _read(connection, provider, begin, end)]


def _read(connection: Connection, provider: str, begin: int, end: int) -> Iterator[LedgerTotals]:
    for row in connection.execute(_sums(connection.dialect, provider, begin, end)):
        fields = row._asdict()
        requests = {BillKind.REQUESTS: int(fields["requests"])}
        yield LedgerTotals(
            model=fields["upstream_model"],
            began=_date(fields["began"]),
            ended=_date(fields["ended"]),
            estimated=bool(fields["estimated"]),
            amounts=requests | {kind: int(fields[kind]) for kind in _COUNTED},
            unknown={kind: int(fields[f"unknown_{kind}"]) for kind in BillKind},
            errors={kind: float(fields[f"error_{kind}"]) for kind in _COUNTED},
        )


def _date(day: int | None) -> date | None:
    return None if day is None else datetime.fromtimestamp(int(day) * DAY_S, UTC).date()


def _sums(dialect: Dialect, provider: str, begin: int, end: int) -> Select[Any]:
    """Sums by model, first day, last day, and whether the usage is estimated."""
    one = _exchanges(dialect, provider, begin, end).subquery("exchange")
    columns = one.c
    ended_s = columns.began_s + columns.duration_ms / 1000.0
    began = case((columns.began_s >= begin, _day("began_s", dialect)))
    ended = case((ended_s < end, _day("(began_s + duration_ms / 1000.0)", dialect)))
    estimated = case((columns.source == _ESTIMATED, 1), else_=0)
    query = select(
        columns.upstream_model,
        began.label("began"),
        ended.label("ended"),
        estimated.label("estimated"),
        func.sum(case((columns.source == _NONE, 0), else_=columns.requests)).label("requests"),
        func.sum(case((columns.source == _NONE, columns.requests), else_=0)).label(f"unknown_{BillKind.REQUESTS}"),
    )
    for kind in _COUNTED:
        amount = columns[kind]
        unknown = case((amount.is_(None) & (columns.refused == 0), columns.requests), else_=0)
        error = case((columns.source == _ESTIMATED, func.abs(cast(amount, Double)) * columns.error), else_=0.0)
        query = query.add_columns(
            func.coalesce(func.sum(amount), 0).label(kind),
            func.sum(unknown).label(f"unknown_{kind}"),
            func.coalesce(func.sum(error), 0).label(f"error_{kind}"),
        )
    return query.where(or_(columns.began_s >= begin, ended_s >= begin)).group_by(
        "upstream_model", "began", "ended", "estimated"
    )


def _exchanges(dialect: Dialect, provider: str, begin: int, end: int) -> Select[Any]:
    """Each exchange, as the sum of its entries; all of them have its start time."""
    expected: ColumnElement[Any] = _COLUMNS.details[detail_name(EntryDetails.expected_error)].as_float()
    source = case(*((_COLUMNS.usage_source == name, rank) for name, rank in _RANKS.items()), else_=_NONE)
    earliest = begin - _EXCHANGE_S_MAX
    return (
        select(
            _COLUMNS.upstream_model,
            literal_column(_BEGAN_S[dialect.name], Double).label("began_s"),
            func.max(_COLUMNS.duration_ms).label("duration_ms"),
            func.max(source).label("source"),
            # Without an expected error, an estimate may be off by its whole amount.
            func.coalesce(func.max(expected), 1.0).label("error"),
            func.sum(case((_COLUMNS.kind == EntryKind.ADJUSTMENT, 0), else_=1)).label("requests"),
            func.max(case((_COLUMNS.outcome == Outcome.REFUSED_UPSTREAM.value, 1), else_=0)).label("refused"),
            *(func.sum(_COLUMNS[kind]).label(kind) for kind in _TOKENS),
            *(_part(kind).label(kind) for kind in PARTS),
            nusd_sum(BillKind.COST, dialect).label(BillKind.COST),
        )
        .where(
            _COLUMNS.provider == provider,
            _COLUMNS.kind != EntryKind.CREDIT,
            _COLUMNS.started_at >= earliest,
            _COLUMNS.started_at < end,
            _COLUMNS.settled_at >= earliest - _CLOCKS_DIFFER_S_MAX,
        )
        .group_by(_COLUMNS.exchange_id, _COLUMNS.upstream_model, _COLUMNS.started_at)
        # What clients pay for themselves is on no bill of the operator. Its adjustments do not have the detail.
        .having(
            func.max(case((_COLUMNS.details[detail_name(EntryDetails.byok)].as_string().is_(None), 0), else_=1)) == 0
        )
    )


def _part(kind: BillKind) -> ColumnElement[Any]:
    """A count of the detail `units`, which omits zeros: the count is unknown only if the whole count is unknown."""
    unit = next(unit for unit in BILLED_UNITS if unit.count == kind)
    whole = BillKind.COMPLETION if unit.is_token and unit.side is Side.OUTPUT else BillKind.PROMPT
    units = func.sum(_COLUMNS.details[detail_name(EntryDetails.units)][kind.value].as_integer())
    return case((func.sum(_COLUMNS[whole]).is_(None), None), else_=func.coalesce(units, 0))


def _day(seconds: str, dialect: Dialect) -> ColumnElement[int]:
    """Days since 1970, in UTC."""
    return literal_column(_DAY[dialect.name].format(seconds), BigInteger)
