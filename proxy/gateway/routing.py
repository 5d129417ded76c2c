"""Which provider a model name leads to. Law: resolved from the configuration alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from proxy.billing.keys import ApiKey
from proxy.gateway.ports import Route

# Names passed on by "*" are remembered ; a client that invents names must not fill the memory.
PASSED_NAMES_MAX = 4096


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
