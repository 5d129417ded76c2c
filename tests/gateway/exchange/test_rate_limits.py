"""What clients learn of their limits, in the forms that SDKs read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from proxy.billing.limits import LimitCounter, Limits, Scope
from proxy.billing.reservation import DenialReason, Denied, LimitLevel
from proxy.gateway.exchange.rate_limits import duration, headers
from proxy.gateway.exchange.refusals import RequestedAmounts, refusal
from proxy.metering.usage import Usage
from tests.gateway import inprocess

OWN = replace(inprocess.KEY, key_id="key_a", project_id="proj_b")
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


NOW = 1_800_000_000.0  # 2027-01-15T08:00:00Z


def scope(scope_id: str = "key_a", **limits: Any) -> Scope:
    return Scope(scope_id, Limits(**limits), NOW - 86_400)


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
@pytest.mark.parametrize("scopes", [(), (scope(budget_nusd=5, rpm=1, tpm=1, parallel=1),)])
def test_refusals(
    why: DenialReason, retry_after_s: float | None, status: int, code: str, waits: int | None, scopes: tuple[Scope, ...]
) -> None:
    denied = Denied(why, "key_a", retry_after_s, ())
    made = refusal(denied, OWN, scopes, RequestedAmounts(), at=NOW, exceeded_status=402)
    assert (made.status, made.code, made.retry_after_s) == (status, code, waits)
    assert (("x-should-retry", "false") in made.headers) == (waits is None)
    assert b"key_a" not in made.body()


def test_a_spent_budget_can_be_a_429() -> None:
    denied = Denied(DenialReason.MONEY, "key_a", None, ())
    made = refusal(denied, OWN, [scope(budget_nusd=5)], RequestedAmounts(), at=NOW, exceeded_status=429)
    assert (made.status, made.code) == (429, "insufficient_quota")


def over(counter_id: str, spent: int, held: int = 0) -> Denied:
    return Denied(DenialReason.MONEY, counter_id, None, (), spent, held)


USD = 10**9
WANTED = RequestedAmounts(USD // 100, 4108, prompt_tokens=12, completion_tokens=4096, assumed=4096)


@pytest.mark.parametrize(
    ("denied", "scopes", "requested", "expected"),
    [
        (
            over("key_a", 0), [scope(budget_nusd=USD // 200)], WANTED,
            ("This request does not fit the budget of this key (0.005 of 0.005 USD left): it would reserve 0.01 USD for"
            " 12 prompt tokens and 4096 output tokens (4096 assumed for each answer: the request sets no max_tokens or"
            " equivalent). Where the endpoint has such a parameter, set it to reserve less."
            " The budget resets at 2027-02-13T08:00:00Z."),
        ),
        (
            over("proj_b", USD, 3 * USD), [scope("proj_b", budget_nusd=5 * USD, budget_window="calendar_month")],
            RequestedAmounts(5 * USD, 9, prompt_tokens=4, completion_tokens=5, capped=True),
            ("This request does not fit the budget of this key's project (1 of 5 USD left, 3 USD reserved by other"
            " requests): it would reserve 5 USD, the most that one request reserves, for 4 prompt tokens and 5 output"
            " tokens. The budget resets at 2027-02-01T00:00:00Z."),
        ),
        (
            over("org_c", 5 * USD), [scope(rpm=9), scope("org_c", budget_nusd=5 * USD, budget_window="12h")],
            WANTED,
            ("You exceeded your current quota: the budget of this key's organization is exhausted (0 of 5 USD left)."
            " The budget resets at 2027-01-15T20:00:00Z."),
        ),
        (
            over("key_a", 5 * USD, USD), [scope(budget_nusd=5 * USD, budget_window="none")], RequestedAmounts(),
            ("You exceeded your current quota: the budget of this key is exhausted (0 of 5 USD left, 1 USD reserved by"
            " other requests). This budget does not reset."),
        ),
        (
            over("key_a/credit", -USD), [scope(prepaid=True)],
            RequestedAmounts(2 * USD, 0, units=Usage(images=2, characters=7)),
            ("This request does not fit the prepaid credit of this key (1 USD left): it would reserve 2 USD for 2"
            " images and 7 characters. Prepaid credit does not reset; it can be topped up."),
        ),
        (
            over("key_a/credit", 0), [scope(prepaid=True)], WANTED,
            ("You exceeded your current quota: the prepaid credit of this key is exhausted (0 USD left)."
            " Prepaid credit does not reset; it can be topped up."),
        ),
        (
            structs.replace(over("key_a/credit", 0), next_grant_at=1_800_000_000.5), [scope(prepaid=True)], WANTED,
            ("You exceeded your current quota: the prepaid credit of this key is exhausted (0 USD left). Prepaid credit"
            " does not reset; it can be topped up. The next grant of credit begins at 2027-01-15T08:00:01Z."),
        ),
        (
            over("key_a", 0), [scope(budget_nusd=USD)],
            RequestedAmounts(2 * USD, prompt_tokens=8, completion_tokens=30, assumed=10, lines=4),
            ("This request does not fit the budget of this key (1 of 1 USD left): it would reserve 2 USD for 4 lines"
            " with 8 prompt tokens and 30 output tokens (10 assumed for each line without max_tokens)."
            " Where the endpoint has such a parameter, set it to reserve less."
            " The budget resets at 2027-02-13T08:00:00Z."),
        ),
        (
            Denied(DenialReason.REQUESTS, "key_a", 2.5, ()), [scope(rpm=10)], WANTED,
            "Rate limit of 10 requests per minute of this key reached. Please try again in 2.5s.",
        ),
        (
            Denied(DenialReason.TOKENS, "proj_b", 61, ()), [scope("proj_b", tpm=5000)], WANTED,
            ("Rate limit of 5000 tokens per minute of this key's project reached. This request counts 12 prompt tokens"
            " and 4096 output tokens (4096 assumed for each answer: the request sets no max_tokens or equivalent)."
            " Please try again in 1m1s."),
        ),
        (
            Denied(DenialReason.TOKENS, "key_a", None, ()), [scope(tpm=100)],
            RequestedAmounts(0, 110, prompt_tokens=10, completion_tokens=100, answers=2),
            ("This request alone exceeds the limit of 100 tokens per minute of this key: it counts 10 prompt tokens and"
            " 100 output tokens for 2 answers."),
        ),
        (  # another limit is reached as well, for which no waiting helps
            Denied(DenialReason.REQUESTS, "key_a", None, ()), [scope(rpm=10, budget_nusd=5)], WANTED,
            "Rate limit of 10 requests per minute of this key reached.",
        ),
        (
            Denied(DenialReason.PARALLEL, "org_c", None, ()), [scope("org_c", parallel=4)], WANTED,
            "Too many requests of this key's organization are running: the limit is 4 at once. Please try again later.",
        ),
    ],
)  # fmt: skip
def test_a_refusal_says_level_limit_rest_need_and_reset(
    denied: Denied, scopes: list[Scope], requested: RequestedAmounts, expected: str
) -> None:
    assert refusal(denied, OWN, scopes, requested, at=NOW, exceeded_status=402).message == expected
