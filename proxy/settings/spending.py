"""The settings of reservations, budgets, their alerts, Idempotency-Keys, and of billing months."""

from __future__ import annotations

from proxy.billing.limits import OnStoreOutage
from proxy.billing.money import Nusd, nusd_from_usd
from proxy.foundation.secret import Secret
from proxy.settings.fields import setting, settings_section
from proxy.settings.kinds import choice, number, seconds, secret, size, usd, whole
from proxy.settings.urls import url

# Twice the output limit of any model of 2026.
COMPLETION_TOKENS_MAX = 1_000_000
REQUEST_USD_MAX = 10_000
ALLOWANCE_USD_MAX = 1_000_000
BALANCE_USD_MAX = 1_000_000
# Clients do not retry after a month.
RETENTION_S_MAX = 31 * 86_400.0
REPLAY_BYTES_MAX = 1 << 20
CLOSE_DAYS_MAX = 366


@settings_section
class ReserveSettings:
    """The reservation of a running request in its budgets."""

    completion_tokens: int = setting(
        whole(1, COMPLETION_TOKENS_MAX), "output tokens reserved for a request without a limit of its own", default=4096
    )
    nusd_max: Nusd = setting(
        usd(REQUEST_USD_MAX),
        "largest reservation of one request; a stream that costs more extends its reservation while it runs",
        default=nusd_from_usd(5),
        shown="`5`",
        name="usd_max",
    )


@settings_section
class IdempotencySettings:
    """Retention of requests with an `Idempotency-Key`."""

    retention_s: float = setting(
        seconds(RETENTION_S_MAX), "how long a repeated key is recognised", default=86_400.0, formerly="remember_s"
    )
    replay_bytes_max: int = setting(
        size(0, REPLAY_BYTES_MAX),
        "largest JSON answer that is kept, encrypted, for replay; 0: none, and a repeat gets 409",
        default=0,
    )


@settings_section
class BillingSettings:
    """Settings of statements."""

    close_after_days: int | None = setting(
        whole(0, CLOSE_DAYS_MAX),
        "close each month so many days after its end, once all of it is settled",
        default=None,
        shown="never: `tokenweir periods close`",
    )


@settings_section
class AlertSettings:
    """The webhook for budgets that are 50, 80 or 100 % spent, and for prepaid balances that become low."""

    url: str | None = setting(url(), "URL that receives the signed webhook", default=None)
    secret: Secret | None = setting(secret(), "HMAC-SHA256 key of its signature", default=None)
    balance_low_nusd: Nusd | None = setting(
        usd(BALANCE_USD_MAX),
        "send an alert each time that the balance of a prepaid key or account falls below this amount",
        default=None,
        name="balance_low_usd",
    )


@settings_section
class BudgetSettings:
    """Settings for all keys with limits."""

    exceeded_status: int = setting(
        number(402, 429),
        "HTTP status when a budget is exceeded; clients retry after a 429, without effect",
        default=402,
        formerly="spent_status",
    )
    on_store_outage: OnStoreOutage = setting(
        choice(OnStoreOutage),
        "requests of keys with a budget while the budget store is unavailable: `fail_closed` refuses with 503, "
        "`fail_open` admits them; a key can have its own policy",
        default=OnStoreOutage.FAIL_CLOSED,
        formerly="when_down",
    )
    outage_allowance_nusd: Nusd = setting(
        usd(ALLOWANCE_USD_MAX),
        "largest total use by keys that fail open, in each process during one outage",
        default=nusd_from_usd(1),
        shown="`1`",
        formerly="allowance_usd",
        name="outage_allowance_usd",
    )
