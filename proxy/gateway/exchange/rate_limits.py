"""Rate-limit headers and refusals.

Invariants: names and formats are OpenAI's, so that SDKs wait by themselves. If several levels limit the same thing, the
tightest one is reported. Amounts of money are not disclosed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

from proxy.billing.limits import LimitCounter
from proxy.billing.reservation import DenialReason, Denied, LimitLevel
from proxy.http.errors import NO_RETRY, ApiError

Headers = tuple[tuple[str, str], ...]

_MINUTE_S, _HOUR_S = 60, 3600


def headers(counters: Sequence[LimitCounter], levels: Sequence[LimitLevel]) -> Headers:
    """`x-ratelimit-{limit,remaining,reset}-{requests,tokens}`; `levels`: of some of these counters."""
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
    """In OpenAI's format: "0s", "120ms", "1.5s", "6m0s", "1h2m3s"."""
    if seconds < 1:
        return f"{ceil(seconds * 1000)}ms" if seconds > 0 else "0s"
    if seconds < _MINUTE_S:
        return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"
    minutes, rest = divmod(ceil(seconds), _MINUTE_S)
    if minutes < _HOUR_S // _MINUTE_S:
        return f"{minutes}m{rest}s"
    return f"{minutes // 60}h{minutes % 60}m{rest}s"


def refusal(denied: Denied, counters: Sequence[LimitCounter], *, exceeded_status: int) -> ApiError:
    """The error for a request that exceeds a limit. `exceeded_status`: of an exceeded budget, 402 or 429."""
    made = _REFUSALS[denied.why](denied, exceeded_status)
    in_vain = (
        denied.why in (DenialReason.REQUESTS, DenialReason.TOKENS, DenialReason.MONEY) and denied.retry_after_s is None
    )
    made.headers = (*headers(counters, denied.levels), *((NO_RETRY,) if in_vain else ()))
    return made


def _spent(_denied: Denied, status: int) -> ApiError:
    message = "You exceeded your current quota: the budget of this key, its project or its organization is exhausted."
    return ApiError(status, message, kind="insufficient_quota", code="insufficient_quota")


def _too_fast(denied: Denied, _status: int) -> ApiError:
    unit = denied.why.value
    if denied.retry_after_s is None:
        message = f"This request alone has more {unit} than the limit per minute allows."
        return ApiError(429, message, kind=unit, code="rate_limit_exceeded")
    wait_s = max(1, ceil(denied.retry_after_s))
    message = f"Rate limit reached on {unit} per minute. Please try again in {duration(denied.retry_after_s)}."
    return ApiError(429, message, kind=unit, code="rate_limit_exceeded", retry_after_s=wait_s)


def _too_many(_denied: Denied, _status: int) -> ApiError:
    message = "Too many requests of this key, its project or its organization are running. Please try again later."
    return ApiError(429, message, kind="requests", code="rate_limit_exceeded", retry_after_s=1)


def _unknown(_denied: Denied, _status: int) -> ApiError:
    message = "The remaining budget cannot be checked right now. Please try again later."
    return ApiError(503, message, kind="server_error", code="budget_unknown", retry_after_s=1)


_REFUSALS: dict[DenialReason, Callable[[Denied, int], ApiError]] = {
    DenialReason.MONEY: _spent,
    DenialReason.REQUESTS: _too_fast,
    DenialReason.TOKENS: _too_fast,
    DenialReason.PARALLEL: _too_many,
    DenialReason.STORE_UNAVAILABLE: _unknown,
}
