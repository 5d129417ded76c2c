"""One exchange of a session, from admission to its record.

Invariants: progress is recorded before the write to the client. The exchange ends once, even after an exception.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from proxy.billing.details import EntryDetails
from proxy.foundation.slices import until_done
from proxy.gateway.exchange.body import unread
from proxy.gateway.exchange.ending import close_counted
from proxy.gateway.exchange.lifecycle import End
from proxy.gateway.exchange.metering import CutReason
from proxy.gateway.exchange.open_exchange import OpenExchange, outcome_of
from proxy.gateway.exchange.running import ExchangeSnapshot, snapshot
from proxy.gateway.exchange.spending import Spending
from proxy.gateway.upstream.routing import Route
from proxy.metering.estimator.estimate import Estimator
from proxy.metering.meter import StreamMeter
from proxy.metering.metered import Metered
from proxy.metering.request import RequestFacts
from proxy.metering.usage import NO_USAGE, Usage


class Turn:
    """A request that waits for its answer, or the answer."""

    def __init__(
        self,
        open_exchange: OpenExchange,
        meter: StreamMeter,
        facts: RequestFacts,
        estimator: Estimator,
        *,
        route: Route,
        project_id: str,
        began_at: float,
        cut: Callable[[CutReason], None],
        stop: Callable[[], None],
    ) -> None:
        """`began_at`: by `time.monotonic`. `cut`: ends the session after the current message. `stop`: ends it at
        once."""
        self.exchange_id = open_exchange.opened.exchange_id
        self.open_exchange = open_exchange
        self.facts = facts
        self.meter = meter
        self.spending = Spending(open_exchange, estimator)
        self.route = route
        self.project_id = project_id
        self.began_at = began_at
        self.runs = False
        """the provider has begun to answer"""
        self.ended = False
        self.details = EntryDetails(transport="websocket")
        self.named = False
        """the id of the answer is known"""
        self._cut = cut
        self._stop = stop
        self._events = self._size = 0  # those written to the client
        self._first_token_at: float | None = None

    async def until_durable(self) -> None:
        """Wait until the exchange is durable: none of its events may be relayed earlier."""
        durable = self.open_exchange.durable
        if durable is not None:
            await durable
            self.open_exchange.durable = None

    def feed(self, message: bytes, *, delivered: bool) -> None:
        """Meter an event of the answer. `delivered`: it is about to be written to the client."""
        self.runs = self.open_exchange.accepted = True
        self.meter.feed(message)
        self.meter.fold()
        if delivered:
            self._events += 1
            self._size += len(message)
        self._note()

    async def catch_up(self) -> None:
        """Meter the rest of a long event."""
        await until_done(self.meter.catch_up)
        if not self.ended:
            self._note()

    def _note(self) -> None:
        meter, slot = self.meter, self.open_exchange.slot
        tally = meter.tally
        if self._first_token_at is None and (not tally.evidence.empty or tally.usage is not None):
            self._first_token_at = monotonic()
        slot.note(tally.evidence, tally.usage, tally.events, tally.running, tally.seen)
        if self._events:
            slot.deliver(self._events, self._size)
        self.spending.folded(meter)

    def end(self, end: End, recorded: Callable[[], None], *, status: int | None = None) -> Usage:
        """Write the record, at once or as soon as its text is counted, and then call `recorded`. `status`: the status
        of a refused request. Returns the reported part of the usage."""
        assert not self.ended, "an exchange ends once"
        self.ended = True
        metered = self._metered()
        if end is End.BUG:
            self.details.failed = "proxy_bug"
        if status is not None:
            self.details.upstream_status = status
        first = monotonic() if self._first_token_at is None else self._first_token_at
        self.open_exchange.silent_s = first - self.began_at
        is_counting = close_counted(
            self.open_exchange,
            outcome_of(end, metered, status=status),
            metered,
            recorded,
            now=monotonic(),
            events=self._events,
            size=self._size,
            read=self.meter.bytes_seen,
            first_token_at=self._first_token_at,
            details=self.details,
        )
        if not is_counting:
            recorded()
        return NO_USAGE if metered is None or metered.usage is None else metered.usage

    def _metered(self) -> Metered | None:
        """The meter's result; if it fails, an estimate from the size, since delivered bytes are never free. None: no
        answer had begun."""
        if not self.runs:
            return None
        try:
            if self.meter.behind:  # the session ends within the event
                self.meter.give_up()
            return self.meter.close()
        except Exception:  # noqa: BLE001  a bug of the meter
            return unread(self._size)

    def running(self) -> ExchangeSnapshot:
        """The current snapshot of the exchange."""
        usage = (
            self.spending.usage(self.meter) if self.runs else Usage(self.open_exchange.opened.prompt_tokens_estimate)
        )
        reported = self.meter.tally.usage
        return snapshot(
            self.open_exchange.opened,
            usage,
            reported=reported is not None and reported.completion_tokens is not None,
            state="streaming" if self.runs else "waiting",
            events=self._events,
            size=self._size,
        )

    def stop_stream(self) -> bool:
        """An operator stops it: its session ends, with all exchanges of the session."""
        if self.ended:  # the session may have a later one
            return False
        self._cut(CutReason.OPERATOR)
        return True

    def shut_down(self) -> None:
        """The grace time is over."""
        self._stop()
