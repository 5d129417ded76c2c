"""Asks a provider for an answer that it stores, and meters what it says.

Invariants: it is asked with the credential that the answer was made with; a body is metered as it comes and never kept.
An answer that cannot be read whole says nothing.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from urllib.parse import quote

from proxy.foundation.times import retry_after_s
from proxy.gateway.background.polling import Look
from proxy.gateway.upstream.body_end import BodyEnd
from proxy.gateway.upstream.client import Answer, UpstreamClient
from proxy.gateway.upstream.connection import UpstreamFailedError
from proxy.gateway.upstream.provider import Provider
from proxy.http.errors import JSON_TYPE
from proxy.metering.compressed import compressed_meter
from proxy.metering.dialect import Dialect
from proxy.metering.metered import BodyMeter, Metered

# One answer, with all of its output: from the head to the end.
BODY_S = 60.0
CANCEL = "/cancel"

# Statuses that may pass: of credentials, which an operator replaces, of limits, and of proxies on the way.
_PASSING = frozenset((401, 403, 407, 408, 409, 425, 429))


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """An answer at its provider."""

    provider: Provider
    dialect: Dialect
    response_id: str
    credential: str | None = None
    """the name of the one to use, if there are several"""
    query: str = ""
    headers: str = ""
    """lines with CRLF"""

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


async def look(client: UpstreamClient, stored: StoredAnswer, unix_time: float) -> Look:
    """Ask for it. Never raises."""
    return await _asked(client, stored, stored.request("GET"), unix_time)


async def stop(client: UpstreamClient, stored: StoredAnswer, unix_time: float) -> Look:
    """Ask the provider to stop. Never raises."""
    found = await _asked(client, stored, stored.request("POST", CANCEL), unix_time)
    return Look(found.metered)  # that it cannot be stopped does not say that it is gone


async def _asked(client: UpstreamClient, stored: StoredAnswer, request: bytes, unix_time: float) -> Look:
    try:
        async with asyncio.timeout(stored.provider.limits.first_byte_s):
            answer = await client.ask(stored.provider, request)
    except (UpstreamFailedError, TimeoutError):
        return Look()
    try:
        if 200 <= answer.status < 300:
            async with asyncio.timeout(BODY_S):
                return Look(await _metered(answer, stored.dialect.plain_meter()))
    except TimeoutError:
        return Look()
    finally:
        answer.close()
    gone = 400 <= answer.status < 500 and answer.status not in _PASSING
    return Look(gone=gone, retry_after_s=retry_after_s(answer.head.header("retry-after"), unix_time) or 0.0)


async def _metered(answer: Answer, meter: BodyMeter) -> Metered | None:
    """What the body says; None: it broke off."""
    sink = _MeterSink(compressed_meter(answer.coding, meter) if answer.coding else meter)
    answer.relay_to(sink)
    return sink.meter.close() if await sink.ended else None


class _MeterSink(BodyEnd):
    """Meters a body that nobody gets."""

    def __init__(self, meter: BodyMeter) -> None:
        super().__init__()
        self.meter = meter

    def piece(self, payload: bytes, framed: bytes | None = None) -> None:
        self.meter.feed(payload)
