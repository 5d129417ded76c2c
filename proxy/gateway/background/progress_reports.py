"""Meters the bodies of stored answers that clients read while they are generated, and reports the progress.

Invariant: no client is delayed. Progress is reported every REPORT_S and at the end of a body: to the exchange if it is
in this process, else in a note that the exchange's process reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import TypeVar

from proxy.foundation.tasks import Tasks
from proxy.gateway.background.exchanges import BackgroundExchanges
from proxy.gateway.background.partial_result import NO_RESULT, PartialResult, decoded, encoded, partial_result, scaled
from proxy.gateway.upstream.body_end import metered_to_end
from proxy.gateway.upstream.client import Answer
from proxy.gateway.upstream.connection import CatchUp
from proxy.keys.response_owners import ResponseOwners
from proxy.metering.compressed import compressed_meter
from proxy.metering.dialect import Dialect
from proxy.metering.metered import BodyMeter

T = TypeVar("T")

# A stopped exchange waits longer than this for the progress of its answer.
REPORT_S = 1.0


class PassiveMeter:
    """Meters one body that is relayed to a client."""

    def __init__(self, answer: Answer, dialect: Dialect, events_before: int) -> None:
        """`events_before`: earlier events that the stream does not repeat."""
        framing = dialect.framing(answer.content_type, streamed=answer.content_type == "text/event-stream")
        meter: BodyMeter = dialect.plain_meter() if framing is None else dialect.stream_meter(framing)
        self._meter = compressed_meter(answer.coding, meter) if answer.coding else meter
        self._before = events_before

    def feed(self, payload: bytes) -> CatchUp | None:
        """Meter a piece of the body. Returns a function to call before the next piece, repeatedly until it returns
        True; None: none."""
        self._meter.feed(payload)
        return self._meter.catch_up if self._meter.behind else None

    def so_far(self) -> PartialResult:
        """The counts so far."""
        self._meter.fold()
        return PartialResult(scaled(self._meter.tally.evidence, self._meter.tally.events, self._before))

    async def close(self) -> PartialResult:
        """The counts at the end of the body."""
        return partial_result(await metered_to_end(self._meter), self._before)


class ProgressReports:
    """Reports the progress of answers to their exchanges."""

    def __init__(self, background: BackgroundExchanges, owners: ResponseOwners) -> None:
        self._background = background
        self._owners = owners
        self._tasks = Tasks()

    async def report(self, response_id: str, seen: PartialResult) -> None:
        """Report `seen`. Raises OSError if the store is unavailable."""
        exchange = self._background.of(response_id)
        if exchange is not None:
            exchange.on_progress(seen)
        elif not seen.nothing:
            earlier = decoded(await self._owners.noted(response_id))
            if (merged := earlier.merged(seen)) != earlier:
                await self._owners.note(response_id, encoded(merged))

    async def during(self, response_id: str, meter: PassiveMeter, passing: Awaitable[T]) -> T:
        """Report the counts of `meter` while a body is relayed. Raises the exceptions of `passing`."""
        reporting = self._tasks.start(self._keep_reporting(response_id, meter), name="progress reports")
        try:
            return await passing
        finally:
            reporting.cancel()
            with suppress(OSError):
                await self.report(response_id, await meter.close())

    async def _keep_reporting(self, response_id: str, meter: PassiveMeter) -> None:
        reported = NO_RESULT
        while True:
            await asyncio.sleep(REPORT_S)
            if (seen := meter.so_far()) != reported:
                reported = seen
                with suppress(OSError):
                    await self.report(response_id, seen)
