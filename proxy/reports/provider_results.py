"""How providers have answered: requests, failures and times of each, from the entries of a time span.

Invariant: a failed attempt counts at the provider that failed, and the exchange at the one that ended it; a rejection
of the request itself (400, for example) is no failure.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import ColumnElement, Engine, case, func, literal_column, select

from proxy.billing.details import EntryDetails
from proxy.billing.entries import EntryKind
from proxy.billing.record import Outcome
from proxy.ledger.schema.tables import ledger_entries
from proxy.reports.usage import ID_EARLIER_S, id_from
from proxy.storage.database import reading

ERRORS_SHOWN = 5
_P95 = 0.95
_FAILED = (Outcome.UPSTREAM_FAILED.value, Outcome.UPSTREAM_STALLED.value)
_ENTRIES = ledger_entries.c


@dataclass(frozen=True, slots=True)
class ProviderError:
    """A failure of a provider."""

    at: float
    """Unix seconds"""
    exchange_id: str
    model: str
    what: str
    """`unreachable`, `failed`, `refused`, … as in the entry's detail `failed`; or the outcome"""
    status: int | None
    """HTTP status of the provider's answer"""
    was_passed_on: bool
    """another provider, or the same one again, was asked"""


@dataclass(frozen=True, slots=True)
class ProviderResults:
    """The results of one provider in a time span."""

    requests: int = 0
    """exchanges that it has ended, failed ones too"""
    failed: int = 0
    """number of these that failed: no answer, an error of the server, or a stream that broke off or stalled"""
    failed_attempts: int = 0
    """further requests that failed there, after which another attempt was made"""
    first_token_p95_ms: float | None = None
    """95 % of the answers began within this time; None: no answer did"""
    errors: tuple[ProviderError, ...] = field(default=())
    """the latest, newest first"""

    @property
    def error_rate(self) -> float | None:
        """The failed part of all requests to it; 0.5 is 50 %. None: there was none."""
        every = self.requests + self.failed_attempts
        return round((self.failed + self.failed_attempts) / every, 6) if every else None


def read_provider_results(engine: Engine, since: float, until: float) -> dict[str, ProviderResults]:
    """Provider → its results in exchanges that began in the time span (Unix seconds). Raises LedgerUnavailable."""
    span = (
        _ENTRIES.exchange_id >= id_from(since - ID_EARLIER_S),
        _ENTRIES.exchange_id < id_from(until),
        _ENTRIES.started_at >= since,
        _ENTRIES.started_at < until,
    )
    is_usage, is_attempt = _ENTRIES.kind == EntryKind.USAGE, _ENTRIES.kind == EntryKind.ATTEMPT
    failed = is_usage & _ENTRIES.outcome.in_(_FAILED)
    counts = select(
        _ENTRIES.provider, _number(is_usage), _number(failed), _number(is_attempt)
    ).where(*span, is_usage | is_attempt).group_by(_ENTRIES.provider)  # fmt: skip
    rank = func.cume_dist().over(partition_by=_ENTRIES.provider, order_by=_ENTRIES.first_token_ms).label("rank")
    ranked = select(_ENTRIES.provider, _ENTRIES.first_token_ms, rank).where(
        *span, is_usage, _ENTRIES.first_token_ms.is_not(None)
    ).subquery()  # fmt: skip
    p95 = select(ranked.c.provider, func.min(ranked.c.first_token_ms)).where(ranked.c.rank >= _P95)
    newest = _ENTRIES.started_at.desc(), _ENTRIES.exchange_id.desc(), _ENTRIES.seq.desc()
    number = func.row_number().over(partition_by=_ENTRIES.provider, order_by=newest).label("number")
    columns = [
        _ENTRIES[name]
        for name in ("provider", "started_at", "exchange_id", "model", "outcome", "kind", "details", "seq")
    ]
    errors = select(*columns, number).where(*span, is_attempt | failed).subquery()
    latest = select(errors).where(errors.c.number <= ERRORS_SHOWN).order_by(errors.c.provider, literal_column("number"))
    found: dict[str, ProviderResults] = {}
    with reading(engine) as connection:
        for provider, requests, failures, attempts in connection.execute(counts):
            found[provider] = ProviderResults(int(requests), int(failures), int(attempts))
        for provider, first_token_ms in connection.execute(p95.group_by(ranked.c.provider)):
            found[provider] = replace(found[provider], first_token_p95_ms=first_token_ms)
        for row in connection.execute(latest):
            one = found[row.provider]
            found[row.provider] = replace(one, errors=(*one.errors, _error(row)))
    return found


def _number(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return func.coalesce(func.sum(case((condition, 1), else_=0)), 0)


def _error(row: Any) -> ProviderError:
    details = EntryDetails.of(row.details)
    status = details.upstream_status
    return ProviderError(
        at=row.started_at,
        exchange_id=row.exchange_id,
        model=row.model,
        what=str(details.failed or row.outcome),
        status=status if isinstance(status, int) else None,
        was_passed_on=row.kind == EntryKind.ATTEMPT,
    )
