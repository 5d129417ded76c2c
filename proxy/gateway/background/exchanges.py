"""The exchanges of this process whose answers are made in the background.

Invariants: each is here until it has its record. What is here when the process stops stays open in the journal: its
next process goes on.
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


# After a start all of them are asked for at once: no more connections than that are opened for it.
LOOKS_MAX = 256


class BackgroundExchanges:
    """`take` them; `suspend` before the process ends."""

    def __init__(self, ports: Ports, owners: ExchangeOwners, pace: Pace | None = None) -> None:
        """`owners`: told when an exchange has ended."""
        self._ports = ports
        self._owners = owners
        self._pace = pace or Pace()
        self._tasks = Tasks()
        self._looking = asyncio.Semaphore(LOOKS_MAX)
        self._by_response: dict[str, BackgroundExchange] = {}
        self._suspended = False
        self.live: set[BackgroundExchange] = set()

    def take(self, handed: HandOver) -> None:
        """Take over an open exchange, and close it when its answer has ended. Never raises."""
        dialect = STORING[run_of(handed.open_exchange.opened).dialect]
        exchange = BackgroundExchange(handed, dialect, self._ports, self._pace, self._looking, self._closed)
        self.live.add(exchange)
        self._by_response[exchange.response_id] = exchange
        if not self._suspended:
            self._tasks.start(exchange.run(), name="background")

    def of(self, response_id: str) -> BackgroundExchange | None:
        """The open exchange that made this answer; None: it is not here."""
        return self._by_response.get(response_id)

    async def suspend(self) -> None:
        """Ask no more, now and for what is still taken."""
        self._suspended = True
        await self._tasks.stop()

    def _closed(self, exchange: BackgroundExchange) -> None:
        self.live.discard(exchange)
        if self._by_response.get(exchange.response_id) is exchange:
            del self._by_response[exchange.response_id]
        self._owners.ended(exchange.exchange_id)
