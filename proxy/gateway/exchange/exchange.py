"""An admitted request, from the provider to its record: one request is read here from top to bottom.

What happens on the two connections becomes an event; `lifecycle.py` says what to do about it; the methods of `_DO` do
it. Collaborators are told and asked, and call nothing here: `UpstreamRequest` asks providers, `OpenExchange` makes the
record, `relay_of` the relay, `Spending` follows the cost, `ClientResponse` writes what is no stream, `StoredResponse`
has the id of the answer.

Invariants: every opened exchange gets exactly one `UsageRecord`, whatever raises where, from here or, if the provider
goes on in the background, from whoever takes it over. The exchange and the client's connection end independently: after
a disconnect, the provider's policy decides whether to stop (`cancel`) or to read the rest for the bill (`drain`). A
body that is no stream is always read on: by then it is generated, and to be paid. An answer that is made in the
background is made without a reader, too: then it is asked for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any, ClassVar

from aiohttp import web
from msgspec import UNSET

from proxy.billing.details import EntryDetails
from proxy.billing.record import Outcome
from proxy.gateway.exchange.answer_relay import relay_of, without_usage
from proxy.gateway.exchange.client_response import ClientResponse
from proxy.gateway.exchange.counted_close import close_counted
from proxy.gateway.exchange.deadlines import SETTINGS, Deadlines, Moments
from proxy.gateway.exchange.hand_over import Background
from proxy.gateway.exchange.lifecycle import Action, Client, End, Event, Lifecycle, Phase
from proxy.gateway.exchange.open_exchange import OpenExchange, outcome_of
from proxy.gateway.exchange.rate_limits import headers as limit_headers
from proxy.gateway.exchange.relay import Relay
from proxy.gateway.exchange.running import ExchangeSnapshot, running
from proxy.gateway.exchange.spending import Spending
from proxy.gateway.exchange.stored_response import StoredResponse
from proxy.gateway.exchange.taped_stream import TapedStream
from proxy.gateway.exchange.told_cost import TellsCost, ToldCost
from proxy.gateway.exchange.uploads import Upload
from proxy.gateway.exchange.upstream_request import ERROR_BYTES_MAX, UpstreamRequest
from proxy.gateway.ports import Ports
from proxy.gateway.tapes.tapes import Tapes
from proxy.gateway.upstream.client import Answer
from proxy.gateway.upstream.connection import UpstreamFailedError
from proxy.gateway.upstream.routing import Route
from proxy.http import errors
from proxy.http.connection import ClientConnection
from proxy.http.errors import ApiError
from proxy.http.headers import upward
from proxy.metering.dialect import Dialect
from proxy.metering.metered import BodyMeter, Metered, OpaqueMeter
from proxy.metering.request import RequestFacts
from proxy.metering.tally import Tally
from proxy.metering.wire.framing import SSE

_log = logging.getLogger(__name__)

# A provider that says that it is done and then keeps the connection open is not waited for longer than this.
AFTER_DONE_S = 5.0
# A crash may forget so much of a silence.
_SILENCE_S = 2.0
# What the client is told, as a response before the body has begun, and as an event within it.
_ERRORS: Mapping[End, Callable[[], ApiError]] = {
    End.BROKEN: errors.upstream_failed,
    End.STALLED: errors.upstream_stalled,
    End.SHUT_DOWN: errors.shutting_down,
    End.BUDGET_CUT: errors.budget_cut,
    End.BUG: errors.internal,
}


class Exchange:
    """One request, from admission to its record."""

    # What has not happened yet.
    _task: asyncio.Task[Any] | None = None
    _waits = False  # the task waits for a provider or the disk, and may be cancelled
    _ending: asyncio.Future[None] | None = None
    _answer: Answer | None = None
    _relay: Relay | None = None
    _metered: Metered | None = None
    _refusal: tuple[int, bytes | None] | None = None  # of a provider: its status and body
    _failure: UpstreamFailedError | None = None
    _reads_on = False  # for a client that is gone
    _streams = False
    _framing = SSE
    _whole = False  # the body
    _taped: TapedStream | None = None  # if it can be taken up again
    _told_cost: ToldCost | None = None  # if the client wants to know
    _told = False  # why the stream ends
    _short = False  # of budget
    _is_done = False  # the provider says so
    _counting = False  # its text is being counted
    _silence: asyncio.TimerHandle | None = None

    def __init__(
        self,
        request: web.BaseRequest,
        connection: ClientConnection,
        *,
        facts: RequestFacts,
        document: dict[str, Any],
        route: Route,
        open_exchange: OpenExchange,
        ports: Ports,
        received_at: float,
        dialect: Dialect,
        cuts: bool,
        tells_cost: TellsCost,
        project_id: str,
        background: Background,
        upload: Upload | None = None,
    ) -> None:
        """`cuts`: the stream is cut when its cost exceeds the remaining budget. `background`: takes it over if its
        provider goes on. `upload`: what the request counts for until a provider has accepted it."""
        self._request = request
        self._connection = connection
        self._facts = facts
        opened = open_exchange.opened
        tokens = opened.prompt_tokens_estimate + (opened.completion_tokens_max or 0)
        self._asking = UpstreamRequest(request, dialect, facts, document, route, ports, tokens)
        self._upload = upload
        self._open_exchange = open_exchange
        self.exchange_id = open_exchange.opened.exchange_id
        self._ports = ports
        self._loop = asyncio.get_running_loop()
        self._received_at = received_at
        self._dialect = dialect
        if tells_cost is not TellsCost.NO:
            self._told_cost = ToldCost(open_exchange, dialect, n=facts.n, asked=tells_cost is TellsCost.ASKED)
        self._named = StoredResponse(
            open_exchange, dialect, facts, ports, background, project_id=project_id, raw_path=request.raw_path
        )
        self._life = Lifecycle()
        self._details = EntryDetails()
        limits = limit_headers(open_exchange.reservation.reserved.counters, open_exchange.reservation.levels)
        self._response = ClientResponse(request, dialect, self.exchange_id, (*limits, *connection.headers))
        self._spending = Spending(open_exchange, ports.estimator)
        if cuts and self._spending.limited:
            open_exchange.reservation.on_short = self._ran_short
        now = monotonic()
        self._moments = Moments(Phase.ASKING, Client.WAITING, began_at=now, asked_at=now)
        self._deadlines = Deadlines(self._loop, route.provider.limits, self._where, self._expired)

    def running(self) -> ExchangeSnapshot:
        """Its current snapshot."""
        return running(self._open_exchange.opened, self._relay, self._spending, left=self._life.client is Client.GONE)

    # -- the way of a request

    async def run(self) -> web.StreamResponse:
        """Ask, relay, record. Returns the finished response, when the client has taken it or is gone; never raises."""
        self._task = asyncio.current_task()
        self._connection.listener = self
        try:
            if self._request.transport is None:  # it left while its request was read and admitted
                self._details.policy = "cancel"
                self._happened(Event.LEFT_CANCEL)
            else:
                if self._connection.blocked:  # by what it has not taken of an earlier answer
                    self.client_full()
                await self._until_answered()
            await self._until_ended()
        finally:
            if self._life.phase is not Phase.ENDED:
                self._ended()
        return self._response.reply

    async def _until_answered(self) -> None:
        """Ask, and begin to relay. Ends early when the exchange does."""
        self._waits = True
        self._deadlines.rearm()
        try:
            answer = self._answer = await self._asked()
            if not 200 <= answer.status < 300:
                await self._refused(answer)
                return
            self._moments.last_piece_at = monotonic()
            self._happened(Event.ACCEPTED)
            self._open_exchange.accepted = True
            self._asking.forget()
            if self._upload is not None:
                self._upload.free()
            if self._open_exchange.durable is not None:
                await self._open_exchange.durable
            self._waits = False
            if self._life.phase is Phase.ANSWERED:
                self._relay_body(answer)
                self._listen_to_silence()
        except UpstreamFailedError as failure:
            if self._life.phase is Phase.ASKING:
                self._details.failed = str(failure)
                self._failure = failure
                self._happened(Event.UNREACHABLE)
        except asyncio.CancelledError:
            self._cancelled()
        except Exception as bug:  # noqa: BLE001  logged; the exchange still ends, and says so
            self._broke_down(bug)
        finally:
            self._waits = False

    async def _asked(self) -> Answer:
        """Ask one provider after another, until one has an answer for the client. Raises UpstreamFailedError."""
        wire = self._asking.wire()
        self._ports.meters.opened(overhead_s=monotonic() - self._received_at)
        while True:
            found = await self._asking.ask(wire)
            if isinstance(found, Answer):
                return found
            # Nothing has come of it so far. Another gets it, unless nobody waits any more, or it cannot be recorded.
            if self._life.client is Client.GONE or not self._open_exchange.reassign(found.route, found.attempt):
                return found.stays()
            self._asking.fail_over(found)
            self._moments.asked_at = monotonic()
            self._deadlines.use_limits(found.route.provider.limits)
            wire = self._asking.wire()

    async def _until_ended(self) -> None:
        while self._life.phase is not Phase.ENDED or self._counting:
            self._ending = self._loop.create_future()
            try:
                await self._ending
            except asyncio.CancelledError:
                self._cancelled()

    def _cancelled(self) -> None:
        """By ourselves, since the exchange is over; or by the server, since it stops."""
        assert self._task is not None
        self._task.uncancel()
        if self._life.phase not in (Phase.CLOSING, Phase.ENDED) or not self._waits:
            self.shut_down()

    async def _refused(self, answer: Answer) -> None:
        """An answer that is not 2xx."""
        body = self._asking.refusal
        if body is None and answer.status >= 400:
            with suppress(UpstreamFailedError):
                body = await answer.read(ERROR_BYTES_MAX)
        self._waits = False
        self._details.upstream_status = answer.status
        self._refusal = answer.status, body
        if self._life.phase is Phase.ASKING:
            self._happened(Event.REFUSED)

    def _relay_body(self, answer: Answer) -> None:
        self._relay, self._framing, self._streams, collected = relay_of(
            answer, self._dialect, self._asking, self._open_exchange, self._told_cost,
            streamed=self._facts.streamed, gaps=self._ports.meters.gaps, listener=self,
        )  # fmt: skip
        if not collected:
            self._happened(Event.START)
        answer.relay_to(self._relay)  # reads, although START may have paused it
        if self._life.phase is Phase.BODY and self._life.client is Client.BLOCKED:
            answer.pause_reading()

    def _listen_to_silence(self) -> None:
        """Until the first word of a model that hides reasoning, progress is that time goes by."""
        relay = self._relay
        if relay is None or self._life.phase is not Phase.BODY or relay.first_token_at is not None:
            return
        if self._open_exchange.opened.silence is not UNSET:
            self._open_exchange.slot.wait()
            self._silence = self._loop.call_later(_SILENCE_S, self._listen_to_silence)

    # -- what happens to it: the provider's body

    def body_folded(self, meter: BodyMeter) -> None:
        """What only the meter knows: the stream is done, costs more than it holds, or a drain has read enough."""
        if self._life.phase is not Phase.BODY:
            return
        if self._named.is_awaited:
            self._read_name(meter.tally)
        self._spending.folded(meter)
        if self._short:
            self._loop.call_soon(self._cut)
        if meter.done and not self._is_done:
            self._is_done = True
            self._loop.call_soon(self._wait_for_the_end)  # most come with the last event
        if self._life.client is not Client.GONE or (self._taped is not None and self._taped.is_read):
            return
        if self._spending.generated(meter) >= self._asking.route.provider.settings.drain.tokens:
            self._details.drain_ended_by = "tokens"
            self._happened(Event.DRAINED_ENOUGH)

    def _wait_for_the_end(self) -> None:
        if self._life.phase is Phase.BODY:
            self._deadlines.set_idle(idle_s=AFTER_DONE_S)

    def body_ended(self) -> None:
        """The body is complete by its framing."""
        self._ends(broken=False)

    def body_broke(self) -> None:
        """It broke off; after the dialect's last event, nothing is missing."""
        assert self._relay is not None
        self._ends(broken=not self._relay.meter.done)

    def body_lost(self) -> None:
        """A bug of ours: a piece may be missing."""
        self._happened(Event.BUG)

    def _ends(self, *, broken: bool) -> None:
        relay, answer = self._relay, self._answer
        assert relay is not None
        assert answer is not None
        try:
            if not broken:
                relay.flush()
            metered = self._read()
            if self._named.is_awaited:
                self._read_name(metered)
            # Where only the connection's close ends a body, what the provider said tells an end from a break.
            sized = answer.head.chunked or answer.head.length is not None
            served = outcome_of(End.COMPLETE, metered) is Outcome.SERVED
            self._whole = not broken and (sized or served or metered.failed is not None)
        except Exception as bug:  # noqa: BLE001  a meter that raises
            self._broke_down(bug)
        else:
            self._happened(Event.END if self._whole else Event.BREAK)

    def _read_name(self, said: Tally | Metered) -> None:
        provider, use = self._asking.route.provider, self._asking.use
        self._named.read(said.response_id, provider, use, in_background=said.in_background)

    def _read(self) -> Metered:
        """The meter's result. Raises for a bug of the meter."""
        assert self._relay is not None
        if self._metered is None:
            self._relay.settle_counts()
            self._metered = self._relay.meter.close()
        return self._metered

    # -- the client

    def client_left(self) -> None:
        """The client has disconnected."""
        if self._life.phase in (Phase.CLOSING, Phase.ENDED):
            self._happened(Event.LEFT_CANCEL)
            return
        relay = self._relay
        if self._life.phase is Phase.BODY and relay is not None and self._got_everything(relay):
            self._happened(Event.LEFT_SERVED)
            return
        self._moments.left_at = monotonic()
        plain = relay is not None and not self._streams
        policy = self._details.policy = self._policy()
        if plain and policy == "cancel":
            self._deadlines.set_idle(idle_s=AFTER_DONE_S)
        unnamed = self._named.in_background and not self._named.still_generating(self._metered)
        self._reads_on = plain or policy in ("drain", "resume") or unnamed
        self._happened(Event.LEFT_DRAIN if self._reads_on else Event.LEFT_CANCEL)
        self._deadlines.rearm()  # a drain may be shorter than any other limit

    def _policy(self) -> str:
        """What becomes of a stream whose client is gone."""
        if self._taped is not None and self._taped.readable:
            return "resume"
        settings = self._asking.route.provider.settings
        return "background" if self._named.in_background else settings.on_client_disconnect

    def _got_everything(self, relay: Relay) -> bool:
        """SDKs close as soon as they have read the last event: that client was served."""
        relay.settle_counts()
        return relay.meter.done

    def client_full(self) -> None:
        """The client's write buffer is full."""
        self._moments.blocked_at = monotonic()
        self._happened(Event.FULL)

    def client_drained(self) -> None:
        """The client has taken all of it."""
        self._happened(Event.DRAINED)

    def shut_down(self) -> None:
        """The grace time is over."""
        if self._life.phase is not Phase.ENDED:
            self._happened(Event.SHUT_DOWN)

    # -- time and money

    def _where(self) -> Moments:
        moments, relay = self._moments, self._relay
        moments.phase, moments.client = self._life.phase, self._life.client
        if relay is not None:
            moments.last_piece_at = max(moments.last_piece_at, relay.last_at)
        if self._taped is not None and self._taped.is_read:
            moments.left_at = monotonic()
        return moments

    def _expired(self, due: Event) -> None:
        if due is Event.HEARTBEAT:
            self._moments.last_beat_at = monotonic()
        elif due is Event.DRAINED_ENOUGH:
            self._details.drain_ended_by = "seconds"
        else:
            self._details.limit = SETTINGS[due]
        if due is Event.NO_ANSWER:
            self._asking.route.provider.health.failed(monotonic())
        relay = self._relay
        if due in (Event.SILENT, Event.TOO_LONG) and relay is not None and relay.meter.done:
            self._stop()
            self._ends(broken=False)
        else:
            self._happened(due)

    def _ran_short(self) -> None:
        """The budget does not hold what it costs: cut after the piece that is being read."""
        self._short = True
        self._loop.call_soon(self._cut)

    def _cut(self) -> None:
        relay = self._relay
        if self._life.phase is Phase.BODY and relay is not None and relay.whole:
            self._happened(Event.BUDGET_CUT)

    # -- what to do about it

    def _happened(self, event: Event) -> None:
        """Take the event, and do what the table says."""
        try:
            for action in self._life.step(event):
                self._DO[action](self)
            if self._life.phase is Phase.CLOSING:
                self._life.step(Event.SENT)
        except Exception as bug:  # noqa: BLE001  logged; the exchange still ends, and says so
            self._broke_down(bug)
        if self._life.phase is Phase.ENDED:
            self._ended()

    def _broke_down(self, bug: Exception) -> None:
        """A bug of ours; a second one, while the first is dealt with, ends it all the same."""
        _log.error("%s: a bug in phase %s, client %s", self.exchange_id, self._life.phase, self._life.client)
        self._connection.log_exception(exc_info=bug)
        try:
            for action in self._life.step(Event.BUG):
                self._DO[action](self)
            if self._life.phase is Phase.CLOSING:
                self._life.step(Event.SENT)
        except Exception as second:  # noqa: BLE001  logged
            self._connection.log_exception(exc_info=second)
            self._life.phase = Phase.ENDED
            self._abort_client()
        if self._life.phase is Phase.ENDED:
            with suppress(Exception):  # perhaps the bug was there
                self._stop()
            self._ended()

    def _ended(self) -> None:
        """Nothing may happen to it any more, and nothing refers to it: a reference cycle would live until a garbage
        collection."""
        self._record()
        self._deadlines.stop()
        if self._silence is not None:
            self._silence.cancel()
        self._connection.listener = None
        self._open_exchange.reservation.on_short = None
        if self._relay is not None:
            self._relay.drop()
        if not self._counting:
            self._let_go()

    def _let_go(self) -> None:
        """It is recorded, and nothing waits for it any more."""
        if self._asking.use is not None:
            self._asking.release(None if self._open_exchange.handed_over else self._open_exchange.tokens)
        if self._ending is not None and not self._ending.done():
            self._ending.set_result(None)

    def _begin(self) -> None:
        relay, answer, transport = self._relay, self._answer, self._request.transport
        assert relay is not None
        assert answer is not None
        longer = self._streams or (self._told_cost is not None and self._told_cost.lengthens)
        length = None if longer else answer.head.length
        provider = self._asking.route.provider
        if self._response.begin(answer, provider, streamed=self._streams, length=length):
            assert transport is not None
            client: asyncio.WriteTransport = transport
            if self._ports.tapes is not None and self._streams and not answer.coding:
                client = self._with_tape(self._ports.tapes, transport, answer)
            relay.attach(client, chunked=self._response.reply.chunked_body)

    def _with_tape(self, tapes: Tapes, client: asyncio.WriteTransport, answer: Answer) -> asyncio.WriteTransport:
        """Of a stream of server-sent events, which can be taken up again."""
        if self._framing.content_type != SSE.content_type:
            return client
        self._taped = TapedStream(
            tapes, self._open_exchange.opened, self._dialect, answer, client, self._abort_client,
            heartbeat_s=self._asking.route.provider.limits.heartbeat_s, chunked=self._response.reply.chunked_body,
        )  # fmt: skip
        return self._taped.transport

    def _deliver(self) -> None:
        relay, answer = self._relay, self._answer
        assert relay is not None
        assert answer is not None
        assert relay.kept is not None, "bounded by its content length"
        body = whole = bytes(relay.kept)
        if self._asking.injected:
            body = without_usage(body, self._dialect)
        if self._told_cost is not None:
            body = self._told_cost.in_body(relay.meter, body)
        if body is not whole:
            relay.kept[:] = body
        relay.deliver(body)
        self._response.deliver(answer, self._asking.route.provider, body)
        relay.first_token_at = monotonic()

    def _send_heartbeat(self) -> None:
        assert self._relay is not None
        self._relay.heartbeat()

    def _pause(self) -> None:
        if self._answer is not None:
            self._answer.pause_reading()

    def _resume(self) -> None:
        assert self._answer is not None
        if self._relay is not None:
            self._relay.last_at = monotonic()
        self._answer.resume_reading()

    def _stop_writing(self) -> None:
        assert self._relay is not None
        if self._taped is not None and self._reads_on:
            self._taped.leave(self._relay)
        else:
            self._relay.detach()

    def _stop(self) -> None:
        if self._answer is not None:
            self._answer.close()
        if self._waits and self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    def _send_error_event(self) -> None:
        """Why a stream ends, where the provider did not break it off under the client's eyes."""
        relay, end = self._relay, self._life.end
        assert relay is not None
        assert end is not None
        self._read_anyway()
        self._told = relay.say(_ERRORS[end]().event(self._dialect.errors, self._framing))

    def _respond(self) -> None:
        """An error before the first byte of an answer; a provider's own, unless it would show what is ours."""
        if self._refusal is not None:
            status, body = self._refusal
            self._response.pass_refusal(self._answer, status, body, self._asking.route.provider)
        else:
            assert self._life.end is not None
            self._response.refuse(_ERRORS[self._life.end]() if self._failure is None else self._failure.refusal())

    def _finish(self) -> None:
        self._response.reply.end()

    def _close_client(self) -> None:
        if (transport := self._request.transport) is not None:
            transport.close()

    def _abort_client(self) -> None:
        if (transport := self._request.transport) is not None:
            transport.abort()

    def _record(self) -> None:
        """Once. What has to be estimated is recorded as soon as its text is counted."""
        if self._open_exchange.is_recorded or self._open_exchange.handed_over or self._counting:
            return
        end, relay = self._life.end or End.BUG, self._relay
        metered = self._read_anyway()
        if self._taped is not None and relay is not None:
            whole = not self._told and (self._whole or relay.meter.done)
            self._taped.end(relay, self._details, whole=whole, error_sent=self._told)
        if end is End.BUG:
            self._details.failed = "proxy_bug"
        if self._asking.use is not None:
            self._details.credential = self._asking.use.credential.name
        if self._reads_on:
            self._details.read_on_ms = round((monotonic() - self._moments.left_at) * 1000, 3)
        refused = self._refusal
        size = len(refused[1] or b"") if refused is not None else 0
        first_token_at = None if relay is None else relay.first_token_at
        self._open_exchange.silent_s = (
            monotonic() if first_token_at is None else first_token_at
        ) - self._moments.asked_at
        if self._whole and relay is not None and relay.kept is not None and self._answer is not None:
            self._open_exchange.keep(relay.kept, self._answer)
        outcome = outcome_of(end, metered, status=None if refused is None else refused[0])
        if self._named.in_background and metered is not None and relay is not None:
            provider = self._asking.route.provider
            headers = upward(self._request.headers, self._dialect.headers_up, provider.header_rules)
            if self._named.hand_over(outcome, metered, relay, provider, details=self._details, headers=headers):
                return
        self._counting = close_counted(
            self._open_exchange,
            outcome,
            metered,
            self._recorded,
            now=monotonic(),
            details=self._details,
            events=relay.events if relay else 0,
            size=relay.bytes if relay else size,
            read=relay.meter.bytes_seen if relay else 0,
            first_token_at=first_token_at,
        )

    def _recorded(self) -> None:
        """Its text is counted, or was not in time."""
        self._counting = False
        if self._life.phase is Phase.ENDED:
            self._let_go()

    def _read_anyway(self) -> Metered | None:
        """The meter's result; if it fails, an estimate from the size, since delivered bytes are never free. None: no
        body had begun."""
        relay = self._relay
        if relay is None:
            return None
        try:
            return self._read()
        except Exception:  # noqa: BLE001  the second time the same bug
            unread = OpaqueMeter()
            unread.bytes_seen = relay.bytes
            return unread.close()

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
        Action.ABORT: _abort_client,
    }
