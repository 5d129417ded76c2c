"""Headers with the remainder of the tightest budget.

Invariants: The budget store is read while the provider works, so that an answer waits for it at most `WAIT_S`, and else
is sent without these headers. The amounts are those at admission, all of one moment: reservations, that of this request
included, count as used. There are no headers if the state of one of the budgets is unknown: it could be the tightest
one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from operator import itemgetter

from proxy.billing.limits import LimitCounter, Scope, quota_of
from proxy.billing.money import Nusd, usd_text
from proxy.billing.reservation import CounterState
from proxy.budgets.admission import OpenReservation
from proxy.budgets.store import BudgetStore
from proxy.foundation.tasks import Tasks
from proxy.foundation.times import iso_utc

Headers = tuple[tuple[str, str], ...]

PREFIX = "x-tokenweir-budget-"
# A store that answers at all answers in about a millisecond, most providers in hundreds.
WAIT_S = 0.005


class BudgetHeaders:
    """Reads the budgets of exchanges."""

    def __init__(self, store: BudgetStore, tasks: Tasks) -> None:
        self._store = store
        self._tasks = tasks

    def begin(self, scopes: Sequence[Scope], reservation: OpenReservation) -> asyncio.Task[Headers] | None:
        """Begin to read the budgets of a running exchange. `scopes`: its levels. None: no level limits money, or the
        budget store was unavailable at admission."""
        if not reservation.spends or reservation.allowed_nusd is not None:
            return None
        bounded = [one for one in reservation.reserved.counters if one.nusd_max is not None]
        counters = [one for one in bounded if quota_of(one.counter_id) is None]
        return self._tasks.start(self._read(scopes, counters, reservation.reserved.at), name="budget headers")

    async def _read(self, scopes: Sequence[Scope], counters: Sequence[LimitCounter], at: float) -> Headers:
        try:
            states = await self._store.counter_states([one.counter_id for one in counters])
        except OSError:  # an outage, which admission reports
            return ()
        return headers(scopes, counters, states, at)


async def ready(reading: asyncio.Task[Headers]) -> Headers:
    """The headers; empty if they are not known in time."""
    if not reading.done():
        await asyncio.wait([reading], timeout=WAIT_S)
    return reading.result() if reading.done() and not reading.cancelled() else ()


def headers(
    scopes: Sequence[Scope], counters: Sequence[LimitCounter], states: Sequence[CounterState], at: float
) -> Headers:
    """`x-tokenweir-budget-{remaining,limit,reset}`: USD, USD, and the UTC time at which the window ends. A prepaid
    balance has no limit and no reset. `counters`: those that bound money. `at`: Unix seconds of admission."""
    known = {one.counter_id: one for one in states}
    left = [
        (counter.nusd_max - state.spent - state.reserved, counter)
        for counter in counters
        if (state := known.get(counter.counter_id)) is not None
        and state.since == counter.since
        and state.spent is not None
        and counter.nusd_max is not None
    ]
    if not left or len(left) < len(counters):
        return ()
    left_nusd, tightest = min(left, key=itemgetter(0))
    remaining = (f"{PREFIX}remaining", usd_text(Nusd(max(0, left_nusd))))
    scope = next((one for one in scopes if one.scope_id == tightest.counter_id), None)
    if scope is None or tightest.nusd_max is None:
        return (remaining,)
    end = scope.limits.window_end(scope.created_at, at)
    reset = () if end is None else ((f"{PREFIX}reset", iso_utc(end)),)
    return (remaining, (f"{PREFIX}limit", usd_text(tightest.nusd_max)), *reset)
