"""Compares a remote clock with the local clock. Invariant: the local clock is read before and after the request, so
that latency is not counted as a difference."""

from __future__ import annotations

from proxy.doctor.finding import Finding, error, ok, warning

# One second does no harm to days, budget windows and the order of exchange ids; a minute bills on the wrong day.
NOTED_S, FAILS_S = 1.0, 30.0
_ADVICE = "run chrony or another NTP client on all machines"


def clock_finding(
    check: str, owner: str, remote: float, before: float, after: float, *, resolution_s: float = 0.0
) -> Finding:
    """Compare `remote`, read between `before` and `after` of the local clock (Unix seconds), exact to
    `resolution_s`."""
    difference_s = max(before - remote - resolution_s, remote - after, 0.0)
    message = f"clocks differ by {difference_s:.1f} s or more: this machine's and {owner}"
    if difference_s >= FAILS_S:
        return error(check, message, _ADVICE)
    if difference_s >= NOTED_S:
        return warning(check, message, _ADVICE)
    return ok(check, f"this machine's clock agrees with {owner}")
