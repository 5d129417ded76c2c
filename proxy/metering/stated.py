"""The cost of an answer as its provider states it.

Invariants: the amount is the provider's own number, exactly, and never used in place of a count. An amount that is not
finite, or outside of 0 to USD_MAX, is dropped. Nothing raises.

Sources: OpenRouter's usage accounting (`cost`; with the customer's own key, also the upstream provider's charge), whose
shape Vercel and Avian use; Perplexity (`cost.total_cost`); xAI (ticks, 10**10 to the dollar); Venice (`cost` next to
the usage); Pydantic's gateway (`cost_estimate`).
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

# No answer costs more; a larger number is in another unit.
USD_MAX = 100_000
_TICKS_PER_USD = 10**10
_STATING = frozenset({"cost", "cost_in_usd_ticks", "pydantic_ai_gateway"})


def stated_usd(usage: Mapping[str, Any], beside: object = None) -> Decimal | None:
    """The cost in USD in a usage object, or in the member `cost` next to it; None: none."""
    if beside is None and _STATING.isdisjoint(usage):  # most
        return None
    cost = usage.get("cost")
    if isinstance(cost, dict):
        return _usd(cost.get("total_cost"))
    if cost is not None:
        return _with_own_key(_usd(cost), usage)
    ticks = _usd(usage.get("cost_in_usd_ticks"), most=USD_MAX * _TICKS_PER_USD)
    if ticks is not None:
        return ticks / _TICKS_PER_USD
    for holder, name in ((beside, "usd"), (usage.get("pydantic_ai_gateway"), "cost_estimate")):
        if isinstance(holder, dict):
            return _usd(holder.get(name))
    return None


def _with_own_key(fee: Decimal | None, usage: Mapping[str, Any]) -> Decimal | None:
    """With the customer's own key (`is_byok`), `cost` is only the router's fee."""
    details = usage.get("cost_details")
    if fee is None or usage.get("is_byok") is not True or not isinstance(details, dict):
        return fee
    behind = _usd(details.get("upstream_inference_cost"))
    return fee if behind is None else fee + behind


def _usd(value: object, *, most: int = USD_MAX) -> Decimal | None:
    if type(value) not in (int, float) or not 0 <= value <= most:  # type: ignore[operator]  # it is a number
        return None
    return Decimal(repr(value))
