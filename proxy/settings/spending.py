"""The settings of what keys may spend. Law: as of all settings; see values.py."""

from __future__ import annotations

from dataclasses import dataclass, field

from proxy.billing.limits import OnStoreOutage
from proxy.billing.money import NUSD_PER_USD
from proxy.foundation.secret import Secret
from proxy.settings.kinds import about, choice, number, seconds, secret, size, usd, whole
from proxy.settings.urls import url

# Twice the output limit of any model of 2026.
COMPLETION_TOKENS_MAX = 1_000_000
REQUEST_USD_MAX = 10_000
ALLOWANCE_USD_MAX = 1_000_000
# Beyond a month a client does not try again.
RETENTION_S_MAX = 31 * 86_400.0
REPLAY_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveSettings:
    """What a request holds of its budgets while it runs."""

    completion_tokens: int = field(
        default=4096,
        metadata=about(whole(1, COMPLETION_TOKENS_MAX), "output tokens held for a request that names no limit"),
    )
    usd_max: int = field(
        default=5 * NUSD_PER_USD,
        metadata=about(
            usd(REQUEST_USD_MAX), "most that one request holds, whatever it asks for; a stream that costs more "
            "holds more as it goes on", default="`5`",
        ),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencySettings:
    """What is remembered of requests that come with an `Idempotency-Key`."""

    retention_s: float = field(
        default=86_400.0,
        metadata=about(seconds(RETENTION_S_MAX), "how long the same key is the same request", formerly="remember_s"),
    )
    replay_bytes_max: int = field(
        default=0,
        metadata=about(
            size(0, REPLAY_BYTES_MAX),
            "longest whole JSON answer that is kept, encrypted, and given again; 0: none is, a repeat gets 409",
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertSettings:
    """Who is told that a budget is half, four fifths or wholly spent."""

    url: str | None = field(
        default=None, metadata=about(url(), "where the signed webhook goes", default="none")
    )  # fmt: skip
    secret: Secret | None = field(
        default=None, metadata=about(secret(), "what it is signed with, HMAC-SHA256", default="none")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSettings:
    """What applies to every key that is limited."""

    exceeded_status: int = field(
        default=402,
        metadata=about(
            number(402, 429), "HTTP status when a budget is spent; clients try again after a 429, in vain",
            formerly="spent_status",
        ),
    )  # fmt: skip
    on_store_outage: OnStoreOutage = field(
        default=OnStoreOutage.FAIL_CLOSED,
        metadata=about(
            choice(OnStoreOutage),
            "what becomes of requests of keys with a budget while nobody can say what is left: 503, "
            "or they go on; a key can have its own",
            formerly="when_down",
        ),
    )
    outage_allowance_usd: int = field(
        default=NUSD_PER_USD,
        metadata=about(
            usd(ALLOWANCE_USD_MAX), "what keys that may go on meanwhile may use, all together, in each process during "
            "one outage", default="`1`", formerly="allowance_usd",
        ),
    )  # fmt: skip
