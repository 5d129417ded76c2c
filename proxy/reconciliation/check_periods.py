"""Checks closed months against their entries. Invariant: each statement is calculated again from its entries."""

from __future__ import annotations

from msgspec import UNSET
from sqlalchemy import Connection

from proxy.billing.period import Month
from proxy.ledger.archive.archives import statements_until
from proxy.ledger.periods.activity import activities
from proxy.ledger.periods.closing import BATCH_SCOPES, closed_activities, month_digests, read_closings, read_periods
from proxy.ledger.settling.spend import batches
from proxy.reconciliation.integrity import CheckResult, CheckScope


def closed_months_stay(connection: Connection, scope: CheckScope) -> CheckResult:
    """In each issued month, the entries of each key and account give the stored digest and the stored sums. Months with
    entries in an archive were checked when they were archived."""
    result = CheckResult()
    archived = statements_until(connection)
    for period in read_periods(connection):
        if period.issued_at is None or (archived is not None and period.month <= archived):
            continue
        if scope.since is None or period.issued_at >= scope.since:
            _check(connection, period.month, result)
    return result


def closed_month_stays(connection: Connection, month: Month) -> CheckResult:
    """`closed_months_stay` for one issued month, of which no entry is in an archive."""
    result = CheckResult()
    _check(connection, month, result)
    return result


def _check(connection: Connection, month: Month, result: CheckResult) -> None:
    stated = month_digests(connection, month)
    for batch in batches(activities(connection, month, read_closings(connection)), BATCH_SCOPES):
        closed = {one.scope_id: one for one in closed_activities(connection, month, [one.scope_id for one in batch])}
        for one in batch:
            stated.pop(one.scope_id, None)
            old = closed.get(one.scope_id)
            if old is not None and old.activity.prices is UNSET:  # closed by a version that did not store them
                one.activity.prices = UNSET
            if old is None or (old.digest, old.entries, old.activity) != (one.digest, one.entries, one.activity):
                result.differs(month=str(month), scope_id=one.scope_id, digest=old and old.digest, entries=one.digest)
    for scope_id, digest in stated.items():
        result.differs(month=str(month), scope_id=scope_id, digest=digest, entries=None)
