"""Which provider a model name leads to. Law: resolved from the configuration, and among several providers of a model
from who is well. Pure: chance and time are given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from proxy.billing.keys import ApiKey
from proxy.billing.record import Price
from proxy.gateway.upstream.client import Provider
from proxy.metering.dialect import Dialect
from proxy.metering.tokenizer_feed import TokenCounter

# Names passed on by "*" are remembered ; a client that invents names must not fill the memory.
PASSED_NAMES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Route:
    """Where a model name leads, and at what price."""

    provider: Provider
    upstream_model: str
    prices: Callable[[float], tuple[Price | None, Price | None]]
    """Unix time → what the key's owner is billed, and what the provider charges us; None where no price is known"""
    completion_tokens_max: int | None = None
    """of one answer; None: not known"""
    weight: int | None = None
    """its share of the requests, among the model's others; None: they have an order"""
    others: tuple[Route, ...] = ()
    """who else can answer, should this provider not: in the order in which they are asked"""
    counter: Callable[[], TokenCounter] | None = None
    """makes what counts the tokens of one stream; None: nothing does"""


class Models:
    """The models a client can ask for."""

    def __init__(self, named: Mapping[str, Route], passed: Callable[[str], Route | None]) -> None:
        """`passed` makes the route of a name that is not configured itself; None where no pattern takes it."""
        self._named = dict(named)
        self._passed = passed
        self._remembered: dict[str, Route] = {}

    def route(self, model: str) -> Route | None:
        """Where `model` leads; None if nowhere."""
        known = self._named.get(model) or self._remembered.get(model)
        if known is not None:
            return known
        passed = self._passed(model)
        if passed is not None and len(self._remembered) < PASSED_NAMES_MAX:
            self._remembered[model] = passed
        return passed

    def listed(self, key: ApiKey) -> Iterable[tuple[str, str]]:
        """(name, provider) of every model `key` may use, as far as names are known."""
        for name, route in sorted(self._named.items()):
            if key.allows(name):
                yield name, route.provider.settings.name
        for name in sorted((key.models or frozenset()) - self._named.keys()):
            if (passed := self._passed(name)) is not None:
                yield name, passed.provider.settings.name


def supporting(route: Route, dialect: Dialect) -> Route | None:
    """The same with those of its providers that speak a language, in their order; None: none of them does."""
    if not route.others:
        return route if route.provider.speaks(dialect) else None
    ways = [one for one in (route, *route.others) if one.provider.speaks(dialect)]
    return replace(ways[0], others=tuple(ways[1:])) if ways else None


def by_health(route: Route, now: float, chance: Callable[[], float]) -> Route | float:
    """Whom to ask first, and in what order the others: those that are well, as the model has them, or drawn by weight.
    Where nobody is, in how many seconds the first of them will be.

    `now`: by `time.monotonic`. `chance`: from [0, 1), each time anew.
    """
    ways = (route, *route.others)
    away = [one.provider.health.away_s(now) for one in ways]
    well = [one for one, away_s in zip(ways, away, strict=True) if not away_s]
    if not well:
        return min(away)
    first, *others = weighted_order(well, chance) if well[0].weight is not None else well
    return replace(first, others=tuple(others))


def weighted_order(ways: Sequence[Route], chance: Callable[[], float]) -> list[Route]:
    """All of them, in an order drawn by weight: each is first as often as its share says; so, too, among the rest."""
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
