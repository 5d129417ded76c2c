"""What tests of dimensions share: headers of a client, and values in memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from threading import Event

from multidict import CIMultiDict, CIMultiDictProxy

from proxy.billing.money import Nusd
from proxy.ledger.dimensions.values import DimensionValue
from proxy.ledger.run_caps import RunOfKey
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
        self.run_caps: dict[RunOfKey, Nusd] = {}
        self.caps_read = 0

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

    def caps(self, value_ids: Collection[str]) -> dict[RunOfKey, Nusd]:
        self.caps_read += len(value_ids)
        return {run: cap for run, cap in self.run_caps.items() if run[1] in value_ids}

    def lower_cap(self, run: RunOfKey, cap_nusd: Nusd) -> Nusd:
        if self.is_down:
            raise LedgerUnavailable("down")
        self.run_caps[run] = min(cap_nusd, self.run_caps.get(run, cap_nusd))
        return self.run_caps[run]
