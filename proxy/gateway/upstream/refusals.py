"""The meaning of a provider's refusal: whose fault it is, whether another provider may answer, and how long this one is
paused.

Invariants: a status that is not in the table, below 500, is the client's fault, and every provider would answer so. The
table of docs/how-to/provider-failover.md has the same statuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from proxy.foundation.times import retry_after_s
from proxy.http.framing import Head

# Without a `Retry-After`. Providers' limits count seconds or minutes.
LIMITED_REST_S = 1.0
# Until then, an operator has hardly given it another key, or more credit.
REJECTED_REST_S = 60.0


class Refusal(NamedTuple):
    """A refusal that another provider may not share."""

    why: str
    rest_s: float = 0.0
    """for how long other providers are preferred, unless the provider states a time"""


REFUSALS: Mapping[int, Refusal] = {
    401: Refusal("the operator's key is not accepted", REJECTED_REST_S),
    402: Refusal("the operator's account has no credit", REJECTED_REST_S),
    403: Refusal("the operator's account may not, or a filter of this provider refuses"),
    404: Refusal("this provider has no such model"),
    408: Refusal("this provider took too long, and may bill it"),
    409: Refusal("this provider has a conflict"),
    429: Refusal("this provider limits the operator's account", LIMITED_REST_S),
    499: Refusal("this provider gave up, and may bill it"),
}


# Of a provider's setting `failover_on`: all statuses from 500 up, and an answer with a success status that has failed.
SERVER_ERRORS, FAILED_ANSWER = "5xx", "failed_answer"
FAILOVER_ON = frozenset((*map(str, REFUSALS), SERVER_ERRORS, FAILED_ANSWER))


def failure_of(status: int) -> str:
    """A status that is no success, as the setting `failover_on` names it."""
    return SERVER_ERRORS if status >= 500 else str(status)


def may_be_answered_elsewhere(failure: str, failover_on: frozenset[str] | None = None) -> bool:
    """Whether another provider may answer after this failure. `failover_on`: as the provider's settings have it; None:
    FAILOVER_ON."""
    return failure in (FAILOVER_ON if failover_on is None else failover_on)


def rest_s(status: int, head: Head, unix_now: float) -> float:
    """For how long the provider is paused after this refusal, in seconds; 0: not at all."""
    if status in (429, 503):
        stated = _stated_s(head, unix_now)
        if stated is not None:
            return stated
    return REFUSALS[status].rest_s if status in REFUSALS else 0.0


def _stated_s(head: Head, unix_now: float) -> float | None:
    """The wait that the provider's headers state, in seconds. OpenAI and Azure state it in milliseconds, too."""
    ms = retry_after_s(head.header("retry-after-ms"), unix_now)
    return retry_after_s(head.header("retry-after"), unix_now) if ms is None else ms / 1000
