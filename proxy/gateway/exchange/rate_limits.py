"""Rate-limit headers.

Invariants: names and formats are OpenAI's, so that SDKs wait by themselves. If several levels limit the same thing, the
tightest one is reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from proxy.billing.limits import LimitCounter
from proxy.billing.reservation import LimitLevel

Headers = tuple[tuple[str, str], ...]

_MINUTE_S, _HOUR_S = 60, 3600


def headers(counters: Sequence[LimitCounter], levels: Sequence[LimitLevel]) -> Headers:
    """`x-ratelimit-{limit,remaining,reset}-{requests,tokens}`; `levels`: the state of some of these counters."""
    if not levels:
        return ()
    bounds = {counter.counter_id: counter for counter in counters}
    known = [(bounds[level.counter_id], level) for level in levels]
    requests = [
        (counter.rpm, at.requests_left, at.requests_reset_s) for counter, at in known if counter.rpm is not None
    ]
    tokens = [(counter.tpm, at.tokens_left, at.tokens_reset_s) for counter, at in known if counter.tpm is not None]
    return (*_headers("requests", requests), *_headers("tokens", tokens))


def _headers(unit: str, found: Sequence[tuple[int | None, int | None, float]]) -> Headers:
    left = [(remaining, limit, reset_s) for limit, remaining, reset_s in found if remaining is not None]
    if not left:
        return ()
    remaining, limit, reset_s = min(left, key=lambda one: one[0])
    return (
        (f"x-ratelimit-limit-{unit}", str(limit)),
        (f"x-ratelimit-remaining-{unit}", str(max(0, remaining))),
        (f"x-ratelimit-reset-{unit}", duration(reset_s)),
    )


def duration(seconds: float) -> str:
    """A duration in OpenAI's format: "0s", "120ms", "1.5s", "6m0s", "1h2m3s"."""
    if seconds < 1:
        return f"{ceil(seconds * 1000)}ms" if seconds > 0 else "0s"
    if seconds < _MINUTE_S:
        return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"
    minutes, rest = divmod(ceil(seconds), _MINUTE_S)
    if minutes < _HOUR_S // _MINUTE_S:
        return f"{minutes}m{rest}s"
    return f"{minutes // 60}h{minutes % 60}m{rest}s"
