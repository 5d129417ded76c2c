"""Closes an exchange as soon as the text that its estimate needs is counted.

Invariants: the exchange is closed once, and no later than COUNT_S after its end. No reference to it is kept afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from proxy.billing.record import Outcome
from proxy.gateway.exchange.open_exchange import OpenExchange
from proxy.metering.metered import Metered
from proxy.metering.profile import Counted, Profile

# The longest wait of a record for its count: twice the work that can be queued before it.
COUNT_S = 2.0


def close_counted(
    open_exchange: OpenExchange, outcome: Outcome, metered: Metered | None, recorded: Callable[[], None], **how: Any
) -> bool:
    """Close the exchange after its text is counted. Returns False if it was closed at once; else `recorded` is called
    when it is closed. `how`: further arguments of `OpenExchange.close`."""
    timer: asyncio.TimerHandle | None = None

    def on_counted(counted: Counted | None = None, prompt: Profile | None = None) -> None:
        nonlocal timer
        if timer is None:
            return  # too late: already closed
        timer.cancel()
        timer = None
        open_exchange.close(outcome, metered=metered, counted=counted, prompt=prompt, **how)
        recorded()

    if not open_exchange.count(outcome, metered, on_counted):
        open_exchange.close(outcome, metered=metered, **how)
        return False
    timer = asyncio.get_running_loop().call_later(COUNT_S, on_counted)
    return True
