"""The errors of requests that exceed a limit: which level, which limit, what is left, and when to try again.

Invariants: type and code are OpenAI's. Amounts are those of the level that refuses. No id is disclosed, and no name but
that of a limit rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

from proxy.billing.keys import ApiKey
from proxy.billing.limit_rules import CLIENT_RULES, EACH_RUN, LimitRule, RuleScope
from proxy.billing.limits import (
    LimitCounter,
    Measure,
    Scope,
    credit_counter_id,
    limit_counters,
    measured,
    quota_of,
)
from proxy.billing.money import usd_text
from proxy.billing.reservation import DenialReason, Denied
from proxy.foundation.times import iso_utc
from proxy.gateway.exchange.rate_limits import duration, headers
from proxy.http.errors import NO_RETRY, ApiError
from proxy.metering.usage import NO_USAGE, Usage

_UNLIMITED = {False: "answer: the request sets no max_tokens or equivalent", True: "line without max_tokens"}
_ANY_LEVEL = "this key, its project or its organization"
# `output tokens`, as in a message.
_COUNTS = {one: one.value.replace("_", " ") for one in Measure}
# Field of `Usage` → the unit in a message.
_UNITS = {"images": "images", "audio_ms": "ms of audio", "characters": "characters", "pages": "pages"}


@dataclass(frozen=True, slots=True)
class RequestedAmounts:
    """The amounts that a request would reserve, and the counts behind them."""

    nusd: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    """prompt tokens, estimated"""
    completion_tokens: int = 0
    """output tokens of all answers, at most"""
    answers: int = 1
    assumed: int = 0
    """output tokens that count for an answer whose request sets no limit; 0: the request sets one"""
    capped: bool = False
    """`nusd` is the most that one request reserves"""
    units: Usage = NO_USAGE
    """counts that are not tokens"""
    lines: int = 0
    """lines of a batch; 0: no batch"""

    def reasons(self) -> str:
        """`12 prompt tokens and 4096 output tokens (assumed: …)`; empty if nothing is counted."""
        parts = [f"{self.prompt_tokens} prompt tokens"] if self.prompt_tokens else []
        if self.completion_tokens:
            why = "" if not self.assumed else f" ({self.assumed} assumed for each {_UNLIMITED[bool(self.lines)]})"
            answers = f" for {self.answers} answers" if self.answers > 1 else ""
            parts.append(f"{self.completion_tokens} output tokens{answers}{why}")
        counts = ((getattr(self.units, field), unit) for field, unit in _UNITS.items())
        parts += [f"{count} {unit}" for count, unit in counts if count]
        lines = f"{self.lines} lines with " if self.lines and parts else ""
        return lines + " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


@dataclass(frozen=True, slots=True)
class _Denial:
    """A denial, with the level that denies."""

    denied: Denied
    requested: RequestedAmounts
    at: float
    """Unix seconds"""
    level: str
    scope: Scope | None
    """None: unknown"""
    counter: LimitCounter | None

    @property
    def prepaid(self) -> bool:
        """True if the credit is used up, not the budget."""
        return self.scope is not None and self.denied.counter_id == credit_counter_id(self.scope.scope_id)


class RefusedByRuleError(ApiError):
    """A refusal by a rule that is for some providers, or that names another model for the request."""

    def __init__(self, error: ApiError, rule: LimitRule) -> None:
        super().__init__(
            error.status, error.message, kind=error.kind, param=error.param, code=error.code,
            retry_after_s=error.retry_after_s, headers=error.headers,
        )  # fmt: skip
        self.limit = error.limit
        self.rule = rule


def refusal(
    denied: Denied,
    key: ApiKey,
    scopes: Sequence[Scope],
    requested: RequestedAmounts,
    *,
    at: float,
    exceeded_status: int,
) -> ApiError:
    """The error for a request that exceeds a limit. `scopes`: the levels with limits. `at`: Unix seconds.
    `exceeded_status`: of an exceeded budget, 402 or 429."""
    counters = [(scope, counter) for scope in scopes for counter in limit_counters(scope, at)]
    scope, counter = next((pair for pair in counters if pair[1].counter_id == denied.counter_id), (None, None))
    denial = _Denial(denied, requested, at, _level(scope, key), scope, counter)
    error = _REFUSALS[denied.why](denial, exceeded_status)
    in_vain = (
        denied.why in (DenialReason.REQUESTS, DenialReason.TOKENS, DenialReason.MONEY) and denied.retry_after_s is None
    )
    limits = headers([counter for _, counter in counters], denied.levels)
    error.headers = (*limits, *((NO_RETRY,) if in_vain else ()))
    error.limit = denial.level
    rule = scope.rule if isinstance(scope, RuleScope) and denied.why is not DenialReason.STORE_UNAVAILABLE else None
    if rule is None or not (rule.providers or rule.fallback_model):
        return error
    return RefusedByRuleError(error, rule)


def too_many_at_once(message: str) -> ApiError:
    """429: a limit of parallel requests is reached."""
    return ApiError(429, message, kind="requests", code="rate_limit_exceeded", retry_after_s=1)


def _level(scope: Scope | None, key: ApiKey) -> str:
    if scope is None:
        return _ANY_LEVEL
    if isinstance(scope, RuleScope):
        if scope.rule.rule_id in CLIENT_RULES:
            return "this run" if scope.rule is EACH_RUN else "this narrowed key"
        each = f" for this {' and '.join(scope.rule.split_by)}" if scope.rule.split_by else ""
        return f"the limit {scope.rule.name!r}{each}"
    return {key.key_id: "this key", key.project_id: "this key's project"}.get(scope.scope_id, "this key's organization")


def _over_budget(denial: _Denial, status: int) -> ApiError:
    measure = quota_of(denial.denied.counter_id)
    if measure is not None:
        return _over_quota(denial, measure)
    limit = f"the {'prepaid credit' if denial.prepaid else 'budget'} of {denial.level}"
    left = _left(denial)
    if left is None or left <= 0:
        parts = [f"You exceeded your current quota: {limit} is exhausted{_amounts(denial, left)}."]
    else:
        wanted = denial.requested
        capped = ", the most that one request reserves," if wanted.capped else ""
        reasons = f" for {wanted.reasons()}" if wanted.reasons() else ""
        amount = f"{usd_text(wanted.nusd)} USD{capped}{reasons}".rstrip(",")
        parts = [f"This request does not fit {limit}{_amounts(denial, left)}: it would reserve {amount}."]
        if wanted.assumed:
            parts.append("Where the endpoint has such a parameter, set it to reserve less.")
    parts += [_reset(denial)] if denial.scope is not None else []
    return ApiError(status, " ".join(parts), kind="insufficient_quota", code="insufficient_quota")


def _over_quota(denial: _Denial, measure: Measure) -> ApiError:
    """429: a quota of requests or tokens."""
    counts, left, reserved = _COUNTS[measure], _left(denial), denial.denied.reserved
    bound = "" if denial.counter is None else f" of {denial.counter.nusd_max} {counts}"
    limit = f"the quota{bound} of {denial.level}"
    others = f", {reserved} reserved by other requests" if reserved else ""
    if left is None or left <= 0:
        parts = [f"You exceeded your current quota: {limit} is exhausted{f' (0 left{others})' if others else ''}."]
    else:
        wanted = denial.requested
        would = measured(1, wanted.prompt_tokens, wanted.completion_tokens)[measure]
        reasons = f" for {wanted.reasons()}" if wanted.reasons() else ""
        amount = f"it would reserve {would} {counts}{reasons}"
        parts = [f"This request does not fit {limit} ({left} left{others}): {amount}."]
    end = None if denial.scope is None else denial.scope.limits.window_end(denial.scope.created_at, denial.at)
    parts += [_resets("quota", end)] if denial.scope is not None else []
    wait_s = None if end is None else max(1, ceil(end - denial.at))
    kind = "requests" if measure is Measure.REQUESTS else "tokens"
    return ApiError(429, " ".join(parts), kind=kind, code="rate_limit_exceeded", retry_after_s=wait_s)


def _left(denial: _Denial) -> int | None:
    """The remainder after all spend and all reservations; below 0 if both exceed the bound. None: unknown."""
    denied, counter = denial.denied, denial.counter
    if denied.spent is None or counter is None or counter.nusd_max is None:
        return None
    return counter.nusd_max - denied.spent - denied.reserved


def _amounts(denial: _Denial, left: int | None) -> str:
    """` (0.2 of 5 USD left, 1 USD reserved by other requests)`; empty if unknown."""
    if left is None or denial.counter is None:
        return ""
    budget = "" if denial.prepaid else f" of {usd_text(denial.counter.nusd_max or 0)}"
    held = denial.denied.reserved
    others = f", {usd_text(held)} USD reserved by other requests" if held else ""
    return f" ({usd_text(max(left, 0))}{budget} USD left{others})"


def _reset(denial: _Denial) -> str:
    assert denial.scope is not None
    if denial.prepaid:
        next_at = denial.denied.next_grant_at
        grant = "" if next_at is None else f" The next grant of credit begins at {iso_utc(ceil(next_at))[:19]}Z."
        return f"Prepaid credit does not reset; it can be topped up.{grant}"
    return _resets("budget", denial.scope.limits.window_end(denial.scope.created_at, denial.at))


def _resets(what: str, end: float | None) -> str:
    return f"This {what} does not reset." if end is None else f"The {what} resets at {iso_utc(ceil(end))[:19]}Z."


def _too_fast(denial: _Denial, _status: int) -> ApiError:
    denied, wanted, unit = denial.denied, denial.requested, denial.denied.why.value
    requests = denied.why is DenialReason.REQUESTS
    bound = None if denial.counter is None else denial.counter.rpm if requests else denial.counter.tpm
    count = unit if bound is None else f"{bound} {unit.removesuffix('s') if bound == 1 else unit}"
    limit = f"{count} per minute of {denial.level}"
    counts = "" if requests or not wanted.tokens else wanted.reasons() or f"{wanted.tokens} tokens"
    if not requests and bound is not None and wanted.tokens > bound:
        message = f"This request alone exceeds the limit of {limit}: it counts {counts}."
    else:
        message = f"Rate limit of {limit} reached." + (f" This request counts {counts}." if counts else "")
    if denied.retry_after_s is None:
        return ApiError(429, message, kind=unit, code="rate_limit_exceeded")
    message += f" Please try again in {duration(denied.retry_after_s)}."
    wait_s = max(1, ceil(denied.retry_after_s))
    return ApiError(429, message, kind=unit, code="rate_limit_exceeded", retry_after_s=wait_s)


def _too_many(denial: _Denial, _status: int) -> ApiError:
    bound = None if denial.counter is None else denial.counter.parallel
    limit = "" if bound is None else f": the limit is {bound} at once"
    return too_many_at_once(f"Too many requests of {denial.level} are running{limit}. Please try again later.")


def _unknown(_denial: _Denial, _status: int) -> ApiError:
    message = "The remaining budget cannot be checked right now. Please try again later."
    return ApiError(503, message, kind="server_error", code="budget_unknown", retry_after_s=1)


_REFUSALS: dict[DenialReason, Callable[[_Denial, int], ApiError]] = {
    DenialReason.MONEY: _over_budget,
    DenialReason.REQUESTS: _too_fast,
    DenialReason.TOKENS: _too_fast,
    DenialReason.PARALLEL: _too_many,
    DenialReason.STORE_UNAVAILABLE: _unknown,
}
