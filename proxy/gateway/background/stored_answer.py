"""Polls a provider for a stored answer, and meters the response.

Invariants: a request uses the credential that the answer was made with. A body is metered piece by piece and never
kept. A body that cannot be read to its end is ignored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote

from proxy.foundation.times import retry_after_s
from proxy.gateway.background.polling import PollResult
from proxy.gateway.upstream.body_end import BodyEnd, metered_to_end
from proxy.gateway.upstream.client import Answer, UpstreamClient
from proxy.gateway.upstream.connection import CatchUp
from proxy.gateway.upstream.failures import UpstreamFailedError
from proxy.gateway.upstream.provider import Provider
from proxy.http.errors import JSON_TYPE
from proxy.metering.compressed import compressed_meter
from proxy.metering.dialect import Dialect
from proxy.metering.metered import BodyMeter, Metered

# The time limit of one answer with all of its output, from the head to the end.
BODY_S = 60.0
CANCEL = "/cancel"

# Temporary statuses: wrong credentials, which an operator can replace, limits, and proxies on the way.
_TEMPORARY = frozenset((401, 403, 407, 408, 409, 425, 429))


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """An answer at its provider."""

    provider: Provider
    dialect: Dialect
    response_id: str
    credential: str | None = None
    """the name of the credential to use, if there are several"""
    query: str = ""
    headers: str = ""
    """header lines, each with its CRLF"""

    def request(self, method: str, after: str = "", *, accepts: str = JSON_TYPE) -> bytes:
        """The bytes of a request. `after`: the end of the path, after the id."""
        path = f"{self.dialect.upstream_path}/{quote(self.response_id, safe='')}{after}"
        return self.provider.bodiless(
            method,
            f"{path}?{self.query}" if self.query else path,
            self.dialect.key_header,
            self.headers,
            accepts=accepts,
            credential=self.credential,
        )


async def poll(client: UpstreamClient, stored: StoredAnswer, unix_time: float) -> PollResult:
    """Request the answer. Never raises."""
    return await requested(client, stored.provider, stored.request("GET"), stored.dialect.plain_meter, unix_time)


async def cancel(client: UpstreamClient, stored: StoredAnswer, unix_time: float) -> PollResult:
    """Request the cancellation of the answer. Never raises."""
    request, meter = stored.request("POST", CANCEL), stored.dialect.plain_meter
    found = await requested(client, stored.provider, request, meter, unix_time)
    return PollResult(found.metered)  # a refused cancellation does not mean that the answer is gone


async def requested(
    client: UpstreamClient, provider: Provider, request: bytes, meter: Callable[[], BodyMeter], unix_time: float
) -> PollResult:
    """Send a request, and meter a successful answer. Never raises."""
    try:
        async with asyncio.timeout(provider.limits.first_byte_s):
            answer = await client.ask(provider, request)
    except (UpstreamFailedError, TimeoutError):
        return PollResult()
    try:
        if 200 <= answer.status < 300:
            async with asyncio.timeout(BODY_S):
                return PollResult(await _metered(answer, meter()))
    except TimeoutError:
        return PollResult()
    finally:
        answer.close()
    gone = 400 <= answer.status < 500 and answer.status not in _TEMPORARY
    return PollResult(gone=gone, retry_after_s=retry_after_s(answer.head.header("retry-after"), unix_time) or 0.0)


async def _metered(answer: Answer, meter: BodyMeter) -> Metered | None:
    """The meter's result of the body; None: the body broke off."""
    sink = _MeterSink(compressed_meter(answer.coding, meter) if answer.coding else meter)
    answer.relay_to(sink)
    return await metered_to_end(sink.meter) if await sink.ended else None


class _MeterSink(BodyEnd):
    """Meters a body, and discards it."""

    def __init__(self, meter: BodyMeter) -> None:
        super().__init__()
        self.meter = meter

    def piece(self, payload: bytes, framed: bytes | None = None) -> CatchUp | None:
        self.meter.feed(payload)
        return self.meter.catch_up if self.meter.behind else None
