"""An admitted request: sent upstream, relayed, and closed with one record.

Invariants: every opened exchange gets exactly one `UsageRecord`. The exchange and the client's connection end
independently: after a disconnect (`client_left`), the provider's policy decides whether to stop (`cancel`) or to read
the rest for the bill (`drain`).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from time import monotonic
from typing import Any

from aiohttp import web
from multidict import CIMultiDict

from proxy.billing.record import Attempt, Outcome
from proxy.gateway.exchange.deadlines import Deadlines, Expired, Moments
from proxy.gateway.exchange.open_exchange import OpenExchange, outcome_of, read_anyway
from proxy.gateway.exchange.rate_limits import headers as limit_headers
from proxy.gateway.exchange.relay import Relay, RelayEnd
from proxy.gateway.exchange.running import ExchangeSnapshot, running
from proxy.gateway.exchange.spending import Spending
from proxy.gateway.exchange.upstream_request import ERROR_BYTES_MAX, UpstreamRequest
from proxy.gateway.ports import Ports
from proxy.gateway.upstream.client import Answer
from proxy.gateway.upstream.connection import UpstreamFailedError
from proxy.gateway.upstream.routing import Route
from proxy.http import errors
from proxy.http.connection import ClientConnection
from proxy.http.errors import JSON_TYPE, ApiError
from proxy.http.headers import EXCHANGE_HEADER, SERVER, downward
from proxy.http.reply import Reply
from proxy.metering.dialect import Dialect, Stripper
from proxy.metering.meter import BodyMeter, Metered, OpaqueMeter
from proxy.metering.request import RequestFacts
from proxy.metering.wire.framing import SSE, Framing

# A JSON answer up to this size is read whole and sent in one write; a longer one is passed on as it comes.
PLAIN_BYTES_MAX = 256 * 1024
# A provider that says that it is done and then keeps the connection open is not waited for longer than this.
AFTER_DONE_S = 5.0
# Why a stream ends, where the client is told.
_BROKEN_OFF = {
    Outcome.UPSTREAM_STALLED: errors.upstream_stalled,
    Outcome.SHUT_DOWN: errors.shutting_down,
    Outcome.BUDGET_CUT: errors.budget_cut,
}


class Exchange:
    """One request, from admission to its record."""

    def __init__(
        self,
        request: web.BaseRequest,
        connection: ClientConnection,
        *,
        facts: RequestFacts,
        document: dict[str, Any],
        route: Route,
        closing: OpenExchange,
        ports: Ports,
        received_at: float,
        dialect: Dialect,
        cuts: bool,
    ) -> None:
        """`cuts`: the stream is cut when its cost exceeds the remaining budget."""
        self._request = request
        self._connection = connection
        self._facts = facts
        self._asking = UpstreamRequest(request, dialect, facts, document, route, ports)
        self._closing = closing
        self._ports = ports
        self._loop = asyncio.get_running_loop()
        self._received_at = received_at
        self._dialect = dialect
        self._task: asyncio.Task[Any] | None = None
        self._relay: Relay | None = None
        self._left_at: float | None = None
        self._stopping = False
        self._last_beat_at = 0.0
        self._details: dict[str, Any] = {}
        self._framing = SSE
        self._limit_headers = limit_headers(closing.reservation.hold.counters, closing.reservation.levels)
        self._spending = Spending(closing, ports.estimator, cuts=cuts)
        self._watch = Deadlines(self._loop, route.provider.limits, self._moments, self._on_deadline)

    @property
    def exchange_id(self) -> str:
        return self._closing.opened.exchange_id

    def running(self) -> ExchangeSnapshot:
        """Its current snapshot."""
        return running(self._closing.opened, self._relay, self._spending, left=self._left_at is not None)

    # -- the way of a request

    async def run(self) -> web.StreamResponse:
        """Send, relay, close. Raises only for bugs of ours; the response may be finished already."""
        self._task = asyncio.current_task()
        self._connection.listener = self
        self._watch.rearm()
        try:
            return await self._run()
        except asyncio.CancelledError:
            return self._cancelled()
        finally:
            self._watch.stop()
            self._connection.listener = None
            if not self._closing.closed:  # our own bug broke the exchange: it still ends, and says so
                read, size = self._closing.sent or (read_anyway(self._relay), 0)
                self._close(Outcome.CRASHED, failed="proxy_bug", metered=read, relay=self._relay, size=size)
            if self._relay is not None:  # it knows us: a cycle would keep both until a garbage collection
                self._relay.on_fold = None
            self._relay = None

    async def _run(self) -> web.StreamResponse:
        try:
            answer = await self._ask()
        except UpstreamFailedError as failure:
            return self._never_answered(failure)
        try:
            if self._closing.durable is not None:
                await self._closing.durable
            if not 200 <= answer.status < 300:
                return await self._refused(answer)
            self._closing.accepted = True
            if answer.encoded:
                return await self._relayed(answer, OpaqueMeter(), None, streamed=self._facts.streamed)
            framing = self._dialect.framing(answer.content_type, streamed=self._facts.streamed)
            if framing is not None:
                return await self._stream(answer, framing)
            if answer.head.length is not None and answer.head.length <= PLAIN_BYTES_MAX:
                return await self._plain(answer)
            return await self._relayed(answer, self._dialect.plain_meter(), None, streamed=False)
        finally:
            answer.close()  # nothing to do if the body was read to its end: the connection is back in the pool

    async def _ask(self) -> Answer:
        """Send the request."""
        wire = self._asking.wire()
        self._ports.meters.opened(overhead_s=monotonic() - self._received_at)
        return await self._asking.answer(wire, self._passes_to)

    def _passes_to(self, route: Route, attempt: Attempt) -> bool:
        """Nothing has come of it so far, and another provider gets it. False: nobody waits, or it cannot be opened."""
        if self._left_at is not None or self._stopping or not self._closing.reassign(route, attempt):
            return False
        self._watch.use_limits(route.provider.limits, started_at=self._received_at)
        return True

    # -- three kinds of answer

    async def _stream(self, answer: Answer, framing: Framing) -> web.StreamResponse:
        """Events, passed on as they come."""
        self._framing = framing
        stripper = self._dialect.stripper
        strip = stripper() if stripper is not None and self._asking.injected else None
        meter = self._asking.stream_meter(framing)
        return await self._relayed(answer, meter, strip, streamed=True)

    async def _relayed(
        self, answer: Answer, meter: BodyMeter, strip: Stripper | None, *, streamed: bool
    ) -> web.StreamResponse:
        """A stream, or a body of any length: passed on as it comes."""
        relay = self._relay = Relay(
            meter=meter,
            strip=strip,
            slot=self._closing.slot,
            loop=self._loop,
            gaps=self._ports.meters.gaps,
            on_fold=self._on_fold,
            framing=self._framing,
        )
        reply = Reply(self._request)
        length, headers = None if streamed else answer.head.length, self._headers(answer, streamed=streamed)
        if self._left_at is None and reply.begin(answer.status, headers, length=length):
            assert self._request.transport is not None
            relay.attach(self._request.transport, chunked=reply.chunked_body)
        relay.steer(answer)
        answer.relay_to(relay)
        self._watch.rearm()
        end = await relay.done
        answer.close()
        self._end_body(end, relay, reply, sized=answer.head.chunked or answer.head.length is not None)
        return reply

    def _headers(self, answer: Answer, *, streamed: bool = False) -> list[tuple[str, str]]:
        """Of the answer to the client."""
        more = self._dialect.headers_down
        return [*downward(answer.head, self.exchange_id, streamed=streamed, more=more), *self._limit_headers]

    def _end_body(self, end: RelayEnd, relay: Relay, reply: Reply, *, sized: bool) -> None:
        left = self._left_at is not None
        if end is RelayEnd.COMPLETE:
            relay.flush()
        relay.settle_counts()
        metered = relay.meter.close()
        outcome = outcome_of(end, metered, left=left)
        # Where only the connection's close ends a body, what the provider said tells an end from a break.
        whole = end is RelayEnd.COMPLETE and (sized or outcome is Outcome.SERVED or metered.failed is not None)
        if not whole and not left:
            self._break_off(outcome, relay)
        self._close(outcome, metered=metered, relay=relay)
        if whole and not left:
            reply.end()
        elif (transport := self._request.transport) is not None:
            transport.close()  # no clean end of a body that was not whole

    def _break_off(self, outcome: Outcome, relay: Relay) -> None:
        """Tell the client why its stream ends, where the provider did not break it off under its eyes."""
        refusal = _BROKEN_OFF.get(outcome)
        if refusal is not None:
            relay.say(refusal().event(self._dialect.errors, self._framing))

    async def _plain(self, answer: Answer) -> web.StreamResponse:
        """A short JSON answer: read whole, sent in one write."""
        try:
            body = await answer.read(PLAIN_BYTES_MAX)
        except UpstreamFailedError as failure:
            return self._never_answered(failure)
        assert body is not None, "bounded by its content length"
        meter = self._dialect.plain_meter()
        meter.feed(body)
        self._closing.keep(body, answer)
        metered = meter.close()
        left = self._left_at is not None
        delivered = 0 if left else len(body)
        self._closing.sending(metered, delivered)
        reply = Reply(self._request)
        try:
            if not left:
                reply.begin(answer.status, self._headers(answer), length=len(body), body=body)
                with suppress(ConnectionError):
                    await reply.drained()
        finally:  # whatever becomes of it: the provider is to be paid
            outcome = outcome_of(RelayEnd.COMPLETE, metered, left=left)
            self._close(outcome, metered=metered, size=delivered, first_token_at=monotonic())
        return reply

    async def _refused(self, answer: Answer) -> web.StreamResponse:
        """An answer that is not 2xx: passed on, unless it would show what is ours."""
        status = answer.status
        outcome = Outcome.REFUSED_UPSTREAM if 400 <= status < 500 else Outcome.UPSTREAM_FAILED
        self._details["upstream_status"] = status
        body = self._asking.refusal
        if body is None and status >= 400:
            with suppress(UpstreamFailedError):
                body = await answer.read(ERROR_BYTES_MAX)
        self._close(outcome, size=len(body or b""))
        if status in (401, 403, 407):
            return self.error_response(errors.upstream_auth())
        secret = self._asking.route.provider.secret
        if status < 400 or body is None or (secret and secret in body):
            return self.error_response(errors.upstream_failed())
        return web.Response(status=status, body=body, headers=CIMultiDict(self._headers(answer)))

    def _never_answered(self, failure: UpstreamFailedError) -> web.StreamResponse:
        left = self._left_at is not None
        self._close(Outcome.CLIENT_LEFT if left else Outcome.UPSTREAM_FAILED, failed=str(failure))
        return self.error_response(errors.upstream_failed())

    def error_response(self, refusal: ApiError) -> web.Response:
        """The response to an error before the first byte of an answer."""
        headers = dict((SERVER, (EXCHANGE_HEADER, self.exchange_id), *self._limit_headers))
        body = refusal.body(self._dialect.errors)
        return web.Response(status=refusal.status, body=body, content_type=JSON_TYPE, headers=headers)

    # -- what happens to it from outside

    def client_left(self) -> None:
        """The client has disconnected."""
        if self._left_at is not None or self._closing.closed:
            return
        relay = self._relay
        drains = self._asking.route.provider.settings.on_client_disconnect == "drain" and not self._stopping
        if relay is not None and self._got_everything(relay):
            relay.finish(RelayEnd.COMPLETE)
            return
        self._left_at = monotonic()
        self._details["policy"] = "drain" if drains else "cancel"
        if relay is not None:
            relay.detach()
            if not drains:
                relay.finish(RelayEnd.CLIENT_LEFT)
        elif not drains:
            self._cancel()
        self._watch.rearm()

    def _got_everything(self, relay: Relay) -> bool:
        """SDKs close as soon as they have read the last event: that client was served."""
        relay.settle_counts()
        return relay.meter.done

    def client_full(self) -> None:
        """The client's write buffer is full."""
        if self._relay is not None:
            self._relay.client_full()
            self._watch.rearm()

    def client_drained(self) -> None:
        """The client reads again."""
        if self._relay is not None:
            self._relay.client_drained()
            self._watch.rearm()

    def shut_down(self) -> None:
        """The grace time is over."""
        self._stopping = True
        if self._relay is not None:
            self._relay.finish(RelayEnd.SHUT_DOWN)
        else:
            self._cancel()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _cancelled(self) -> web.StreamResponse:
        """Our own cancel, or aiohttp's at the very end: the exchange ends here, the task goes on to its return."""
        assert self._task is not None
        self._task.uncancel()
        if not self._closing.closed:
            left = self._left_at is not None
            late = "limit" in self._details
            outcome = Outcome.CLIENT_LEFT if left else Outcome.UPSTREAM_STALLED if late else Outcome.SHUT_DOWN
            self._close(outcome)
        return self.error_response(errors.shutting_down() if self._stopping else errors.upstream_stalled())

    # -- time and measure

    def _moments(self) -> Moments:
        relay = self._relay
        if relay is None:
            return Moments(self._received_at, None, None, self._left_at)
        return Moments(self._received_at, relay.last_at, relay.paused_at, self._left_at, self._last_beat_at)

    def _on_deadline(self, due: Expired) -> None:
        relay = self._relay
        match due:
            case Expired.HEARTBEAT if relay is not None:
                self._last_beat_at = monotonic()
                relay.heartbeat()
            case Expired.WRITE_STALL:
                self._details["limit"] = "write_stall_s"
                if self._request.transport is not None:
                    self._request.transport.abort()
            case Expired.NO_ANSWER | Expired.IDLE | Expired.OUT_OF_TIME:
                self._details["limit"] = due.value
                if due is Expired.NO_ANSWER:
                    self._asking.route.provider.health.failed(monotonic())
                self._end_from_here(RelayEnd.COMPLETE if relay is not None and relay.meter.done else RelayEnd.STALLED)
            case Expired.DRAINED_ENOUGH:
                self._details["drain_ended_by"] = "seconds"
                self._end_from_here(RelayEnd.CLIENT_LEFT)
            case _:
                pass

    def _end_from_here(self, end: RelayEnd) -> None:
        if self._relay is not None:
            self._relay.finish(end)
        else:
            self._cancel()

    def _on_fold(self, meter: BodyMeter) -> None:
        """What only the meter knows: the stream is done, costs more than it holds, or a drain has read enough."""
        relay = self._relay
        if relay is None:
            return
        self._spending.folded(meter, relay)
        if meter.done:
            self._watch.set_idle(idle_s=AFTER_DONE_S)
        if self._left_at is None:
            return
        if self._spending.generated(meter) >= self._asking.route.provider.settings.drain.tokens:
            self._details["drain_ended_by"] = "tokens"
            relay.finish(RelayEnd.CLIENT_LEFT)

    def _close(
        self,
        outcome: Outcome,
        *,
        metered: Metered | None = None,
        relay: Relay | None = None,
        size: int = 0,
        first_token_at: float | None = None,
        failed: str | None = None,
    ) -> None:
        if failed is not None:
            self._details["failed"] = failed
        if self._left_at is not None and self._details["policy"] == "drain":
            self._details["read_on_ms"] = round((monotonic() - self._left_at) * 1000, 3)
        self._closing.close(
            outcome, now=monotonic(), metered=metered, details=self._details,
            events=relay.events if relay else 0, size=relay.bytes if relay else size,
            first_token_at=relay.first_token_at if relay else first_token_at,
        )  # fmt: skip
