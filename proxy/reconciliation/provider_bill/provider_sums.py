"""What the ledger has of one provider, by model and day: our side of a comparison with its bill.

Law: the sum of all entries of each exchange, corrections included, with the day of the exchange, whatever is billed to
our client; where an exchange's usage comes from is the best that any of its entries says. The database adds it up:
what comes out grows with days and models. No top-up is in it.

Cost: one reading of the entries that were settled since, by the index on `settled_at`: on two cores 5 s per million
exchanges that are added up on Postgres, 10 s on SQLite; a day of a month, a twentieth of it.
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
from proxy.billing.entries import EntryKind
from proxy.billing.record import Outcome
from proxy.ledger.amounts import nusd_sum
from proxy.ledger.schema.tables import ledger_entries
from proxy.metering.usage import UsageSource
from proxy.reconciliation.provider_bill.bill import DAY_S, BillKind
from proxy.reconciliation.provider_bill.check import LedgerTotals
from proxy.reconciliation.reconcile import snapshot

_COLUMNS = ledger_entries.c
_TOKENS = (BillKind.PROMPT, BillKind.CACHED, BillKind.COMPLETION)
_COUNTED = (*_TOKENS, BillKind.COST)

# The longest an exchange can take (`timeouts.total_s`), and by how much clocks of several machines differ at most.
_EXCHANGE_S_MAX = 86_400
_CLOCKS_DIFFER_S_MAX = 86_400

# Whose word on the usage of an exchange is the best.
_SAYS_NONE, _ESTIMATES, _KNOWS = 0, 1, 2
_SOURCES = {UsageSource.ESTIMATED: _ESTIMATES, UsageSource.REPORTED: _KNOWS, CORRECTED: _KNOWS}

# Unix seconds of `started_at`. SQLite keeps "2026-11-01 12:00:00.250000", and would round it to milliseconds.
_BEGAN_S = {
    "sqlite": "(CAST(strftime('%s', substr(started_at, 1, 19)) AS INTEGER) + CAST(substr(started_at, 20) AS REAL))",
    "postgresql": "CAST(extract(epoch FROM started_at) AS DOUBLE PRECISION)",
}
_DAY = {"sqlite": "CAST({0} / 86400 AS INTEGER)", "postgresql": "CAST(floor({0} / 86400) AS BIGINT)"}


def read_ledger_totals(engine: Engine, provider: str, spans: list[tuple[int, int]]) -> list[LedgerTotals]:
    """Of the exchanges that were running in these times: Unix seconds, the second one not part of it, none overlapping.

    Raises LedgerUnavailable.
    """
    with snapshot(engine) as connection:
        return [ours for begin, end in spans for ours in _read(connection, provider, begin, end)]


def _read(connection: Connection, provider: str, begin: int, end: int) -> Iterator[LedgerTotals]:
    for row in connection.execute(_sums(connection.dialect, provider, begin, end)):
        found = row._asdict()
        requests = {BillKind.REQUESTS: int(found["requests"])}
        yield LedgerTotals(
            model=found["upstream_model"],
            began=_date(found["began"]),
            ended=_date(found["ended"]),
            estimated=bool(found["estimated"]),
            amounts=requests | {kind: int(found[kind]) for kind in _COUNTED},
            unknown={kind: int(found[f"unknown_{kind}"]) for kind in BillKind},
            errors={kind: float(found[f"error_{kind}"]) for kind in _COUNTED},
        )


def _date(day: int | None) -> date | None:
    return None if day is None else datetime.fromtimestamp(int(day) * DAY_S, UTC).date()


def _sums(dialect: Dialect, provider: str, begin: int, end: int) -> Select[Any]:
    """Exchanges by model, the days on which they began and ended, and whether they are estimated."""
    one = _exchanges(dialect, provider, begin, end).subquery("exchange")
    columns = one.c
    ended_s = columns.began_s + columns.duration_ms / 1000.0
    began = case((columns.began_s >= begin, _day("began_s", dialect)))
    ended = case((ended_s < end, _day("(began_s + duration_ms / 1000.0)", dialect)))
    estimated = case((columns.source == _ESTIMATES, 1), else_=0)
    query = select(
        columns.upstream_model,
        began.label("began"),
        ended.label("ended"),
        estimated.label("estimated"),
        func.sum(case((columns.source == _SAYS_NONE, 0), else_=columns.requests)).label("requests"),
        func.sum(case((columns.source == _SAYS_NONE, columns.requests), else_=0)).label(f"unknown_{BillKind.REQUESTS}"),
    )
    for kind in _COUNTED:
        amount = columns[kind]
        nobody_says = case((amount.is_(None) & (columns.refused == 0), columns.requests), else_=0)
        may_err = case((columns.source == _ESTIMATES, func.abs(cast(amount, Double)) * columns.error), else_=0.0)
        query = query.add_columns(
            func.coalesce(func.sum(amount), 0).label(kind),
            func.sum(nobody_says).label(f"unknown_{kind}"),
            func.coalesce(func.sum(may_err), 0).label(f"error_{kind}"),
        )
    return query.where(or_(columns.began_s >= begin, ended_s >= begin)).group_by(
        "upstream_model", "began", "ended", "estimated"
    )


def _exchanges(dialect: Dialect, provider: str, begin: int, end: int) -> Select[Any]:
    """Each exchange, as the sum of its entries. They all say when it began."""
    expected: ColumnElement[Any] = _COLUMNS.details["expected_error"].as_float()
    source = case(*((_COLUMNS.usage_source == said, rank) for said, rank in _SOURCES.items()), else_=_SAYS_NONE)
    earliest = begin - _EXCHANGE_S_MAX
    return (
        select(
            _COLUMNS.upstream_model,
            literal_column(_BEGAN_S[dialect.name], Double).label("began_s"),
            func.max(_COLUMNS.duration_ms).label("duration_ms"),
            func.max(source).label("source"),
            # One that does not say how good it is may be as wrong as it is large.
            func.coalesce(func.max(expected), 1.0).label("error"),
            func.sum(case((_COLUMNS.kind == EntryKind.ADJUSTMENT, 0), else_=1)).label("requests"),
            func.max(case((_COLUMNS.outcome == Outcome.REFUSED_UPSTREAM.value, 1), else_=0)).label("refused"),
            *(func.sum(_COLUMNS[kind]).label(kind) for kind in _TOKENS),
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
    )


def _day(seconds: str, dialect: Dialect) -> ColumnElement[int]:
    """Days since 1970, in UTC."""
    return literal_column(_DAY[dialect.name].format(seconds), BigInteger)
