"""Waits for the end of a body, and for its meter.

Invariant: `ended` is set once; after a bug of ours, it is False.
"""

from __future__ import annotations

import asyncio

from proxy.foundation.slices import until_done
from proxy.metering.metered import BodyMeter, Metered


class BodyEnd:
    """A `Sink` without `piece`. `ended`: True if the body is complete."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def relay_matched(self, wire: bytes) -> bool:
        """False: every body is passed to `piece`."""
        return False

    def complete(self) -> None:
        """The body is complete."""
        self.end(whole=True)

    def upstream_error(self) -> None:
        """The connection failed before the end of the body."""
        self.end(whole=False)

    def internal_error(self) -> None:
        """A bug of ours while a piece was processed."""
        self.end(whole=False)

    def end(self, *, whole: bool) -> None:
        """Set `ended`. Idempotent."""
        if not self.ended.done():
            self.ended.set_result(whole)


async def metered_to_end(meter: BodyMeter) -> Metered:
    """The meter's result of an ended body. Other tasks run while the meter reads its rest."""
    await until_done(meter.catch_up)
    meter.end()
    await until_done(meter.catch_up)
    return meter.close()
