"""The checks of a month before it is closed: requests without an amount, and the ledger's invariants.

Invariants: a check only reads, and prevents nothing: what must be settled first, `unsettled` in runtime/machine lists.
The command and the console show the same sentences.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec
from sqlalchemy import Engine

from proxy.billing.period import Month
from proxy.reconciliation.integrity import RecordsInFlight
from proxy.reconciliation.reconcile import reconcile
from proxy.reports.buckets import DAY_S
from proxy.reports.usage import UsageFilter, read_usage

# Checking the invariants takes 9 s for a million requests; more than this many are left to `tokenweir reconcile`.
LEDGER_REQUESTS_MAX = 100_000


class ClosingCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check of a month."""

    name: Literal["unpriced", "unknown_cost", "ledger"]
    state: Literal["ok", "review", "not_checked"]
    count: int
    """requests without a charge, requests without a cost, or differences in the ledger"""
    words: str
    """the result as a sentence"""


def read_closing_checks(
    engine: Engine, month: Month, *, clock: Callable[[], float], in_flight: RecordsInFlight
) -> list[ClosingCheck]:
    """Check a month as it is billed. `clock`, `in_flight`: see `reconcile`. Raises LedgerUnavailable."""
    wanted = UsageFilter(begin=int(month.since), end=int(month.until), bucket_s=DAY_S, is_total=True, is_booked=True)
    totals, _ = read_usage(engine, wanted, 1)
    unpriced, unknown_cost, requests = (
        sum(getattr(one, name) for one in totals) for name in ("unpriced", "unknown_cost", "requests")
    )
    return [
        _counted("unpriced", unpriced, "Without a price, and so without a charge", "Every request has a charge."),
        _counted(
            "unknown_cost", unknown_cost, "With an unknown cost, which no statement shows", "Every cost is known."
        ),
        _ledger(engine, month, requests, clock, in_flight),
    ]


def _counted(name: Literal["unpriced", "unknown_cost"], count: int, problem: str, fine: str) -> ClosingCheck:
    words = fine if not count else f"{problem}: {count:,} request{'s' if count > 1 else ''}."
    return ClosingCheck(name=name, state="review" if count else "ok", count=count, words=words)


def _ledger(
    engine: Engine, month: Month, requests: int, clock: Callable[[], float], in_flight: RecordsInFlight
) -> ClosingCheck:
    if requests > LEDGER_REQUESTS_MAX:
        words = (
            f"The ledger is not checked here, because the month has {requests:,} requests: run `tokenweir reconcile`."
        )
        return ClosingCheck(name="ledger", state="not_checked", count=0, words=words)
    findings = reconcile(engine, clock=clock, since=month.since, in_flight=in_flight)
    wrong = [one for one in findings if not one.ok and one.name != "dead letters"]  # `unsettled` has these
    if not wrong:
        words = f"The ledger's {len(findings)} checks find no difference in what was settled since {month} began."
        return ClosingCheck(name="ledger", state="ok", count=0, words=words)
    named = ", ".join(f"{one.name} ({one.differences:,})" for one in wrong)
    words = f"The ledger's checks find differences: {named}. `tokenweir reconcile` shows them."
    return ClosingCheck(name="ledger", state="review", count=sum(one.differences for one in wrong), words=words)
