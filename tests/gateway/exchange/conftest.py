"""The deployment with prices, and the exchanges that are left in memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any
from weakref import WeakSet

import pytest

from proxy.gateway.exchange.exchange import Exchange
from tests.gateway.exchange.priced import priced, priced_process

__all__ = ["priced", "priced_process"]


@pytest.fixture
def living(monkeypatch: pytest.MonkeyPatch) -> Iterator[WeakSet[Exchange]]:
    """The exchanges that something refers to. Garbage is not collected."""
    found: WeakSet[Exchange] = WeakSet()
    seen, begin = 0, Exchange.__init__

    def begun(exchange: Exchange, *arguments: Any, **options: Any) -> None:
        nonlocal seen
        seen += 1
        found.add(exchange)
        begin(exchange, *arguments, **options)

    monkeypatch.setattr(Exchange, "__init__", begun)
    gc.disable()
    yield found
    gc.enable()
    assert seen, "no exchange"
