"""Months in the console's API: their names in requests, and their states."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from proxy.billing.period import Month, month_from
from proxy.console.api.reading import invalid
from proxy.ledger.periods.closing import Period

MonthText = Annotated[str, Meta(pattern="^[0-9]{4}-(0[1-9]|1[0-2])$", description="a month, as 2026-11")]
MonthState = Literal["open", "provisional", "closing", "final"]
"""open: the month is not over; provisional: it is over and not closed; closing: it is closed, and its statements are
being made final; final: they never change"""


def month_named(text: str, now: float) -> Month:
    """The month of a request. Raises ApiError for one that has not begun at `now` (Unix seconds)."""
    try:
        month = month_from(text)
    except ValueError as wrong:
        raise invalid(f"'month': {wrong}.", "month") from None
    if month.since > now:
        raise invalid(f"'month': {month} has not begun.", "month")
    return month


def month_state(month: Month, period: Period | None, now: float) -> MonthState:
    """The state of a month. `period`: its closing; None: it is not closed. `now`: Unix seconds."""
    if period is not None:
        return "closing" if period.issued_at is None else "final"
    return "open" if now < month.until else "provisional"
