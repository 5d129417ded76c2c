"""The decision on a reservation, from the state of its limit counters. Pure.

Invariant: all counters are checked. The Redis script (`redis/scripts.py`) makes equal decisions; one contract test
suite runs against both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from proxy.billing.limits import LimitCounter
from proxy.billing.reservation import DenialReason, Denied, Granted, LimitLevel, Reservation, Unseeded, Verdict
from proxy.budgets.rates import Window


@dataclass(slots=True)
class UsedAmounts:
    """A limit counter with its stored amounts."""

    counter: LimitCounter
    spent: int | None
    """the amount in the counter's window, in nUSD or in units of the quota; None: unknown"""
    reserved: int
    running: int
    window: Window | None
    """requests and tokens of the last 60 s; None: the counter bounds no rate"""
    stored: bool
    """True if the store has a row for the counter"""


def verdict(reservation: Reservation, states: Sequence[UsedAmounts], now: float) -> Verdict:
    """The verdict on `reservation`; the caller reserves if it is Granted. Unseeded takes precedence over Denied."""
    if unseeded := [one.counter for one in states if one.spent is None and one.counter.nusd_max is not None]:
        return Unseeded(tuple(unseeded))
    failures = [
        failure
        for one in states
        if not passes(one, reservation.amount_at(one.counter), 1)
        for failure in _failures(reservation, one, now)
    ]
    if not failures:
        return Granted(())
    why, counter_id, _ = failures[0]
    refusing = next(one for one in states if one.counter.counter_id == counter_id)
    spent, reserved = (refusing.spent, refusing.reserved) if why is DenialReason.MONEY else (None, 0)
    waits_s = [wait_s for _, _, wait_s in failures if wait_s is not None]
    retry_after_s = max(waits_s) if len(waits_s) == len(failures) else None
    return Denied(why, counter_id, retry_after_s, levels(states, now), spent, reserved)


def levels(states: Iterable[UsedAmounts], now: float) -> tuple[LimitLevel, ...]:
    """The remaining rates of the counters that bound rates; `now`: Unix seconds."""
    return tuple([_level(one.counter, one.window, now) for one in states if one.window is not None])


def passes(state: UsedAmounts, amount: int, count: int) -> bool:
    """A quick check: True if `count` exchanges that reserve `amount` in total all fit. If False, decide each one by
    `verdict`."""
    counter = state.counter
    return (
        (
            counter.nusd_max is None
            or (state.spent is not None and state.spent + state.reserved + amount <= counter.nusd_max)
        )
        and state.window is None
        and (counter.parallel is None or state.running + count <= counter.parallel)
    )


def bounds_rate(counter: LimitCounter) -> bool:
    """True if the counter limits requests or tokens of the last 60 s."""
    return counter.rpm is not None or counter.tpm is not None


def bounds_reservations(counter: LimitCounter) -> bool:
    """True if the verdict depends on the reservations of all nodes."""
    return counter.nusd_max is not None or counter.parallel is not None


def _failures(reservation: Reservation, state: UsedAmounts, now: float) -> list[tuple[DenialReason, str, float | None]]:
    """Every bound that would be exceeded, with the counter's id and the seconds to wait (None: no help)."""
    counter, window = state.counter, state.window
    failures: list[tuple[DenialReason, str, float | None]] = []
    amount = reservation.amount_at(counter)
    if counter.nusd_max is not None and (state.spent or 0) + state.reserved + amount > counter.nusd_max:
        failures.append((DenialReason.MONEY, counter.counter_id, None))
    if counter.rpm is not None and window is not None and (surplus := window.requests + 1 - counter.rpm) > 0:
        failures.append((DenialReason.REQUESTS, counter.counter_id, window.wait_s(requests=surplus, now=now)))
    if (
        counter.tpm is not None
        and window is not None
        and (surplus := window.tokens + reservation.tokens - counter.tpm) > 0
    ):
        failures.append((DenialReason.TOKENS, counter.counter_id, window.wait_s(tokens=surplus, now=now)))
    if counter.parallel is not None and state.running >= counter.parallel:
        failures.append((DenialReason.PARALLEL, counter.counter_id, None))
    return failures


def _level(counter: LimitCounter, window: Window, now: float) -> LimitLevel:
    return LimitLevel(
        counter.counter_id,
        None if counter.rpm is None else max(0, counter.rpm - window.requests),
        0.0 if counter.rpm is None else window.requests_reset_s(now),
        None if counter.tpm is None else max(0, counter.tpm - window.tokens),
        0.0 if counter.tpm is None else window.tokens_reset_s(now),
    )
