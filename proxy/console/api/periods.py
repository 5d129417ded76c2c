"""Closing of months; uses the same functions as `tokenweir periods close`.

Invariants: a closed month is closed once, whoever else closes it at the same time, and a repeated request changes
nothing. Records that are not settled prevent the closing, unless the request leaves them for a later statement.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from sqlalchemy import Engine

from proxy.billing.period import Month
from proxy.console.api.audited_operations import AuditedOperations
from proxy.console.api.endpoints import ApiCall, ApiReply, Endpoint, operation
from proxy.console.api.months import MonthState, MonthText, month_named, month_state
from proxy.console.api.reading import invalid
from proxy.foundation.times import iso_utc
from proxy.http.errors import ApiError
from proxy.ledger.periods.closing import Period, PeriodError, close, issue_all, open_until, read_periods, require_over
from proxy.ledger.settling.store import LedgerStore
from proxy.reports.closing_checks import ClosingCheck
from proxy.settings.operators import OperatorRole
from proxy.settings.statement import StatementSettings
from proxy.storage.database import LedgerUnavailable, reading
from proxy.storage.executor import BoundedExecutor

# An answer waits this long for the final statements, which take 100 µs for each entry of the month.
ISSUE_WAIT_S = 20.0

CLOSE = "periods.close"
"""the action in the audit log"""

_log = logging.getLogger(__name__)


class UnsettledRecords(msgspec.Struct, frozen=True, kw_only=True):
    """Records that may still be settled for the month."""

    what: Literal["journal", "lease", "queue", "dead letter"]
    """where they are"""
    count: int
    examples: list[str]
    """the ids of the first few"""


class PeriodShown(msgspec.Struct, frozen=True, kw_only=True):
    """A month, and what to check before it is closed."""

    object: Literal["period"] = "period"
    month: str
    state: MonthState
    closes: list[str]
    """the months that its closing closes: it and every open month before it"""
    unsettled: list[UnsettledRecords]
    """empty: everything is settled"""
    checks: list[ClosingCheck]
    """checks that prevent no closing; empty for a month that is closed"""


class NewClosing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Closes a month, and all open months before it. This cannot be undone."""

    month: MonthText
    leave: bool = False
    """close even if records are not settled; they go on a later statement"""


class PeriodClosed(msgspec.Struct, frozen=True, kw_only=True):
    """A closed month."""

    object: Literal["period"] = "period"
    month: str
    state: MonthState
    closed_at: str
    closed_by: str
    closed: list[str]
    """the months that this request has closed; empty: the month was closed before"""


@dataclass(frozen=True, slots=True)
class PeriodsApi:
    """The routes `/v1/periods/{month}` and `/v1/periods/close`."""

    engine: Engine
    ledger: LedgerStore
    operations: AuditedOperations
    threads: BoundedExecutor
    issuing: BoundedExecutor
    """for the final statements"""
    unsettled: Callable[[Month], Awaitable[Sequence[Mapping[str, Any]]]]
    """records that may still be settled for a month; raises OSError"""
    checks: Callable[[Month], Awaitable[list[ClosingCheck]]]
    """raises OSError"""
    letterhead: Callable[[], StatementSettings]
    unix_time: Callable[[], float]

    def endpoints(self) -> Iterable[Endpoint]:
        """The endpoints of this API."""
        yield Endpoint(
            method="GET", path="/v1/periods/{month}", summary="A month, and what to check before it is closed.",
            serve=self.one, answers={200: PeriodShown}, role=OperatorRole.READ,
        )  # fmt: skip
        yield operation(
            "/v1/periods/close", "Close a month and all open months before it: their statements are final.",
            self.close, NewClosing, PeriodClosed, OperatorRole.ADMIN,
        )  # fmt: skip

    async def one(self, call: ApiCall) -> ApiReply:
        """A month and its checks. Raises ApiError, OSError."""
        now = self.unix_time()
        month = month_named(call.named, now)
        period, closes = await self.threads.run(self._read, month)
        is_open = period is None
        return ApiReply(
            PeriodShown(
                month=str(month),
                state=month_state(month, period, now),
                closes=[str(one) for one in closes],
                unsettled=_shown(await self.unsettled(month)) if is_open else [],
                checks=await self.checks(month) if is_open else [],
            )
        )

    async def close(self, call: ApiCall) -> ApiReply:
        """Close a month. Raises ApiError, OSError."""
        now = self.unix_time()
        month = month_named(call.body.month, now)
        try:
            require_over(month, now)
        except PeriodError as early:
            raise invalid(f"'month': {early}.", "month") from None
        period, _ = await self.threads.run(self._read, month)
        left = [] if period is not None else await self.unsettled(month)
        if left and not call.body.leave:
            raise _not_settled(month, _shown(left))

        def work(_act: object) -> list[Month]:
            letterhead = self.letterhead()
            return close(self.ledger, month, by=call.session.actor, left_behind=left, letterhead=letterhead)

        closed: list[Month] = await self.operations.run(call, CLOSE, str(month), call.body, work)
        await self._issued()
        period, _ = await self.threads.run(self._read, month)
        assert period is not None, "it is closed"
        return ApiReply(
            PeriodClosed(
                month=str(month),
                state=month_state(month, period, now),
                closed_at=iso_utc(period.closed_at),
                closed_by=period.closed_by,
                closed=[str(one) for one in closed],
            )
        )

    async def _issued(self) -> None:
        """Wait at most ISSUE_WAIT_S for the final statements. The thread goes on to make them after that; if it cannot,
        `close_months` in runtime/machine does so later."""
        issued = self.issuing.run(issue_all, self.engine)
        done, _ = await asyncio.wait({issued}, timeout=ISSUE_WAIT_S)
        if done and (failure := issued.exception()) is not None:
            if not isinstance(failure, LedgerUnavailable):
                raise failure
            _log.warning("the statements of a closed month are not final yet: %s", failure)

    def _read(self, month: Month) -> tuple[Period | None, list[Month]]:
        """The closing of the month, or of a later one, if that was the first; and the months that would be closed with
        it."""
        with reading(self.engine) as connection:
            closed = next((one for one in read_periods(connection) if one.month >= month), None)
            return closed, open_until(connection, month)


def _shown(left: Sequence[Mapping[str, Any]]) -> list[UnsettledRecords]:
    return [UnsettledRecords(**one) for one in left]


def _not_settled(month: Month, left: Sequence[UnsettledRecords]) -> ApiError:
    named = ", ".join(f"{one.what}: {one.count}" for one in left)
    message = f"'leave': some records of {month} are not settled ({named}): settle them, or close without them."
    return ApiError(409, message, param="leave", code="unsettled_records")
