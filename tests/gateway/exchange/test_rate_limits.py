"""What clients learn of their limits, in the forms that SDKs read."""

from __future__ import annotations

import pytest

from proxy.billing.limits import LimitCounter
from proxy.billing.reservation import DenialReason, Denied, LimitLevel
from proxy.gateway.exchange.rate_limits import duration, headers, refusal

KEY, PROJECT = LimitCounter("key_a", rpm=10, tpm=1000), LimitCounter("proj_b", rpm=100)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.0012, "2ms"), (0.5, "500ms"), (1, "1s"), (1.5, "1.5s"), (59.9, "59.9s"), (360, "6m0s"),
     (3723.2, "1h2m4s")],
)  # fmt: skip
def test_durations_are_written_as_openai_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_tightest_level_speaks() -> None:
    levels = [
        LimitLevel("key_a", requests_left=4, requests_reset_s=12, tokens_left=0, tokens_reset_s=60.0),
        LimitLevel("proj_b", requests_left=3, requests_reset_s=1.5),
    ]
    assert dict(headers([KEY, PROJECT], levels)) == {
        "x-ratelimit-limit-requests": "100", "x-ratelimit-remaining-requests": "3",
        "x-ratelimit-reset-requests": "1.5s", "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "1m0s",
    }  # fmt: skip


def test_what_is_not_limited_is_not_told() -> None:
    assert headers([LimitCounter("key_a", nusd_max=5)], []) == ()
    assert headers((), ()) == ()


@pytest.mark.parametrize(
    ("why", "retry_after_s", "status", "code", "waits"),
    [
        (DenialReason.MONEY, None, 402, "insufficient_quota", None),
        (DenialReason.REQUESTS, 2.2, 429, "rate_limit_exceeded", 3),
        (DenialReason.TOKENS, None, 429, "rate_limit_exceeded", None),
        (DenialReason.PARALLEL, None, 429, "rate_limit_exceeded", 1),
        (DenialReason.STORE_UNAVAILABLE, None, 503, "budget_unknown", 1),
    ],
)
def test_refusals(why: DenialReason, retry_after_s: float | None, status: int, code: str, waits: int | None) -> None:
    made = refusal(Denied(why, "key_a", retry_after_s, ()), [KEY], exceeded_status=402)
    assert (made.status, made.code, made.retry_after_s) == (status, code, waits)
    assert (("x-should-retry", "false") in made.headers) == (waits is None)
    assert b"key_a" not in made.body()


def test_a_spent_budget_can_be_a_429() -> None:
    made = refusal(Denied(DenialReason.MONEY, "key_a", None, ()), [KEY], exceeded_status=429)
    assert (made.status, made.code) == (429, "insufficient_quota")
