"""Maps a model name to its providers.

Invariants: the configuration decides, and among several providers their health. Pure: time and randomness are passed
in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from proxy.billing.pricing.rules import Payer
from proxy.billing.record import Price
from proxy.gateway.upstream.provider import Provider
from proxy.metering.dialect import Dialect
from proxy.metering.estimator.estimate import model_key
from proxy.metering.held_text import TextCounter

# Bounds the cache of names that match a pattern: a client may invent names.
PASSED_NAMES_MAX = 4096


class RoutePrices(Protocol):
    """The price lists of a route."""

    def __call__(self, at: float, payer: Payer, other: str | None = None, /) -> tuple[Price | None, Price | None]:
        """Unix time → (price of the charge to the key's owner, price of the cost at the provider); None: unknown.
        `other`: another model that an answer of this provider used, instead of the route's."""


@dataclass(frozen=True, slots=True)
class Route:
    """A provider of a model, with its price and its alternatives."""

    provider: Provider
    upstream_model: str
    prices: RoutePrices
    completion_tokens_max: int | None = None
    """the model's limit per answer; None: unknown"""
    weight: int | None = None
    """relative share of the model's requests; None: providers are used in order"""
    others: tuple[Route, ...] = ()
    """the providers to fail over to, in order"""
    counter: TextCounter | None = None
    """counts the texts of the model; None: they are not counted"""
    hidden_by_time: bool = False
    """silence before the first word is billed"""
    model_key: str = field(init=False)
    """the estimator's key of the model at this provider"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "model_key", model_key(self.provider.settings.name, self.upstream_model))

    @property
    def provider_names(self) -> tuple[str, ...]:
        """The names of all providers that can serve the request."""
        return (self.provider.settings.name, *(one.provider.settings.name for one in self.others))


class Models:
    """The models that clients can request."""

    def __init__(self, named: Mapping[str, Route], passed: Callable[[str], Route | None]) -> None:
        """`passed` creates the route of a name that matches a pattern; None if none matches."""
        self._named = dict(named)
        self._passed = passed
        self._remembered: dict[str, Route] = {}

    def become(self, other: Models) -> None:
        """Route as `other` does. Routes that were found before stay as they are."""
        self._named, self._passed, self._remembered = other._named, other._passed, {}

    def route(self, model: str) -> Route | None:
        """The route of `model`; None if there is none."""
        known = self._named.get(model) or self._remembered.get(model)
        if known is not None:
            return known
        passed = self._passed(model)
        if passed is not None and len(self._remembered) < PASSED_NAMES_MAX:
            self._remembered[model] = passed
        return passed


def supporting(route: Route, dialect: Dialect) -> Route | None:
    """Keep only providers that support `dialect`, in order. Returns None if none does."""
    if not route.others:
        return route if route.provider.supports(dialect) else None
    ways = [one for one in (route, *route.others) if one.provider.supports(dialect)]
    return replace(ways[0], others=tuple(ways[1:])) if ways else None


def only_at(route: Route, provider: str) -> Route:
    """Keep only this provider; `route` unchanged if it is not among its providers."""
    ways = (route, *route.others)
    return next((replace(one, others=()) for one in ways if one.provider.settings.name == provider), route)


def without(route: Route, providers: Collection[str]) -> Route | None:
    """The route without these providers; the others keep their order. None: there is no other."""
    ways = [one for one in (route, *route.others) if one.provider.settings.name not in providers]
    return replace(ways[0], others=tuple(ways[1:])) if ways else None


def by_health(route: Route, now: float, chance: Callable[[], float]) -> Route | float:
    """Keep only available providers, in configured order or in an order drawn by weight. If none is available, returns
    the seconds until the first one is.

    `now`: by `time.monotonic`. `chance`: returns a random number from [0, 1).
    """
    ways = (route, *route.others)
    away = [one.provider.health.away_s(now) for one in ways]
    well = [one for one, away_s in zip(ways, away, strict=True) if not away_s]
    if not well:
        return min(away)
    if len(well) == len(ways) and route.weight is None:
        return route
    first, *others = weighted_order(well, chance) if well[0].weight is not None else well
    return replace(first, others=tuple(others))


def weighted_order(ways: Sequence[Route], chance: Callable[[], float]) -> list[Route]:
    """A random order of all routes: each position is drawn by weight from the remaining ones."""
    left = list(ways)
    order: list[Route] = []
    while left:
        point = chance() * sum(one.weight or 1 for one in left)
        at = 0
        while at < len(left) - 1 and point >= (left[at].weight or 1):
            point -= left[at].weight or 1
            at += 1
        order.append(left.pop(at))
    return order
