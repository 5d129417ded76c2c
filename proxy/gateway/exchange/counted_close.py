"""Closes an exchange as soon as the text of what has to be estimated is counted.

Invariants: it is closed once, and no later than COUNT_S after its end. Nothing of it is kept once that is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from proxy.billing.record import Outcome
from proxy.gateway.exchange.open_exchange import OpenExchange
from proxy.metering.metered import Metered
from proxy.metering.profile import Counted, Profile

# A record that has to be estimated waits for its count no longer than this: the work that may be before it, twice.
COUNT_S = 2.0


def close_counted(
    open_exchange: OpenExchange, outcome: Outcome, metered: Metered | None, recorded: Callable[[], None], **how: Any
) -> bool:
    """Returns True if a count is waited for; `recorded` is called when it is closed. False: it is closed, at once.
    `how`: further arguments of its `close`."""
    timer: asyncio.TimerHandle | None = None

    def told(counted: Counted | None = None, prompt: Profile | None = None) -> None:
        nonlocal timer
        if timer is None:
            return  # it was not in time
        timer.cancel()
        timer = None
        open_exchange.close(outcome, metered=metered, counted=counted, prompt=prompt, **how)
        recorded()

    if not open_exchange.count(outcome, metered, told):
        open_exchange.close(outcome, metered=metered, **how)
        return False
    timer = asyncio.get_running_loop().call_later(COUNT_S, told)
    return True
