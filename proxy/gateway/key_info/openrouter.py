"""The answers of OpenRouter's routes about a key, its credit and one generation. Pure. Money: JSON numbers of USD.

Invariants: every member that OpenRouter's SDKs require is present, null if it is unknown or secret. The provider and
the upstream model are secret.

https://openrouter.ai/docs/api/api-reference/api-keys/get-current-key
https://openrouter.ai/docs/api/api-reference/credits/get-credits
https://openrouter.ai/docs/api/api-reference/generations/get-generation
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from proxy.billing.correction import exchange_totals
from proxy.billing.keys import ApiKey
from proxy.billing.money import Nusd, usd_text
from proxy.billing.record import Outcome
from proxy.billing.windows import CALENDAR_DAY, CALENDAR_MONTH, CALENDAR_WEEK
from proxy.budgets.budget_state import CREDIT
from proxy.foundation.times import iso_utc
from proxy.gateway.key_info.reading import KeyBudgets
from proxy.reports.exchanges import SettledExchange

Document = dict[str, Any]

# Our windows that OpenRouter has a word for.
_RESETS = {
    "24h": "daily", "1d": "daily", CALENDAR_DAY: "daily", "7d": "weekly", "1w": "weekly", CALENDAR_WEEK: "weekly",
    CALENDAR_MONTH: "monthly",
}  # fmt: skip
_UNKNOWN_OF_KEY = ("creator_user_id",)
_NOT_OF_KEY = ("include_byok_in_limit", "is_free_tier", "is_management_key", "is_provisioning_key")
_BYOK = ("byok_usage", "byok_usage_daily", "byok_usage_weekly", "byok_usage_monthly")
_UNKNOWN_OF_GENERATION = (
    "api_type", "app_id", "cache_discount", "external_user", "http_referer", "moderation_latency",
    "native_tokens_completion_images", "num_fetches", "num_input_audio_prompt", "num_media_completion",
    "num_media_prompt", "num_search_results", "preset_id", "provider_name", "provider_responses", "router",
    "service_tier", "upstream_inference_cost", "user_agent", "web_search_engine",
)  # fmt: skip


def since(now: float) -> tuple[float, ...]:
    """The times since which the spend of the key is needed: ever, this day, this week (from Monday on) and this month,
    UTC. `now`, result: Unix seconds."""
    day = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    week, month = day - timedelta(days=day.weekday()), day.replace(day=1)
    return 0.0, day.timestamp(), week.timestamp(), month.timestamp()


def key(api_key: ApiKey, found: KeyBudgets) -> Document:
    """`found`: with the spend at the times of `since`. The limit is that of the tightest budget."""
    ever, daily, weekly, monthly = map(_usd, found.spent_nusd)
    tightest = found.tightest
    rates = [one.limits.rpm for one in found.levels if one.limits.rpm is not None]
    return {
        "data": {
            **dict.fromkeys(_UNKNOWN_OF_KEY),
            **dict.fromkeys(_NOT_OF_KEY, False),
            **dict.fromkeys(_BYOK, 0),
            "label": api_key.alias,
            "limit": None if tightest is None else _usd(tightest.limit_nusd),
            "limit_remaining": None if tightest is None else _usd(Nusd(max(0, tightest.left_nusd))),
            "limit_reset": None if tightest is None else _RESETS.get(tightest.window),
            "usage": ever,
            "usage_daily": daily,
            "usage_weekly": weekly,
            "usage_monthly": monthly,
            "rate_limit": {"requests": min(rates, default=-1), "interval": "1m", "note": "requests a minute"},
            "expires_at": None if api_key.expires_at is None else iso_utc(api_key.expires_at),
        }
    }


def credit(found: KeyBudgets) -> Document:
    """The prepaid balance with the least left; without one the tightest budget; without any, the spend alone.
    Reservations count as used. `found`: with the spend since 0."""
    prepaid = [one for one in found.budgets if one.window == CREDIT]
    state = min(prepaid, key=lambda one: one.left_nusd, default=found.tightest)
    limit = Nusd(0) if state is None else state.limit_nusd
    used = found.spent_nusd[0] if state is None else Nusd(state.spent_nusd + state.reserved_nusd)
    return {"data": {"total_credits": _usd(limit), "total_usage": _usd(used)}}


def generation(found: SettledExchange) -> Document:
    """One settled exchange, with all its corrections. Raises ValueError if an entry of it has invalid counts."""
    entry, totals = found.terminal, exchange_totals(found.entries)
    usage, charge = totals.usage, _usd(totals.charge_nusd or Nusd(0))
    return {
        "data": {
            **dict.fromkeys(_UNKNOWN_OF_GENERATION),
            "id": entry.exchange_id,
            "upstream_id": entry.provider_response_id,
            "created_at": iso_utc(entry.started_at),
            "model": entry.model,
            "origin": "",
            "is_byok": False,
            "streamed": entry.streamed,
            "cancelled": entry.outcome == Outcome.CLIENT_LEFT,
            "total_cost": charge,
            "usage": charge,
            "latency": entry.first_token_ms,
            "generation_time": entry.duration_ms,
            "finish_reason": entry.finish_reason,
            "native_finish_reason": entry.finish_reason,
            "tokens_prompt": usage.prompt_tokens,
            "tokens_completion": usage.completion_tokens,
            "native_tokens_prompt": usage.prompt_tokens,
            "native_tokens_completion": usage.completion_tokens,
            "native_tokens_reasoning": usage.reasoning_tokens,
            "native_tokens_cached": usage.cached_tokens,
        }
    }


def _usd(nusd: Nusd) -> Decimal:
    return Decimal(usd_text(nusd))
