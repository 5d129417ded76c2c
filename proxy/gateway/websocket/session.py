"""A session: relays messages between one client and one provider, and runs their exchanges.

Each happening on the two connections becomes an event of `lifecycle.py`; this class carries out its transition.
`SessionExchanges` admits and meters; the dialect's wire parses the messages of both sides.

Invariants: a request is sent to the provider when its exchange is admitted and open; a refused one is not. An event is
sent to the client when its exchange is open, durable, and has noted the event. In each direction one message is in
flight at a time: a sender whose receiver does not read is not read. After the end of the session, no message is taken.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable, Collection, Mapping
from time import monotonic
from typing import Any

from msgspec import structs

from proxy.billing.details import STOPPED_BY_OPERATOR
from proxy.foundation.slices import in_slices
from proxy.foundation.tasks import Tasks
from proxy.gateway.exchange.lifecycle import End
from proxy.gateway.exchange.metering import CutReason
from proxy.gateway.ports import Ports
from proxy.gateway.upstream.failures import UpstreamFailedError
from proxy.gateway.upstream.provider import TimeLimits
from proxy.gateway.upstream.provider_call import Failover, MayAsk
from proxy.gateway.upstream.routing import Route
from proxy.gateway.websocket.dial import DeclinedError, Line
from proxy.gateway.websocket.documents import document_of
from proxy.gateway.websocket.exchanges import SessionExchanges
from proxy.gateway.websocket.lifecycle import ABORT, Close, Event, Phase, SessionLifecycle, Transition
from proxy.gateway.websocket.timing import PING_S, Moments, Side, due, tick_s
from proxy.gateway.websocket.turn import Turn
from proxy.http import errors
from proxy.http.errors import ApiError
from proxy.http.json_body import serialise
from proxy.http.websocket import CLOSE_S, GOING_AWAY, POLICY, TEXT, Allowance, Closed, Message, PeerLostError, WebSocket
from proxy.metering.socket import ClientMessage, SocketWire

_log = logging.getLogger(__name__)

# Requests that may wait for their answers. OpenAI answers 16 at once.
WAITING_MAX = 32
# Messages of a client that are refused: so many at once, and so many a second.
REFUSED_MAX = 100
REFUSED_PER_S = 10
# The error event for the client when its session ends.
_ERRORS: Mapping[Event, Callable[[], ApiError]] = {
    Event.PROVIDER_LOST: errors.upstream_failed,
    Event.PROVIDER_BROKE: errors.upstream_failed,
    Event.PROVIDER_STALLED: errors.upstream_stalled,
    Event.NO_ANSWER: errors.upstream_stalled,
    Event.SILENT: errors.upstream_stalled,
    Event.TOO_LONG: errors.upstream_stalled,
    Event.BUDGET_CUT: errors.budget_cut,
    Event.STOP_NOW: errors.shutting_down,
    Event.BUG: errors.internal,
}
_STOPPED = Close(POLICY, "The operator has stopped this session.")
_AWAY = Closed(GOING_AWAY, by_peer=False)
_TOO_MANY_REFUSED = Closed(POLICY, "Too many messages were refused.", by_peer=False)

Dial = Callable[[Route, MayAsk], Awaitable[Line]]


class Session:
    """One session, from the client's completed handshake on."""

    def __init__(
        self,
        client: WebSocket,
        wire: SocketWire,
        exchanges: Callable[..., SessionExchanges],
        ports: Ports,
        *,
        limits: TimeLimits,
        dial: Dial,
        names_models: bool,
    ) -> None:
        """`exchanges`: makes the session's, with `cut` and `stop`. `limits`: those that apply until a provider is
        connected. `dial`: connects to a provider of a route, for the first request. `names_models`: each request names
        its model."""
        self._client = client
        self._wire = wire
        self._exchanges = exchanges(cut=self.cut, stop=self.stop_now)
        self._cut_reason: CutReason | None = None
        self._ports = ports
        self._limits = limits
        self._dial = dial
        self._names_models = names_models
        self._life = SessionLifecycle()
        self._connected = asyncio.Event()
        self._over = asyncio.Event()
        self._last: tuple[Event, Transition, Closed | None] | None = None
        now = monotonic()
        self._said_at = self._answered_at = self._pinged_at = now
        self._left_at = 0.0
        self._refusals = Allowance(REFUSED_MAX, REFUSED_PER_S)
        self._is_unreachable = False  # no provider could be connected to
        self._reading = asyncio.Lock()  # of messages by the wire: a long one is read in a thread

    async def run(self, line: Line | None) -> None:
        """Run until both sides are closed. `line`: the provider's side, if it is connected. Raises only if it is
        cancelled."""
        tasks = Tasks()
        try:
            if line is not None:
                self._connect(line)
            for loop in (self._read_client, self._read_provider, self._notice_loss, self._watch):
                tasks.start(self._guarded(loop), name=f"websocket {loop.__name__}")
            await self._over.wait()
        finally:
            if self._life.phase is not Phase.ENDED:  # cancelled
                self._happened(Event.STOP_NOW)
            await tasks.stop()
            assert self._last is not None
            self._exchanges.end_all(self._end)  # exchanges admitted during the end
            self._exchanges.drop()
            try:
                await self._close()
                await self._exchanges.until_recorded()
            finally:
                self._exchanges.release_credential()

    def stop(self) -> None:
        """The proxy stops: running exchanges may continue within the grace time."""
        self._happened(Event.STOP_BUSY if self._exchanges.open else Event.STOP_IDLE)

    def stop_now(self) -> None:
        """The grace time is over."""
        self._happened(Event.STOP_NOW)

    def cut(self, reason: CutReason) -> None:
        """End the session, with its exchanges, after the current message."""
        if self._cut_reason is not CutReason.OPERATOR:
            self._cut_reason = reason
        asyncio.get_running_loop().call_soon(self._happened, Event.BUDGET_CUT)

    # -- what happens

    def _happened(self, event: Event, closed: Closed | None = None) -> None:
        """Take the event. `closed`: the received close frame, or the reason why a side must be closed."""
        if self._life.phase is Phase.ENDED:
            return
        try:
            transition = self._life.step(event)
        except AssertionError as bug:
            self._broke_down(bug)
            return
        if transition.phase is Phase.LEAVING:
            self._left_at = monotonic()
            self._note(policy="drain")
        if transition.phase is Phase.ENDED:
            self._last = event, transition, closed
            self._over.set()
            if transition.end is End.CLIENT_LEFT and self._left_at == 0.0:
                self._note(policy="cancel")
            if self._is_stopped_by_operator:
                self._note(failed=STOPPED_BY_OPERATOR)
            self._exchanges.end_all(self._end)

    @property
    def _end(self) -> End:
        """How exchanges end with the session."""
        end = None if self._last is None else self._last[1].end
        return End.BUG if end is None else end

    @property
    def _is_stopped_by_operator(self) -> bool:
        """Whether an operator has ended the session."""
        is_cut = self._last is not None and self._last[0] is Event.BUDGET_CUT
        return is_cut and self._cut_reason is CutReason.OPERATOR

    def _note(self, **details: str) -> None:
        for turn in self._exchanges.open:
            turn.details = structs.replace(turn.details, **details)

    def _broke_down(self, bug: BaseException) -> None:
        """Log a bug's traceback without its message, which may quote the client; the session ends."""
        where = "".join(traceback.format_tb(bug.__traceback__))
        _log.error("a session failed: %s\n%s", type(bug).__name__, where)
        self._happened(Event.BUG)

    async def _guarded(self, loop: Callable[[], Awaitable[None]]) -> None:
        try:
            await loop()
        except Exception as bug:  # noqa: BLE001  logged; the session still ends, and says so
            self._broke_down(bug)

    def _settled(self) -> None:
        """A message was processed: it may have ended the last exchange."""
        if self._life.phase in (Phase.STOPPING, Phase.LEAVING) and not self._exchanges.open:
            self._happened(Event.DONE)

    # -- the client

    async def _read_client(self) -> None:
        while self._life.phase is not Phase.ENDED:
            try:
                found = await self._client.receive()
            except PeerLostError:
                self._client_gone(None)
                return
            if isinstance(found, Closed):
                await self._client_closed(found)
                return
            self._said_at = monotonic()
            await self._take_up(found)
            self._settled()

    async def _notice_loss(self) -> None:
        """Notice the loss of the client's connection, also while a message waits for its exchange."""
        await self._client.until_lost()
        self._client_gone(None)

    async def _client_closed(self, closed: Closed) -> None:
        if closed.by_peer:
            self._client_gone(closed)
        elif self._life.phase is not Phase.LEAVING:
            self._happened(Event.CLIENT_BROKE, closed)
        if self._life.phase is Phase.LEAVING:
            await self._client.close(closed.code, closed.reason)

    def _client_gone(self, closed: Closed | None) -> None:
        if self._life.phase is Phase.LEAVING:
            return  # both directions notice it
        line = self._exchanges.line
        drains = line is not None and line.route.provider.settings.on_client_disconnect == "drain"
        runs = any(turn.runs for turn in self._exchanges.open)
        self._happened(Event.CLIENT_LEFT if drains and runs else Event.CLIENT_CLOSED, closed)

    async def _take_up(self, message: Message) -> None:
        """Relay a message of the client, unless it is refused."""
        ask: ClientMessage | None = None
        try:
            payload = message.payload
            document = await in_slices(len(payload), document_of, message)
            if document is not None:
                async with self._reading:
                    read, files = await in_slices(len(payload), self._exchanges.read, document)
                ask = read
                payload = await self._admitted(document, read, files, payload)
            elif self._exchanges.line is None:
                raise errors.nothing_asked()
            line = self._exchanges.line
            assert line is not None, "an exchange was admitted, or an earlier request connected the provider"
            await line.socket.send(Message(message.kind, payload))
        except ApiError as refusal:
            await self._refuse(refusal, ask)
        except PeerLostError:
            self._happened(Event.PROVIDER_LOST)

    async def _admitted(
        self, document: dict[str, Any], ask: ClientMessage, files: Collection[str], payload: bytes
    ) -> bytes:
        """The bytes for the provider. Raises ApiError."""
        if ask.facts is None:
            if self._exchanges.line is None:
                raise errors.nothing_asked()
            await self._exchanges.may_name(ask, files)
            if ask.transcriber is not None:
                await self._exchanges.may_transcribe(ask.transcriber)
            if ask.model is None:
                return payload
            upstream_model = await self._exchanges.may_have_model(ask.model)
            return await in_slices(
                len(payload), serialise, self._wire.upstream(document, upstream_model=upstream_model)
            )
        if self._life.phase is not Phase.OPEN:
            raise errors.shutting_down()
        if self._exchanges.waiting >= WAITING_MAX:
            raise errors.too_many_waiting(WAITING_MAX)
        turn = await self._exchanges.admit(document, ask, files)
        try:
            if self._exchanges.line is None:
                await self._connect_for(turn)
            if self._names_models:
                document = self._wire.upstream(document, upstream_model=turn.open_exchange.opened.upstream_model)
                payload = await in_slices(len(payload), serialise, document)
            self._exchanges.went_up(ask, turn)
        except BaseException:
            if not turn.ended:
                self._exchanges.end(turn, self._end)
            raise
        return payload

    async def _connect_for(self, turn: Turn) -> None:
        """Connect to a provider of the request's model. Raises ApiError."""

        def may_ask(to: Failover) -> bool:
            return turn.open_exchange.reassign(to.route, to.attempt)

        try:
            self._connect(await self._dial(turn.route, may_ask))
        except DeclinedError as declined:
            self._is_unreachable = True
            self._exchanges.end(turn, End.REFUSED, status=declined.status)
            raise declined.refusal from None
        except UpstreamFailedError as failure:
            self._is_unreachable = True
            turn.details.failed = str(failure)
            self._exchanges.end(turn, End.UNREACHABLE)
            raise failure.refusal() from None

    def _connect(self, line: Line) -> None:
        self._exchanges.line = line
        self._limits = line.route.provider.limits
        self._answered_at = monotonic()
        self._connected.set()

    async def _refuse(self, refusal: ApiError, ask: ClientMessage | None) -> None:
        """Send the reason why a message is not relayed. The session ends if all later requests would be refused,
        too."""
        self._ports.meters.refused(refusal.status, refusal.code)
        if self._ports.refusals is not None and refusal.about is not None:
            self._ports.refusals.note(refusal)
        await self._say(refusal, ask)
        if refusal.status == 401:
            self._happened(Event.REFUSED)
        elif self._is_unreachable:
            self._happened(Event.UNREACHABLE)
        elif not self._refusals.take():
            await self._client_closed(_TOO_MANY_REFUSED)

    async def _say(self, refusal: ApiError, ask: ClientMessage | None) -> None:
        try:
            await self._client.send(Message(TEXT, serialise(self._wire.error(refusal, ask))))
        except PeerLostError:
            self._client_gone(None)

    # -- the provider

    async def _read_provider(self) -> None:
        await self._connected.wait()
        line = self._exchanges.line
        assert line is not None
        while self._life.phase is not Phase.ENDED:
            try:
                found = await line.socket.receive()
            except PeerLostError:
                self._happened(Event.PROVIDER_LOST)
                return
            if isinstance(found, Closed):
                self._happened(Event.PROVIDER_CLOSED if found.by_peer else Event.PROVIDER_BROKE, found)
                return
            self._said_at = self._answered_at = monotonic()
            await self._take_down(found)
            self._settled()

    async def _take_down(self, message: Message) -> None:
        """Meter a message of the provider, and relay it if the client is there."""
        delivered = self._life.phase is not Phase.LEAVING
        try:
            async with self._reading:
                await self._exchanges.take(message.payload, delivered=delivered)
        except ApiError as refusal:
            self._ports.meters.refused(refusal.status, refusal.code)
            if delivered:
                await self._say(refusal, None)
            self._happened(Event.REFUSED)
            return
        if delivered and self._life.phase is not Phase.ENDED:
            try:
                await self._client.send(message)
            except PeerLostError:
                self._client_gone(None)
        elif self._life.phase is Phase.LEAVING:
            self._look_at_drain()

    def _look_at_drain(self) -> None:
        line = self._exchanges.line
        assert line is not None
        if self._exchanges.generated() >= line.route.provider.settings.drain.tokens:
            self._note(drain_ended_by="tokens")
            self._happened(Event.DRAINED_ENOUGH)

    # -- time

    async def _watch(self) -> None:
        """Check the deadlines, and send pings so that neither connection is closed as idle."""
        while True:
            await asyncio.sleep(tick_s(self._limits))
            now = monotonic()
            expired = due(now, self._moments(now), self._limits)
            if expired is Event.CLIENT_CLOSED:
                self._client_gone(None)
            elif expired is not None:
                self._note(limit=expired.value)
                self._happened(expired)
            if now >= self._pinged_at + PING_S:
                self._pinged_at = now
                await self._ping()

    async def _ping(self) -> None:
        line = self._exchanges.line
        if self._life.phase is not Phase.LEAVING:
            await self._client.ping()
        if line is not None:
            await line.socket.ping()

    def _moments(self, now: float) -> Moments:
        line, turns = self._exchanges.line, self._exchanges.open
        waiting = [turn.began_at for turn in turns if not turn.runs]
        return Moments(
            phase=self._life.phase,
            client=_side(self._client, now),
            provider=None if line is None else _side(line.socket, now),
            said_at=self._said_at,
            answered_at=self._answered_at,
            asked_at=min(waiting, default=None),
            runs=len(waiting) < len(turns),
            began_at=min((turn.began_at for turn in turns), default=None),
            left_at=self._left_at,
        )

    # -- the end

    async def _close(self) -> None:
        """Send the reason to the client, and close both sides, by the last transition."""
        assert self._last is not None
        event, transition, closed = self._last
        line = self._exchanges.line
        assert transition.client is not None
        assert transition.provider is not None
        of_client, error = transition.client, _ERRORS.get(event)
        if self._is_stopped_by_operator and transition.sends_error:
            of_client, error = _STOPPED, errors.stopped_by_operator
        if transition.sends_error:
            assert error is not None
            try:
                async with asyncio.timeout(CLOSE_S):
                    await self._say(error(), None)
            except TimeoutError:
                pass
        sides = [_closed(self._client, of_client, closed)]
        if line is not None:
            sides.append(_closed(line.socket, transition.provider, closed or _AWAY))
        await asyncio.gather(*sides)


async def _closed(side: WebSocket, how: Close, closed: Closed | None) -> None:
    if how is ABORT or (how.code is None and closed is None):
        side.abort()
    elif how.code is not None:
        await side.close(how.code, how.reason)
    elif closed is not None:
        await side.close(closed.code, closed.reason)


def _side(socket: WebSocket, now: float) -> Side:
    return Side(socket.heard_at if socket.is_read else now, socket.writing_since)
