"""The exchanges of this process whose answers are made in the background.

Invariants: each exchange stays here until it has its record. Those left when the process stops stay open in the
journal, and the next process continues them.
"""

from __future__ import annotations

import asyncio

from proxy.foundation.tasks import Tasks
from proxy.gateway.background.background_exchange import BackgroundExchange
from proxy.gateway.background.polling import Pace
from proxy.gateway.exchange.hand_over import HandOver, run_of
from proxy.gateway.exchange.running import ExchangeOwners
from proxy.gateway.ports import Ports
from proxy.metering.dialects import DIALECTS

STORING = {dialect.name: dialect for dialect in DIALECTS if dialect.stores}
"""dialects whose providers store answers, by name"""


# Polls at once. After a start, all answers are due at once; this bounds the connections.
POLLS_MAX = 256


class BackgroundExchanges:
    """Call `take` for each exchange, and `suspend` before the process ends."""

    def __init__(self, ports: Ports, owners: ExchangeOwners, pace: Pace | None = None) -> None:
        """`owners`: its method `ended` is called for each exchange."""
        self._ports = ports
        self._owners = owners
        self._pace = pace or Pace()
        self._tasks = Tasks()
        self._polls = asyncio.Semaphore(POLLS_MAX)
        self._by_response: dict[str, BackgroundExchange] = {}
        self._suspended = False
        self.live: set[BackgroundExchange] = set()

    def take(self, handed: HandOver) -> None:
        """Take over an open exchange, and close it when its answer has ended. Never raises."""
        dialect = STORING[run_of(handed.open_exchange.opened).dialect]
        exchange = BackgroundExchange(handed, dialect, self._ports, self._pace, self._polls, self._closed)
        self.live.add(exchange)
        self._by_response[exchange.response_id] = exchange
        if not self._suspended:
            self._tasks.start(exchange.run(), name="background")

    def of(self, response_id: str) -> BackgroundExchange | None:
        """The open exchange of this answer; None: not in this process."""
        return self._by_response.get(response_id)

    async def suspend(self) -> None:
        """Stop all polling, also for exchanges that are taken later."""
        self._suspended = True
        await self._tasks.stop()

    def _closed(self, exchange: BackgroundExchange) -> None:
        self.live.discard(exchange)
        if self._by_response.get(exchange.response_id) is exchange:
            del self._by_response[exchange.response_id]
        self._owners.ended(exchange.exchange_id)
