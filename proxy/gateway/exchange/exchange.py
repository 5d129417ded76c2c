"""An admitted request, from the provider to its record: one request is read here from top to bottom.

Each happening on the two connections becomes an event; the table in `lifecycle.py` has its actions; four parts carry
them out: `UpstreamRequest` sends to providers, `ClientSide` writes to the client, `Metering` follows the cost, `Ending`
writes the record. The parts never call back into this class. A piece of a body is no event: the relay writes it to
the client in one call.

Invariants: every opened exchange gets exactly one `UsageRecord`, whatever exception is raised: from this class, or, if
the provider continues in the background, from the background poller. The exchange and the client's connection end
independently: after a disconnect, the provider's policy decides whether to stop (`cancel`) or to read the rest for the
bill (`drain`). A body that is no stream is always read to its end: the provider has generated it, and bills it. An
answer that the provider makes in the background is handed over to the poller.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any, ClassVar

from aiohttp import web

from proxy.billing.details import STOPPED_BY_OPERATOR
from proxy.billing.limits import OnExhausted
from proxy.gateway.budget_headers import Headers, ready
from proxy.gateway.exchange.admitted import AdmittedRequest
from proxy.gateway.exchange.body import Body, body_of
from proxy.gateway.exchange.client_side import ClientSide
from proxy.gateway.exchange.deadlines import SETTINGS, Deadlines, Moments
from proxy.gateway.exchange.ending import Ending
from proxy.gateway.exchange.hand_over import Background
from proxy.gateway.exchange.lifecycle import Action, Client, End, Event, Lifecycle, Phase
from proxy.gateway.exchange.metering import CutReason, Metering
from proxy.gateway.exchange.running import ExchangeSnapshot, running
from proxy.gateway.exchange.stored_response import StoredResponse
from proxy.gateway.exchange.upstream_request import UpstreamRequest
from proxy.gateway.ports import Ports
from proxy.gateway.upstream.client import Answer
from proxy.gateway.upstream.failures import UpstreamFailedError
from proxy.gateway.upstream.provider_call import Failover
from proxy.http import errors
from proxy.http.errors import ApiError
from proxy.metering.metered import BodyMeter

_log = logging.getLogger(__name__)

# A provider that says that it is done and then keeps the connection open is not waited for longer than this.
AFTER_DONE_S = 5.0
# The errors for the client: a response before the body has begun, an event within the body.
_ERRORS: Mapping[End, Callable[[], ApiError]] = {
    End.BROKEN: errors.upstream_failed,
    End.STALLED: errors.upstream_stalled,
    End.SHUT_DOWN: errors.shutting_down,
    End.BUDGET_CUT: errors.budget_cut,
    End.BUG: errors.internal,
}


class Exchange:
    """One request, from admission to its record."""

    def __init__(self, admitted: AdmittedRequest, ports: Ports, background: Background) -> None:
        """`background`: takes over the exchange if the provider generates the answer in the background."""
        self._open_exchange = open_exchange = admitted.open_exchange
        self.exchange_id = open_exchange.opened.exchange_id
        self._admitted: AdmittedRequest | None = admitted  # until it is accepted: then its document is not needed
        self._connection = admitted.connection
        self._meters = ports.meters
        self._loop = asyncio.get_running_loop()
        self._life = Lifecycle()
        self._asking = UpstreamRequest(admitted, ports)
        self._client = ClientSide(admitted, ports.tapes if admitted.own_credential is None else None)
        stored = StoredResponse(admitted, ports, background)
        self._metering = Metering(open_exchange, ports.estimator, self._asking, stored)
        self._ending = Ending(open_exchange, self._asking, self._metering, self._client, self._recorded)
        if admitted.key.on_exhausted is OnExhausted.CUT and self._metering.spending.limited:
            open_exchange.reservation.on_short = self._ran_short
        now = monotonic()
        self._moments = Moments(Phase.ASKING, Client.WAITING, began_at=now, asked_at=now)
        self._deadlines = Deadlines(self._loop, admitted.route.provider.limits, self._where, self._expired)
        self._failure: UpstreamFailedError | None = None  # why no provider answered
        self._body: Body | None = None
        self._waiting: asyncio.Task[Any] | None = None  # waits for a provider or the disk, and may be cancelled
        self._over: asyncio.Future[None] | None = None
        self._budget_headers = ports.budget_headers
        self._budgets: asyncio.Task[Headers] | None = None  # reads what is left, beside the provider's answer

    def running(self) -> ExchangeSnapshot:
        """The current snapshot of the exchange."""
        relay = None if self._body is None else self._body.relay
        left = self._life.client is Client.GONE
        return running(self._open_exchange.opened, relay, self._metering.spending, left=left)

    # -- the way of a request

    async def run(self) -> web.StreamResponse:
        """Send the request, relay the answer, write the record. Returns the finished response once the client has
        received it or is gone; never raises."""
        self._connection.listener = self
        try:
            if self._client.has_left:  # it left while its request was read and admitted
                self._ending.details.policy = "cancel"
                self._happened(Event.LEFT_CANCEL)
            else:
                if self._connection.blocked:  # by what it has not taken of an earlier answer
                    self.client_full()
                await self._until_relayed()
            await self._until_ended()
        finally:
            if self._life.phase is not Phase.ENDED:
                self._ended()
        return self._client.reply

    async def _until_relayed(self) -> None:
        """Send the request, and begin to relay the answer. Returns early if the exchange ends."""
        admitted, self._admitted = self._admitted, None
        assert admitted is not None, "it runs once"
        self._waiting = asyncio.current_task()
        self._deadlines.rearm()
        try:
            await self._asking.prepare()
            if self._budget_headers is not None:
                opened = self._open_exchange
                self._budgets = self._budget_headers.begin(opened.scopes, opened.reservation)
            self._meters.opened(overhead_s=monotonic() - admitted.received_at)
            answer = self._asking.answer = await self._asking.answered(self._may_ask)
            if 200 <= answer.status < 300:
                self._accepted(admitted)
                if self._open_exchange.durable is not None:
                    await self._open_exchange.durable
                if self._budgets is not None:
                    self._client.add_headers(await ready(self._budgets))
                if self._life.phase is Phase.ANSWERED:
                    self._waiting = None
                    self._relay(answer, admitted)
            else:
                await self._asking.refused(answer)
                if self._budgets is not None:
                    self._client.add_headers(await ready(self._budgets))
                self._nothing_came(Event.REFUSED, upstream_status=answer.status)
        except UpstreamFailedError as failure:
            self._nothing_came(Event.UNREACHABLE, failure)
        except asyncio.CancelledError:
            self._cancelled()
        except Exception as bug:  # noqa: BLE001  logged; the exchange still ends, and says so
            self._broke_down(bug)
        finally:
            self._waiting = None

    def _may_ask(self, to: Failover) -> bool:
        """True if another provider may get the request after a failed attempt: the client is still there, and the
        attempt is recorded."""
        if self._life.client is Client.GONE or not self._open_exchange.reassign(to.route, to.attempt):
            return False
        self._moments.asked_at = monotonic()
        self._deadlines.use_limits(to.route.provider.limits)
        return True

    def _nothing_came(
        self, event: Event, failure: UpstreamFailedError | None = None, *, upstream_status: int | None = None
    ) -> None:
        """No provider answered, or the last one refused."""
        self._waiting = None
        if self._life.phase is Phase.ASKING:
            self._failure = failure
            self._ending.details.failed = None if failure is None else str(failure)
            self._ending.details.upstream_status = upstream_status
            self._happened(event)

    def _accepted(self, admitted: AdmittedRequest) -> None:
        """A provider has accepted. Its answer is relayed as soon as the exchange would survive a crash."""
        self._moments.last_piece_at = monotonic()
        self._happened(Event.ACCEPTED)
        self._open_exchange.accepted = True
        self._asking.accepted()
        if admitted.upload is not None:
            admitted.upload.free()

    def _relay(self, answer: Answer, admitted: AdmittedRequest) -> None:
        body = self._body = body_of(
            answer, admitted.dialect, self._asking, self._open_exchange, self._client.told_cost,
            streamed=admitted.facts.streamed, gaps=self._meters.gaps, listener=self,
        )  # fmt: skip
        if not body.collected:
            self._happened(Event.START)
        answer.relay_to(body.relay)  # reads, although START may have paused it
        if self._life.phase is Phase.BODY:
            if self._life.client is Client.BLOCKED:
                answer.pause_reading()
            self._metering.listen_to_silence(body.relay)

    async def _until_ended(self) -> None:
        while self._life.phase is not Phase.ENDED or self._ending.is_counting:
            self._over = self._loop.create_future()
            try:
                await self._over
            except asyncio.CancelledError:
                self._cancelled()

    def _cancelled(self) -> None:
        """The task was cancelled: by this class, because the exchange is over; or by the server, because it stops."""
        task = asyncio.current_task()
        assert task is not None
        task.uncancel()
        if self._life.phase not in (Phase.CLOSING, Phase.ENDED) or self._waiting is None:
            self.shut_down()

    # -- what happens to it: the provider's body

    def body_folded(self, meter: BodyMeter) -> None:
        """The meter has read more: the stream may be complete, may cost more than its reservation, or a drain may have
        read enough."""
        if self._life.phase is not Phase.BODY:
            return
        self._metering.folded(meter)
        if self._metering.cut_reason is not None:
            self._loop.call_soon(self._cut)
        if meter.done and self._deadlines.idle_s > AFTER_DONE_S:
            self._loop.call_soon(self._wait_for_the_end)  # most come with the last event
        taped = self._client.taped
        if self._life.client is not Client.GONE or (taped is not None and taped.is_read):
            return
        if self._metering.has_read_enough(meter):
            self._ending.details.drain_ended_by = "tokens"
            self._happened(Event.DRAINED_ENOUGH)

    def _wait_for_the_end(self) -> None:
        if self._life.phase is Phase.BODY:
            self._deadlines.set_idle(idle_s=AFTER_DONE_S)

    def body_ended(self) -> None:
        """The body is complete by its framing."""
        self._body_ends(broken=False)

    def body_broke(self) -> None:
        """The body broke off; after the dialect's last event, nothing is missing."""
        self._body_ends(broken=not self._relayed.relay.meter.done)

    def body_lost(self) -> None:
        """A bug of ours: a piece may be missing."""
        self._happened(Event.BUG)

    def _body_ends(self, *, broken: bool) -> None:
        body = self._relayed
        try:
            metered = body.end(broken=broken)
            if self._metering.stored.is_awaited:
                self._metering.read_name(metered)
        except Exception as bug:  # noqa: BLE001  a meter that raises
            self._broke_down(bug)
        else:
            self._happened(Event.END if body.is_whole else Event.BREAK)

    @property
    def _relayed(self) -> Body:
        """The body, which exists from ANSWERED on."""
        assert self._body is not None
        return self._body

    # -- the client

    def client_left(self) -> None:
        """The client has disconnected."""
        if self._life.phase in (Phase.CLOSING, Phase.ENDED):
            self._happened(Event.LEFT_CANCEL)
            return
        body, stored = self._body, self._metering.stored
        if self._life.phase is Phase.BODY and body is not None and body.all_read():
            self._happened(Event.LEFT_SERVED)
            return
        is_plain = body is not None and not body.streams
        policy = self._ending.details.policy = self._policy()
        if is_plain and policy == "cancel":
            self._deadlines.set_idle(idle_s=AFTER_DONE_S)
        unnamed = stored.in_background and not stored.still_generating(None if body is None else body.result)
        reads_on = is_plain or policy in ("drain", "resume") or unnamed
        if reads_on:
            self._moments.left_at = monotonic()
        self._happened(Event.LEFT_DRAIN if reads_on else Event.LEFT_CANCEL)
        self._deadlines.rearm()  # a drain may be shorter than any other limit

    def _policy(self) -> str:
        """The disconnect policy that applies."""
        if self._client.taped is not None and self._client.taped.readable:
            return "resume"
        settings = self._asking.route.provider.settings
        return "background" if self._metering.stored.in_background else settings.on_client_disconnect

    def client_full(self) -> None:
        """The client's write buffer is full."""
        self._moments.blocked_at = monotonic()
        self._happened(Event.FULL)

    def client_drained(self) -> None:
        """The client's write buffer is empty again."""
        self._happened(Event.DRAINED)

    def shut_down(self) -> None:
        """The grace time is over."""
        if self._life.phase is not Phase.ENDED:
            self._happened(Event.SHUT_DOWN)

    # -- time and money

    def _where(self) -> Moments:
        moments, body, taped = self._moments, self._body, self._client.taped
        moments.phase, moments.client = self._life.phase, self._life.client
        if body is not None:
            moments.last_piece_at = max(moments.last_piece_at, body.relay.last_at)
        if taped is not None and taped.is_read and moments.client is Client.GONE:
            moments.left_at = monotonic()
        return moments

    def _expired(self, due: Event) -> None:
        if due is Event.HEARTBEAT:
            self._moments.last_beat_at = monotonic()
        elif due is Event.DRAINED_ENOUGH:
            self._ending.details.drain_ended_by = "seconds"
        else:
            self._ending.details.limit = SETTINGS[due]
        if due is Event.NO_ANSWER:
            self._asking.route.provider.health.failed(monotonic())
        body = self._body
        if due in (Event.SILENT, Event.TOO_LONG) and body is not None and body.relay.meter.done:
            self._stop()
            self._body_ends(broken=False)
        else:
            self._happened(due)

    def _ran_short(self) -> None:
        """The answer costs more than the budget has left: cut it after the piece that is being read."""
        self._metering.cut_reason = self._metering.cut_reason or CutReason.BUDGET
        self._loop.call_soon(self._cut)

    def stop_stream(self) -> bool:
        """An operator stops the stream: cut it as a budget does, after the event that is being read, or after the first
        one. Nothing more happens if it is stopped already. False: it is no stream, and is read to its end in any case;
        or it has ended."""
        body = self._body
        is_stream = self._open_exchange.opened.streamed if body is None else body.streams
        if self._metering.cut_reason is CutReason.OPERATOR:
            return True
        if not is_stream or self._life.phase in (Phase.CLOSING, Phase.ENDED):
            return False
        self._metering.cut_reason = CutReason.OPERATOR
        self._loop.call_soon(self._cut)
        return True

    def _cut(self) -> None:
        if self._life.phase is Phase.BODY and self._relayed.relay.whole:
            if self._metering.cut_reason is CutReason.OPERATOR:
                self._ending.details.failed = STOPPED_BY_OPERATOR
            self._happened(Event.BUDGET_CUT)

    # -- what to do about it

    def _happened(self, event: Event) -> None:
        """Apply the event: carry out the actions that the table has for it."""
        try:
            for action in self._life.step(event):
                self._DO[action](self)
            if self._life.phase is Phase.CLOSING:
                self._life.step(Event.SENT)
        except Exception as bug:  # noqa: BLE001  logged; the exchange still ends, and says so
            self._broke_down(bug, event)
        if self._life.phase is Phase.ENDED:
            self._ended()

    def _broke_down(self, bug: Exception, event: Event | None = None) -> None:
        """Handle a bug of ours. A second bug during that ends the exchange, too."""
        _log.error("%s: a bug in phase %s, client %s", self.exchange_id, self._life.phase, self._life.client)
        self._connection.log_exception(exc_info=bug)
        if event is Event.BUG:
            self._life.phase = Phase.ENDED
            self._client.abort()
        else:
            self._happened(Event.BUG)
        if self._life.phase is Phase.ENDED:
            with suppress(Exception):  # perhaps the bug was there
                self._stop()

    def _ended(self) -> None:
        """Stop timers, and drop the references to this exchange: a cycle would live until a garbage collection."""
        if self._open_exchange.bills is None:
            self._record()
        self._deadlines.stop()
        self._connection.listener = None
        self._open_exchange.reservation.on_short = None
        if self._body is not None:
            self._body.relay.drop()
        if not self._ending.is_counting:
            self._let_go()

    def _recorded(self) -> None:
        """The record is written: its text was counted, or not in time."""
        if self._life.phase is Phase.ENDED:
            self._let_go()

    def _let_go(self) -> None:
        """The record is written: release the credential and the references, and let `run` return."""
        self._ending.let_go()
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    def _begin(self) -> None:
        self._client.begin(self._relayed)

    def _deliver(self) -> None:
        self._client.deliver(self._relayed)

    def _send_heartbeat(self) -> None:
        self._relayed.relay.heartbeat()

    def _pause(self) -> None:
        self._asking.pause()

    def _stop_writing(self) -> None:
        self._client.stop_writing(self._relayed, reads_on=self._life.phase is Phase.BODY)

    def _finish(self) -> None:
        self._client.reply.end()

    def _close_client(self) -> None:
        self._client.close()

    def _abort(self) -> None:
        self._client.abort()

    def _record(self) -> None:
        self._metering.stop()
        moments = self._moments
        self._ending.record(
            self._life.end or End.BUG, self._body, asked_at=moments.asked_at, reads_on_since=moments.left_at or None
        )

    def _resume(self) -> None:
        if self._body is not None:
            self._body.relay.last_at = monotonic()
        self._asking.resume()

    def _stop(self) -> None:
        self._asking.close()
        if self._waiting is not None and self._waiting is not asyncio.current_task():
            self._waiting.cancel()

    def _send_error_event(self) -> None:
        self._relayed.metered_anyway()  # the counts are those before the event
        self._client.send_error_event(self._relayed, self._error())

    def _respond(self) -> None:
        """Respond with an error before the first byte of an answer: the provider's error, unless it would reveal data
        of the operator."""
        refusal, failure = self._asking.refusal, self._failure
        if refusal is not None:
            self._client.pass_refusal(refusal.answer, refusal.body, self._asking.route.provider)
        else:
            self._client.refuse(self._error() if failure is None else failure.refusal())

    def _error(self) -> ApiError:
        assert self._life.end is not None, "set together with CLOSING"
        if self._life.end is End.BUDGET_CUT and self._metering.cut_reason is CutReason.OPERATOR:
            return errors.stopped_by_operator()
        return _ERRORS[self._life.end]()

    # All but RELAY and METER: those the relay does, which the upstream connection calls directly.
    _DO: ClassVar[Mapping[Action, Callable[[Exchange], None]]] = {
        Action.BEGIN: _begin,
        Action.DELIVER: _deliver,
        Action.SEND_HEARTBEAT: _send_heartbeat,
        Action.PAUSE: _pause,
        Action.RESUME: _resume,
        Action.STOP_WRITING: _stop_writing,
        Action.STOP: _stop,
        Action.SEND_ERROR_EVENT: _send_error_event,
        Action.RECORD: _record,
        Action.RESPOND: _respond,
        Action.FINISH: _finish,
        Action.CLOSE_CLIENT: _close_client,
        Action.ABORT: _abort,
    }
