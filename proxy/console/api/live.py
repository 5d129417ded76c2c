"""Running exchanges: a snapshot, or a stream of server-sent events with one snapshot a second.

Invariants:
- A snapshot is taken at most every SNAPSHOT_S, for any number of watchers.
- A snapshot lists at most SHOWN_MAX exchanges.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from proxy.billing.money import Nusd, usd_text
from proxy.console.api.audited_operations import AuditedOperations, RefusedChange
from proxy.console.api.endpoints import HEADERS, ApiCall, ApiReply, Endpoint, Nothing, encoded, operation
from proxy.console.api.hidden_providers import hides_from
from proxy.console.api.sessions import ConsoleSession, Sessions
from proxy.foundation.times import iso_utc
from proxy.gateway.exchange.running import ExchangeSnapshot
from proxy.http.errors import ApiError, overloaded
from proxy.ledger.accounts.audit_log import PendingEntry

SNAPSHOT_S = 0.5
EVERY_S = 1.0
# 300 bytes each; the totals cover all exchanges.
SHOWN_MAX = 500
WATCHERS_MAX = 64

_EVENTS = "text/event-stream"


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    """A running exchange. Tokens and money: the amounts if it ended now."""

    id: str
    key_id: str
    key_alias: str
    provider: str | None
    """null: hidden from keys"""
    model: str
    endpoint: str
    streamed: bool
    state: Literal["waiting", "streaming", "draining", "background"]
    started_at: str
    age_s: float
    events: int
    bytes: int
    prompt_tokens: int
    completion_tokens: int
    usage_source: Literal["reported", "estimated"]
    charge_usd: str | None
    cost_usd: str | UnsetType | None = UNSET
    node: str | None
    """the proxy of another machine, whose numbers are a few seconds old; null for this machine"""
    heartbeat_age_s: float | None
    """seconds since that proxy's last heartbeat"""


RemoteCoverage = Literal["none", "complete", "partial", "unknown"]
"""coverage of other machines: none exist; complete; partial (too many, another version); registry unavailable"""


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """The running exchanges at one moment."""

    object: Literal["live"] = "live"
    at: str
    processes: int
    """processes of this machine in the snapshot"""
    remote_nodes: int
    """proxies of other machines in the snapshot"""
    remote_coverage: RemoteCoverage
    running: int
    charge_usd: str
    """total of all running exchanges"""
    unpriced: int
    """running exchanges without a price, which `charge_usd` does not contain"""
    completion_tokens: int
    listed: list[Stream] = msgspec.field(name="data")
    """the newest exchanges"""


@dataclass(frozen=True, slots=True)
class RunningSnapshot:
    """All running exchanges, and the processes and nodes that they come from."""

    running: Sequence[ExchangeSnapshot]
    processes: int
    remote_nodes: int = 0
    remote_coverage: RemoteCoverage = "none"


class StopResult(StrEnum):
    """The result of a request to stop a stream."""

    STOPPED = "stopped"
    REQUESTED = "requested"
    """the proxy of another machine runs it, and stops it within seconds"""
    NOT_STOPPABLE = "not_stoppable"
    NOT_RUNNING = "not_running"


_REFUSALS: Mapping[StopResult, tuple[int, str]] = {
    StopResult.NOT_RUNNING: (404, "This exchange does not run."),
    StopResult.NOT_STOPPABLE: (
        409,
        "Only a running stream can be stopped, and not in the background.",
    ),
}


class Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """A stream that is stopped."""

    object: Literal["stop"] = "stop"
    id: str
    status: Literal["stopped", "requested"]
    """`requested`: the proxy of another machine stops it within seconds"""


