"""Two clocks, compared. Law: ours is read on both sides of the question, so that a slow answer is no difference."""

from __future__ import annotations

from proxy.doctor.finding import Finding, error, ok, warning

# Days, windows of budgets and the order of exchange ids bear a second; a minute bills on the wrong day.
NOTED_S, FAILS_S = 1.0, 30.0
_ADVICE = "run chrony or another NTP client on all machines"


def judged(check: str, whose: str, theirs: float, before: float, after: float, *, resolution_s: float = 0.0) -> Finding:
    """A clock that said `theirs` between `before` and `after` of ours (all Unix seconds), exact to `resolution_s`."""
    late = max(before - theirs - resolution_s, theirs - after, 0.0)
    said = f"clocks differ by {late:.1f} s or more: ours and {whose}"
    if late >= FAILS_S:
        return error(check, said, _ADVICE)
    if late >= NOTED_S:
        return warning(check, said, _ADVICE)
    return ok(check, f"our clock agrees with {whose}")
