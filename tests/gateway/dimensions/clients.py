"""What tests of dimensions share: headers of a client, and values in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from threading import Event

from multidict import CIMultiDict, CIMultiDictProxy

from proxy.ledger.dimensions.values import DimensionValue
from proxy.storage.database import LedgerUnavailable


def proxied(headers: Mapping[str, str]) -> CIMultiDictProxy[str]:
    """As a request has them."""
    return CIMultiDictProxy(CIMultiDict(headers))


class Values:
    """Every value has an id, or gets one. Calls wait for `go`."""

    def __init__(self) -> None:
        self.calls: list[list[DimensionValue]] = []
        self.known: dict[DimensionValue, str] = {}
        self.go, self.entered = Event(), Event()
        self.go.set()
        self.is_down = False

    def ids(
        self, wanted: Iterable[DimensionValue], may_create: Callable[[DimensionValue], bool]
    ) -> dict[DimensionValue, str]:
        self.calls.append(list(wanted))
        self.entered.set()
        assert self.go.wait(30)
        if self.is_down:
            raise LedgerUnavailable("down")
        for one in wanted:
            if one not in self.known and may_create(one):
                self.known[one] = f"v_{len(self.known)}"
        return {one: self.known[one] for one in wanted if one in self.known}