class LiveApi:
    """The routes `/v1/live` and `/v1/exchanges/{exchange_id}/stop`."""

    def __init__(
        self,
        read_running: Callable[[], Awaitable[RunningSnapshot]],
        stop: Callable[[str], Awaitable[StopResult]],
        operations: AuditedOperations,
        sessions: Sessions,
        *,
        unix_time: Callable[[], float],
        hides_providers: Callable[[], bool],
    ) -> None:
        """`stop`: stops the stream with this exchange id, wherever it runs; raises OSError. `hides_providers`: the
        setting `hide_providers`."""
        self._stop = stop
        self._operations = operations
        self._hides_providers = hides_providers
        self._read_running = read_running
        self._sessions = sessions
        self._unix_time = unix_time
        self._last = RunningSnapshot((), 0)
        self._taken_at = float("-inf")
        self._taking = asyncio.Lock()
        self._watchers = 0

    def endpoints(self) -> Iterable[Endpoint]:
        """The endpoints of this API."""
        yield Endpoint(
            method="GET", path="/v1/live", serve=self.live, answers={200: Live},
            summary="Running exchanges; with Accept: text/event-stream, an event `live` every second.",
        )  # fmt: skip
        yield operation("/v1/exchanges/{exchange_id}/stop", "Stop a running stream.", self.stop, Nothing, Stopped)

    async def live(self, call: ApiCall) -> ApiReply | web.StreamResponse:
        """A snapshot, or a stream of snapshots. Raises ApiError."""
        if _EVENTS in call.request.headers.get("Accept", ""):
            return await self._watched(call.request, call.session)
        return ApiReply(await self._snapshot(call.session))

    async def stop(self, call: ApiCall) -> ApiReply:
        """Stop a stream. Raises ApiError, OSError."""
        loop = asyncio.get_running_loop()

        async def stopped() -> StopResult:
            return await self._stop(call.named)

        def work(_act: PendingEntry) -> StopResult:
            result = asyncio.run_coroutine_threadsafe(stopped(), loop).result()
            if result in _REFUSALS:
                status, message = _REFUSALS[result]
                raise RefusedChange(ApiError(status, message, param="exchange_id", code=f"exchange_{result}"))
            return result

        result = await self._operations.run(call, "exchange.stop", call.named, None, work)
        return ApiReply(Stopped(id=call.named, status=result))

    async def _watched(self, request: web.BaseRequest, session: ConsoleSession) -> web.StreamResponse:
        """Streams snapshots until the client disconnects or its credential is no longer valid. A session can be renewed
        in the head of a response only: the stream ends when half of the session is over, and the page sends a new
        request."""
        if self._watchers >= WATCHERS_MAX:
            raise overloaded("Too many clients watch this route already; try again later.", code="console_busy")
        self._watchers += 1
        response = web.StreamResponse(headers={**HEADERS, "Content-Type": _EVENTS, "X-Accel-Buffering": "no"})
        self._sessions.renew(session, request, response)
        renewed = self._sessions.is_half_over(session)
        try:
            await response.prepare(request)
            with suppress(ConnectionError, ApiError):
                while renewed or not self._sessions.is_half_over(session):
                    session = await self._sessions.of(request)
                    await response.write(b"event: live\ndata: " + encoded(await self._snapshot(session)) + b"\n\n")
                    await asyncio.sleep(EVERY_S)
        finally:
            self._watchers -= 1
        return response

    async def _snapshot(self, session: ConsoleSession) -> Live:
        loop = asyncio.get_running_loop()
        async with self._taking:
            if loop.time() >= self._taken_at + SNAPSHOT_S:
                self._last = await self._read_running()
                self._taken_at = loop.time()
        last = self._last
        visible = [one for one in last.running if session.may_see(one.key_id)]
        newest = sorted(visible, key=lambda one: one.started_at, reverse=True)[:SHOWN_MAX]
        now, hides = self._unix_time(), hides_from(session, hides=self._hides_providers())
        return Live(
            at=iso_utc(now),
            processes=last.processes,
            remote_nodes=last.remote_nodes,
            remote_coverage=last.remote_coverage,
            running=len(visible),
            charge_usd=usd_text(sum(one.charge_nusd or 0 for one in visible)),
            unpriced=sum(one.charge_nusd is None for one in visible),
            completion_tokens=sum(one.completion_tokens for one in visible),
            listed=[_stream(one, now, operator=session.key is None, hides=hides) for one in newest],
        )


def _stream(exchange: ExchangeSnapshot, now: float, *, operator: bool, hides: bool) -> Stream:
    return Stream(
        id=exchange.exchange_id,
        key_id=exchange.key_id,
        key_alias=exchange.key_alias,
        provider=None if hides else exchange.provider,
        model=exchange.model,
        endpoint=exchange.endpoint,
        streamed=exchange.streamed,
        state=exchange.state,
        started_at=iso_utc(exchange.started_at),
        age_s=round(max(0.0, now - exchange.started_at), 3),
        events=exchange.events,
        bytes=exchange.bytes,
        prompt_tokens=exchange.prompt_tokens,
        completion_tokens=exchange.completion_tokens,
        usage_source=exchange.usage_source,
        charge_usd=_usd(exchange.charge_nusd),
        cost_usd=_usd(exchange.cost_nusd) if operator else UNSET,
        node=exchange.node,
        heartbeat_age_s=None if exchange.node is None else round(exchange.heartbeat_age_s, 1),
    )


def _usd(nusd: Nusd | None) -> str | None:
    return None if nusd is None else usd_text(nusd)
