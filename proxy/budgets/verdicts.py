"""Whether a request passes its gates, as they stand. Pure.

Law: every gate is looked at, and nothing is decided twice: what a store keeps goes in, a verdict comes out. Redis's
script decides the same (`budget_scripts.py`); one contract suite runs against both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from proxy.billing.limits import LimitCounter
from proxy.billing.reservation import DenialReason, Denied, Granted, Hold, LimitLevel, Unseeded, Verdict
from proxy.budgets.rates import Window


class UsedAmounts:
    """One gate, as a store has it."""

    __slots__ = ("gate", "held", "known", "running", "spent", "window")

    def __init__(
        self, gate: LimitCounter, *, spent: int | None, held: int, running: int, window: Window | None, known: bool
    ) -> None:
        self.gate = gate
        self.spent = spent
        """None: not known for the gate's window"""
        self.held = held
        self.running = running
        self.window = window
        """None: rates are not bounded"""
        self.known = known
        """the store has a row of it"""


def verdict(hold: Hold, states: Sequence[UsedAmounts], now: float) -> Verdict:
    """Granted means: if it is held now. What is not seeded comes before all else."""
    if unseeded := [one.gate for one in states if one.spent is None and one.gate.nusd_max is not None]:
        return Unseeded(tuple(unseeded))
    failures = [failure for one in states if not passes(one, hold.nusd, 1) for failure in _failures(hold, one, now)]
    if not failures:
        return Granted(())
    why, gate_id, _ = failures[0]
    waits_s = [wait_s for _, _, wait_s in failures if wait_s is not None]
    retry_after_s = max(waits_s) if len(waits_s) == len(failures) else None
    return Denied(why, gate_id, retry_after_s, levels(states, now))


def levels(states: Iterable[UsedAmounts], now: float) -> tuple[LimitLevel, ...]:
    """How those stand that bound rates; `now`: Unix seconds."""
    return tuple([_level(one.gate, one.window, now) for one in states if one.window is not None])


def passes(state: UsedAmounts, nusd: int, count: int) -> bool:
    """True if there is room for all of so many exchanges, which hold so much together, and it is quickly seen; where
    not, `verdict` says of each whether, and why."""
    gate = state.gate
    return (
        (gate.nusd_max is None or (state.spent is not None and state.spent + state.held + nusd <= gate.nusd_max))
        and state.window is None
        and (gate.parallel is None or state.running + count <= gate.parallel)
    )


def bounds_rate(gate: LimitCounter) -> bool:
    """True if requests or tokens of the last 60 s are counted there."""
    return gate.rpm is not None or gate.tpm is not None


def bounds_holds(gate: LimitCounter) -> bool:
    """True if it matters there what all nodes hold."""
    return gate.nusd_max is not None or gate.parallel is not None


def _failures(hold: Hold, state: UsedAmounts, now: float) -> list[tuple[DenialReason, str, float | None]]:
    """Each bound of the gate that would be passed, and when time alone would have helped."""
    gate, window = state.gate, state.window
    found: list[tuple[DenialReason, str, float | None]] = []
    if gate.nusd_max is not None and (state.spent or 0) + state.held + hold.nusd > gate.nusd_max:
        found.append((DenialReason.MONEY, gate.gate_id, None))
    if gate.rpm is not None and window is not None and (surplus := window.requests + 1 - gate.rpm) > 0:
        found.append((DenialReason.REQUESTS, gate.gate_id, window.wait_s(requests=surplus, now=now)))
    if gate.tpm is not None and window is not None and (surplus := window.tokens + hold.tokens - gate.tpm) > 0:
        found.append((DenialReason.TOKENS, gate.gate_id, window.wait_s(tokens=surplus, now=now)))
    if gate.parallel is not None and state.running >= gate.parallel:
        found.append((DenialReason.PARALLEL, gate.gate_id, None))
    return found


def _level(gate: LimitCounter, window: Window, now: float) -> LimitLevel:
    return LimitLevel(
        gate.gate_id,
        None if gate.rpm is None else max(0, gate.rpm - window.requests),
        0.0 if gate.rpm is None else window.requests_reset_s(now),
        None if gate.tpm is None else max(0, gate.tpm - window.tokens),
        0.0 if gate.tpm is None else window.tokens_reset_s(now),
    )
