"""Meters what clients are told of answers that are still made in the background, and passes it on.

Invariant: nothing here delays a client. What one reads is told within TELL_S while it reads, and at its end: to the
exchange if it is in this process, else to a note that its process reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import TypeVar

from proxy.foundation.tasks import Tasks
from proxy.gateway.background.exchanges import BackgroundExchanges
from proxy.gateway.background.sighting import NOTHING_SEEN, Sighting, decoded, encoded, scaled, sighting
from proxy.gateway.upstream.client import Answer
from proxy.keys.response_owners import ResponseOwners
from proxy.metering.compressed import compressed_meter
from proxy.metering.dialect import Dialect
from proxy.metering.metered import BodyMeter

T = TypeVar("T")

# An exchange that was stopped waits longer than this for what was seen of its answer.
TELL_S = 1.0


class Witness:
    """Meters one body that is passed to a client."""

    def __init__(self, answer: Answer, dialect: Dialect, events_before: int) -> None:
        """`events_before`: those that its stream does not repeat."""
        framing = dialect.framing(answer.content_type, streamed=answer.content_type == "text/event-stream")
        meter: BodyMeter = dialect.plain_meter() if framing is None else dialect.stream_meter(framing)
        self._meter = compressed_meter(answer.coding, meter) if answer.coding else meter
        self._before = events_before

    def feed(self, payload: bytes) -> None:
        """More of the body."""
        self._meter.feed(payload)

    def so_far(self) -> Sighting:
        """What was seen until now."""
        self._meter.fold()
        return Sighting(scaled(self._meter.tally.evidence, self._meter.tally.events, self._before))

    def close(self) -> Sighting:
        """What was seen when it ended."""
        return sighting(self._meter.close(), self._before)


class Telling:
    """Tells exchanges what was seen of their answers."""

    def __init__(self, background: BackgroundExchanges, owners: ResponseOwners) -> None:
        self._background = background
        self._owners = owners
        self._tasks = Tasks()

    async def tell(self, response_id: str, seen: Sighting) -> None:
        """Raises OSError: it cannot be told now."""
        exchange = self._background.of(response_id)
        if exchange is not None:
            exchange.saw(seen)
        elif not seen.nothing:
            earlier = decoded(await self._owners.noted(response_id))
            if (merged := earlier.merged(seen)) != earlier:
                await self._owners.note(response_id, encoded(merged))

    async def during(self, response_id: str, witness: Witness, passing: Awaitable[T]) -> T:
        """Tell what `witness` sees while a body is passed. Raises what `passing` raises."""
        telling = self._tasks.start(self._keep_telling(response_id, witness), name="witness")
        try:
            return await passing
        finally:
            telling.cancel()
            with suppress(OSError):
                await self.tell(response_id, witness.close())

    async def _keep_telling(self, response_id: str, witness: Witness) -> None:
        told = NOTHING_SEEN
        while True:
            await asyncio.sleep(TELL_S)
            if (seen := witness.so_far()) != told:
                told = seen
                with suppress(OSError):
                    await self.tell(response_id, seen)
