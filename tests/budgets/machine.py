"""What the stateful models of this folder share: an event loop of their own, and a store under a clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from hypothesis.stateful import RuleBasedStateMachine

from tests.budgets.stores import Stores

_T = TypeVar("_T")


class StoreMachine(RuleBasedStateMachine):
    """Subclassed for each store."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.stores = self.make_stores()

    def make_stores(self) -> Stores:
        raise NotImplementedError

    def do(self, what: Awaitable[_T]) -> _T:
        """On the machine's own loop."""

        async def bounded() -> _T:
            async with asyncio.timeout(10):
                return await what

        return self.loop.run_until_complete(bounded())

    @property
    def now(self) -> float:
        return self.stores.clock.now
