"""Models: their prices and costs, the next change of each, and requests without a price or a known cost.

Invariant: a margin is shown only for units that have a price and a cost. Operators only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

import msgspec

from proxy.billing.money import ZERO_NUSD, usd_text
from proxy.console.api.endpoints import ApiCall, ApiReply, Endpoint
from proxy.console.ledger_reports import LedgerReports
from proxy.foundation.times import iso_utc
from proxy.reports.buckets import DAY_S
from proxy.reports.usage import UsageFilter, UsageTotals
from proxy.settings.operators import OperatorRole

DAYS = 30
# Models that clients have used; further ones are left out, those with the lowest charges.
USED_MAX = 10_000
_UNITS = ("input", "cached_input", "output")

PriceText = Mapping[str, Any]
"""USD per unit (tokens: per million) as decimal strings, and the price list's version, as in an entry's details"""


class PriceChange(msgspec.Struct, frozen=True, kw_only=True):
    """A later price list in the configuration."""

    at: str
    of: Literal["price", "cost"]
    provider: str
    """empty for a price"""
    prices: PriceText


class TargetShown(msgspec.Struct, frozen=True, kw_only=True):
    """A provider of a model."""

    provider: str
    upstream_model: str
    cost: PriceText | None
    """null: unknown"""
    cost_source: Literal["configuration", "price_book"]
    margins: dict[str, str]
    """unit → (price - cost) / price as a decimal string, for `input`, `cached_input` and `output`"""


class ConfiguredModel(msgspec.Struct, frozen=True, kw_only=True):
    """The prices of a model name now, without price rules."""

    model: str
    is_pattern: bool
    pattern: str | None
    """the pattern in the configuration that the name matches; null: it is configured itself"""
    price: PriceText | None
    price_source: Literal["configuration", "price_book"]
    has_rules: bool
    """price rules may change its price for some payers"""
    targets: list[TargetShown]
    changes: list[PriceChange]
    """in their order"""


class ModelShown(ConfiguredModel, frozen=True, kw_only=True):
    """One model. Numbers are of the last 30 days in UTC, by usage date."""

    object: Literal["model"] = "model"
    is_configured: bool
    """false: clients have used the name, and no configured name or pattern has it now"""
    is_unpriced: bool
    """requests are not charged"""
    is_cost_unknown: bool
    """the cost of at least one of its providers is unknown"""
    next_change: PriceChange | None
    requests: int
    charge_usd: str
    cost_usd: str
    """the known cost"""
    unpriced_requests: int
    unknown_cost_requests: int
    unknown_cost_charge_usd: str


class ModelPage(msgspec.Struct, frozen=True, kw_only=True):
    """All models: those with the highest charge first."""

    object: Literal["list"] = "list"
    listed: list[ModelShown] = msgspec.field(name="data")


@dataclass(frozen=True, slots=True)
class ModelsApi:
    """The route `/v1/models`."""

    reports: LedgerReports
    configured: Callable[[Iterable[str]], Sequence[ConfiguredModel]]
    """names that clients have used → all configured names and patterns, and these names if a pattern serves them"""
    unix_time: Callable[[], float]

    def endpoints(self) -> Iterable[Endpoint]:
        """The endpoint of this API."""
        yield Endpoint(
            method="GET", path="/v1/models", summary="Models with their prices, costs and margins.",
            serve=self.listed, answers={200: ModelPage}, role=OperatorRole.READ,
        )  # fmt: skip

    async def listed(self, _call: ApiCall) -> ApiReply:
        """All models. Raises OSError."""
        end = int(self.unix_time() // DAY_S + 1) * DAY_S
        wanted = UsageFilter(begin=end - DAYS * DAY_S, end=end, bucket_s=DAY_S, is_total=True, by_model=True)
        totals, _ = await self.reports.usage(wanted, USED_MAX)
        used = {one.model or "": one for one in totals}
        configured = {one.model: one for one in self.configured(used)}
        names = {**used, **configured}
        shown = [_shown(name, configured.get(name), used.get(name)) for name in names]
        shown.sort(key=lambda one: (-Decimal(one.charge_usd), one.model))
        return ApiReply(ModelPage(listed=shown))


def margins(price: PriceText | None, cost: PriceText | None) -> dict[str, str]:
    """Unit → margin of the price, for the units that have both."""
    if price is None or cost is None:
        return {}
    found = {}
    for unit in _UNITS:
        if unit in price and unit in cost and (of := Decimal(price[unit])):
            found[unit] = f"{((of - Decimal(cost[unit])) / of).quantize(Decimal('0.0001')).normalize():f}"
    return found


def _shown(name: str, configured: ConfiguredModel | None, used: UsageTotals | None) -> ModelShown:
    known = configured or ConfiguredModel(
        model=name, is_pattern=False, pattern=None, price=None, price_source="configuration", has_rules=False,
        targets=[], changes=[],
    )  # fmt: skip
    return ModelShown(
        **{field: getattr(known, field) for field in ConfiguredModel.__struct_fields__},
        is_configured=configured is not None,
        is_unpriced=configured is not None and not configured.is_pattern and configured.price is None,
        is_cost_unknown=not known.is_pattern and any(target.cost is None for target in known.targets),
        next_change=known.changes[0] if known.changes else None,
        requests=0 if used is None else used.requests,
        charge_usd=usd_text(ZERO_NUSD if used is None else used.charge_nusd),
        cost_usd=usd_text(ZERO_NUSD if used is None else used.cost_nusd),
        unpriced_requests=0 if used is None else used.unpriced,
        unknown_cost_requests=0 if used is None else used.unknown_cost,
        unknown_cost_charge_usd=usd_text(ZERO_NUSD if used is None else used.unknown_cost_charge_nusd),
    )


def change_at(at: float, of: Literal["price", "cost"], provider: str, prices: PriceText) -> PriceChange:
    """A later price list."""
    return PriceChange(at=iso_utc(at), of=of, provider=provider, prices=prices)
