"""The settings of reservations, budgets, their alerts, Idempotency-Keys, and of billing months."""

from __future__ import annotations

from dataclasses import dataclass, field

from proxy.billing.limits import OnStoreOutage
from proxy.billing.money import Nusd, nusd_from_usd
from proxy.foundation.secret import Secret
from proxy.settings.kinds import about, choice, number, seconds, secret, size, usd, whole
from proxy.settings.urls import url

# Twice the output limit of any model of 2026.
COMPLETION_TOKENS_MAX = 1_000_000
REQUEST_USD_MAX = 10_000
ALLOWANCE_USD_MAX = 1_000_000
# Clients do not retry after a month.
RETENTION_S_MAX = 31 * 86_400.0
REPLAY_BYTES_MAX = 1 << 20
CLOSE_DAYS_MAX = 366


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveSettings:
    """The reservation of a running request in its budgets."""

    completion_tokens: int = field(
        default=4096,
        metadata=about(
            whole(1, COMPLETION_TOKENS_MAX), "output tokens reserved for a request without a limit of its own"
        ),
    )
    nusd_max: Nusd = field(
        default=nusd_from_usd(5),
        metadata=about(
            usd(REQUEST_USD_MAX), "largest reservation of one request; a stream that costs more "
            "extends its reservation while it runs", default="`5`", name="usd_max",
        ),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencySettings:
    """Retention of requests with an `Idempotency-Key`."""

    retention_s: float = field(
        default=86_400.0,
        metadata=about(seconds(RETENTION_S_MAX), "how long a repeated key is recognised", formerly="remember_s"),
    )
    replay_bytes_max: int = field(
        default=0,
        metadata=about(
            size(0, REPLAY_BYTES_MAX),
            "largest JSON answer that is kept, encrypted, for replay; 0: none, and a repeat gets 409",
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BillingSettings:
    """Settings of statements."""

    close_after_days: int | None = field(
        default=None,
        metadata=about(
            whole(0, CLOSE_DAYS_MAX),
            "close each month so many days after its end, once all of it is settled",
            default="never: `tokenweir periods close`",
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertSettings:
    """The webhook for budgets that are 50, 80 or 100 % spent."""

    url: str | None = field(
        default=None, metadata=about(url(), "URL that receives the signed webhook", default="none")
    )  # fmt: skip
    secret: Secret | None = field(
        default=None, metadata=about(secret(), "HMAC-SHA256 key of its signature", default="none")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSettings:
    """Settings for all keys with limits."""

    exceeded_status: int = field(
        default=402,
        metadata=about(
            number(402, 429), "HTTP status when a budget is exceeded; clients retry after a 429, without effect",
            formerly="spent_status",
        ),
    )  # fmt: skip
    on_store_outage: OnStoreOutage = field(
        default=OnStoreOutage.FAIL_CLOSED,
        metadata=about(
            choice(OnStoreOutage),
            "requests of keys with a budget while the budget store is unavailable: `fail_closed` refuses with 503, "
            "`fail_open` admits them; a key can have its own policy",
            formerly="when_down",
        ),
    )
    outage_allowance_nusd: Nusd = field(
        default=nusd_from_usd(1),
        metadata=about(
            usd(ALLOWANCE_USD_MAX), "largest total use by keys that fail open, in each process during "
            "one outage", default="`1`", formerly="allowance_usd", name="outage_allowance_usd",
        ),
    )  # fmt: skip
