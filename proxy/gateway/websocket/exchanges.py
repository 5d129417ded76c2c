"""The exchanges of one session: admitted, opened, fed and ended.

Invariants: each exchange is admitted by the current state of the key, at the session's provider. Everything that the
provider bills belongs to an exchange: a request of the client, an answer that the provider began by itself, or a
transcription. Each exchange ends once; `end_all` ends all that are open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, structs
from multidict import CIMultiDictProxy

from proxy.billing.details import EntryDetails
from proxy.billing.keys import ApiKey
from proxy.billing.limits import OnExhausted
from proxy.billing.pricing.prices import by_time_alone
from proxy.billing.pricing.rules import Payer
from proxy.billing.record import Outcome, Price
from proxy.foundation.ids import exchange_id
from proxy.foundation.slices import until_done
from proxy.gateway.authentication import about_key
from proxy.gateway.exchange.lifecycle import End
from proxy.gateway.exchange.metering import CutReason
from proxy.gateway.exchange.opener import ExchangeOpener, checked
from proxy.gateway.exchange.running import ExchangeOwners, LiveExchange
from proxy.gateway.exchange.stored_response import owner_of
from proxy.gateway.ports import Ports
from proxy.gateway.upstream.routing import Route, only_at
from proxy.gateway.websocket.turn import Turn
from proxy.gateway.websocket.turns import Turns
from proxy.http import errors
from proxy.http.errors import ApiError
from proxy.http.headers import TRACEPARENT
from proxy.keys.keyring import Keyring
from proxy.metering.dialect import Dialect
from proxy.metering.file_ids import file_ids
from proxy.metering.held_text import AnswerText
from proxy.metering.meter import StreamMeter
from proxy.metering.request import RequestFacts
from proxy.metering.socket import ClientMessage, ExchangeKind, ProviderEvent, SocketWire
from proxy.metering.wire.framing import MessageFramer
from proxy.metering.wire.outline import UnreadText, bounded
from proxy.metering.wire.parts import TEXT_MARKS_MAX

if TYPE_CHECKING:
    from proxy.gateway.websocket.dial import Line


def check_metered(route: Route, at: float, payer: Payer, model: str) -> None:
    """Check the model of a session. Raises ApiError if the provider bills it by the time of the connection, which no
    usage reports."""
    if by_time_alone(route.prices(at, payer)[0]):
        raise errors.billed_by_time(model)


NO_MESSAGE: Mapping[str, Any] = {}


class SessionExchanges:
    """The exchanges of one session. `line`: the provider's side, once it is connected."""

    def __init__(
        self,
        *,
        keys: Keyring,
        authenticate: Callable[[], Awaitable[ApiKey]],
        opener: ExchangeOpener,
        ports: Ports,
        dialect: Dialect,
        wire: SocketWire,
        model: str,
        live: set[LiveExchange],
        owners: ExchangeOwners,
        headers: CIMultiDictProxy[str],
        cut: Callable[[CutReason], None],
        stop: Callable[[], None],
    ) -> None:
        """`authenticate`: returns the session's key, or raises ApiError if it is not valid any more. `model`: the
        client's name of the session's model; empty: each request names a model, and the last one counts. `headers`:
        those of the handshake. `cut`: ends the session after the current message. `stop`: ends it at once."""
        self._cut, self._stop = cut, stop
        self.line: Line | None = None
        self.tokens = 0
        """tokens of the exchanges that have ended"""
        self._keys = keys
        self._authenticate = authenticate
        self._opener = opener
        self._ports = ports
        self._dialect = dialect
        self._wire = wire
        self._model, self._has_no_model = model, not model
        self._names: dict[str, str] = {}  # the provider's name of a model that the session may have → the client's
        self._live = live
        self._owners = owners
        self._headers = headers
        self._turns: Turns[Turn] = Turns()
        self.open: set[Turn] = set()
        """exchanges that have not ended"""
        self._unrecorded: set[Turn] = set()  # ended exchanges without a record yet
        self._waiter: asyncio.Future[None] | None = None  # waits for their records

    @property
    def waiting(self) -> int:
        """How many requests wait for their answers to begin."""
        return self._turns.waiting

    # -- requests of the client

    def read(self, document: dict[str, Any]) -> tuple[ClientMessage, Collection[str]]:
        """A message of the client, and the ids of files that it names. Raises ApiError."""
        return checked(self._wire.read_message, document), file_ids(document) if self._dialect.names_files else ()

    async def admit(self, document: dict[str, Any], ask: ClientMessage, files: Collection[str]) -> Turn:
        """Open the exchange of a request, which is not sent yet. `document`: the message. `files`: the ids of those
        that it names. Raises ApiError."""
        assert ask.facts is not None
        received_at = monotonic()
        for turn in self._turns.failed_in(ask.stream_id):
            self.end(turn, End.BROKEN)
        key, facts = await self._authenticate(), ask.facts
        facts = structs.replace(facts, model=facts.model or self._now()[0])
        try:
            route = self._route(facts.model, key)
            if self._has_no_model:
                self._model = facts.model
            route = await self._opener.pin_provider(route, facts.continues, files, key)
            return await self._open(ExchangeKind.ANSWER, facts, key, route, received_at, document=document)
        except ApiError as refusal:
            refusal.about = about_key(key, self._dialect.endpoint, facts.model)
            raise

    def went_up(self, ask: ClientMessage, turn: Turn) -> None:
        """The request was sent: its answer may begin."""
        self._turns.asked(ask.stream_id, ask.event_id, turn)

    async def may_name(self, ask: ClientMessage, files: Collection[str]) -> None:
        """Check the response and the files that a message names, if it requests no answer. Raises ApiError if the key
        may not use one."""
        if ask.continues is None and not files:
            return
        assert self.line is not None
        route = replace(self.line.route, others=())
        await self._opener.pin_provider(route, ask.continues, files, await self._authenticate())

    async def may_have_model(self, model: str) -> str:
        """The provider's name of the model that the client requests for the session. Raises ApiError."""
        key = await self._authenticate()
        route = self._route(model, key)
        check_metered(route, self._ports.unix_time(), self._keys.payer(key), model)
        upstream_model = route.upstream_model
        self._names[upstream_model] = model
        return upstream_model

    async def may_transcribe(self, model: str) -> None:
        """Check a model for transcriptions. Raises ApiError if the key may not use it, or its budget cannot be
        enforced."""
        key = await self._authenticate()
        route, access = self._transcribing(model, key), self._keys.access(key)
        price, _ = route.prices(self._ports.unix_time(), access.payer)
        limits = [one.limits for one in access.scopes] + [one.limits for one in access.rules]
        if (key.caps or any(one.spends for one in limits)) and (price is None or not price.tiers):
            raise errors.model_unpriced(model)

    # -- events of the provider

    async def take(self, message: bytes, *, delivered: bool) -> None:
        """Meter an event of the provider. `delivered`: it is about to be written to the client. Raises ApiError if its
        exchange may not run."""
        heard = self._wire.parse(message if len(message) <= TEXT_MARKS_MAX else await _readable(message))
        step = self._turns.step(heard)
        for over in step.over:
            self.end(over, End.BROKEN)
        turn = step.turn
        if step.opens:
            turn = await self._begun(heard)
            self._turns.opened(heard, turn)
        if turn is None:
            return
        await turn.until_durable()
        if not step.refused:
            turn.feed(message, delivered=delivered)
            if turn.meter.behind:
                await turn.catch_up()
                if turn.ended:
                    return
            self._name(turn, heard)
        if step.ends:
            status = heard.status or 400 if step.refused else None
            self.end(turn, self._end_of(delivered=delivered, refused=step.refused), status=status, heard=heard)

    @staticmethod
    def _end_of(*, delivered: bool, refused: bool) -> End:
        if refused:
            return End.REFUSED
        return End.COMPLETE if delivered else End.CLIENT_LEFT

    async def _begun(self, heard: ProviderEvent) -> Turn:
        """Open an exchange for an answer that the provider began by itself. Raises ApiError."""
        received_at, key = monotonic(), await self._authenticate()
        facts = self._wire.facts_of(heard)
        if heard.kind is ExchangeKind.TRANSCRIPT:
            route = self._transcribing(facts.model, key)
            # It is no request of the client: only money limits it, not limits on the number of requests.
            return await self._open(heard.kind, facts, key, route, received_at, money_only=True)
        facts = structs.replace(facts, model=facts.model or self._now()[0])
        return await self._open(heard.kind, facts, key, self._route(facts.model, key), received_at)

    def _name(self, turn: Turn, heard: ProviderEvent) -> None:
        """The provider has sent the id of the response: store the owner before a client can get the id."""
        response_id = turn.meter.tally.response_id
        if turn.named or response_id is None or not (self._dialect.stores and turn.facts.is_stored):
            return
        turn.named = True
        use = None if self.line is None else self.line.use
        owner = owner_of(turn.open_exchange.opened, turn.project_id, self._dialect, use)
        self._ports.owners.made(response_id, owner)

    # -- opening and ending

    def _now(self) -> tuple[str, str | None]:
        """The client's name of the session's model; and the provider's name, if the client has not named the model."""
        stated, line = self._wire.stated_model, self.line
        if stated is None or line is None:
            return self._model, None
        if (name := self._names.get(stated)) is not None:
            return name, None
        first = line.route.upstream_model
        return self._model, None if stated == first or stated.startswith(f"{first}-") else stated

    def _route(self, model: str, key: ApiKey) -> Route:
        """The route of a model, at the session's provider once it is connected. Raises ApiError."""
        route = self._opener.find_route(model, key, self._dialect)
        if self.line is None:
            return self._opener.order_by_health(route, model)
        name = self.line.route.provider.settings.name
        route = only_at(route, name)
        if route.provider.settings.name != name:
            raise errors.other_provider(model)
        return replace(route, others=())

    def _transcribing(self, model: str, key: ApiKey) -> Route:
        """The route of the provider's model that transcribes the client's audio, by the provider's name. Raises
        ApiError."""
        assert self.line is not None
        if not key.allows(model):
            raise errors.model_not_allowed(model)
        route = self.line.route
        prices_of = route.prices

        def prices(at: float, payer: Payer, other: str | None = None) -> tuple[Price | None, Price | None]:
            return prices_of(at, payer, other or model)

        return Route(route.provider, model, prices)

    async def _open(
        self,
        kind: ExchangeKind,
        facts: RequestFacts,
        key: ApiKey,
        route: Route,
        received_at: float,
        *,
        money_only: bool = False,
        document: Mapping[str, Any] = NO_MESSAGE,
    ) -> Turn:
        requested = document.get("response")
        dimensions = self._ports.dimensions
        sent = dimensions.sent(
            key, self._headers, self._dialect.name, requested if isinstance(requested, dict) else document
        )
        open_exchange = await self._opener.admit(
            exchange_id(), self._dialect, key, facts, route, received_at,
            await dimensions.ids(key, sent) if sent else UNSET, money_only=money_only,
        )  # fmt: skip
        try:
            open_exchange.traceparent = self._headers.get(TRACEPARENT) if self._ports.traces is not None else None
            meter = StreamMeter(self._wire.tally(kind), MessageFramer())
            if kind is ExchangeKind.ANSWER:
                meter.tally.served_model = self._now()[1]
                if route.counter is not None and route.counter.room is not None:
                    meter.tally.hold(AnswerText(route.counter.room))
            turn = Turn(
                open_exchange, meter, facts, self._ports.estimator,
                route=route, project_id=key.project_id, began_at=monotonic(), cut=self._cut, stop=self._stop,
            )  # fmt: skip
        except BaseException:
            open_exchange.close(Outcome.CRASHED, now=monotonic(), details=EntryDetails(failed="proxy_bug"))
            raise
        if key.on_exhausted is OnExhausted.CUT and turn.spending.limited:
            open_exchange.reservation.on_short = partial(self._cut, CutReason.BUDGET)
        self.open.add(turn)
        self._live.add(turn)
        self._owners.began(turn.exchange_id, key.key_id)
        self._ports.meters.opened(overhead_s=monotonic() - received_at)
        return turn

    def end(self, turn: Turn, end: End, *, status: int | None = None, heard: ProviderEvent | None = None) -> None:
        """End an exchange: its record is written as soon as its text is counted."""
        line = self.line
        if line is not None and line.use is not None:
            turn.details.credential = line.use.credential.name
        turn.open_exchange.reservation.on_short = None
        self.open.discard(turn)
        self._unrecorded.add(turn)
        usage = turn.end(end, partial(self._recorded, turn), status=status)
        if heard is not None and end in (End.COMPLETE, End.CLIENT_LEFT):
            self._wire.ended(heard, usage)

    def _recorded(self, turn: Turn) -> None:
        self._unrecorded.discard(turn)
        self._live.discard(turn)
        self._owners.ended(turn.exchange_id)
        self.tokens += turn.open_exchange.tokens
        if not self._unrecorded and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def until_recorded(self) -> None:
        """Wait until every ended exchange has its record: the text of some is still counted."""
        if self._unrecorded:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def release_credential(self) -> None:
        """End the use of the provider's credential."""
        if self.line is not None and self.line.use is not None:
            self.line.use.end(self.tokens)

    def end_all(self, end: End) -> None:
        """End all exchanges: the session has ended."""
        self._turns.clear()
        for turn in list(self.open):
            self.end(turn, end)

    def drop(self) -> None:
        """Drop the references to the session: a cycle would live until a garbage collection."""
        self._cut = self._stop = _nothing

    def generated(self) -> int:
        """Estimated completion tokens of the running exchanges."""
        return sum(turn.spending.generated(turn.meter) for turn in self.open if turn.runs)


def _nothing(_reason: CutReason | None = None) -> None: ...


async def _readable(message: bytes) -> bytes:
    """The message, or its outline if it cannot be parsed at once."""
    text = bounded(message)
    if isinstance(text, UnreadText):
        await until_done(text.read_part)
        text = text.text()
    return text
